// Package refused_test sends invalid requests to the services and to a worker: forged, expired, replayed and malformed
// requests, and requests of other tenants. Each one must be answered with the expected status, and must write nothing.
package refused_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/identitytest"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/tests/clustertest"
)

// request is a request and the expected status of its response.
type request struct {
	name   string
	url    string
	token  string // "": none
	as     string // complete Authorization header; "": none
	body   any    // a string is sent unchanged; other values are sent as JSON
	status int
	method string // "": POST
}

func TestInvalidRequestsAreRejectedAndWriteNothing(t *testing.T) {
	c := start(t)
	run, other := c.startAttempt(acme), c.startAttempt(globex)
	for _, table := range map[string][]request{
		"callers": c.callers(), "callbacks": c.callbacks(run, other), "timers": c.timers(), "notifications": c.notifications(run), "bodies": c.bodies(),
		"envelopes": c.envelopes(run, other),
	} {
		for _, r := range table {
			t.Run(r.name, func(t *testing.T) {
				before := c.written()
				status, answer := c.send(t, r)
				require.Equal(t, r.status, status, answer)
				require.Equal(t, before, c.written(), "the request wrote an object")
				if status >= http.StatusBadRequest {
					var problem contract.Problem
					require.NoError(t, json.Unmarshal([]byte(answer), &problem), answer)
					require.Equal(t, status, problem.Status)
					require.NotContains(t, answer, clustertest.Secret)
				}
			})
		}
	}
	// The invalid requests must have had no effect: both runs end successfully.
	for _, a := range []*attempt{run, other} {
		_, err := c.Store.Put(t.Context(), contract.CommitMarkerKeyOf(a.prefix()), []byte("{}"))
		require.NoError(t, err)
		status, answer := c.send(t, request{url: a.calls.Finished, body: a.finished()})
		require.Equal(t, http.StatusOK, status, answer)
		c.await(a.env.Domain(), func(s *snap) bool { return s.Runs.Get(a.env.RunID).State.Terminal() })
		before := c.written()
		status, answer = c.send(t, request{url: a.calls.Finished, body: a.finished()})
		require.Equal(t, http.StatusOK, status, "repeated report: %s", answer)
		require.Equal(t, before, c.written())
		status, answer = c.send(t, request{url: a.env.Callbacks.Started, body: a.started()})
		require.Equal(t, http.StatusConflict, status, "started after finished: %s", answer)
		require.Equal(t, before, c.written())
		status, answer = c.send(t, request{url: c.worker.url, body: c.signed(a.env, func(*contract.Envelope) {})})
		require.Equal(t, http.StatusOK, status, "delivery after finished: %s", answer)
		require.Equal(t, before, c.written())
	}
	require.Zero(t, c.worker.executed.Load())
	for line := range strings.SplitSeq(c.Logs()+c.worker.logs.String(), "\n") {
		for _, hidden := range []string{clustertest.Secret, clustertest.WorkerSecret, base64.StdEncoding.EncodeToString([]byte(clustertest.Secret)), "sig=", contract.AuthScheme + " ", "eyJ"} {
			require.NotContains(t, line, hidden, "the log contains a secret, a signature or a token")
		}
	}
}

