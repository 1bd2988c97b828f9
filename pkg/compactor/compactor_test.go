package compactor_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/faultblob"
	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/domain"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/state"
)

func TestTaskTransitionIsOnePublish(t *testing.T) {
	w := newWorld(t)
	c := w.open("one")
	run, entry := w.trigger(foldtest.Task("a"), foldtest.Task("b", "a"))
	require.Equal(t, int64(1), w.step(c, entry).Revision)
	require.Equal(t, []string{"a=READY", "b=BLOCKED"}, w.states(c, run))

	finished := w.append(w.Finished(run, "a", 1, event.Succeeded))
	before := w.blobs.Stats()
	require.Equal(t, int64(2), w.step(c, finished).Revision)
	require.Equal(t, []string{"a=SUCCEEDED", "b=READY"}, w.states(c, run))
	snap, _ := c.Latest().Get()
	require.Equal(t, 1, snap.State.Outbox.Len(), "the same fold has admitted b")

	used := w.blobs.Stats().Sub(before)
	require.Zero(t, used.Lists, "no listing is needed")
	require.Equal(t, int64(1), used.Creates, "only the manifest, with the changed rows inline")
	w.verify()
}

func TestEntryAnnouncedTwiceIsFoldedOnce(t *testing.T) {
	w := newWorld(t)
	c := w.open("one")
	run, entry := w.trigger(foldtest.Task("a"))
	w.step(c, entry, entry)
	before := w.blobs.Stats()
	again := w.step(c, compactor.Entry{ID: entry.ID})
	require.Zero(t, again.Folded)
	require.Zero(t, w.blobs.Stats().Sub(before).Creates, "a recorded entry needs no publish")
	require.Equal(t, []string{"a=READY"}, w.states(c, run))

	other := w.open("two") // a process that loads the state recognizes the entry, too
	require.Zero(t, w.step(other, entry).Folded)
	w.verify()
}

// A process may die, or receive an error for a successful write, at any storage operation of a
// step. The next step must fold everything exactly once.
func TestStepRecoversFromDeathAtAnyOperation(t *testing.T) {
	for _, fault := range []faultblob.Fault{faultblob.FailBefore, faultblob.FailAfter} {
		for n := 1; ; n++ {
			w := newWorld(t)
			w.options = files
			c := w.open("one")
			run, entry := w.trigger(foldtest.Task("a"), foldtest.Task("b", "a"))
			w.step(c, entry)
			finished := w.append(w.Finished(run, "a", 1, event.Succeeded))
			hit := w.dieAt(c, n, fault, finished)

			w.faults(nil)
			c = w.open("two")
			_, err := c.Step(t.Context(), compactor.Request{Barrier: true})
			require.NoError(t, err, "fault %d at operation %d", fault, n)
			require.Equal(t, []string{"a=SUCCEEDED", "b=READY"}, w.states(c, run), "fault %d at operation %d", fault, n)
			w.verify()
			if !hit {
				require.Greater(t, n, 3, "a step has several operations")
				break
			}
		}
	}
}

// dieAt runs a step in which the n-th storage operation and all later ones fail, as if the process died during the
// n-th. It reports whether the step reached the n-th operation.
func (w *world) dieAt(c *compactor.Compactor, n int, fault faultblob.Fault, entries ...compactor.Entry) bool {
	ctx, die := context.WithCancel(w.t.Context())
	defer die()
	var mu sync.Mutex
	seen := 0
	w.faults(func(faultblob.Op, string) faultblob.Fault {
		mu.Lock()
		defer mu.Unlock()
		switch seen++; {
		case seen < n:
			return faultblob.None
		case seen == n:
			die()
			return fault
		}
		return faultblob.FailBefore
	})
	_, err := c.Step(ctx, compactor.Request{Entries: entries})
	mu.Lock()
	defer mu.Unlock()
	if seen < n {
		require.NoError(w.t, err)
	}
	return seen >= n
}

func TestPublishWithLostAnswerIsNotRepeated(t *testing.T) {
	w := newWorld(t)
	c := w.open("one")
	_, entry := w.trigger(foldtest.Task("a"))
	lost := false
	w.faults(func(op faultblob.Op, key string) faultblob.Fault {
		if !lost && op == faultblob.Create && strings.HasPrefix(key, "manifests/") {
			lost = true
			return faultblob.FailAfter
		}
		return faultblob.None
	})
	require.Equal(t, int64(1), w.step(c, entry).Revision, "the manifest has the nonce of this process")
	require.True(t, lost)
	_, err := w.manifests().LoadAt(t.Context(), 2)
	require.ErrorIs(t, err, manifest.ErrAbsent)
	w.verify()
}

