package compactor_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/repair"
	"github.com/servo-orchestration/servo/pkg/state"
)

// Invariant I-17. This test fails if repair folds the ledger backwards.
func TestI17RebuildRestoresState(t *testing.T) {
	w := newWorld(t)
	w.options = files
	c := w.open("one")
	run, entry := w.trigger(foldtest.Retrying("a", 3), foldtest.Task("b", "a"), foldtest.Task("c", "b"))
	w.step(c, entry)
	w.step(c, w.append(w.Finished(run, "a", 1, event.Failed)))
	snap, _ := c.Latest().Get()
	var retry *state.Timer
	for timer := range snap.State.Timers.All {
		retry = timer
	}
	w.clock.pass(time.Hour)
	w.Now = w.clock.Now()
	w.step(c, w.append(w.Fire(retry)))
	w.step(c, w.append(w.Finished(run, "a", 2, event.Succeeded)))
	w.step(c, w.append(w.Started(run, "b", 1)))
	w.verify()
	want := w.states(c, run)
	require.Equal(t, []string{"a=SUCCEEDED", "b=RUNNING", "c=BLOCKED"}, want)

	t.Run("in recorded order, with a table damaged", func(t *testing.T) {
		damage(t, w, "/tasks/")
		_, err := repair.Verify(t.Context(), w.repair())
		require.ErrorContains(t, err, "servo admin rebuild")
		result, err := repair.Rebuild(t.Context(), w.repair())
		require.NoError(t, err)
		require.True(t, result.Recorded)
		c := w.open("two")
		require.Equal(t, want, w.states(c, run))
		require.Equal(t, latest(c).State.Counts(), w.newest().RowCounts)
		w.verify()
	})
	t.Run("from the bare ledger", func(t *testing.T) {
		rebuildBare(t, w)
		c := w.open("three")
		require.Equal(t, want, w.states(c, run))
		w.step(c, w.append(w.Finished(run, "b", 1, event.Succeeded)))
		require.Equal(t, []string{"a=SUCCEEDED", "b=SUCCEEDED", "c=READY"}, w.states(c, run))
		w.verify()
	})
}

// In an earlier build, a rebuild folded a ledger that had lost entries, and a task that had succeeded ran again.
func TestRebuildRejectsLostEntries(t *testing.T) {
	w := newWorld(t)
	c := w.open("one")
	run, trigger := w.trigger(foldtest.Task("a"))
	w.step(c, trigger)
	w.step(c, w.append(w.Started(run, "a", 1)))
	finished := w.append(w.Finished(run, "a", 1, event.Succeeded))
	w.step(c, finished)
	key := ledger.Key(foldtest.Domain, finished.ID)
	entry, _, err := w.blobs.Get(t.Context(), key)
	require.NoError(t, err)
	before := w.newest().Revision
	for name, change := range map[string]func() error{
		"gone":    func() error { return w.blobs.Delete(t.Context(), key) },
		"damaged": func() error { _, err := w.blobs.Put(t.Context(), key, []byte("garbage")); return err },
		"unreadable event": func() error {
			_, err := w.blobs.Put(t.Context(), key, bytes.Replace(entry, []byte(`"outcome"`), []byte(`"outcomf"`), 1))
			return err
		},
	} {
		require.NoError(t, change(), name)
		report, err := repair.Verify(t.Context(), w.repair())
		require.NoError(t, err)
		require.Equal(t, 1, report.Lost, name)
		_, err = repair.Rebuild(t.Context(), w.repair())
		lost := new(repair.LostError)
		require.ErrorAs(t, err, &lost, name)
		require.Len(t, lost.Groups, 1)
		require.Contains(t, lost.Groups[0], finished.ID)
		require.Equal(t, before, w.newest().Revision, "nothing is published")
	}
	forget := w.repair()
	forget.AllowLoss = true
	result, err := repair.Rebuild(t.Context(), forget)
	require.NoError(t, err)
	require.Equal(t, 1, result.Lost)
	require.Equal(t, []string{"a=RUNNING"}, w.states(w.open("two"), run))

	_, err = w.blobs.Put(t.Context(), key, entry)
	require.NoError(t, err)
	rebuildBare(t, w)
	require.Equal(t, []string{"a=SUCCEEDED"}, w.states(w.open("three"), run))
	w.verify()
}

