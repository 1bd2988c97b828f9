package dispatcher_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
	"github.com/servo-orchestration/servo/pkg/state"
)

var verbs = []string{contract.VerbStarted, contract.VerbHeartbeat, contract.VerbFinished}

func TestCallbacksReportAttemptFromStartToEnd(t *testing.T) {
	w := newFixture(t)
	run := w.trigger(foldtest.Task("a"), foldtest.Task("b", "a"))
	started := decoded[contract.StartedResponse](t, w.report(w.callback(run, "a", contract.VerbStarted, 1)))
	require.Equal(t, event.At(w.clock.Now()), started.StartedAt)
	w.fold()
	require.Equal(t, state.TaskRunning, w.task(run, "a").State)

	// The URLs in the responses to the callbacks start and heartbeat are valid.
	cb := w.callback(run, "a", contract.VerbHeartbeat, 1)
	beat := decoded[contract.HeartbeatResponse](t, w.postAs(started.Callbacks.Heartbeat, started.Callbacks.Authorization.Heartbeat, w.body(cb)))
	require.False(t, beat.ShouldCancel)
	cb.Verb = contract.VerbFinished
	require.Equal(t, http.StatusOK, w.postAs(beat.Callbacks.Finished, beat.Callbacks.Authorization.Finished, w.body(cb)).status)
	w.fold()
	require.Equal(t, state.TaskSucceeded, w.task(run, "a").State)
	require.Equal(t, state.TaskReady, w.task(run, "b").State)
	require.Equal(t, contract.CallbackExpiry(started.Callbacks.Finished), contract.CallbackExpiry(beat.Callbacks.Finished))
}

func TestCallbackURLContainsNoSecret(t *testing.T) {
	w := newFixture(t)
	run := w.trigger(foldtest.Task("a"))
	cb := w.callback(run, "a", contract.VerbStarted, 1)
	url, authorization := contract.SignCallback(w.url, cb, keys)
	_, sig, _ := strings.Cut(authorization, " ")
	require.NotContains(t, url, sig)
	for name, as := range map[string]string{
		"no header": "", "another scheme": "Bearer " + sig, "no scheme": sig, "another signature": contract.AuthScheme + " " + strings.Repeat("A", len(sig)),
	} {
		require.Equal(t, http.StatusUnauthorized, w.postAs(url, as, w.body(cb)).status, name)
	}
	legacy := contract.CallbackURL(w.url, cb, keys)
	require.Equal(t, http.StatusUnauthorized, w.postAs(legacy, authorization, w.body(cb)).status, "signature in URL and header")
	require.Equal(t, http.StatusOK, w.post(legacy, w.body(cb)).status, "contract 1.0")
	require.Equal(t, http.StatusOK, w.postAs(legacy, "Bearer x", w.body(cb)).status, "contract 1.0 behind a proxy that adds tokens")
	answer := decoded[contract.StartedResponse](t, w.postAs(url, authorization, w.body(cb)))
	require.NotContains(t, answer.Callbacks.Heartbeat+answer.Callbacks.Finished, "sig=")
	require.NotEmpty(t, answer.Callbacks.Authorization.Heartbeat)
}

func TestCallbackSignatureIsBoundToItsAttempt(t *testing.T) {
	w := newFixture(t)
	run := w.trigger(foldtest.Task("a"), foldtest.Task("b"))
	before := w.count()
	for _, verb := range verbs {
		good := w.callback(run, "a", verb, 1)
		expired, otherDomain := good, good
		expired.Expires = event.At(w.clock.Now())
		otherDomain.Domain.Workspace = "stage"
		otherVerb, otherTask := good, good
		otherVerb.Verb = map[string]string{contract.VerbStarted: contract.VerbFinished}[verb]
		if otherVerb.Verb == "" {
			otherVerb.Verb = contract.VerbStarted
		}
		otherTask.TaskKey = "b"
		// withQueryOf returns the URL of a valid callback with the query, and so the signature, of another callback.
		withQueryOf := func(other contract.Callback) string {
			path, _, _ := strings.Cut(contract.CallbackURL(w.url, good, keys), "?")
			_, query, _ := strings.Cut(contract.CallbackURL(w.url, other, keys), "?")
			return path + "?" + query
		}
		for name, url := range map[string]string{
			"with another secret":     contract.CallbackURL(w.url, good, forged),
			"expired":                 contract.CallbackURL(w.url, expired, keys),
			"for another domain":      withQueryOf(otherDomain),
			"for another verb":        withQueryOf(otherVerb),
			"for another task":        withQueryOf(otherTask),
			"without a signature":     strings.SplitN(contract.CallbackURL(w.url, good, keys), "sig=", 2)[0],
			"with a later expiry":     strings.Replace(contract.CallbackURL(w.url, good, keys), "expires=", "expires=9", 1),
			"with a greater revision": strings.Replace(contract.CallbackURL(w.url, good, keys), "rev=", "rev=1", 1),
		} {
			got := w.post(url, w.body(good))
			require.Equal(t, http.StatusUnauthorized, got.status, "%s, signed %s: %s", verb, name, got.body)
			got.problem(t)
		}
	}
	require.Equal(t, before, w.count(), "appended events")
}

