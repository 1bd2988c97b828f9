package fold_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/state"
)

func TestDeadLetterChangesNoOtherRow(t *testing.T) {
	w := foldtest.New(t)
	run := w.Run(foldtest.Task("a"), foldtest.Task("b", "a"), event.TaskDef{TaskKey: "g", Kind: event.KindGroup})
	foreign := w.Group(&event.RunTriggered{RunID: w.ID(), Trigger: event.Trigger{Type: "manual"}})
	foreign.Events[0].Domain.Workspace = "dev"
	unread := fold.Group{Entry: w.ID(), ID: "3", Reason: event.ReasonInvalid, Detail: "line 3 is not JSON"}
	good := w.Finished(run, "a", 1, event.Succeeded)
	fresh := w.Triggered(&event.RunTriggered{}, foldtest.Task("x"))
	freshRun := fresh[0].(*event.RunTriggered).RunID
	byRef := &event.PlanCreated{RunID: freshRun, PlanRef: "plans/x.json"}
	unreadable := w.Group(fresh[0], byRef, w.Started(freshRun, "x", 1))
	unreadable.Plans = map[string]fold.Plan{"plans/x.json": {Err: "not JSON"}}

	for name, c := range map[string]struct {
		group    fold.Group
		reason   string
		waitsFor string
	}{
		"unreadable":                 {unread, event.ReasonInvalid, ""},
		"another domain":             {foreign, fold.ReasonWrongDomain, ""},
		"no such run":                {w.Group(w.Started(freshRun, "a", 1)), fold.ReasonUnknownRun, freshRun},
		"a plan of an unknown run":   {w.Group(fresh[1]), fold.ReasonUnknownRun, freshRun},
		"a plan before its run":      {w.Group(fresh[1], fresh[0]), fold.ReasonUnknownRun, freshRun},
		"a cancel of an unknown run": {w.Group(&event.RunCancelRequested{RunID: freshRun}), fold.ReasonUnknownRun, freshRun},
		"no such task":               {w.Group(w.Started(run, "z", 1)), fold.ReasonUnknownTask, ""},
		"a group node":               {w.Group(w.Started(run, "g", 1)), fold.ReasonUnknownTask, ""},
		"a good event and a bad one": {w.Group(good, w.Started(run, "z", 1)), fold.ReasonUnknownTask, ""},
		"no such task in its own plan": {
			w.Group(fresh[0], fresh[1], w.Started(freshRun, "y", 1)), fold.ReasonUnknownTask, "",
		},
		"a task of its own plan, unreadable": {unreadable, fold.ReasonUnknownTask, ""},
		"a second plan of a run": {
			w.Group(&event.PlanCreated{RunID: run, PlanRef: "p", Tasks: []event.TaskDef{foldtest.Task("z")}}, w.Started(run, "z", 1)),
			fold.ReasonUnknownTask, "",
		},
	} {
		before := foldtest.Dump(w.State)
		r := w.Apply(c.group)
		require.Equal(t, state.DeadLetter, r.Row.Outcome, name)
		require.Equal(t, c.reason, r.Row.Reason, name)
		require.Equal(t, c.waitsFor, r.Row.RunID, name)
		require.NotEmpty(t, r.Row.Detail, name)
		require.Equal(t, before, foldtest.Dump(w.State), name)
	}
	require.Equal(t, []string{"a=READY", "b=BLOCKED", "g=SUCCEEDED"}, w.States(run))
}

