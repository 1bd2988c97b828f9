package contract_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
)

var (
	domain = ids.Domain{Tenant: "acme", Workspace: "main"}
	keys   = contract.Keyring{Current: "k2", Secrets: map[string][]byte{
		"k1": []byte(strings.Repeat("1", contract.MinSecret)),
		"k2": []byte(strings.Repeat("2", contract.MinSecret)),
	}}
	start = event.At(time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC))
	hour  = start.Add(time.Hour)
)

const (
	runID   = "01KAJ2T0000000000000000000"
	taskKey = "raw/events[date=2025-01-15]"
)

func envelope() *contract.Envelope {
	return &contract.Envelope{
		ContractVersion: contract.Version, Tenant: domain.Tenant, Workspace: domain.Workspace,
		RunID: runID, TaskKey: taskKey, TaskID: ids.TaskID(domain, runID, taskKey),
		Attempt: 1, AttemptID: ids.AttemptID(domain, runID, taskKey, 1), MaxAttempts: 3,
		PlanRef: "plans/" + domain.Path() + "/x.json", AssetKey: "raw/events", PartitionKey: `{"date":"2025-01-15"}`,
		MaterializationID: ids.MaterializationID(domain, runID, taskKey),
		TimeoutSec:        60, HeartbeatTimeoutSec: 30,
		Callbacks: contract.Callbacks{
			Started:  contract.CallbackURL("https://api.example.com", callback(contract.VerbStarted), keys),
			Finished: contract.CallbackURL("https://api.example.com", callback(contract.VerbFinished), keys),
		},
	}
}

func callback(verb string) contract.Callback {
	return contract.Callback{
		Domain: domain, RunID: runID, TaskKey: taskKey, Attempt: 1, AttemptID: ids.AttemptID(domain, runID, taskKey, 1),
		Verb: verb, Expires: hour, Revision: 7,
	}
}

func signed(t *testing.T) []byte {
	t.Helper()
	raw, err := contract.Seal(envelope(), keys, hour)
	require.NoError(t, err)
	return raw
}

func TestOpenAcceptsSealedEnvelope(t *testing.T) {
	env, err := contract.Open(signed(t), keys, start)
	require.NoError(t, err)
	require.Equal(t, "k2", env.Auth.KeyID)
	env.Auth = contract.Auth{}
	require.Equal(t, envelope(), env)
}

func TestOpenAcceptsPreviousKey(t *testing.T) {
	former := keys
	former.Current = "k1"
	raw, err := contract.Seal(envelope(), former, hour)
	require.NoError(t, err)
	_, err = contract.Open(raw, keys, start)
	require.NoError(t, err)
}

func TestSealIsCanonicalAndOpenIgnoresFormatting(t *testing.T) {
	env := envelope()
	raw, err := contract.Seal(env, keys, hour)
	require.NoError(t, err)
	canonical := jsontext.Value(raw).Clone()
	require.NoError(t, canonical.Canonicalize())
	require.Equal(t, string(canonical), string(raw))
	written, err := json.MarshalIndent(env, "", "\t")
	require.NoError(t, err)
	opened, err := contract.Open(written, keys, start)
	require.NoError(t, err)
	require.Equal(t, env, opened)
}

func TestOpenRejectsExpiredEnvelope(t *testing.T) {
	raw := signed(t)
	_, err := contract.Open(raw, keys, hour)
	require.ErrorIs(t, err, contract.ErrExpired)
	_, err = contract.Open(raw, keys, hour-1)
	require.NoError(t, err)
}

func TestOpenVerifiesUnknownFields(t *testing.T) {
	raw := signed(t)
	var fields map[string]any
	require.NoError(t, json.Unmarshal(raw, &fields))
	fields["novelty"] = "x"
	raw, err := json.Marshal(fields)
	require.NoError(t, err)
	_, err = contract.Open(raw, keys, start)
	require.ErrorIs(t, err, contract.ErrForged)
}

func TestOpenRejectsDuplicateNames(t *testing.T) {
	raw := strings.Replace(string(signed(t)), `{`, `{"task_key":"raw/other",`, 1)
	_, err := contract.Open([]byte(raw), keys, start)
	require.Error(t, err)
}

func TestOpenRejectsNamesInOtherCase(t *testing.T) {
	raw := strings.Replace(string(signed(t)), `"plan_ref"`, `"PLAN_REF"`, 1)
	_, err := contract.Open([]byte(raw), keys, start)
	require.ErrorContains(t, err, `PLAN_REF: differs from "plan_ref" only in case`)
}

// A change of any value in a signed envelope invalidates the signature.
func TestOpenRejectsAnyChangedValue(t *testing.T) {
	var original map[string]any
	require.NoError(t, json.Unmarshal(signed(t), &original))
	changed := 0
	var walk func(path string, at map[string]any)
	walk = func(path string, at map[string]any) {
		for key, value := range at {
			was := at[key]
			here := path + key
			switch v := value.(type) {
			case map[string]any:
				walk(here+".", v)
				continue
			case float64:
				at[key] = v + 1
			case string:
				at[key] = change(here, v)
			}
			raw, err := json.Marshal(original)
			require.NoError(t, err)
			_, err = contract.Open(raw, keys, start)
			if _, ok := errors.AsType[*contract.FieldError](err); !ok { // inconsistent ids fail before the signature check
				require.ErrorIs(t, err, contract.ErrForged, here)
			}
			at[key] = was
			changed++
		}
	}
	walk("", original)
	require.GreaterOrEqual(t, changed, 19)
	raw, err := json.Marshal(original)
	require.NoError(t, err)
	_, err = contract.Open(raw, keys, start)
	require.NoError(t, err, "the restored envelope")
}

