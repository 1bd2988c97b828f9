package compactor_test

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/faultblob"
	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/compactor/remote"
	"github.com/servo-orchestration/servo/pkg/domain"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
	"github.com/servo-orchestration/servo/pkg/repair"
	"github.com/servo-orchestration/servo/pkg/state"
)

// seal makes reads fail for all objects whose keys contain one of the names. Objects with the extension .skip can still
// be read.
func (w *world) seal(names ...string) {
	w.faults(func(op faultblob.Op, key string) faultblob.Fault {
		for _, name := range names {
			if op == faultblob.Get && strings.Contains(key, name) && !strings.HasSuffix(key, ".skip") {
				return faultblob.FailBefore
			}
		}
		return faultblob.None
	})
}

// logged opens a compactor and returns its log.
func (w *world) logged(writer string) (*compactor.Compactor, *bytes.Buffer) {
	w.t.Helper()
	log := &bytes.Buffer{}
	c, err := compactor.Open(w.t.Context(), compactor.Config{
		Handle:  domain.Open(domain.Handle{Domain: foldtest.Domain, Store: w.store(), Manifests: w.manifests(), Codec: codec, IDs: w.ids, Clock: w.clock, Logger: slog.New(slog.NewTextHandler(log, nil))}),
		Writer:  writer,
		Options: w.options,
	})
	require.NoError(w.t, err)
	return c, log
}

func (w *world) barrier(c *compactor.Compactor) compactor.Result {
	w.t.Helper()
	result, err := c.Step(w.t.Context(), compactor.Request{Barrier: true})
	require.NoError(w.t, err)
	return result
}

func (w *world) complete() string {
	w.t.Helper()
	m, err := w.manifests().Load(w.t.Context())
	require.NoError(w.t, err)
	return m.Watermarks.CompleteThrough
}

// stored returns the id of an entry, which is part of the key of its object.
func stored(e compactor.Entry) string { return e.ID }

// retrying creates a run whose task waits for a retry, and returns the retry's timer.
func (w *world) retrying(c *compactor.Compactor) (run string, retry *state.Timer) {
	w.t.Helper()
	run, entry := w.trigger(foldtest.Retrying("a", 3), foldtest.Task("b", "a"))
	w.step(c, entry)
	w.step(c, w.append(w.Finished(run, "a", 1, event.Failed)))
	snap, _ := c.Latest().Get()
	for timer := range snap.State.Timers.All {
		if timer.TimerType == event.TimerRetry {
			retry = timer
		}
	}
	require.NotNil(w.t, retry)
	w.clock.pass(time.Hour)
	w.Now = w.clock.Now()
	return run, retry
}

// A step must not stop at an entry that it cannot read.
func TestI15UnreadableEntryHoldsUpNothingButItself(t *testing.T) {
	w := newWorld(t)
	c, log := w.logged("one")
	run, retry := w.retrying(c)
	lost := stored(w.append(w.Finished(run, "b", 1, event.Succeeded)))
	w.seal(lost)
	other, _ := w.trigger(foldtest.Task("a"))
	fired := w.append(w.Fire(retry))
	w.append(w.Started(other, "a", 1))
	w.clock.pass(time.Hour) // so that listings are complete far above the gap

	result := w.barrier(c)
	require.Equal(t, []string{lost, fired.ID}, result.Unreadable)
	require.Equal(t, []string{"a=RUNNING"}, w.states(c, other), "facts are folded")
	require.Equal(t, []string{"a=RETRY_WAIT", "b=BLOCKED"}, w.states(c, run), "timers wait")
	require.Less(t, w.complete(), lost)
	for range 3 {
		before, _ := c.Latest().Get()
		result, err := c.Step(t.Context(), compactor.Request{Barrier: true, Entries: []compactor.Entry{{ID: lost}, fired}, Sweep: true})
		require.NoError(t, err)
		require.Equal(t, []string{lost, fired.ID}, result.Unreadable)
		after, _ := c.Latest().Get()
		require.Equal(t, before.CaughtUpAt, after.CaughtUpAt, "not everything is folded")
	}
	require.Equal(t, 1, strings.Count(log.String(), "level=ERROR"), "it is reported once: %s", log)
	require.Contains(t, log.String(), lost)

	again := w.open("two") // a new process, which does not know the gap
	require.Equal(t, []string{lost, fired.ID}, w.barrier(again).Unreadable)

	w.faults(nil)
	require.Empty(t, w.barrier(again).Unreadable)
	require.NotEmpty(t, w.rows(again, lost))
	require.Equal(t, []string{"a=READY", "b=SUCCEEDED"}, w.states(again, run), "the timer has fired, after the fact")
	for range 2 { // the second listing is complete up to a store time that the first one has observed
		w.append(w.Started(other, "a", 1))
		w.barrier(again)
	}
	require.Greater(t, w.complete(), lost)
	w.verify()
}