// callers returns requests of unauthorized callers, for every route that requires authentication.
func (c *refusing) callers() []request {
	domain := map[string]any{"tenant": acme.Tenant, "workspace": acme.Workspace}
	var requests []request
	for _, route := range []struct {
		service, path, caller, other string // other may call the service, but not this route
		body                         any
	}{
		{"compactor", "/v1/compact", clustertest.Account("dispatcher"), "pubsub", domain},
		{"compactor", "/v1/notifications", clustertest.Account("pubsub"), "dispatcher", notified("ledger/x")},
		{"dispatcher", "/v1/reconcile", clustertest.Account("compactor"), "queue", domain},
		{"dispatcher", "/v1/notifications", clustertest.Account("pubsub"), "compactor", notified("manifests/x")},
		{"dispatcher", "/v1/tenants/acme/workspaces/prod/timers/fire", clustertest.Account("queue"), "sweeper", map[string]any{"timer_id": "timer:liveness:x"}},
		{"sweeper", "/v1/sweep", clustertest.Account("scheduler"), "compactor", map[string]any{}},
	} {
		audience, now := c.URL[route.service], clock.System{}.Now()
		claims := func(change func(*identitytest.Claims)) string {
			claims := identitytest.Claims{Issuer: c.Issuer.URL, Audience: audience, Email: route.caller, IssuedAt: now, Expires: now.Add(time.Hour)}
			change(&claims)
			return c.sign(c.Issuer, claims)
		}
		for _, r := range []request{
			{name: "no Authorization header", status: http.StatusUnauthorized},
			{name: "an invalid token", token: "x.y.z", status: http.StatusUnauthorized},
			{name: "an expired token", token: claims(func(c *identitytest.Claims) { c.Expires = now.Add(-time.Minute) }), status: http.StatusUnauthorized},
			{name: "a token for another service", token: claims(func(c *identitytest.Claims) { c.Audience = "https://elsewhere.example" }), status: http.StatusUnauthorized},
			{name: "a token of another issuer", token: claims(func(c *identitytest.Claims) { c.Issuer = "https://elsewhere.example" }), status: http.StatusUnauthorized},
			{name: "a forged token", token: c.sign(c.stranger, identitytest.Claims{
				Issuer: c.Issuer.URL, Audience: audience, Email: route.caller, IssuedAt: now, Expires: now.Add(time.Hour),
			}), status: http.StatusUnauthorized},
			{name: "an unlisted account", token: claims(func(c *identitytest.Claims) { c.Email = clustertest.Account("mallory") }), status: http.StatusForbidden},
			{name: "an account of another route", token: claims(func(c *identitytest.Claims) { c.Email = clustertest.Account(route.other) }), status: http.StatusForbidden},
			{name: "an unverified account", token: claims(func(c *identitytest.Claims) { c.Unverified = true }), status: http.StatusUnauthorized},
		} {
			r.name, r.url, r.body = route.service+route.path+" by "+r.name, c.URL[route.service]+route.path, route.body
			requests = append(requests, r)
		}
	}
	return requests
}