func TestDeadLetterIsFoldedWhenRunAppears(t *testing.T) {
	w := foldtest.New(t)
	group := w.Triggered(&event.RunTriggered{}, foldtest.Task("a"))
	run := group[0].(*event.RunTriggered).RunID
	orphan := w.Group(w.Finished(run, "a", 1, event.Succeeded))
	first := w.Apply(orphan)
	require.Equal(t, fold.ReasonUnknownRun, first.Row.Reason)
	require.Equal(t, []state.Key2{{A: orphan.Entry, B: orphan.ID}}, w.State.Waiting(run))

	again := w.Apply(orphan)
	require.True(t, again.Known, "the dead letter still waits: no new row")
	require.Equal(t, first.Row, again.Row)

	appeared := w.Fold(group[0])
	require.Equal(t, []string{run}, appeared.Appeared)
	require.Equal(t, fold.ReasonUnknownTask, w.Apply(orphan).Row.Reason, "the run has no plan yet")
	require.Len(t, w.State.Waiting(run), 1)

	require.Equal(t, []string{run}, w.Fold(group[1]).Appeared)
	last := w.Apply(orphan)
	require.Equal(t, state.Folded, last.Row.Outcome)
	require.Empty(t, w.State.Waiting(run))
	require.Equal(t, state.RunSucceeded, w.RunState(run))
	require.True(t, w.Apply(orphan).Known)
}

func TestUnsupportedEventIsFoldedByNewerBuild(t *testing.T) {
	w := foldtest.New(t)
	run := w.Run(foldtest.Task("a"))
	group := w.Group(w.Finished(run, "a", 1, event.Succeeded))
	old := group
	old.Events, old.Reason = nil, event.ReasonUnsupported
	require.Equal(t, event.ReasonUnsupported, w.Apply(old).Row.Reason)
	require.True(t, w.Apply(old).Known)
	require.Equal(t, state.Folded, w.Apply(group).Row.Outcome)
	require.Equal(t, state.RunSucceeded, w.RunState(run))
}

func TestPlanByReferenceUsesFetchedPlan(t *testing.T) {
	w := foldtest.New(t)
	group := w.Triggered(&event.RunTriggered{})
	run, plan := group[0].(*event.RunTriggered).RunID, group[1].(*event.PlanCreated)
	g := w.Group(group...)
	g.Plans = map[string]fold.Plan{plan.PlanRef: {Tasks: []event.TaskDef{foldtest.Task("a"), foldtest.Task("b", "a")}}}
	require.Equal(t, []string{run, run}, w.Apply(g).Appeared)
	require.Equal(t, []string{"a=READY", "b=BLOCKED"}, w.States(run))
	require.Equal(t, plan.PlanRef, w.State.Runs.Get(run).PlanRef)
	require.Equal(t, state.NoChange, w.Fold(plan).Row.Outcome, "a run has one plan")
	require.PanicsWithValue(t, "fold: plan plans/other.json was not fetched before its event was folded", func() {
		other := w.ID()
		w.Fold(&event.RunTriggered{RunID: other}, &event.PlanCreated{RunID: other, PlanRef: "plans/other.json"})
	})
}

func TestUnreadablePlanFailsRunAndItsDeadLetters(t *testing.T) {
	w := foldtest.New(t)
	group := w.Triggered(&event.RunTriggered{})
	run, plan := group[0].(*event.RunTriggered).RunID, group[1].(*event.PlanCreated)
	w.MustFold(group[0])
	orphan := w.Group(w.Started(run, "a", 1))
	require.Equal(t, run, w.Apply(orphan).Row.RunID)

	g := w.Group(plan)
	g.Plans = map[string]fold.Plan{plan.PlanRef: {Err: "line 1: not JSON"}}
	require.Equal(t, []string{run}, w.Apply(g).Appeared)
	row := w.State.Runs.Get(run)
	require.Equal(t, state.RunFailed, row.State)
	require.Equal(t, fold.CodePlanUnreadable, row.ErrorCode)
	require.Equal(t, "line 1: not JSON", row.ErrorMessage)
	require.Equal(t, event.At(w.Now), row.CompletedAt)

	require.Equal(t, fold.ReasonUnknownTask, w.Apply(orphan).Row.Reason)
	require.Empty(t, w.State.Waiting(run), "the run will never have a plan")
	require.Equal(t, state.NoChange, w.Fold(&event.PlanCreated{RunID: run, Tasks: []event.TaskDef{foldtest.Task("a")}}).Row.Outcome)
}

func TestEmptyRunSucceedsAtOnce(t *testing.T) {
	w := foldtest.New(t)
	run := w.Run(event.TaskDef{TaskKey: "g", Kind: event.KindGroup})
	require.Equal(t, state.RunSucceeded, w.RunState(run))
}