// In an earlier build, a rebuild that could not read the plan of a run made the run FAILED and lost its tasks, but
// reported an unchanged state.
func TestRebuildRejectsLostPlan(t *testing.T) {
	w := newWorld(t)
	c := w.open("one")
	w.Now = w.clock.Now()
	triggered := &event.RunTriggered{RunID: w.ids.New()}
	payloads := w.Triggered(triggered, foldtest.Task("a"), foldtest.Task("b"))
	created, ok := payloads[1].(*event.PlanCreated)
	require.True(t, ok)
	doc, err := json.Marshal(map[string]any{"tasks": created.Tasks})
	require.NoError(t, err)
	created.PlanRef, created.TasksTotal, created.Tasks = plan.Ref(foldtest.Domain, created.PlanID), int32(len(created.Tasks)), nil //nolint:gosec // the run has two tasks
	_, err = w.blobs.Put(t.Context(), created.PlanRef, doc)
	require.NoError(t, err)
	w.step(c, w.append(payloads...))
	w.step(c, w.append(w.Finished(triggered.RunID, "a", 1, event.Succeeded)))
	want := w.states(c, triggered.RunID)
	require.NoError(t, w.blobs.Delete(t.Context(), created.PlanRef))
	report, err := repair.Verify(t.Context(), w.repair())
	require.NoError(t, err)
	require.Equal(t, 1, report.Lost)
	_, err = repair.Rebuild(t.Context(), w.repair())
	lost := new(repair.LostError)
	require.ErrorAs(t, err, &lost)
	require.Contains(t, lost.Groups[0], created.PlanRef)
	require.Equal(t, want, w.states(w.open("two"), triggered.RunID))

	_, err = w.blobs.Put(t.Context(), created.PlanRef, doc)
	require.NoError(t, err)
	result, err := repair.Rebuild(t.Context(), w.repair())
	require.NoError(t, err)
	require.True(t, result.Recorded)
	require.Equal(t, want, w.states(w.open("three"), triggered.RunID))
	w.verify()
}

// In an earlier build, a rebuild that read a damaged plan lost the tasks of its run, but reported an unchanged state.
func TestRebuildRejectsDamagedPlan(t *testing.T) {
	w := newWorld(t)
	c := w.open("one")
	w.Now = w.clock.Now()
	triggered := &event.RunTriggered{RunID: w.ids.New()}
	payloads := w.Triggered(triggered, foldtest.Task("a"), foldtest.Task("b"))
	created, ok := payloads[1].(*event.PlanCreated)
	require.True(t, ok)
	doc, err := json.Marshal(map[string]any{"tasks": created.Tasks})
	require.NoError(t, err)
	created.PlanRef = plan.Ref(foldtest.Domain, fmt.Sprintf("%x", sha256.Sum256(doc)))
	created.TasksTotal, created.Tasks = 2, nil
	_, err = w.blobs.Put(t.Context(), created.PlanRef, doc)
	require.NoError(t, err)
	w.step(c, w.append(payloads...))
	w.step(c, w.append(w.Finished(triggered.RunID, "a", 1, event.Succeeded)))
	want := w.states(c, triggered.RunID)
	for name, damaged := range map[string][]byte{
		"undecodable": doc[:len(doc)-1],
		"changed":     bytes.ReplaceAll(doc, []byte(`"task_key":"b"`), []byte(`"task_key":"c"`)),
	} {
		require.NotEqual(t, doc, damaged, name)
		_, err = w.blobs.Put(t.Context(), created.PlanRef, damaged)
		require.NoError(t, err)
		report, err := repair.Verify(t.Context(), w.repair())
		require.NoError(t, err)
		require.Equal(t, 1, report.Lost, name)
		_, err = repair.Rebuild(t.Context(), w.repair())
		lost := new(repair.LostError)
		require.ErrorAs(t, err, &lost, name)
		require.Contains(t, lost.Groups[0], created.PlanRef)
		require.Equal(t, want, w.states(w.open("two"), triggered.RunID))
	}
	_, err = w.blobs.Put(t.Context(), created.PlanRef, doc)
	require.NoError(t, err)
	_, err = repair.Rebuild(t.Context(), w.repair())
	require.NoError(t, err)
	require.Equal(t, want, w.states(w.open("three"), triggered.RunID))
	w.verify()
}

