package compactor_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/state"
)

// A command to forget assets names the deployed release. In a rebuild, it proves that this release was deployed, even
// if no run of the release follows.
func TestRebuildForgetsAssetsOfReleaseWithoutRuns(t *testing.T) {
	w := newWorld(t)
	c := w.open("one")
	sha := strings.Repeat("a", 64)
	w.step(c, w.append(&event.ProjectDeployed{DeployID: w.ids.New(), Release: strings.Repeat("0", 64), Force: true, Kind: event.DeployRelease}))
	run, entry := w.trigger(foldtest.Task("a"))
	w.step(c, entry)
	w.step(c, w.append(w.Finished(run, "a", 1, event.Succeeded)))
	w.step(c, w.append(&event.ProjectDeployed{DeployID: w.ids.New(), Release: sha, Expects: strings.Repeat("0", 64), Kind: event.DeployRelease}))
	w.step(c, w.append(&event.AssetsForgotten{CommandID: w.ids.New(), Assets: []string{"test/a"}, Release: sha, Reason: "x"}))
	snap, _ := c.Latest().Get()
	require.NotNil(t, snap.State.Forgotten.Get("test/a"), "folded")
	w.verify()
	rebuildBare(t, w)
	snap, _ = w.open("two").Latest().Get()
	require.NotNil(t, snap.State.Forgotten.Get("test/a"), "after a bare rebuild")
}

// A timer ended the last run of the asset. A rebuild folds timers last, so the command to forget the asset must wait
// for the timers.
func TestRebuildForgetsAssetWhoseRunATimerEnded(t *testing.T) {
	w := newWorld(t)
	c := w.open("one")
	run, entry := w.trigger(foldtest.Task("a"))
	w.step(c, entry)
	w.step(c, w.append(w.Finished(run, "a", 1, event.Succeeded)))
	w.clock.pass(time.Minute)
	w.Now = w.clock.Now()
	def := foldtest.Task("a")
	def.TimeoutSec = 60
	def.MaxAttempts = 1
	second, entry := w.trigger(def)
	w.step(c, entry)
	w.step(c, w.append(w.Started(second, "a", 1)))
	w.fireUntilEnded(c, second, time.Hour)
	w.step(c, w.append(&event.AssetsForgotten{CommandID: w.ids.New(), Assets: []string{"test/a"}, Reason: "x"}))
	snap, _ := c.Latest().Get()
	require.NotNil(t, snap.State.Forgotten.Get("test/a"), "folded")
	w.verify()
	rebuildBare(t, w)
	snap, _ = w.open("two").Latest().Get()
	require.NotNil(t, snap.State.Forgotten.Get("test/a"), "after a bare rebuild")
}

// A run, or a deployment, has a smaller id than the command to forget the asset, but was folded after the command. A
// rebuild folds the run or the deployment first, and must forget the asset although the asset is in use.
func TestRebuildForgetsAssetThatIsInUseByOrderOfIDs(t *testing.T) {
	for _, late := range []string{"run", "deployment"} {
		w := newWorld(t)
		c := w.open("one")
		run, entry := w.trigger(foldtest.Task("a"))
		w.step(c, entry)
		w.step(c, w.append(w.Finished(run, "a", 1, event.Succeeded)))
		if late == "run" {
			_, entry = w.trigger(foldtest.Task("a"))
		} else {
			entry = w.append(&event.ProjectDeployed{DeployID: w.ids.New(), Release: strings.Repeat("a", 64), Kind: event.DeployRelease})
		}
		w.step(c, w.append(&event.AssetsForgotten{CommandID: w.ids.New(), Assets: []string{"test/a"}, Reason: "x"}))
		w.step(c, entry)
		snap, _ := c.Latest().Get()
		require.NotNil(t, snap.State.Forgotten.Get("test/a"), "folded")
		w.verify()
		rebuildBare(t, w)
		snap, _ = w.open("two").Latest().Get()
		require.NotNil(t, snap.State.Forgotten.Get("test/a"), "after a bare rebuild, with a late %s", late)
		w.verify()
	}
}

// fireUntilEnded lets time pass and fires timers until a run has ended.
func (w *world) fireUntilEnded(c *compactor.Compactor, run string, each time.Duration) {
	w.t.Helper()
	for range 12 {
		snap, _ := c.Latest().Get()
		if snap.State.Runs.Get(run).State.Terminal() {
			return
		}
		w.clock.pass(each)
		w.Now = w.clock.Now()
		for timer := range snap.State.Timers.All {
			if timer.State == state.TimerScheduled && timer.TimerType != event.TimerWake {
				w.step(c, w.append(w.Fire(timer)))
				break
			}
		}
	}
	w.t.Fatalf("run %s is live: %v", run, w.states(c, run))
}