// callbacks returns callbacks that are unsigned, altered, expired, invalid or replayed.
func (c *refusing) callbacks(run, other *attempt) []request {
	named := contract.Callback{
		Domain: acme, RunID: run.env.RunID, TaskKey: run.env.TaskKey, Attempt: run.env.Attempt, AttemptID: run.env.AttemptID,
		Verb: contract.VerbFinished, Expires: event.At(clock.System{}.Now().Add(time.Hour)),
	}
	signed := func(keys contract.Keyring, change func(*contract.Callback)) string {
		changed := named
		change(&changed)
		return contract.CallbackURL(c.URL["dispatcher"], changed, keys)
	}
	as := func(of, from string) string { // the path of one URL with the signature of a different URL
		u, err := url.Parse(from)
		require.NoError(c.T, err)
		return strings.Split(of, "?")[0] + "?" + u.RawQuery
	}
	otherKeys := contract.Keyring{Current: c.Keys.Current, Secrets: map[string][]byte{c.Keys.Current: bytes.Repeat([]byte("t"), contract.MinSecret)}}
	unknownKey := contract.Keyring{Current: "k9", Secrets: map[string][]byte{"k9": []byte(clustertest.Secret)}}
	finished := run.finished()
	elsewhere := run.finished()
	elsewhere.Output = &event.Output{URI: strings.ReplaceAll(run.prefix(), contract.AssetsPrefix(acme), contract.AssetsPrefix(globex))}
	foreign := run.finished()
	foreign.AttemptID = other.env.AttemptID
	unauthorized, bad := http.StatusUnauthorized, http.StatusBadRequest
	keep := func(*contract.Callback) {}
	return []request{
		{name: "forged: another secret", url: signed(otherKeys, keep), body: finished, status: unauthorized},
		{name: "forged: the workers' key", url: signed(c.WorkerKeys, keep), body: finished, status: unauthorized},
		{name: "forged: an unknown key", url: signed(unknownKey, keep), body: finished, status: unauthorized},
		{name: "forged: no signature", url: strings.Split(run.calls.Finished, "?")[0], body: finished, status: unauthorized},
		{name: "forged: a later expiry", url: strings.Replace(run.calls.Finished, "expires=1", "expires=2", 1), body: finished, status: unauthorized},
		{name: "forged: another attempt", url: strings.Replace(run.calls.Finished, "attempt=1", "attempt=2", 1), body: finished, status: unauthorized},
		{name: "forged: the signature of started on finished", url: as(run.calls.Finished, run.env.Callbacks.Started), body: finished, status: unauthorized},
		{name: "forged: another task", url: strings.Replace(run.calls.Finished, "tasks/raw", "tasks/own", 1), body: finished, status: unauthorized},
		{name: "expired", url: signed(c.Keys, func(c *contract.Callback) { c.Expires = event.At(clock.System{}.Now().Add(-time.Second)) }), body: finished, status: unauthorized},
		{name: "cross-tenant: the signature of another tenant's run", url: as(run.calls.Finished, other.calls.Finished), body: finished, status: unauthorized},
		{
			name: "cross-tenant: another tenant in the URL", body: finished, status: unauthorized,
			url: strings.Replace(run.calls.Finished, "tenants/acme", "tenants/globex", 1),
		},
		{name: "cross-tenant: a body about another tenant's attempt", url: run.calls.Finished, body: foreign, status: bad},
		{name: "cross-tenant: an output in another tenant's folder", url: run.calls.Finished, body: elsewhere, status: bad},
		{name: "malformed: not JSON", url: run.calls.Finished, body: "finished", status: bad},
		{name: "malformed: no body", url: run.calls.Finished, body: "", status: bad},
		{name: "malformed: two values", url: run.calls.Heartbeat, body: text(run.beat()) + "{}", status: bad},
		{name: "malformed: an unknown outcome", url: run.calls.Finished, body: map[string]any{"attempt_id": run.env.AttemptID, "outcome": "great"}, status: bad},
		{name: "malformed: too large", url: run.calls.Heartbeat, body: `{"attempt_id":"` + strings.Repeat("x", 2<<20) + `"}`, status: bad},
		{name: "malformed: a duplicate name", url: run.calls.Finished, body: strings.Replace(text(finished), "{", `{"outcome":"failed",`, 1), status: bad},
		{name: "another verb", url: strings.Replace(run.calls.Finished, "callbacks/finished", "callbacks/erased", 1), body: finished, status: http.StatusNotFound},
		{name: "another method", method: http.MethodGet, url: run.calls.Finished, status: http.StatusMethodNotAllowed},
		{
			name: "an unknown run", body: finished, status: http.StatusNotFound,
			url: signed(c.Keys, func(c *contract.Callback) { c.RunID = ids.AtTime(time.Unix(1, 0)) }),
		},
		{
			name: "an unknown domain", body: finished, status: http.StatusNotFound,
			url: signed(c.Keys, func(c *contract.Callback) { c.Domain.Tenant = "nobody" }),
		},
		{
			name: "unsigned, an unknown domain", body: finished, status: unauthorized,
			url: strings.Replace(strings.Split(run.calls.Finished, "?")[0], "tenants/acme", "tenants/nobody", 1),
		},
		{name: "1.1: no signature", url: run.issued.Finished, body: finished, status: unauthorized},
		{name: "1.1: a bearer token", url: run.issued.Finished, token: "x", body: finished, status: unauthorized},
		{name: "1.1: the signature of started", url: run.issued.Finished, as: run.issued.Authorization.Started, body: finished, status: unauthorized},
		{name: "1.1: another tenant's signature", url: run.issued.Finished, as: other.issued.Authorization.Finished, body: finished, status: unauthorized},
		{name: "1.1: signed twice", url: run.calls.Finished, as: run.issued.Authorization.Finished, body: finished, status: unauthorized},
		{name: "1.1: replayed: started", url: run.issued.Started, as: run.issued.Authorization.Started, body: run.started(), status: http.StatusOK},
		{name: "replayed: started", url: run.env.Callbacks.Started, body: run.started(), status: http.StatusOK},
	}
}