// In an earlier build, a bare rebuild ended a run whose plan was missing, and lost its results, but reported that
// every fact was kept.
func TestRebuildOfBareLedgerRejectsLostPlan(t *testing.T) {
	w := newWorld(t)
	c := w.open("one")
	w.Now = w.clock.Now()
	triggered := &event.RunTriggered{RunID: w.ids.New()}
	payloads := w.Triggered(triggered, foldtest.Task("a"), foldtest.Task("b"))
	created, ok := payloads[1].(*event.PlanCreated)
	require.True(t, ok)
	doc, err := json.Marshal(map[string]any{"tasks": created.Tasks})
	require.NoError(t, err)
	created.PlanRef = plan.Ref(foldtest.Domain, created.PlanID)
	created.TasksTotal, created.Tasks = 2, nil
	_, err = w.blobs.Put(t.Context(), created.PlanRef, doc)
	require.NoError(t, err)
	w.step(c, w.append(payloads...))
	w.step(c, w.append(w.Finished(triggered.RunID, "a", 1, event.Succeeded)))
	want, before := w.states(c, triggered.RunID), w.newest().Revision
	require.NoError(t, w.blobs.Delete(t.Context(), created.PlanRef))
	cfg := w.repair()
	cfg.Bare = true
	_, err = repair.Rebuild(t.Context(), cfg)
	lost := new(repair.LostError)
	require.ErrorAs(t, err, &lost)
	require.Len(t, lost.Groups, 1)
	require.Contains(t, lost.Groups[0], created.PlanRef)
	require.Equal(t, before, w.newest().Revision, "nothing is published")
	require.Equal(t, want, w.states(w.open("two"), triggered.RunID))

	cfg.AllowLoss = true
	result, err := repair.Rebuild(t.Context(), cfg)
	require.NoError(t, err)
	require.Equal(t, 1, result.Lost)
}

// In an earlier build, a bare rebuild of a domain whose ledger was gone published an empty state.
func TestRebuildOfBareLedgerRejectsLostLedger(t *testing.T) {
	w := newWorld(t)
	c := w.open("one")
	run, trigger := w.trigger(foldtest.Task("a"))
	w.step(c, trigger)
	before := w.newest().Revision
	remove(t, w, "ledger/")
	cfg := w.repair()
	cfg.Bare = true
	_, err := repair.Rebuild(t.Context(), cfg)
	lost := new(repair.LostError)
	require.ErrorAs(t, err, &lost)
	require.Equal(t, before, w.newest().Revision, "nothing is published")
	require.Equal(t, []string{"a=READY"}, w.states(w.open("two"), run))

	cfg.AllowLoss = true
	_, err = repair.Rebuild(t.Context(), cfg)
	require.NoError(t, err)
	require.Empty(t, w.states(w.open("three"), run))
}

// The clocks of machines differ. So a report that was in time may have a higher id than the timer
// that would have ended its attempt. This test fails if a rebuild folds decisions of timers in the
// order of ids.
func TestRebuildFoldsReportsBeforeTimers(t *testing.T) {
	w := newWorld(t)
	c := w.open("one")
	def := foldtest.Task("a")
	def.TimeoutSec = 60 // a timeout ends the task; after a missed heartbeat, the attempt could still report success
	run, trigger := w.trigger(def)
	w.step(c, trigger)
	w.step(c, w.append(w.Started(run, "a", 1)))
	snap, _ := c.Latest().Get()
	liveness := snap.State.Liveness()
	w.clock.pass(liveness.FireAt.Time().Sub(w.clock.Now()) + time.Second)
	w.Now = w.clock.Now()
	fired := w.append(w.Fire(liveness))
	w.step(c, w.append(w.Finished(run, "a", 1, event.Succeeded)))
	w.step(c, fired)
	require.Equal(t, []string{"a=SUCCEEDED"}, w.states(c, run))

	rebuildBare(t, w)
	require.Equal(t, []string{"a=SUCCEEDED"}, w.states(w.open("two"), run))
	w.verify()
}