func TestConcurrentCompactorsKeepState(t *testing.T) {
	w := newWorld(t)
	const tasks = 40
	defs := make([]event.TaskDef, tasks)
	for i := range defs {
		defs[i] = foldtest.Task(fmt.Sprintf("t%02d", i))
	}
	run, entry := w.trigger(defs...)
	one, two := w.open("one"), w.open("two")
	w.step(one, entry)
	entries := make([]compactor.Entry, tasks)
	for i := range entries {
		entries[i] = w.append(w.Finished(run, defs[i].TaskKey, 1, event.Succeeded))
	}
	var wg sync.WaitGroup
	for _, c := range []*compactor.Compactor{one, two} {
		wg.Go(func() {
			for i := range entries { // both compactors get every entry
				_, err := c.Step(t.Context(), compactor.Request{Entries: entries[i : i+1]})
				if err != nil {
					t.Errorf("step %d: %v", i, err)
				}
			}
		})
	}
	wg.Wait()
	m, err := w.manifests().Load(t.Context())
	require.NoError(t, err)
	require.LessOrEqual(t, m.Revision, int64(1+tasks), "each entry was published once")
	c := w.open("three")
	snap, _ := c.Latest().Get()
	require.Equal(t, state.RunSucceeded, snap.State.Runs.Get(run).State)
	require.Equal(t, int32(tasks), snap.State.Runs.Get(run).TasksSucceeded)
	w.verify()
}

// Invariant I-13. This test fails if step does not list the ledger when a run is unknown.
func TestI13UnknownRunListsTheLedger(t *testing.T) {
	w := newWorld(t)
	c := w.open("one")
	run, _ := w.trigger(foldtest.Task("a")) // not announced
	finished := w.append(w.Finished(run, "a", 1, event.Succeeded))
	w.step(c, finished)
	require.Equal(t, []string{"a=SUCCEEDED"}, w.states(c, run))
	w.verify()
}

// Invariant I-15 holds even if this machine's clock is fast. This test fails if completeAt trusts that clock.
func TestCompactorWithFastClockSkipsNoEntry(t *testing.T) {
	w := newWorld(t)
	ahead := &steppedClock{now: w.clock.Now().Add(time.Hour)}
	c, err := compactor.Open(t.Context(), compactor.Config{
		Handle: domain.Open(domain.Handle{Domain: foldtest.Domain, Store: w.store(), Manifests: w.manifests(), Codec: codec, IDs: ids.NewSource(ahead.Now, nil), Clock: ahead}),
		Writer: "ahead",
	})
	require.NoError(t, err)
	for range 5 {
		run, _ := w.trigger(foldtest.Task("a")) // not announced
		w.clock.pass(10 * time.Second)
		ahead.pass(10 * time.Second)
		_, err = c.Step(t.Context(), compactor.Request{Barrier: true})
		require.NoError(t, err)
		require.Equal(t, []string{"a=READY"}, w.states(c, run))
	}
	w.clock.pass(5 * time.Minute)
	w.trigger(foldtest.Task("a"))
	_, err = c.Step(t.Context(), compactor.Request{Barrier: true})
	require.NoError(t, err)
	m, err := w.manifests().Load(t.Context())
	require.NoError(t, err)
	require.NotEmpty(t, m.Watermarks.CompleteThrough, "listings do not grow with history")
	require.Less(t, m.Watermarks.CompleteThrough, ids.AtTime(w.clock.Now()))
	w.verify()
}

// If the first listing of a process did not advance complete_through, short-lived processes would list more entries
// at each start. This test fails if recordedAt returns 0.
func TestFirstListingAdvancesCompleteThrough(t *testing.T) {
	w := newWorld(t)
	_, entry := w.trigger(foldtest.Task("a"))
	w.step(w.open("one"), entry)
	w.clock.pass(10 * time.Minute)
	w.trigger(foldtest.Task("a"))
	_, err := w.open("two").Step(t.Context(), compactor.Request{Barrier: true})
	require.NoError(t, err)
	m, err := w.manifests().Load(t.Context())
	require.NoError(t, err)
	require.NotEmpty(t, m.Watermarks.CompleteThrough)
	require.Less(t, m.Watermarks.CompleteThrough, entry.ID)
}

// Invariant I-15. This test fails if Decode returns no group for a line that is not JSON.
func TestI15UndecodableEntryIsADeadLetter(t *testing.T) {
	w := newWorld(t)
	c := w.open("one")
	garbage := w.ids.New()
	_, err := w.blobs.Create(t.Context(), ledger.Key(foldtest.Domain, garbage), []byte("{\"not\": an event\n"))
	require.NoError(t, err)
	run, entry := w.trigger(foldtest.Task("a"))
	early := w.append(w.Finished(w.ids.New(), "a", 1, event.Succeeded)) // this run does not exist
	_, err = c.Step(t.Context(), compactor.Request{Barrier: true})
	require.NoError(t, err)
	require.Equal(t, []string{"a=READY"}, w.states(c, run))
	snap, _ := c.Latest().Get()
	outcome := map[string]string{}
	for row := range snap.State.Entries.All {
		outcome[row.Entry] = string(row.Outcome) + " " + row.Reason
	}
	require.Equal(t, "DEAD_LETTER "+event.ReasonMalformed, outcome[garbage])
	require.Equal(t, "DEAD_LETTER "+fold.ReasonUnknownRun, outcome[early.ID])
	require.Equal(t, "FOLDED ", outcome[entry.ID])
	w.verify()
}