func (c *refusing) timers() []request {
	fire := c.URL["dispatcher"] + "/v1/tenants/acme/workspaces/prod/timers/fire"
	token := c.Token("queue", "dispatcher")
	return []request{
		{name: "an unknown timer", url: fire, token: token, body: map[string]any{"timer_id": "timer:retry:x"}, status: http.StatusOK},
		{name: "a timer call without a timer", url: fire, token: token, body: map[string]any{}, status: http.StatusBadRequest},
		{name: "a timer call of an unknown domain", url: strings.Replace(fire, "acme", "nobody", 1), token: token, body: map[string]any{"timer_id": "x"}, status: http.StatusNotFound},
	}
}

// notifications returns notifications that must have no effect.
func (c *refusing) notifications(run *attempt) []request {
	var requests []request
	known := c.ledger(acme)[0]
	for service, keys := range map[string]map[string]int{
		"compactor": {
			// The entry known was folded long ago; the entry below it was never written.
			known: http.StatusOK, ledger.Key(acme, ids.AtTime(time.Unix(1, 0))): http.StatusOK,
			"ledger/orchestration/tenant=../workspace=prod/" + ids.AtTime(time.Unix(1, 0)) + ".json": http.StatusNoContent,
			"assets/" + run.prefix(): http.StatusNoContent,
		},
		"dispatcher": {manifest.Key(acme, 1): http.StatusOK, "manifests/orchestration/tenant=acme/x": http.StatusNoContent, known: http.StatusNoContent},
	} {
		token := c.Token("pubsub", service)
		for key, status := range keys {
			requests = append(requests, request{name: service + ": replayed or irrelevant: " + key, url: c.URL[service] + "/v1/notifications", token: token, body: notified(key), status: status})
		}
		for name, body := range map[string]any{
			"not JSON": "x", "names that differ in case": `{"message":{},"Message":{}}`, "data that is not base64": map[string]any{"message": map[string]any{"data": "%"}},
			"too large": strings.Repeat("[", 2<<20),
		} {
			requests = append(requests, request{name: service + ": malformed: " + name, url: c.URL[service] + "/v1/notifications", token: token, body: body, status: http.StatusBadRequest})
		}
		requests = append(requests, request{name: service + ": no message", url: c.URL[service] + "/v1/notifications", token: token, body: map[string]any{}, status: http.StatusNoContent})
		deleted := notified(known)
		deleted["message"].(map[string]any)["attributes"].(map[string]string)["eventType"] = "OBJECT_DELETE" //nolint:forcetypeassert // notified returns these types
		requests = append(requests, request{name: service + ": another event type", url: c.URL[service] + "/v1/notifications", token: token, body: deleted, status: http.StatusNoContent})
	}
	return requests
}