func TestCallbackNamesTheInvalidField(t *testing.T) {
	w := newFixture(t)
	run := w.trigger(foldtest.Task("a"))
	before := w.count()
	other := ids.AttemptID(acme, run, "a", 2)
	made := ids.MaterializationID(acme, run, "a")
	asset := ids.AssetKey{Namespace: "test", Name: "a"}
	finished := func(change func(*contract.Finished)) contract.Finished {
		f, _ := w.body(w.callback(run, "a", contract.VerbFinished, 1)).(contract.Finished)
		change(&f)
		return f
	}
	uri := func(uri string) contract.Finished { return finished(func(f *contract.Finished) { f.Output.URI = uri }) }
	for _, c := range []struct {
		verb, field string
		body        any
	}{
		{contract.VerbStarted, "", `{`},
		{contract.VerbStarted, "attempt_id", `{"started_at":"2026-01-02T03:04:05Z"}`},
		{contract.VerbStarted, "attempt_id", contract.Started{AttemptID: other, StartedAt: 1}},
		{contract.VerbHeartbeat, "attempt_id", contract.Heartbeat{AttemptID: other, HeartbeatAt: 1}},
		{contract.VerbHeartbeat, "progress", contract.Heartbeat{AttemptID: ids.AttemptID(acme, run, "a", 1), HeartbeatAt: 1, Progress: 101}},
		{contract.VerbFinished, "attempt_id", finished(func(f *contract.Finished) { f.AttemptID = other })},
		{contract.VerbFinished, "outcome", finished(func(f *contract.Finished) { f.Outcome = "great" })},
		{contract.VerbFinished, "materialization_id", finished(func(f *contract.Finished) { f.MaterializationID = other })},
		{contract.VerbFinished, "output.uri", uri("assets/globex/prod/test/a/_/" + made + "/x-1/")},
		{contract.VerbFinished, "output.uri", uri(contract.MaterializationPrefix(acme, asset, "", other) + "x-1/")},
		{contract.VerbFinished, "output.uri", uri(contract.MaterializationPrefix(acme, asset, "", made) + "../../x/")},
		{contract.VerbFinished, "output.uri", uri(contract.MaterializationPrefix(acme, asset, "", made))},
	} {
		got := w.post(contract.CallbackURL(w.url, w.callback(run, "a", c.verb, 1), keys), c.body)
		require.Equal(t, http.StatusBadRequest, got.status, "%s %+v: %s", c.verb, c.body, got.body)
		require.Equal(t, c.field, got.problem(t).Field, "%s %+v: %s", c.verb, c.body, got.body)
	}
	huge := fmt.Sprintf(`{"attempt_id":%q,"worker_id":%q}`, other, strings.Repeat("x", 2<<20))
	got := w.post(contract.CallbackURL(w.url, w.callback(run, "a", contract.VerbStarted, 1), keys), huge)
	require.Equal(t, http.StatusBadRequest, got.status)
	require.Equal(t, before, w.count(), "appended events")
}

func TestUnknownRoutesAreNotFound(t *testing.T) {
	w := newFixture(t)
	run := w.trigger(foldtest.Task("a"))
	elsewhere := w.callback(run, "a", contract.VerbStarted, 1)
	elsewhere.Domain.Tenant = "globex"
	require.Equal(t, http.StatusNotFound, w.report(elsewhere).status)
	require.Equal(t, http.StatusNotFound, w.report(w.callback(run, "a", "paused", 1)).status)
	require.Equal(t, http.StatusNotFound, w.post(w.url+"/v1/reconcile", `{"tenant":"Not a name","workspace":"prod"}`).status)
	require.Equal(t, http.StatusBadRequest, w.post(w.url+"/v1/reconcile", `{"tenant":"acme","workspace":"prod","revision":-1}`).status)
	require.Equal(t, http.StatusBadRequest, w.post(w.url+"/v1/reconcile", `no`).status)
	require.Equal(t, http.StatusNoContent, w.post(w.url+"/v1/notifications", `{}`).status, "an error would be redelivered")
	require.Equal(t, http.StatusBadRequest, w.post(w.url+"/v1/notifications", `{`).status)
	require.Equal(t, http.StatusNoContent, w.post(w.url+"/v1/notifications", `{"message":{"attributes":{"objectId":"assets/x"}}}`).status)
}