func TestDeadLetterIsFoldedWhenItsRunAppears(t *testing.T) {
	w := newWorld(t)
	c := w.open("one")
	p := &event.RunTriggered{RunID: w.ids.New()}
	early := w.append(w.Finished(p.RunID, "a", 1, event.Succeeded))
	w.step(c, early)
	w.clock.pass(time.Minute)
	w.step(c, w.append(w.Triggered(p, foldtest.Task("a"), foldtest.Task("b", "a"))...))
	require.Equal(t, []string{"a=SUCCEEDED", "b=READY"}, w.states(c, p.RunID))
	w.verify()
}

func TestNewerBuildFoldsUnsupportedDeadLetter(t *testing.T) {
	w := newWorld(t)
	c := w.open("old")
	run, entry := w.trigger(foldtest.Task("a"))
	c.RefuseAsOlderBuild(entry)
	require.Zero(t, w.step(c, entry).Folded, "it stays a dead letter")
	_, err := c.Step(t.Context(), compactor.Request{Barrier: true})
	require.NoError(t, err)
	require.Equal(t, []string{"a=READY"}, w.states(c, run))
	w.verify()
}

// If a step fails while it folds a dead letter again, the next step must try again. This test fails if the failed
// step counts as the only attempt.
func TestUnsupportedDeadLetterSurvivesFailures(t *testing.T) {
	for name, broken := range map[string]string{"entry is unreadable": "ledger/", "state is not writable": "state/"} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.options = files
			c := w.open("old")
			run, entry := w.trigger(foldtest.Task("a"))
			c.RefuseAsOlderBuild(entry)
			w.faults(func(op faultblob.Op, key string) faultblob.Fault {
				if op != faultblob.List && strings.HasPrefix(key, broken) {
					return faultblob.FailBefore
				}
				return faultblob.None
			})
			for range 5 {
				_, err := c.Step(t.Context(), compactor.Request{Barrier: true})
				require.Equal(t, broken != "ledger/", err != nil, "an unreadable entry blocks nothing else: %v", err)
			}
			w.faults(nil)
			_, err := c.Step(t.Context(), compactor.Request{Barrier: true})
			require.NoError(t, err)
			require.Equal(t, []string{"a=READY"}, w.states(c, run))
			w.verify()
		})
	}
}

// INV-9, for the compactor: without a barrier after a fired timer, the task would time out although its heartbeat is in
// the ledger.
func TestINV9TimerDecidesOnAllDurableFacts(t *testing.T) {
	w := newWorld(t)
	c := w.open("one")
	run, entry := w.trigger(foldtest.Task("a"))
	w.step(c, entry)
	w.step(c, w.append(w.Started(run, "a", 1)))
	snap, _ := c.Latest().Get()
	timer := snap.State.Liveness()
	require.NotNil(t, timer)

	w.clock.pass(timer.FireAt.Time().Sub(w.clock.Now()))
	w.append(w.Beat(run, "a", 1)) // this entry is durable, but its announcement is lost
	w.Now = w.clock.Now()
	w.step(c, w.append(w.Fire(timer)))
	require.Equal(t, []string{"a=RUNNING"}, w.states(c, run))
	w.verify()
}

// paged is a store that calls a function after the first page of a listing. At this point, the listing has already
// passed all existing keys.
type paged struct {
	blob.Store

	between func()
}

func (s *paged) List(ctx context.Context, opts blob.ListOptions) iter.Seq2[blob.Object, error] {
	return func(yield func(blob.Object, error) bool) {
		last := opts.StartAfter
		for range 2 {
			for o, err := range s.Store.List(ctx, blob.ListOptions{Prefix: opts.Prefix, StartAfter: last}) {
				if !yield(o, err) {
					return
				}
				last = o.Key
			}
			if between := s.between; between != nil {
				s.between = nil
				between()
			}
		}
	}
}