// Decisions of timers wait while there is a gap. The entry of such a timer also counts as a gap until it is folded,
// even if the round that should fold it fails.
func TestPostponedTimerStaysAGapUntilFolded(t *testing.T) {
	w := newWorld(t)
	w.options = files
	c := w.open("one")
	run, retry := w.retrying(c)
	lost := stored(w.append(w.Finished(run, "b", 1, event.Succeeded)))
	w.seal(lost)
	fired := w.append(w.Fire(retry))
	require.Equal(t, []string{lost, fired.ID}, w.barrier(c).Unreadable)

	published := &atomic.Bool{}
	published.Store(true)
	w.faults(func(op faultblob.Op, key string) faultblob.Fault {
		switch {
		case op == faultblob.Create && strings.HasPrefix(key, "manifests/"):
			published.Store(true)
		case op == faultblob.Create && strings.HasPrefix(key, "state/") && published.Load():
			return faultblob.FailBefore
		}
		return faultblob.None
	})
	for _, open := range [][]string{{lost, fired.ID}, {fired.ID}} { // step 1: the first round fails; step 2: the second
		result, err := c.Step(t.Context(), compactor.Request{Barrier: true})
		require.ErrorIs(t, err, faultblob.ErrInjected)
		require.Equal(t, open, result.Unreadable)
		published.Store(false)
	}
	w.faults(nil)
	require.Equal(t, []string{fired.ID}, w.step(c).Unreadable)
	require.Empty(t, w.barrier(c).Unreadable)
	require.Equal(t, []string{"a=READY", "b=SUCCEEDED"}, w.states(c, run))
	w.verify()
}

func TestUnreadablePlanHoldsUpOnlyItsEntry(t *testing.T) {
	w := newWorld(t)
	c := w.open("one")
	ref := compactor.PlanPrefix(foldtest.Domain) + "plan.json"
	plan, err := json.Marshal(map[string]any{"tasks": []event.TaskDef{foldtest.Task("a")}})
	require.NoError(t, err)
	_, err = w.blobs.Create(t.Context(), ref, plan)
	require.NoError(t, err)
	payloads := w.Triggered(&event.RunTriggered{RunID: w.ids.New()})
	created, ok := payloads[1].(*event.PlanCreated)
	require.True(t, ok)
	created.PlanRef, created.Tasks = ref, nil
	w.seal(ref)
	waits := w.append(payloads...)
	other, entry := w.trigger(foldtest.Task("a"))
	result := w.step(c, waits, entry)
	require.Equal(t, []string{waits.ID}, result.Unreadable)
	require.Equal(t, []string{"a=READY"}, w.states(c, other))
	w.faults(nil)
	require.Empty(t, w.barrier(c).Unreadable)
	require.Equal(t, []string{"a=READY"}, w.states(c, created.RunID))
	w.verify()
}