// A callback can arrive before this process has read the revision that admitted the attempt. The
// dispatcher waits for that revision before it answers that the task is unknown.
func TestCallbackWaitsForItsRevision(t *testing.T) {
	w := newFixture(t)
	w.trigger(foldtest.Task("a"))
	w.Now = w.clock.Now()
	p := &event.RunTriggered{RunID: w.ids.New()}
	w.append(w.Triggered(p, foldtest.Task("b"))...)

	known, unknown := w.callback(p.RunID, "b", contract.VerbStarted, 1), w.callback(p.RunID, "c", contract.VerbStarted, 1)
	known.Revision++
	unknown.Revision++
	for _, c := range []struct {
		cb   contract.Callback
		want int
	}{{unknown, http.StatusNotFound}, {known, http.StatusOK}} {
		got := make(chan answer, 1)
		if w.revision() < c.cb.Revision {
			go func() { got <- w.report(c.cb) }()
			select {
			case after := <-w.snapshots.waiting:
				require.Equal(t, c.cb.Revision-1, after)
			case a := <-got:
				require.Fail(t, "answered without waiting", "%d %s", a.status, a.body)
			}
			w.fold()
		} else {
			got <- w.report(c.cb)
		}
		a := <-got
		require.Equal(t, c.want, a.status, "%s: %s", c.cb.TaskKey, a.body)
	}
	past := w.callback(p.RunID, "c", contract.VerbStarted, 1)
	require.Equal(t, http.StatusNotFound, w.report(past).status)
	require.Empty(t, w.snapshots.waiting, "no wait for a revision that was read")
}

func TestStaleAttemptLearnsTheCurrentOne(t *testing.T) {
	w := newFixture(t)
	run := w.trigger(foldtest.Retrying("a", 3))
	w.append(w.Finished(run, "a", 1, event.Failed))
	w.fold()
	w.pass(time.Hour)
	w.append(w.Fire(w.timers(event.TimerRetry)[0]))
	w.fold()
	require.Equal(t, int32(2), w.task(run, "a").Attempt)
	before := w.count()
	for _, verb := range verbs {
		got := w.report(w.callback(run, "a", verb, 1))
		require.Equal(t, http.StatusConflict, got.status, "%s: %s", verb, got.body)
		require.Equal(t, ids.AttemptID(acme, run, "a", 2), got.problem(t).CurrentAttemptID)
	}
	require.Equal(t, before, w.count(), "appended events")
	require.Equal(t, http.StatusOK, w.report(w.callback(run, "a", contract.VerbStarted, 2)).status)
}

func TestEndedAttemptMayNotStart(t *testing.T) {
	w := newFixture(t)
	run := w.trigger(foldtest.Task("cancelled"))
	failed := w.trigger(foldtest.Retrying("failed", 2))
	w.append(&event.RunCancelRequested{RunID: run, Reason: "not needed"})
	w.append(w.Finished(failed, "failed", 1, event.Failed))
	w.fold()
	require.Equal(t, state.TaskCancelled, w.task(run, "cancelled").State)
	require.Equal(t, state.TaskRetryWait, w.task(failed, "failed").State)
	before := w.count()
	for _, cb := range []contract.Callback{
		w.callback(run, "cancelled", contract.VerbStarted, 1), w.callback(failed, "failed", contract.VerbStarted, 1),
	} {
		got := w.report(cb)
		require.Equal(t, http.StatusConflict, got.status, "%s: %s", cb.TaskKey, got.body)
		require.Equal(t, cb.AttemptID, got.problem(t).CurrentAttemptID)
	}
	require.Equal(t, before, w.count(), "appended events")
}

func TestRepeatedReportsAppendNothing(t *testing.T) {
	w := newFixture(t)
	run := w.trigger(foldtest.Task("a"))
	start, finish := w.callback(run, "a", contract.VerbStarted, 1), w.callback(run, "a", contract.VerbFinished, 1)
	first := decoded[contract.StartedResponse](t, w.report(start))
	w.fold()
	w.pass(time.Minute)
	again := decoded[contract.StartedResponse](t, w.report(start))
	require.Equal(t, first.StartedAt, again.StartedAt, "the first start counts")
	require.Len(t, appended[*event.TaskStarted](w), 1)

	require.Equal(t, http.StatusOK, w.report(finish).status)
	w.fold()
	require.Equal(t, http.StatusOK, w.report(finish).status)
	require.Len(t, appended[*event.TaskFinished](w), 1)
	// The response to a late heartbeat tells the worker to stop. The heartbeat is not stored.
	beat := decoded[contract.HeartbeatResponse](t, w.report(w.callback(run, "a", contract.VerbHeartbeat, 1)))
	require.True(t, beat.ShouldCancel)
	require.Empty(t, appended[*event.TaskHeartbeat](w))
}

