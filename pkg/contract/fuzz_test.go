package contract_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
)

// requireSound checks a decoder: an accepted body survives a round trip, and a rejected body results in a
// [contract.FieldError] of limited length.
func requireSound[T any](t *testing.T, data []byte, decode func([]byte) (*T, error)) {
	t.Helper()
	v, err := decode(data)
	if err != nil {
		var wrong *contract.FieldError
		require.ErrorAs(t, err, &wrong)
		require.NotEmpty(t, wrong.Msg)
		require.Less(t, len(err.Error()), 2000, "an error does not echo the input")
		return
	}
	again, err := json.Marshal(v)
	require.NoError(t, err)
	read, err := decode(again)
	require.NoError(t, err)
	twice, err := json.Marshal(read)
	require.NoError(t, err)
	require.Equal(t, string(again), string(twice))
}

func FuzzDecodeReturnsBodyOrFieldError(f *testing.F) {
	env := envelope()
	genuine, err := contract.Seal(env, keys, hour)
	require.NoError(f, err)
	attempt := env.AttemptID
	for _, v := range []any{
		env, envelope(), marker(),
		contract.Started{AttemptID: attempt, WorkerID: "w", StartedAt: start},
		contract.Heartbeat{AttemptID: attempt, WorkerID: "w", HeartbeatAt: start, Progress: 5, Message: "m"},
		contract.Finished{
			AttemptID: attempt, WorkerID: "w", Outcome: event.Succeeded, MaterializationID: attempt,
			Error: &event.Error{Code: "X", Message: "m"}, Output: &event.Output{URI: "assets/x/", RowCount: 1},
			CheckResults: []event.CheckResult{{Name: "c"}}, Metrics: map[string]int64{"ms": 1}, StartedAt: start, CompletedAt: hour,
		},
		contract.Finished{},
		contract.Started{},
		contract.Heartbeat{},
	} {
		data, err := json.Marshal(v)
		require.NoError(f, err)
		f.Add(data)
		f.Add(data[:len(data)/2])
	}
	for _, seed := range []string{
		"", "null", "[]", "{}{}", `{"auth":{"expires_at":"x"}}`, `{"attempt_id":7}`, `{"files":[{"name":"../x"}],"metrics":{"a":1e99}}`,
		`{"started_at":"9999-12-31T23:59:59.9999999Z"}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		requireSound(t, data, contract.DecodeEnvelope)
		requireSound(t, data, contract.DecodeStarted)
		requireSound(t, data, contract.DecodeHeartbeat)
		requireSound(t, data, contract.DecodeFinished)
		requireSound(t, data, contract.DecodeCommitMarker)
		opened, err := contract.Open(data, keys, start)
		if err != nil {
			return
		}
		got, err := json.Marshal(opened)
		require.NoError(t, err)
		require.JSONEq(t, string(genuine), string(got), "opened an unsigned envelope")
	})
}

// serve handles a callback URL as a server does. ok reports whether a route matched.
func serve(r *http.Request, now event.Time) (c contract.Callback, ok bool, err error) {
	mux := http.NewServeMux()
	mux.HandleFunc(contract.CallbackPattern, func(_ http.ResponseWriter, r *http.Request) {
		ok = true
		c, err = contract.VerifyCallback(contract.Callback{
			Domain: ids.Domain{Tenant: r.PathValue("tenant"), Workspace: r.PathValue("workspace")},
			RunID:  r.PathValue("run"), TaskKey: r.PathValue("task"), Verb: r.PathValue("verb"),
		}, r.URL.Query(), r.Header.Get("Authorization"), keys, now)
	})
	mux.ServeHTTP(httptest.NewRecorder(), r)
	return c, ok, err
}

// Any callback survives the round trip through its URL.
func FuzzCallbackURLRoundTrips(f *testing.F) {
	f.Add(runID, taskKey, "finished", int32(1), "A", int64(hour), int64(7))
	f.Add(runID, "/", "finished", int32(1), "A", int64(hour), int64(7))
	f.Add("..", ".", "started", int32(0), "", int64(0), int64(-1))
	f.Add("a/b", "%2F?&#=+", "a b", int32(-1), "\xff", int64(-1), int64(1)<<62)
	f.Add("日本", "a;b", "\x00", int32(1<<30), "&sig=x", int64(start), int64(0))
	f.Fuzz(func(t *testing.T, run, task, verb string, attempt int32, attemptID string, expires, revision int64) {
		c := contract.Callback{
			Domain: domain, RunID: run, TaskKey: task, Verb: verb, Attempt: attempt, AttemptID: attemptID,
			Expires: event.Time(expires), Revision: revision,
		}
		signed := contract.CallbackURL("https://api.example.com", c, keys)
		u, err := url.Parse(signed)
		require.NoError(t, err)
		got, ok, err := serve(&http.Request{Method: http.MethodPost, URL: u, Host: u.Host}, start)
		switch {
		case !routed(run) || !routed(task) || !routed(verb):
			require.False(t, ok)
			return
		case attempt < 0 || expires < 0 || revision < 0:
			require.ErrorIs(t, err, contract.ErrForged)
			return
		case c.Expires <= start:
			require.ErrorIs(t, err, contract.ErrExpired)
		default:
			require.NoError(t, err)
			require.True(t, ok)
			require.Equal(t, c, got)
		}
		require.Equal(t, c.Expires, contract.CallbackExpiry(signed))
	})
}

// routed reports whether [net/http.ServeMux] matches a path segment: it matches neither an empty segment nor a segment
// that is a single slash. No task has such a name.
func routed(segment string) bool { return segment != "" && segment != "/" }

// No edit of a signed URL yields a valid URL for another callback.
func FuzzVerifyCallbackRejectsChanges(f *testing.F) {
	genuine := callback(contract.VerbFinished)
	signed := contract.CallbackURL("https://api.example.com", genuine, keys)
	for _, seed := range []string{
		signed, signed + "&attempt=2", strings.Replace(signed, "attempt=1", "attempt=2&attempt=1", 1),
		strings.Replace(signed, "attempt=1", "attempt=01", 1), strings.Replace(signed, "attempt=1", "attempt=%31", 1),
		strings.Replace(signed, "rev=7", "rev=8", 1), strings.Replace(signed, "key=k2", "key=k1", 1),
		strings.Replace(signed, "finished", "started", 1), strings.Replace(signed, "acme", "evil", 1),
		strings.Replace(signed, "sig=", "sig=A", 1), strings.Split(signed, "?")[0], signed + ";", "", "%", "https://api.example.com?expires=x",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		contract.CallbackExpiry(text) // an envelope may contain any text as a URL
		u, err := url.Parse(text)
		if err != nil {
			return
		}
		got, ok, err := serve(&http.Request{Method: http.MethodPost, URL: u, Host: u.Host}, start)
		switch {
		case !ok:
		case err != nil:
			require.ErrorIs(t, err, contract.ErrForged)
			require.Less(t, len(err.Error()), 1000)
		default:
			require.Equal(t, genuine, got)
			_, _, err = serve(&http.Request{Method: http.MethodPost, URL: u, Host: u.Host}, genuine.Expires)
			require.ErrorIs(t, err, contract.ErrExpired)
		}
	})
}

// An accepted execution URI lies in its materialization, beside that materialization's commit
// marker.
func FuzzExecutionURIStaysInMaterialization(f *testing.F) {
	env := envelope()
	asset := ids.AssetKey{Namespace: "raw", Name: "events"}
	prefix := contract.MaterializationPrefix(domain, asset, env.PartitionKey, env.MaterializationID)
	for _, seed := range []string{
		prefix + "a-n/", prefix + "../", prefix + "a/b/", prefix + "/", prefix, prefix + "a", prefix + "_commit.json/", "x/", "", "/",
		prefix + "a\x00/", prefix + "%2e%2e/",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, uri string) {
		marker := contract.CommitMarkerKeyOf(uri)
		if !contract.IsExecutionURI(uri, prefix) {
			return
		}
		require.Equal(t, contract.CommitMarkerKey(domain, asset, env.PartitionKey, env.MaterializationID), marker)
		require.NotContains(t, strings.Split(uri, "/"), "..")
		require.Equal(t, strings.Count(prefix, "/")+1, strings.Count(uri, "/"))
	})
}