func TestSkippedEntryStaysADeadLetter(t *testing.T) {
	w := newWorld(t)
	c := w.open("one")
	run, retry := w.retrying(c)
	lost := stored(w.append(w.Finished(run, "b", 1, event.Succeeded)))
	w.append(w.Fire(retry))
	skip := func(entry, reason string) error {
		cfg := w.repair()
		cfg.Store = w.store()
		return repair.Skip(t.Context(), cfg, ledger.Skip{Entry: entry, By: "ada", At: event.At(w.clock.Now()), Reason: reason})
	}
	require.ErrorContains(t, skip(lost, "gone"), "can be read")
	require.ErrorContains(t, skip(w.ids.New(), "gone"), "does not exist")
	w.seal(lost)
	require.ErrorContains(t, skip(lost, " "), "reason")
	require.Len(t, w.barrier(c).Unreadable, 2)
	require.NoError(t, skip(lost, "its key is destroyed"))
	require.NoError(t, skip(lost, "again"), "the first decision stays")

	require.Empty(t, w.barrier(c).Unreadable)
	row := w.rows(c, lost)[compactor.WholeEntry]
	require.Equal(t, state.DeadLetter, row.Outcome)
	require.Equal(t, compactor.ReasonSkipped, row.Reason)
	require.Contains(t, row.Detail, "skipped by ada at ")
	require.Contains(t, row.Detail, "its key is destroyed")
	require.Equal(t, []string{"a=READY", "b=BLOCKED"}, w.states(c, run), "timers no longer wait")
	require.ErrorContains(t, skip(lost, "gone"), "already folded")

	sealed := w.repair()
	sealed.Store = w.store()
	for _, cfg := range []repair.Config{sealed, w.repair()} { // first, the entry is unreadable; then readable
		report, err := repair.Verify(t.Context(), cfg)
		require.NoError(t, err)
		require.Empty(t, report.Problems)
	}
	result, err := repair.Rebuild(t.Context(), sealed)
	require.NoError(t, err)
	require.True(t, result.Recorded)
	require.Equal(t, row.Detail, w.rows(w.open("two"), lost)[compactor.WholeEntry].Detail)

	for _, prefix := range []string{"state/", "manifests/", "hints/", "boundary/"} {
		remove(t, w, prefix)
	}
	sealed.Bare = true
	_, err = repair.Rebuild(t.Context(), sealed)
	require.NoError(t, err)
	require.Equal(t, row.Detail, w.rows(w.open("three"), lost)[compactor.WholeEntry].Detail, "the bare ledger has the decision")
}

// A decision is permanent, so a read that fails only once must not lead to one.
func TestSkipReadsEntryAgain(t *testing.T) {
	w := newWorld(t)
	c := w.open("one")
	run, _ := w.retrying(c)
	entry := stored(w.append(w.Finished(run, "b", 1, event.Succeeded)))
	failures := 0
	w.faults(func(op faultblob.Op, key string) faultblob.Fault {
		if op == faultblob.Get && strings.Contains(key, entry) && failures < 2 {
			failures++
			return faultblob.FailBefore
		}
		return faultblob.None
	})
	cfg := w.repair()
	cfg.Store = w.store()
	err := repair.Skip(t.Context(), cfg, ledger.Skip{Entry: entry, By: "ada", At: event.At(w.clock.Now()), Reason: "gone"})
	require.ErrorContains(t, err, "can be read")
	require.Equal(t, 2, failures)
	decision, err := ledger.ReadSkip(t.Context(), w.blobs, cfg.Domain, entry)
	require.NoError(t, err)
	require.Nil(t, decision)
}

func TestSkippedEntryAheadKeepsWatermark(t *testing.T) {
	w := newWorld(t)
	c := w.open("one")
	w.retrying(c)
	before, _ := w.load()
	ahead := w.write(30*time.Hour, 0, 0, &event.LimitSet{CommandID: "c", Scope: event.ScopePool, Name: "api", Slots: 3}).ID
	w.seal(ahead)
	cfg := w.repair()
	cfg.Store = w.store()
	decision := ledger.Skip{Entry: ahead, By: "ada", At: event.At(w.clock.Now()), Reason: "its key is destroyed"}
	require.NoError(t, repair.Skip(t.Context(), cfg, decision))
	require.Empty(t, w.barrier(c).Unreadable)
	require.Equal(t, state.DeadLetter, w.rows(c, ahead)[compactor.WholeEntry].Outcome)
	m, _ := w.load()
	require.Greater(t, m.Revision, before.Revision)
	require.Equal(t, before.Watermarks.EventsProcessedThrough, m.Watermarks.EventsProcessedThrough)
}