// bodies returns requests with bodies that no service would send.
func (c *refusing) bodies() []request {
	compact, reconcile := c.URL["compactor"]+"/v1/compact", c.URL["dispatcher"]+"/v1/reconcile"
	toCompactor, toDispatcher := c.Token("dispatcher", "compactor"), c.Token("compactor", "dispatcher")
	bad := http.StatusBadRequest
	return []request{
		{name: "compact: no domain", url: compact, token: toCompactor, body: map[string]any{}, status: bad},
		{name: "compact: a domain that is a path", url: compact, token: toCompactor, body: map[string]any{"tenant": "../x", "workspace": "prod"}, status: bad},
		{name: "compact: an invalid entry", url: compact, token: toCompactor, body: map[string]any{"tenant": "acme", "workspace": "prod", "entries": []string{"../x"}}, status: bad},
		{name: "compact: a duplicate name", url: compact, token: toCompactor, body: `{"tenant":"acme","workspace":"prod","tenant":"globex"}`, status: bad},
		{name: "compact: names that differ in case", url: compact, token: toCompactor, body: `{"tenant":"acme","workspace":"prod","Tenant":"globex"}`, status: bad},
		{name: "compact: bytes with a wrong checksum", url: compact, token: toCompactor, body: inline(1, 1), status: bad},
		{name: "compact: bytes without a generation", url: compact, token: toCompactor, body: inline(0, blob.CRC32C([]byte("x"))), status: bad},
		{name: "compact: bytes that are not stored", url: compact, token: toCompactor, body: inline(1, blob.CRC32C([]byte("x"))), status: http.StatusOK},
		{name: "compact: bytes sent by the sweeper", url: compact, token: c.Token("sweeper", "compactor"), body: inline(1, blob.CRC32C([]byte("x"))), status: http.StatusForbidden},
		{name: "compact: a sweep sent by the dispatcher", url: compact, token: toCompactor, body: map[string]any{"tenant": "acme", "workspace": "prod", "sweep": true}, status: http.StatusForbidden},
		{name: "reconcile: a sweep sent by the compactor", url: reconcile, token: toDispatcher, body: map[string]any{"tenant": "acme", "workspace": "prod", "sweep": true}, status: http.StatusForbidden},
		{name: "reconcile: a negative revision", url: reconcile, token: toDispatcher, body: map[string]any{"tenant": "acme", "workspace": "prod", "revision": -1}, status: bad},
		{name: "reconcile: an unknown domain", url: reconcile, token: toDispatcher, body: map[string]any{"tenant": "nobody", "workspace": "prod"}, status: http.StatusNotFound},
		{name: "an unknown route", url: c.URL["sweeper"] + "/v1/erase", status: http.StatusNotFound},
	}
}

// inline returns a request with the bytes of an entry that does not exist in the store.
func inline(generation int64, crc uint32) map[string]any {
	return map[string]any{
		"tenant": "acme", "workspace": "prod", "entries": []string{ids.AtTime(time.Unix(1, 0))},
		"data": map[string]any{"0": map[string]any{"data": "x", "version": generation, "crc32c": crc}},
	}
}

// notified returns Pub/Sub's message about a created object.
func notified(key string) map[string]any {
	return map[string]any{"message": map[string]any{
		"attributes": map[string]string{"eventType": "OBJECT_FINALIZE", "payloadFormat": "NONE", "bucketId": "servo", "objectId": key}, "messageId": "1",
	}}
}

func text(v any) string {
	if s, ok := v.(string); ok {
		return s
	}
	data, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(data)
}

func (c *refusing) send(t *testing.T, r request) (status int, answer string) {
	t.Helper()
	body := ""
	if r.body != nil {
		body = text(r.body)
	}
	method := r.method
	if method == "" {
		method = http.MethodPost
	}
	req, err := http.NewRequestWithContext(t.Context(), method, r.url, strings.NewReader(body))
	require.NoError(t, err)
	if r.token != "" {
		req.Header.Set("Authorization", "Bearer "+r.token)
	}
	if r.as != "" {
		req.Header.Set("Authorization", r.as)
	}
	res, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	return res.StatusCode, string(data)
}

// written returns all objects of the store with their versions.
func (c *refusing) written() []string {
	var found []string
	for o, err := range c.Store.List(context.Background(), blob.ListOptions{}) {
		require.NoError(c.T, err)
		found = append(found, fmt.Sprintf("%s %d", o.Key, o.Version))
	}
	return found
}

func (c *refusing) ledger(d ids.Domain) []string {
	var keys []string
	for name, err := range ledger.List(context.Background(), c.Store, d, "") {
		require.NoError(c.T, err)
		keys = append(keys, name.Object.Key)
	}
	return keys
}
