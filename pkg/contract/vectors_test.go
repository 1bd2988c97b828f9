package contract_test

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
)

const vectorsFile = "testdata/signatures.json"

var rewrite = flag.Bool("rewrite", false, "write "+vectorsFile)

// Results of vectors.
const (
	valid   = "valid"
	forged  = "forged"
	expired = "expired"
	invalid = "invalid" // the body is not a valid envelope
)

// vectors are envelopes and callbacks with the result that every implementation must return.
type vectors struct {
	About     string            `json:"about"`
	Secrets   map[string]string `json:"secrets"` // by key id; a secret is the bytes of the text
	Envelopes []envelopeVector  `json:"envelopes"`
	Callbacks []callbackVector  `json:"callbacks"`
}

type envelopeVector struct {
	Name   string     `json:"name"`
	Now    event.Time `json:"now"`
	Result string     `json:"result"`
	// Body is the body of POST /execute.
	Body string `json:"body"`
}

type callbackVector struct {
	Name   string     `json:"name"`
	Now    event.Time `json:"now"`
	Result string     `json:"result"`
	// URL and Authorization are those of the request. If Authorization is empty, the URL contains the signature, as in
	// contract 1.0.
	URL           string `json:"url"`
	Authorization string `json:"authorization,omitempty"`
}

// independentMAC computes a signature as the documentation of the contract describes it.
func independentMAC(keyID, signedDomain string, fields ...string) string {
	derive := hmac.New(sha256.New, keys.Secrets[keyID])
	derive.Write([]byte("servo/" + signedDomain))
	h := hmac.New(sha256.New, derive.Sum(nil))
	for _, f := range fields {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(f))))
		h.Write([]byte(f))
	}
	return base64.RawURLEncoding.EncodeToString(h.Sum(nil))
}

// signedBy returns an envelope with the fields of env and extra, signed for a domain.
func signedBy(t *testing.T, env *contract.Envelope, signedDomain string, extra map[string]any) string {
	t.Helper()
	canonical := func(v any) []byte {
		raw, err := json.Marshal(v)
		require.NoError(t, err)
		out := jsontext.Value(raw)
		require.NoError(t, out.Canonicalize())
		return out
	}
	env.Auth = contract.Auth{KeyID: keys.Current, ExpiresAt: hour}
	var fields map[string]any
	require.NoError(t, json.Unmarshal(canonical(env), &fields))
	maps.Copy(fields, extra)
	auth := fields["auth"].(map[string]any)
	auth["signature"] = independentMAC(keys.Current, signedDomain, "servo envelope 1", string(canonical(fields)))
	return string(canonical(fields))
}

func replaced(t *testing.T, text, from, to string) string {
	t.Helper()
	require.Contains(t, text, from)
	return strings.Replace(text, from, to, 1)
}

func envelopeVectors(t *testing.T) []envelopeVector {
	env := envelope()
	env.Callbacks.Finished = ""
	env.Callbacks.Started, env.Callbacks.Authorization.Started = contract.SignCallback("https://api.example.com", callback(contract.VerbStarted), keys)
	seal := func(env *contract.Envelope, keys contract.Keyring) string {
		body, err := contract.Seal(env, keys, hour)
		require.NoError(t, err)
		return string(body)
	}
	sealed := seal(env, keys)
	require.Equal(t, sealed, signedBy(t, env, domain.Tenant+"/"+domain.Workspace, nil), "the documented signature differs")
	seal(env, keys)
	formatted, err := json.MarshalIndent(env, "", "  ")
	require.NoError(t, err)

	other := envelope()
	asset, cell := ids.AssetKey{Namespace: "raw", Name: "events"}, ids.Partition{"city": `Zürich <&> "東京" 🌍`}
	other.TaskKey, other.PartitionKey = ids.TaskKey(asset, cell), cell.Key()
	other.AttemptID = ids.AttemptID(domain, runID, other.TaskKey, 1)
	other.MaterializationID = ids.MaterializationID(domain, runID, other.TaskKey)

	previous := keys
	previous.Current = "k1"
	extra := map[string]any{"future": map[string]any{"b": 1, "a": []any{true, nil, "é"}}}
	unknown := signedBy(t, envelope(), domain.Tenant+"/"+domain.Workspace, extra)
	return []envelopeVector{
		{"canonical JSON", start, valid, sealed},
		{"other order and spaces: the signature covers the canonical form", start, valid, string(formatted)},
		{"text beyond ASCII", start, valid, seal(other, keys)},
		{"a key that no longer signs", start, valid, seal(envelope(), previous)},
		{"an unknown field, which is signed", start, valid, unknown},
		{"the last microsecond", hour - 1, valid, sealed},
		{"the time of expiry", hour, expired, sealed},
		{"a changed value", start, forged, replaced(t, sealed, "/x.json", "/y.json")},
		{"a changed unknown field", start, forged, replaced(t, unknown, "é", "e")},
		{"an added field", start, forged, replaced(t, sealed, `{"asset_key"`, `{"added":1,"asset_key"`)},
		{"signed for another domain", start, forged, signedBy(t, envelope(), "acme/other", nil)},
		{"an unknown key", start, forged, replaced(t, sealed, `"key_id":"k2"`, `"key_id":"k3"`)},
		{"a signature with padding", start, forged, replaced(t, sealed, env.Auth.Signature, env.Auth.Signature+"=")},
		{"no signature", start, invalid, replaced(t, sealed, `,"signature":"`+env.Auth.Signature+`"`, "")},
		{"a duplicate name", start, invalid, replaced(t, sealed, `{"asset_key"`, `{"plan_ref":"x","asset_key"`)},
		{"two names that differ only in case", start, invalid, replaced(t, sealed, `{"asset_key"`, `{"Plan_ref":"x","asset_key"`)},
	}
}