func change(path, v string) string {
	switch path {
	case "auth.expires_at":
		return hour.Add(time.Hour).String()
	case "auth.key_id":
		return "k1"
	case "contract_version":
		return "1.2"
	case "asset_key":
		return "raw/other"
	case "partition_key":
		return ""
	}
	return v + "x"
}

func TestKeyringRejectsUnsafeKeys(t *testing.T) {
	require.NoError(t, keys.Validate())
	require.ErrorContains(t, contract.Keyring{}.Validate(), "current key")
	short := contract.Keyring{Current: "k", Secrets: map[string][]byte{"k": []byte("short")}}
	require.ErrorContains(t, short.Validate(), "5 bytes")
	_, err := contract.Seal(envelope(), short, hour)
	require.Error(t, err)
	_, err = contract.Open(signed(t), short, start)
	require.ErrorIs(t, err, contract.ErrForged)
}

// verify handles a callback URL as a server does.
func verify(t *testing.T, rawURL string, now event.Time) (contract.Callback, error) {
	t.Helper()
	return verifyRequest(httptest.NewRequest(http.MethodPost, rawURL, nil), keys, now)
}

func verifyRequest(request *http.Request, keys contract.Keyring, now event.Time) (contract.Callback, error) {
	var c contract.Callback
	err := errors.New("no route matched the URL")
	mux := http.NewServeMux()
	mux.HandleFunc(contract.CallbackPattern, func(_ http.ResponseWriter, r *http.Request) {
		c, err = contract.VerifyCallback(contract.Callback{
			Domain: ids.Domain{Tenant: r.PathValue("tenant"), Workspace: r.PathValue("workspace")},
			RunID:  r.PathValue("run"), TaskKey: r.PathValue("task"), Verb: r.PathValue("verb"),
		}, r.URL.Query(), r.Header.Get("Authorization"), keys, now)
	})
	mux.ServeHTTP(httptest.NewRecorder(), request)
	return c, err
}

func TestCallbackURLRoundTripsAnyTaskKey(t *testing.T) {
	for _, key := range []string{taskKey, "a/b[*]", ".", "..", "...", "a b%2F?&#=+", "日本/ä", "a//b", "../../x", "%", "a;b"} {
		c := callback(contract.VerbFinished)
		c.TaskKey = key
		got, err := verify(t, contract.CallbackURL("https://api.example.com/", c, keys), start)
		require.NoError(t, err, key)
		require.Equal(t, c, got)
	}
}

func TestCallbackURLStatesItsExpiry(t *testing.T) {
	u := contract.CallbackURL("https://api.example.com", callback(contract.VerbStarted), keys)
	require.Equal(t, hour, contract.CallbackExpiry(u))
	_, err := verify(t, u, hour)
	require.ErrorIs(t, err, contract.ErrExpired)
	require.Zero(t, contract.CallbackExpiry("https://example.com/no"))
	require.Zero(t, contract.CallbackExpiry("%"))
}

func TestVerifyCallbackRejectsAnyChange(t *testing.T) {
	u, err := url.Parse(contract.CallbackURL("https://api.example.com", callback(contract.VerbStarted), keys))
	require.NoError(t, err)
	named := callback(contract.VerbStarted)
	_, err = contract.VerifyCallback(named, u.Query(), "", keys, start)
	require.NoError(t, err)

	for name, change := range map[string]func(*contract.Callback){
		"tenant":    func(c *contract.Callback) { c.Domain.Tenant = "other" },
		"workspace": func(c *contract.Callback) { c.Domain.Workspace = "other" },
		"run":       func(c *contract.Callback) { c.RunID = "01KAJ2T0000000000000000001" },
		"task":      func(c *contract.Callback) { c.TaskKey = "raw/events" },
		"verb":      func(c *contract.Callback) { c.Verb = contract.VerbFinished },
		"a border":  func(c *contract.Callback) { c.RunID, c.TaskKey = c.RunID+c.TaskKey[:1], c.TaskKey[1:] },
	} {
		c := named
		change(&c)
		_, err := contract.VerifyCallback(c, u.Query(), "", keys, start)
		require.ErrorIs(t, err, contract.ErrForged, name)
	}
	for parameter, values := range map[string][]string{
		"attempt":    {"2", "+1", "01", "", "x", "-1", "99999999999"},
		"attempt_id": {ids.AttemptID(domain, runID, taskKey, 2), ""},
		"expires":    {fmt.Sprint(int64(hour) + 1), "", "0"},
		"rev":        {"8", ""},
		"key":        {"k1", "k3", ""},
		"sig":        {"", "x", strings.Repeat("A", 43)},
	} {
		for _, value := range values {
			query := maps.Clone(u.Query())
			query.Set(parameter, value)
			_, err := contract.VerifyCallback(named, query, "", keys, start)
			require.ErrorIs(t, err, contract.ErrForged, "%s=%s", parameter, value)
		}
	}
}

func TestSignatureIsBoundToItsDomain(t *testing.T) {
	one := contract.Callback{Domain: ids.Domain{Tenant: "a", Workspace: "b-c"}, RunID: runID, TaskKey: "x", Verb: "started", Expires: hour}
	two := one
	two.Domain = ids.Domain{Tenant: "a-b", Workspace: "c"}
	u, err := url.Parse(contract.CallbackURL("", one, keys))
	require.NoError(t, err)
	_, err = contract.VerifyCallback(two, u.Query(), "", keys, start)
	require.ErrorIs(t, err, contract.ErrForged)
}