// A timer ends task a. Task b reads a and has the trigger rule all_done, so b runs without the output of a. A rebuild
// folds timers last, so in its state b succeeds while a is still running. The row of b must still say that b has not
// read the older output of a.
func TestI21RebuildKeepsReaderIncomplete(t *testing.T) {
	w := newWorld(t)
	c := w.open("one")
	earlier, entry := w.trigger(foldtest.Task("a"))
	w.step(c, entry)
	w.step(c, w.append(w.Finished(earlier, "a", 1, event.Succeeded)))
	w.clock.pass(time.Minute)
	w.Now = w.clock.Now()

	a, b := foldtest.Task("a"), foldtest.Task("b", "a")
	a.TimeoutSec, a.MaxAttempts, b.TriggerRule = 60, 1, event.RuleAllDone
	snap, _ := c.Latest().Get()
	p := &event.RunTriggered{RunID: w.ids.New()}
	payloads := w.Triggered(p, a, b)
	planned := payloads[1].(*event.PlanCreated) //nolint:forcetypeassert // see Triggered
	planned.ObservedSeq, planned.ObservedTime = snap.State.FoldSeq, snap.State.FoldTime
	w.step(c, w.append(payloads...))
	w.step(c, w.append(w.Started(p.RunID, "a", 1)))
	for range 12 {
		snap, _ = c.Latest().Get()
		if snap.State.Tasks.Get(state.Key2{A: p.RunID, B: "a"}).State == state.TaskFailed {
			break
		}
		w.clock.pass(time.Minute)
		w.Now = w.clock.Now()
		w.step(c, w.append(w.Fire(snap.State.Liveness())))
	}
	w.step(c, w.append(w.Finished(p.RunID, "b", 1, event.Succeeded)))
	unread := func(c *compactor.Compactor) {
		t.Helper()
		require.Equal(t, []string{"a=FAILED", "b=SUCCEEDED"}, w.states(c, p.RunID))
		snap, _ := c.Latest().Get()
		visible := snap.State.Partitions.Get(state.Key2{A: "test/a"})
		require.Equal(t, earlier, visible.RunID)
		reader := snap.State.Partitions.Get(state.Key2{A: "test/b"})
		require.Less(t, reader.InputsSeq, visible.VersionSeq, "b seems to have read a")
		require.True(t, reader.Incomplete())
	}
	unread(c)
	w.verify()
	rebuildBare(t, w)
	unread(w.open("two"))
	w.verify()
}

// The notification of a report is lost, so a later run is planned before the reported output is visible. All clocks
// agree. A rebuild from the bare ledger folds the report before the plan, but must not assume that the run has read
// the output.
func TestI21BareRebuildKnowsEntriesOfPlan(t *testing.T) {
	for name, lost := range map[string]bool{"lost notification": true, "folded in time": false} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			c := w.open("one")
			run, entry := w.trigger(foldtest.Task("a"))
			w.step(c, entry)
			pass := func() {
				w.clock.pass(time.Second)
				w.Now = w.clock.Now()
			}
			pass()
			report := w.append(w.Finished(run, "a", 1, event.Succeeded))
			if !lost {
				w.step(c, report)
			}
			pass()
			_, other := w.trigger(foldtest.Task("z"))
			w.step(c, other)
			pass()
			planned := func(p *event.RunTriggered) string {
				snap, _ := c.Latest().Get()
				payloads := w.Triggered(p, foldtest.Task("b"))
				created := payloads[1].(*event.PlanCreated) //nolint:forcetypeassert // see Triggered
				created.ObservedSeq, created.ObservedTime, created.ObservedThrough = snap.State.FoldSeq, snap.State.FoldTime, snap.CompleteThrough
				last, hash := snap.State.EntriesFrom(snap.CompleteThrough)
				if created.ObservedLast, created.ObservedEntries = last, hash.String(); p.RootRun != "" {
					created.ObservedSeq, created.ObservedTime = snap.State.Runs.Get(p.RootRun).InputsSeq, snap.State.Runs.Get(p.RootRun).InputsAt
					created.ObservedThrough, created.ObservedLast, created.ObservedEntries = "", "", ""
				}
				w.step(c, w.append(payloads...))
				return payloads[0].(*event.RunTriggered).RunID //nolint:forcetypeassert // see Triggered
			}
			first := planned(&event.RunTriggered{})
			if lost {
				w.step(c, report)
			}
			pass()
			w.step(c, w.append(w.Finished(first, "b", 1, event.Failed)))
			pass()
			retry := planned(&event.RunTriggered{RootRun: first, Trigger: event.Trigger{Type: "retry", ParentRunID: first}})
			w.step(c, w.append(w.Finished(retry, "b", 1, event.Succeeded)))
			check := func(c *compactor.Compactor) {
				t.Helper()
				snap, _ := c.Latest().Get()
				a, b := snap.State.Partitions.Get(state.Key2{A: "test/a"}), snap.State.Partitions.Get(state.Key2{A: "test/b"})
				require.Equal(t, lost, b.InputsSeq < a.VersionSeq)
				require.Equal(t, retry, b.RunID)
			}
			check(c)
			rebuildBare(t, w)
			check(w.open("two"))
			w.verify()
		})
	}
}

