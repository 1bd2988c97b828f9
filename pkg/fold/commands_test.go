package fold_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/state"
)

func keyed(key, fingerprint string) func(*event.AutomationCommand) {
	return func(p *event.AutomationCommand) { p.CommandKey, p.Fingerprint = key, fingerprint }
}

func TestCommandWithKeyActsOnce(t *testing.T) {
	w := newBackfill(t, nil)
	require.Equal(t, state.Folded, w.command(event.VerbPause, keyed("k", "pause")).Row.Outcome)
	require.Equal(t, state.Folded, w.command(event.VerbResume, nil).Row.Outcome)
	r := w.command(event.VerbPause, keyed("k", "pause"))
	require.Equal(t, state.NoChange, r.Row.Outcome, "the same request again")
	require.Equal(t, state.BackfillRunning, w.row().State)
	require.Equal(t, state.Conflict, w.command(event.VerbCancel, keyed("k", "cancel")).Row.Outcome, "another request")
	require.Equal(t, state.Stale, w.command(event.VerbResume, keyed("k2", "resume")).Row.Outcome)
	require.Nil(t, w.State.RunKeys.Get("k2"), "a command without effect uses no key")

	w.Pass(fold.CommandKeyTTL)
	require.Equal(t, state.Folded, w.command(event.VerbPause, keyed("k", "other")).Row.Outcome, "the key is forgotten")
}

func TestBackfillWithKeyIsCreatedOnce(t *testing.T) {
	w := newBackfill(t, func(p *event.BackfillCreated) { p.CommandKey, p.Fingerprint = "k", "f" })
	again := &event.BackfillCreated{
		BackfillID: w.ID(), Assets: []string{"raw/a"}, ChunksRef: w.row().ChunksRef, Sizes: []int32{1}, MaxParallel: 1, CommandKey: "k", Fingerprint: "f",
	}
	require.Equal(t, state.NoChange, w.Fold(again).Row.Outcome)
	again.Fingerprint = "other"
	require.Equal(t, state.Conflict, w.Fold(again).Row.Outcome)
	require.Equal(t, 1, w.State.Backfills.Len())
	require.Equal(t, w.id, w.State.RunKeys.Get("k").RunID)
}

func TestCommandChangesOnlyTheVersionItNames(t *testing.T) {
	w := newBackfill(t, nil)
	tag := w.row().EditTag()
	named := func(tag string) func(*event.AutomationCommand) {
		return func(p *event.AutomationCommand) { p.IfTag, p.CommandKey, p.Fingerprint = tag, "k"+tag, "f" }
	}
	w.finish(w.plan(), event.Succeeded)
	require.Equal(t, tag, w.row().EditTag(), "progress is no edit")
	require.Equal(t, state.Folded, w.command(event.VerbPause, named(tag)).Row.Outcome)
	require.NotEqual(t, tag, w.row().EditTag())
	require.Equal(t, state.NoChange, w.command(event.VerbPause, named(tag)).Row.Outcome, "a repeated command does not conflict with itself")
	r := w.command(event.VerbResume, func(p *event.AutomationCommand) { p.IfTag = tag })
	require.Equal(t, state.Conflict, r.Row.Outcome)
	require.Contains(t, r.Row.Detail, "another version")
	require.Equal(t, state.BackfillPaused, w.row().State)
	require.Equal(t, state.Folded, w.command(event.VerbResume, named(w.row().EditTag())).Row.Outcome)
}

// A command uses its key even if there is nothing to change, because a late repetition must not undo changes that
// others have made since.
func TestKeysOfSetAreChangedOnce(t *testing.T) {
	w := foldtest.New(t)
	change := func(key, fingerprint string, add, remove []string) state.EntryOutcome {
		return w.Fold(&event.PartitionsChanged{
			CommandID: w.ID(), KeySet: "tenants", Add: add, Remove: remove, CommandKey: key, Fingerprint: fingerprint,
		}).Row.Outcome
	}
	acme := []string{"acme"}
	require.Equal(t, state.Folded, change("", "", acme, nil))
	require.Equal(t, state.Folded, change("k", "add", acme, nil), "the set has the key, and the key of the command is recorded")
	require.Equal(t, state.Folded, change("", "", nil, acme))
	require.Equal(t, state.NoChange, change("k", "add", acme, nil))
	require.Empty(t, w.State.Keys("tenants"))
	require.Equal(t, state.Conflict, change("k", "remove", nil, acme))
}

func TestCancelWithKeyActsOnce(t *testing.T) {
	w := foldtest.New(t)
	run := w.Run(foldtest.Task("a"))
	other := w.Run(foldtest.Task("a"))
	cancel := func(run, fingerprint string, force bool) state.EntryOutcome {
		return w.Fold(&event.RunCancelRequested{RunID: run, Force: force, CommandKey: "k", Fingerprint: fingerprint}).Row.Outcome
	}
	require.Equal(t, state.Folded, cancel(run, "f", false))
	require.Equal(t, state.NoChange, cancel(run, "f", false))
	require.Equal(t, state.Conflict, cancel(other, "g", true))
	require.False(t, w.State.Runs.Get(other).State.Terminal())
}
