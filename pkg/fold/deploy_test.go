package fold_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/state"
)

func deployed(w *foldtest.World, release string) *event.ProjectDeployed {
	return &event.ProjectDeployed{
		DeployID: w.ID(), Release: hash(release), Expects: w.State.Release(), Kind: event.DeployRelease,
	}
}

// Invariant I-19: a deployment changes no run.
func TestI19DeploymentChangesNoRun(t *testing.T) {
	w := foldtest.New(t)
	first := w.RunWith(event.RunTriggered{Release: hash("1")}, foldtest.Task("a"), foldtest.Task("b", "a"))
	w.MustFold(w.Finished(first, "a", 1, event.Succeeded))
	before := w.State.Copy()
	w.MustFold(deployed(w, "2"))
	w.MustFold(deployed(w, "1"))
	for _, d := range state.Diff(before, w.State, 100) {
		require.Regexp(t, "^(deployments|ledger_entries): ", d)
	}
	require.Equal(t, hash("1"), w.State.Runs.Get(first).Release)
}

func TestSupersededDeploymentsMoveToHistory(t *testing.T) {
	w := foldtest.New(t)
	w.MustFold(deployed(w, "1"))
	old := w.State.Deployment()
	w.MustFold(deployed(w, "2"))
	w.Pass(state.ClosedAfter)
	w.Run(foldtest.Task("a")) // this group has a later time
	again := w.Group(&event.ProjectDeployed{
		DeployID: old.DeployID, Release: old.Release, Expects: hash("2"), Force: true, Kind: event.DeployRelease,
	})
	kept := *w
	kept.State = w.State.Copy()
	require.Equal(t, state.Conflict, kept.Apply(again).Row.Outcome, "the second delivery of an event whose row will be in history")

	closed := w.State.Evict(state.Cutoff{Seq: w.State.FoldSeq, Time: w.State.FoldTime})
	rows := state.List[state.Deployment](closed)
	require.Len(t, rows, 1)
	require.Equal(t, old.DeployID, rows[0].DeployID)
	require.Equal(t, hash("2"), w.State.Release(), "the current deployment stays")

	require.Equal(t, state.Conflict, w.Apply(again).Row.Outcome, "the second delivery of an event whose row is in history")
	require.Equal(t, hash("2"), w.State.Release())
}

func TestGroupWithTwoDeploymentsIsChecked(t *testing.T) {
	w := foldtest.New(t)
	one, two := deployed(w, "1"), deployed(w, "2")
	require.Equal(t, state.Conflict, w.Fold(one, two).Row.Outcome, "the second one expects no release")
	require.Empty(t, w.State.Release())
	two.Expects = hash("1")
	w.MustFold(one, two)
	require.Equal(t, hash("2"), w.State.Release())
}

func TestProvenDeploymentIsNotRejected(t *testing.T) {
	w := foldtest.New(t)
	w.MustFold(deployed(w, "1"))
	two, three, four := deployed(w, "2"), deployed(w, "3"), deployed(w, "4") // all three expect release 1 to be current
	w.MustFold(three)
	late, proven := w.Group(two), w.Group(four)
	late.Proven = true
	require.Equal(t, state.Conflict, w.Apply(late).Row.Outcome, "a later deployment is current")
	require.Equal(t, state.Conflict, w.Apply(proven).Row.Outcome, "it expects another release")
	proven.Entry, proven.Proven = w.ID(), true
	require.Equal(t, state.Folded, w.Apply(proven).Row.Outcome)
	require.Equal(t, hash("4"), w.State.Release())
}

func TestProvenRetryConflictsWithNoRun(t *testing.T) {
	w := foldtest.New(t)
	root := w.Run(foldtest.Task("a"))
	retry := w.Group(w.Triggered(&event.RunTriggered{RootRun: root}, foldtest.Task("a"))...)
	rejected := w.Apply(retry).Row
	require.Equal(t, state.Conflict, rejected.Outcome)
	require.True(t, strings.Contains(rejected.Detail, root), rejected.Detail)
	retry.Entry, retry.Proven = w.ID(), true
	require.Equal(t, state.Folded, w.Apply(retry).Row.Outcome)
}

// Two retries of a run are planned from the same state. The second retry must be rejected even if the first has ended
// and its row has left the live state.
func TestI21RetryConflictsWithUnseenRetry(t *testing.T) {
	w := foldtest.New(t)
	root := w.Run(foldtest.Task("a"), foldtest.Task("b", "a"))
	w.MustFold(w.Finished(root, "a", 1, event.Failed))
	planned := func(after string) []event.Payload {
		return w.Triggered(&event.RunTriggered{RootRun: root, AfterRun: after, Trigger: event.Trigger{Type: "retry", ParentRunID: root}}, foldtest.Task("a"))
	}
	first, second := planned(root), planned(root)
	w.MustFold(first...)
	done := first[0].(*event.RunTriggered).RunID //nolint:forcetypeassert // see Triggered
	w.MustFold(w.Finished(done, "a", 1, event.Failed))
	gone := w.State.Copy()
	row := *gone.Runs.Get(done)
	row.Deleted = true
	gone.Runs.Put(&row)
	for _, s := range []*state.State{w.State, gone} {
		rejected := fold.Apply(s.Copy(), w.Group(second...)).Row
		require.Equal(t, state.Conflict, rejected.Outcome)
		require.Contains(t, rejected.Detail, done)
	}
	proven := w.Group(second...)
	proven.Proven = true
	require.Equal(t, state.Folded, fold.Apply(w.State.Copy(), proven).Row.Outcome, "a rebuild knows that it was folded")
	w.MustFold(planned(done)...)
}

func TestInputsOfRenumberedGroup(t *testing.T) {
	w := foldtest.New(t)
	p := event.RunTriggered{}
	g := w.Group(w.Triggered(&p, foldtest.Task("a"))...)
	plan, _ := g.Events[1].Payload.(*event.PlanCreated)
	plan.ObservedSeq, plan.ObservedTime = 5, event.At(w.Now.Add(-time.Second))
	rebuilt := state.New(foldtest.Domain)
	fold.Apply(w.State, g)
	require.EqualValues(t, 1, w.State.Runs.Get(p.RunID).InputsSeq, "no plan has observed its own event")
	g.Inputs = map[string]int64{p.RunID: 3}
	fold.Apply(rebuilt, g)
	require.EqualValues(t, 3, rebuilt.Runs.Get(p.RunID).InputsSeq)
	require.Equal(t, plan.ObservedTime, rebuilt.Runs.Get(p.RunID).InputsAt)
}

// TestChangedCodeIsNoFingerprint reports an output whose task may have executed different files than the plan names.
// For such an output, the state must not record the code fingerprint of the plan.
func TestChangedCodeIsNoFingerprint(t *testing.T) {
	w := foldtest.New(t)
	run := w.Run(foldtest.Task("a"))
	done := w.Finished(run, "a", 1, event.Succeeded)
	done.CodeChanged = true
	w.MustFold(done)
	require.Equal(t, state.ChangedCode, w.State.Partitions.Rows()[0].Code)
	require.Equal(t, state.ChangedCode, w.Task(run, "a").Code)
}
