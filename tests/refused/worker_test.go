package refused_test

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/worker"
	"github.com/servo-orchestration/servo/tests/clustertest"
)

// workerUnderTest is a worker whose executions are counted.
type workerUnderTest struct {
	url      string
	executed atomic.Int32
	logs     lockedBuffer
}

type lockedBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements [io.Writer].
func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

func (c *refusing) openWorker() *workerUnderTest {
	c.T.Helper()
	u := &workerUnderTest{}
	w, err := worker.Open(worker.Config{
		Store: c.Store, Clock: clock.System{}, Nonce: ids.NewSource(clock.System{}.Now, nil).New, Keyring: c.WorkerKeys, WorkerID: "w2",
		ScratchDir: c.T.TempDir(), HTTPClient: http.DefaultClient,
		Logger: slog.New(slog.NewTextHandler(&u.logs, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Executor: func(context.Context, worker.Execution) error {
			u.executed.Add(1)
			return nil
		},
	})
	require.NoError(c.T, err)
	server := httptest.NewServer(w.Handler())
	c.T.Cleanup(func() {
		server.Close()
		if err := w.Close(context.Background()); err != nil {
			c.T.Errorf("close: %v", err)
		}
	})
	u.url = server.URL + "/execute"
	return u
}

// signed returns a changed copy of a pushed envelope with a new signature.
func (c *refusing) signed(env *contract.Envelope, change func(*contract.Envelope)) string {
	return c.signedWith(c.WorkerKeys, time.Hour, env, change)
}

func (c *refusing) signedWith(keys contract.Keyring, valid time.Duration, env *contract.Envelope, change func(*contract.Envelope)) string {
	changed := *env
	change(&changed)
	sealed, err := contract.Seal(&changed, keys, event.At(clock.System{}.Now().Add(valid)))
	require.NoError(c.T, err)
	return string(sealed)
}

// envelopes returns envelopes that are unsigned, altered, expired or invalid.
func (c *refusing) envelopes(run, other *attempt) []request {
	same := func(*contract.Envelope) {}
	good := c.signed(run.env, same)
	otherKeys := contract.Keyring{Current: c.Keys.Current, Secrets: map[string][]byte{c.Keys.Current: bytes.Repeat([]byte("t"), contract.MinSecret)}}
	unknownKey := contract.Keyring{Current: "k9", Secrets: map[string][]byte{"k9": []byte(clustertest.WorkerSecret)}}
	without := func(change func(map[string]any)) string {
		var fields map[string]any
		require.NoError(c.T, json.Unmarshal([]byte(good), &fields))
		change(fields)
		return text(fields)
	}
	altered := func(old, with string) string {
		require.Contains(c.T, good, old)
		return strings.Replace(good, old, with, 1)
	}
	require.Equal(c.T, signatureOf(good), signatureOf(c.underKeyOf(acme, good)), "underKeyOf signs like contract.Seal")
	unauthorized, bad := http.StatusUnauthorized, http.StatusBadRequest
	requests := []request{
		{name: "forged: no signature", body: without(func(f map[string]any) { delete(f["auth"].(map[string]any), "signature") }), status: bad}, //nolint:forcetypeassert // auth is an object
		{name: "forged: no auth", body: without(func(f map[string]any) { delete(f, "auth") }), status: bad},
		{name: "forged: the key of callbacks", body: c.signedWith(c.Keys, time.Hour, run.env, same), status: unauthorized},
		{name: "forged: another secret", body: c.signedWith(otherKeys, time.Hour, run.env, same), status: unauthorized},
		{name: "forged: an unknown key", body: c.signedWith(unknownKey, time.Hour, run.env, same), status: unauthorized},
		{name: "forged: another plan", body: altered(`"plan_ref":"plans/`, `"plan_ref":"plans/x`), status: unauthorized},
		{name: "forged: an additional field", body: altered(`{`, `{"unknown":1,`), status: unauthorized},
		{name: "forged: another callback URL", body: altered(c.URL["dispatcher"], "http://127.0.0.1:1"), status: unauthorized},
		{name: "forged: a later expiry", body: altered(`"expires_at":"2`, `"expires_at":"3`), status: unauthorized},
		{name: "expired", body: c.signedWith(c.WorkerKeys, -time.Second, run.env, same), status: unauthorized},
		{name: "cross-tenant: the signature of another tenant", body: altered(signatureOf(good), signatureOf(c.signed(other.env, same))), status: unauthorized},
		{name: "cross-tenant: the key of another tenant", body: c.underKeyOf(globex, good), status: unauthorized},
		{name: "malformed: not JSON", body: "execute", status: bad},
		{name: "malformed: no body", body: "", status: bad},
		{name: "malformed: a list", body: "[" + good + "]", status: bad},
		{name: "malformed: two values", body: good + "{}", status: bad},
		{name: "malformed: a duplicate name", body: altered(`{`, `{"tenant_id":"acme",`), status: bad},
		{name: "malformed: another version", body: c.signed(run.env, func(e *contract.Envelope) { e.ContractVersion = "2.0" }), status: bad},
		{name: "malformed: a tenant that is a path", body: altered(`"tenant_id":"acme"`, `"tenant_id":"../x"`), status: bad},
		{name: "malformed: an attempt of another task", body: c.signed(run.env, func(e *contract.Envelope) { e.AttemptID = other.env.AttemptID }), status: bad},
		{name: "malformed: too large", body: good + strings.Repeat(" ", contract.MaxEnvelopeBytes), status: bad},
		{name: "a form", body: "envelope=" + good, status: bad},
		{name: "another method", method: http.MethodGet, status: http.StatusMethodNotAllowed},
		{name: "another route", url: strings.Replace(c.worker.url, "/execute", "/v1/execute", 1), body: good, status: http.StatusNotFound},
	}
	for i := range requests {
		requests[i].name = "worker: " + requests[i].name
		if requests[i].url == "" {
			requests[i].url = c.worker.url
		}
	}
	return requests
}

func signatureOf(envelope string) string {
	var env contract.Envelope
	if err := json.Unmarshal([]byte(envelope), &env); err != nil {
		panic(err)
	}
	return env.Auth.Signature
}

// underKeyOf returns an envelope that is signed with the key of a domain. The domain may differ from the one in the
// envelope.
func (c *refusing) underKeyOf(d ids.Domain, envelope string) string {
	var fields map[string]any
	require.NoError(c.T, json.Unmarshal([]byte(envelope), &fields))
	auth, ok := fields["auth"].(map[string]any)
	require.True(c.T, ok)
	delete(auth, "signature")
	canonical := jsontext.Value(text(fields))
	require.NoError(c.T, canonical.Canonicalize())
	key := hmac.New(sha256.New, []byte(clustertest.WorkerSecret))
	key.Write([]byte("servo/" + d.Tenant + "/" + d.Workspace))
	h := hmac.New(sha256.New, key.Sum(nil))
	for _, field := range []string{"servo envelope 1", string(canonical)} {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(field))))
		h.Write([]byte(field))
	}
	auth["signature"] = base64.RawURLEncoding.EncodeToString(h.Sum(nil))
	return text(fields)
}