func TestRebuildStopsAtUnskippedGap(t *testing.T) {
	w := newWorld(t)
	run, _ := w.trigger(foldtest.Task("a"))
	lost := stored(w.append(w.Started(run, "a", 1)))
	w.seal(lost)
	cfg := w.repair()
	cfg.Store, cfg.Bare = w.store(), true
	_, err := repair.Rebuild(t.Context(), cfg)
	require.ErrorContains(t, err, lost)
}

// A dead letter that waits for its run may be unreadable when the run appears.
func TestUnreadableDeadLetterIsFoldedLater(t *testing.T) {
	w := newWorld(t)
	c := w.open("one")
	run, trigger := w.trigger(foldtest.Task("a"))
	data := trigger.Data
	require.NoError(t, w.blobs.Delete(t.Context(), ledger.Key(foldtest.Domain, trigger.ID)))
	early := stored(w.append(w.Started(run, "a", 1)))
	w.barrier(c)
	require.True(t, w.rows(c, early)[firstGroup(w.rows(c, early))].Waits())
	w.seal(early)
	late := w.raw(data)
	w.barrier(c)
	require.NotEmpty(t, w.rows(c, late))
	require.Equal(t, []string{"a=READY"}, w.states(c, run), "the run exists")
	w.faults(nil)
	w.barrier(c)
	require.Equal(t, []string{"a=RUNNING"}, w.states(c, run))
	w.verify()
}

func firstGroup(rows map[string]*state.Entry) string {
	for group := range rows {
		return group
	}
	return ""
}

// Run retries gaps on its own.
func TestRunClosesAGapWhenItsEntryCanBeRead(t *testing.T) {
	w := newWorld(t)
	w.clock.stay = true
	run, _ := w.trigger(foldtest.Task("a"))
	lost := stored(w.append(w.Started(run, "a", 1)))
	failing := 0
	w.faults(func(op faultblob.Op, key string) faultblob.Fault {
		if op == faultblob.Get && strings.Contains(key, lost) && failing < 6 {
			failing++
			return faultblob.FailBefore
		}
		return faultblob.None
	})
	folded := make(chan struct{})
	c, err := compactor.Open(t.Context(), compactor.Config{
		Handle: w.handle(w.store()),
		Writer: "one",
		OnPublish: func(p compactor.Published) {
			if len(rowsOf(p.Snapshot.State, lost)) > 0 {
				close(folded)
			}
		},
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- c.Run(ctx) }()
	result, err := c.Compact(ctx, compactor.Request{Barrier: true})
	require.NoError(t, err)
	require.Equal(t, []string{lost}, result.Unreadable)
	<-folded
	cancel()
	require.NoError(t, <-ended)
	require.Equal(t, 6, failing)
}

// If the notification of an entry is refused, the bucket repeats it.
func TestNotificationOfAnUnreadableEntryIsRefused(t *testing.T) {
	w := newWorld(t)
	w.clock.stay = true
	run, trigger := w.trigger(foldtest.Task("a"))
	lost := stored(w.append(w.Started(run, "a", 1)))
	w.seal(lost)
	c := w.open("one")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- c.Run(ctx) }()
	mux := http.NewServeMux()
	remote.Register(mux, func(context.Context, ids.Domain) (*compactor.Compactor, error) { return c, nil })
	notify := func(entry string) int {
		answer := httptest.NewRecorder()
		body := `{"message":{"attributes":{"objectId":"` + ledger.Key(foldtest.Domain, entry) + `"}}}`
		mux.ServeHTTP(answer, httptest.NewRequest(http.MethodPost, "/v1/notifications", strings.NewReader(body)))
		return answer.Code
	}
	require.Equal(t, http.StatusServiceUnavailable, notify(lost))
	require.Equal(t, http.StatusOK, notify(trigger.ID))
	w.faults(nil)
	require.Equal(t, http.StatusOK, notify(lost))
	cancel()
	require.NoError(t, <-ended)
}