// INV-9. A listing takes several requests, so it may find a timer and still miss an older fact. This test fails if
// the round that lists a timer also folds its decision.
func TestListedTimerWaitsForSecondListing(t *testing.T) {
	w := newWorld(t)
	store := &paged{Store: w.store()}
	c, err := compactor.Open(t.Context(), compactor.Config{
		Handle: w.handle(store),
		Writer: "one",
	})
	require.NoError(t, err)
	run, entry := w.trigger(foldtest.Task("a"))
	w.step(c, entry)
	w.step(c, w.append(w.Started(run, "a", 1)))
	snap, _ := c.Latest().Get()
	timer := snap.State.Liveness()
	w.clock.pass(timer.FireAt.Time().Sub(w.clock.Now()))
	behind := ids.NewSource(func() time.Time { return w.clock.Now().Add(-30 * time.Second) }, nil)
	w.append(&event.LimitSet{CommandID: w.ids.New(), Scope: "pool", Name: "p", Slots: 3})
	store.between = func() {
		mine := w.ids
		w.ids = behind // this writer's clock is behind
		w.append(w.Beat(run, "a", 1))
		w.ids = mine
		w.Now = w.clock.Now()
		w.append(w.Fire(timer))
	}
	_, err = c.Step(t.Context(), compactor.Request{Barrier: true})
	require.NoError(t, err)
	require.Equal(t, []string{"a=RUNNING"}, w.states(c, run))
	snap, _ = c.Latest().Get()
	require.Nil(t, store.between)
	require.Greater(t, snap.State.Liveness().Generation, timer.Generation, "the timer was folded, too")
	w.verify()
}

func damage(t *testing.T, w *world, part string) {
	t.Helper()
	for key := range w.keys("state/") {
		if strings.Contains(key, part) {
			data, _, err := w.blobs.Get(t.Context(), key)
			require.NoError(t, err)
			data[len(data)/2] ^= 0xff
			_, err = w.blobs.Put(t.Context(), key, data)
			require.NoError(t, err)
		}
	}
}

func remove(t *testing.T, w *world, prefix string) {
	t.Helper()
	for key := range w.keys(prefix) {
		require.NoError(t, w.blobs.Delete(t.Context(), key))
	}
}

func TestRunRetriesWhenTheStoreFails(t *testing.T) {
	w := newWorld(t)
	w.options = files
	var troubles []error
	c := w.open("one", func(cfg *compactor.Config) {
		cfg.OnFailure = func(err error, _ time.Time) { troubles = append(troubles, err) }
	})
	run, entry := w.trigger(foldtest.Task("a"))
	var creates atomic.Int32 // files are written in parallel
	w.faults(func(op faultblob.Op, key string) faultblob.Fault {
		if op == faultblob.Create && strings.HasPrefix(key, "state/") && creates.Add(1) <= 3 {
			return faultblob.FailBefore
		}
		return faultblob.None
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	result, err := c.Compact(ctx, compactor.Request{Entries: []compactor.Entry{entry}})
	require.NoError(t, err)
	require.Equal(t, 1, result.Folded)
	require.Equal(t, []string{"a=READY"}, w.states(c, run))
	cancel()
	require.NoError(t, <-done)
	require.NotEmpty(t, troubles)
	require.True(t, errors.Is(troubles[0], faultblob.ErrInjected))
}

func TestCompactReturnsErrEndedAfterRun(t *testing.T) {
	w := newWorld(t)
	c := w.open("one")
	_, entry := w.trigger(foldtest.Task("a"))
	ctx, cancel := context.WithCancel(t.Context())
	w.faults(func(op faultblob.Op, key string) faultblob.Fault {
		if op == faultblob.Create && strings.HasPrefix(key, "manifests/") {
			cancel() // the process ends while a batch is folded
			return faultblob.FailBefore
		}
		return faultblob.None
	})
	waiting := make(chan error, 2)
	for range cap(waiting) {
		go func() {
			_, err := c.Compact(t.Context(), compactor.Request{Entries: []compactor.Entry{entry}})
			waiting <- err
		}()
	}
	require.NoError(t, c.Run(ctx))
	for range cap(waiting) {
		require.Error(t, <-waiting)
	}
	_, err := c.Compact(t.Context(), compactor.Request{Barrier: true})
	require.ErrorIs(t, err, compactor.ErrEnded, "Run has returned")
}

func TestTroubleOverIsReportedWithNothingNew(t *testing.T) {
	w := newWorld(t)
	var troubles []error
	over := 0
	c := w.open("one", func(cfg *compactor.Config) {
		cfg.OnFailure = func(err error, _ time.Time) { troubles = append(troubles, err) }
		cfg.OnRecovery = func() { over++ }
	})
	w.faults(func(op faultblob.Op, _ string) faultblob.Fault {
		if op == faultblob.List && len(troubles) == 0 {
			return faultblob.FailBefore
		}
		return faultblob.None
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	_, err := c.Compact(ctx, compactor.Request{Barrier: true})
	require.NoError(t, err)
	cancel()
	require.NoError(t, <-done)
	require.Len(t, troubles, 1)
	require.ErrorIs(t, troubles[0], faultblob.ErrInjected)
	require.Equal(t, 1, over)
}