func callbackVectors(t *testing.T) []callbackVector {
	const base = "https://api.example.com"
	vector := func(name string, c contract.Callback) callbackVector {
		u, authorization := contract.SignCallback(base, c, keys)
		return callbackVector{name, start, valid, u, authorization}
	}
	finished := callback(contract.VerbFinished)
	escaped := finished
	escaped.TaskKey = `raw/events[city=Zürich "東京" %2F+;]`
	list := []callbackVector{
		vector("started", callback(contract.VerbStarted)),
		vector("heartbeat", callback(contract.VerbHeartbeat)),
		vector("finished", finished),
		vector("a task key with escapes", escaped),
		{"a URL of contract 1.0", start, valid, contract.CallbackURL(base, finished, keys), ""},
	}
	documented := independentMAC("k2", "acme/main", "servo callback 1", "acme", "main", runID, taskKey, "1", finished.AttemptID,
		contract.VerbFinished, strconv.FormatInt(int64(hour), 10), "7")
	require.Equal(t, "Servo-HMAC "+documented, list[2].Authorization, "the documented signature differs")
	change := func(name, result string, edit func(v *callbackVector)) {
		v := vector(name, finished)
		v.Result = result
		edit(&v)
		list = append(list, v)
	}
	change("the time of expiry", expired, func(v *callbackVector) { v.Now = hour })
	change("another attempt", forged, func(v *callbackVector) { v.URL = replaced(t, v.URL, "attempt=1&", "attempt=2&") })
	change("another verb", forged, func(v *callbackVector) { v.URL = replaced(t, v.URL, "/finished?", "/started?") })
	change("another tenant", forged, func(v *callbackVector) { v.URL = replaced(t, v.URL, "/acme/", "/other/") })
	change("another spelling of a number", forged, func(v *callbackVector) { v.URL = replaced(t, v.URL, "attempt=1&", "attempt=01&") })
	change("an unknown key", forged, func(v *callbackVector) { v.URL = replaced(t, v.URL, "key=k2", "key=k3") })
	change("no signature", forged, func(v *callbackVector) { v.Authorization = "" })
	change("signatures in URL and header", forged, func(v *callbackVector) { v.URL = contract.CallbackURL(base, finished, keys) })
	return list
}

func TestSignatureVectorsAreCurrent(t *testing.T) {
	secrets := map[string]string{}
	for id, secret := range keys.Secrets {
		secrets[id] = string(secret)
	}
	want := vectors{
		About:     "Test vectors of the signatures in docs/worker-contract.md.",
		Secrets:   secrets,
		Envelopes: envelopeVectors(t),
		Callbacks: callbackVectors(t),
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	require.NoError(t, enc.Encode(want))
	if *rewrite {
		require.NoError(t, os.WriteFile(vectorsFile, b.Bytes(), 0o600))
	}
	have, err := os.ReadFile(vectorsFile)
	require.NoError(t, err)
	require.Equal(t, b.String(), string(have), "if the contract changed: go test ./pkg/contract -run Vectors -rewrite")
}

func readVectors(t *testing.T) (vectors, contract.Keyring) {
	t.Helper()
	data, err := os.ReadFile(vectorsFile)
	require.NoError(t, err)
	var v vectors
	require.NoError(t, json.Unmarshal(data, &v))
	ring := contract.Keyring{Current: "k2", Secrets: map[string][]byte{}}
	for id, secret := range v.Secrets {
		ring.Secrets[id] = []byte(secret)
	}
	return v, ring
}

// resultOf returns the result that a vector must list for an error.
func resultOf(err error) string {
	_, isField := errors.AsType[*contract.FieldError](err)
	switch {
	case err == nil:
		return valid
	case errors.Is(err, contract.ErrExpired):
		return expired
	case errors.Is(err, contract.ErrForged):
		return forged
	case isField:
		return invalid
	}
	return err.Error()
}

func TestOpenAgreesWithVectors(t *testing.T) {
	v, ring := readVectors(t)
	for _, vector := range v.Envelopes {
		_, err := contract.Open([]byte(vector.Body), ring, vector.Now)
		require.Equal(t, vector.Result, resultOf(err), "%s: %v", vector.Name, err)
	}
}

func TestVerifyCallbackAgreesWithVectors(t *testing.T) {
	v, ring := readVectors(t)
	for _, vector := range v.Callbacks {
		request := httptest.NewRequest(http.MethodPost, vector.URL, nil)
		request.Header.Set("Authorization", vector.Authorization)
		_, err := verifyRequest(request, ring, vector.Now)
		require.Equal(t, vector.Result, resultOf(err), "%s: %v", vector.Name, err)
	}
}

func TestPythonWorkerAgreesWithVectors(t *testing.T) {
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("python3 is not installed")
	}
	out, err := exec.CommandContext(t.Context(), "python3", "-B", "testdata/vectors.py", "../../examples/worker", vectorsFile).CombinedOutput()
	require.NoError(t, err, string(out))
}