func TestRunKeyIsInUseForThirtyDays(t *testing.T) {
	w := foldtest.New(t)
	trigger := func(fingerprint string) (string, fold.Result) {
		p := &event.RunTriggered{RunKey: "daily", Fingerprint: fingerprint}
		r := w.Fold(w.Triggered(p, foldtest.Task("a"))...)
		return p.RunID, r
	}
	first, r := trigger("f1")
	require.Equal(t, state.Folded, r.Row.Outcome)

	same, r := trigger("f1")
	require.Equal(t, state.NoChange, r.Row.Outcome)
	require.Contains(t, r.Row.Detail, first, "the caller attaches to the existing run")
	require.Nil(t, w.State.Runs.Get(same))

	other, r := trigger("f2")
	require.Equal(t, state.Conflict, r.Row.Outcome)
	require.Nil(t, w.State.Runs.Get(other))
	conflict := w.State.Conflicts.Get(state.Key2{A: "daily", B: other})
	require.Equal(t, first, conflict.ExistingRunID)
	require.Equal(t, []string{"f1", "f2"}, []string{conflict.ExistingFingerprint, conflict.Fingerprint})
	require.Positive(t, conflict.Seq)
	require.NotEmpty(t, conflict.Version)

	w.Pass(fold.RunKeyTTL - time.Microsecond)
	_, r = trigger("f2")
	require.Equal(t, state.Conflict, r.Row.Outcome, "just before the key expires")
	require.Equal(t, event.At(w.Now), w.State.FoldTime, "a rejected group advances the fold time")
	w.Pass(time.Microsecond)
	last, r := trigger("f2")
	require.Equal(t, state.Folded, r.Row.Outcome)
	require.Equal(t, last, w.State.RunKeys.Get("daily").RunID)
	require.Equal(t, 1, w.State.RunKeys.Len())
}

func TestRunTriggeredTwiceKeepsItsKey(t *testing.T) {
	w := foldtest.New(t)
	group := w.Triggered(&event.RunTriggered{RunKey: "k", Fingerprint: "f"}, foldtest.Task("a"))
	w.MustFold(group...)
	before := foldtest.Dump(w.State)
	require.Equal(t, state.NoChange, w.Fold(group...).Row.Outcome)
	require.Equal(t, before, foldtest.Dump(w.State))
}

func TestGroupWithOneRejectedRunIsRejected(t *testing.T) {
	w := foldtest.New(t)
	w.RunWith(event.RunTriggered{RunKey: "taken", Fingerprint: "f"}, foldtest.Task("a"))
	for name, c := range map[string]struct {
		keys, fingerprints []string
		outcome            state.EntryOutcome
	}{
		"the last conflicts":      {[]string{"free", "taken"}, []string{"f", "other"}, state.Conflict},
		"the first conflicts":     {[]string{"taken", "free"}, []string{"other", "f"}, state.Conflict},
		"the last exists already": {[]string{"", "taken"}, []string{"", "f"}, state.NoChange},
		"two runs with one key":   {[]string{"free", "free"}, []string{"f", "other"}, state.Conflict},
	} {
		runs, tables := w.State.Runs.Len(), w.State.RunKeys.Len()
		var group []event.Payload
		for i, key := range c.keys {
			group = append(group, w.Triggered(&event.RunTriggered{RunKey: key, Fingerprint: c.fingerprints[i]}, foldtest.Task("a"))...)
		}
		require.Equal(t, c.outcome, w.Fold(group...).Row.Outcome, name)
		require.Equal(t, runs, w.State.Runs.Len(), name)
		require.Equal(t, tables, w.State.RunKeys.Len(), name)
	}
}

func TestExpiredRunKeysAreRemovedInSteps(t *testing.T) {
	w := foldtest.New(t)
	for _, key := range []string{"a", "b", "c", "d", "e"} {
		w.RunWith(event.RunTriggered{RunKey: key}, foldtest.Task("t"))
	}
	w.Pass(fold.RunKeyTTL + time.Hour)
	w.Run(foldtest.Task("t"))
	require.Equal(t, 3, w.State.RunKeys.Len())
	w.Run(foldtest.Task("t"))
	w.Run(foldtest.Task("t"))
	require.Zero(t, w.State.RunKeys.Len())
}