// If a task is cancelled before its start is known, its slot is freed. So the start must be durable before the task
// begins. This test fails if the start lingers in the appender until the next batch.
func TestStartOfPooledTaskIsDurableBeforeAnswer(t *testing.T) {
	w := newFixture(t)
	w.appender = ledger.NewAppender(ledger.Config{
		Domain: acme, Store: w.blobs, IDs: w.ids, Clock: w.clock, Linger: time.Hour, OnStored: w.onDurable,
	})
	w.d = w.dispatcher(w.snapshots)
	pooled := foldtest.Task("b")
	pooled.Pool = "warehouse"
	run := w.trigger(foldtest.Task("a"), pooled)
	require.Equal(t, http.StatusOK, w.report(w.callback(run, "a", contract.VerbStarted, 1)).status)
	require.Empty(t, appended[*event.TaskStarted](w))
	require.Equal(t, http.StatusOK, w.report(w.callback(run, "b", contract.VerbStarted, 1)).status)
	require.Len(t, appended[*event.TaskStarted](w), 2, "the waiting start is written, too")
}

func TestHeartbeatCancelsTaskOfCancelledRun(t *testing.T) {
	w := newFixture(t)
	run := w.trigger(foldtest.Task("a"))
	require.Equal(t, http.StatusOK, w.report(w.callback(run, "a", contract.VerbStarted, 1)).status)
	w.fold()
	beat := w.callback(run, "a", contract.VerbHeartbeat, 1)
	require.False(t, decoded[contract.HeartbeatResponse](t, w.report(beat)).ShouldCancel)
	w.append(&event.RunCancelRequested{RunID: run, Reason: "not needed"})
	w.fold()
	require.Equal(t, state.RunCancelling, w.state().Runs.Get(run).State)
	got := decoded[contract.HeartbeatResponse](t, w.report(beat))
	require.True(t, got.ShouldCancel)
	require.Equal(t, "not needed", got.Reason)
}

func TestHeartbeatsOfASecondShareAnEntry(t *testing.T) {
	w := newFixture(t)
	w.appender = ledger.NewAppender(ledger.Config{
		Domain: acme, Store: w.blobs, IDs: w.ids, Clock: w.clock, Linger: time.Second, OnStored: w.onDurable,
	})
	w.d = w.dispatcher(w.snapshots)
	tasks := make([]event.TaskDef, 100)
	for i := range tasks {
		tasks[i] = foldtest.Task(fmt.Sprintf("t%d", i))
	}
	run := w.trigger(tasks...)
	require.Empty(t, w.pending)
	for i := range tasks {
		require.Equal(t, http.StatusOK, w.report(w.callback(run, tasks[i].TaskKey, contract.VerbHeartbeat, 1)).status)
	}
	require.Empty(t, w.pending)
	require.NoError(t, w.appender.Flush(t.Context())) // in production, Run of the appender flushes after a second
	require.Len(t, appended[*event.TaskHeartbeat](w), len(tasks))
	require.Len(t, w.pending, 1, "entries")
}

func TestFrequentHeartbeatsAreThrottled(t *testing.T) {
	w := newFixture(t)
	def := foldtest.Task("a")
	def.HeartbeatTimeoutSec = 60 // one heartbeat in ten seconds is stored
	run := w.trigger(def, foldtest.Task("b"))
	for _, key := range []string{"a", "b"} {
		require.Equal(t, http.StatusOK, w.report(w.callback(run, key, contract.VerbStarted, 1)).status)
	}
	w.fold()
	for range 30 {
		require.Equal(t, http.StatusOK, w.report(w.callback(run, "a", contract.VerbHeartbeat, 1)).status)
		w.pass(time.Second)
	}
	require.Len(t, appended[*event.TaskHeartbeat](w), 3)
	require.Equal(t, http.StatusOK, w.report(w.callback(run, "b", contract.VerbHeartbeat, 1)).status)
	require.Len(t, appended[*event.TaskHeartbeat](w), 4, "the other attempt has its own throttle")
}