// The clocks of machines differ. So events of a run may precede its trigger. This test fails if a
// rebuild considers only evidence that follows the trigger.
func TestRebuildAssignsRunKeyByEvidence(t *testing.T) {
	for name, says := range map[string]func(run string) event.Payload{
		"dispatched": func(run string) event.Payload {
			return &event.DispatchEnqueued{
				DispatchID: ids.DispatchID(run, "a", 1), RunID: run, TaskKey: "a", Attempt: 1, QueueTaskName: "t-1",
			}
		},
		"cancelled": func(run string) event.Payload { return &event.RunCancelRequested{RunID: run} },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			winner, loser := w.ids.New(), w.ids.New()
			said := w.append(says(winner))
			trigger := func(run string) compactor.Entry {
				p := &event.RunTriggered{RunID: run, RunKey: "daily", Fingerprint: "same"}
				return w.append(w.Triggered(p, foldtest.Task("a"))...)
			}
			second, first := trigger(loser), trigger(winner)
			c := w.open("one")
			for _, entry := range []compactor.Entry{first, second, said} {
				w.step(c, entry)
			}
			require.Len(t, w.states(c, winner), 1)
			require.Empty(t, w.states(c, loser))

			rebuildBare(t, w)
			c = w.open("two")
			require.Len(t, w.states(c, winner), 1)
			require.Empty(t, w.states(c, loser))
			w.verify()
		})
	}
}

// The clocks of machines differ. So a cancellation may precede the end of the first task and follow
// the end of the second. This test fails if a rebuild cancels a task that must have succeeded.
func TestRebuildDefersCancelAfterItsCauses(t *testing.T) {
	w := newWorld(t)
	c := w.open("one")
	run, trigger := w.trigger(foldtest.Task("a"), foldtest.Task("b", "a"), foldtest.Task("c", "b"), foldtest.Task("d"))
	ended := w.Finished(run, "b", 1, event.Succeeded)
	ended.StartedAt = 0 // some workers do not report the start time
	b := w.append(ended)
	cancel := w.append(&event.RunCancelRequested{RunID: run})
	d := w.append(w.Finished(run, "d", 1, event.Succeeded))
	a := w.append(w.Finished(run, "a", 1, event.Succeeded))
	for _, entry := range []compactor.Entry{trigger, a, b, cancel, d} {
		w.step(c, entry)
	}
	require.Equal(t, []string{"a=SUCCEEDED", "b=SUCCEEDED", "c=CANCELLED", "d=CANCELLED"}, w.states(c, run))

	rebuildBare(t, w)
	c = w.open("two")
	require.Equal(t, []string{"a=SUCCEEDED", "b=SUCCEEDED", "c=CANCELLED"}, w.states(c, run)[:3])
	w.verify()
}

// A run was refused because another run had its run key. This test fails if a rebuild starts the refused run when the
// key is free.
func TestRebuildDoesNotStartOldRunKeyLosers(t *testing.T) {
	w := newWorld(t)
	trigger := func(run string) compactor.Entry {
		p := &event.RunTriggered{RunID: run, RunKey: "daily", Fingerprint: "same"}
		return w.append(w.Triggered(p, foldtest.Task("a"))...)
	}
	winner, loser, silent := w.ids.New(), w.ids.New(), w.ids.New()
	c := w.open("one")
	w.step(c, trigger(winner))
	w.step(c, trigger(loser))
	w.step(c, w.append(w.Finished(winner, "a", 1, event.Succeeded)))
	w.clock.pass(20 * 24 * time.Hour)
	w.step(c, trigger(silent)) // the run key of this run is also taken
	w.clock.pass(20 * 24 * time.Hour)
	run, last := w.trigger(foldtest.Task("a"))
	w.step(c, last)
	again := w.ids.New()
	w.step(c, trigger(again))
	w.step(c, w.append(w.Started(again, "a", 1)))

	rebuildBare(t, w)
	c = w.open("two")
	require.Equal(t, []string{"a=SUCCEEDED"}, w.states(c, winner))
	require.Empty(t, w.states(c, loser))
	require.Empty(t, w.states(c, silent))
	require.Equal(t, []string{"a=READY"}, w.states(c, run))
	require.Equal(t, []string{"a=RUNNING"}, w.states(c, again), "the key was free again")
	w.verify()
}

// rebuildBare rebuilds the state from the ledger alone.
func rebuildBare(t *testing.T, w *world) {
	t.Helper()
	for _, prefix := range []string{"state/", "manifests/", "hints/", "boundary/"} {
		remove(t, w, prefix)
	}
	_, err := repair.Rebuild(t.Context(), w.repair())
	record := new(repair.RecordError)
	require.ErrorAs(t, err, &record, "the bare ledger is not folded unasked")
	cfg := w.repair()
	cfg.Bare = true
	result, err := repair.Rebuild(t.Context(), cfg)
	require.NoError(t, err)
	require.False(t, result.Recorded)
}