func TestFoldSequenceIsDense(t *testing.T) {
	w := foldtest.New(t)
	next := int64(1)
	fold := func(g fold.Group, events int64) {
		r := w.Apply(g)
		require.Equal(t, next, r.Row.FirstSeq)
		next += events
		require.Equal(t, next-1, r.Row.Seq)
		require.Equal(t, next-1, w.State.FoldSeq)
	}
	group := w.Triggered(&event.RunTriggered{RunKey: "k", Fingerprint: "f"}, foldtest.Task("a"))
	run := group[0].(*event.RunTriggered).RunID
	fold(w.Group(group...), 2)
	fold(w.Group(w.Triggered(&event.RunTriggered{RunKey: "k", Fingerprint: "g"}, foldtest.Task("a"))...), 2)
	unread := w.Group(group[0])
	unread.Events, unread.Reason = nil, event.ReasonInvalid
	fold(unread, 1)
	fold(w.Group(w.Started(ids.AtTime(w.Now), "a", 1), w.Beat(run, "a", 1)), 2)
	fold(w.Group(w.Finished(run, "a", 1, event.Succeeded)), 1)
}

func TestStaleGroupCreatesNoRow(t *testing.T) {
	w := foldtest.New(t)
	run := w.Run(foldtest.Task("a"))
	before := foldtest.Dump(w.State)
	id := ids.DispatchID(run, "b", 1)
	for _, p := range []event.Payload{
		&event.DispatchEnqueued{DispatchID: id, RunID: run, TaskKey: "b", Attempt: 1},
		&event.DispatchFailed{DispatchID: id, RunID: run, TaskKey: "b", Attempt: 1},
		&event.TimerEnqueued{TimerID: "timer:cron:x:1"},
		&event.TimerFired{TimerID: "timer:cron:x:1", FiredAt: event.At(w.Now), Observed: event.Observed{CaughtUpAt: event.At(w.Now)}},
		&event.TimerRequested{TimerID: "timer:retry:x", TimerType: event.TimerRetry, Generation: 3, FireAt: event.At(w.Now)},
	} {
		require.Equal(t, state.Stale, w.Fold(p).Row.Outcome, p.Type())
		require.Equal(t, before, foldtest.Dump(w.State), "%s created or changed a row", p.Type())
	}
}

// The fold refuses a run whose id is much older than the entry with its trigger. Otherwise, the run could write
// partitions whose rows have left the live state.
func TestI20OldRunIsStale(t *testing.T) {
	w := foldtest.New(t)
	old := w.Triggered(&event.RunTriggered{}, foldtest.Task("a"))
	waiting := w.Triggered(&event.RunTriggered{}, foldtest.Task("a"))
	w.Pass(fold.MaxRunAge)
	r := w.Apply(w.Group(waiting...))
	require.Equal(t, state.Folded, r.Row.Outcome)
	w.Pass(time.Second)
	r = w.Apply(w.Group(old...))
	require.Equal(t, state.Stale, r.Row.Outcome)
	require.Equal(t, "the trigger was appended 30m1s after the run got its id: at most 30m0s are allowed; request the run again", r.Row.Detail)
	require.Nil(t, w.State.Runs.Get(old[0].(*event.RunTriggered).RunID))
}

// A group must not trigger one run and wait for another run: when the other run appears, the triggered run may be
// older than MaxRunAge.
func TestTriggerNeverWaitsForAnotherRun(t *testing.T) {
	w := foldtest.New(t)
	trigger := w.Triggered(&event.RunTriggered{}, foldtest.Task("a"))
	r := w.Apply(w.Group(append(trigger, &event.RunCancelRequested{RunID: w.ID()})...))
	require.Equal(t, state.DeadLetter, r.Row.Outcome)
	require.False(t, r.Row.Waits())
}
