package compactor_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/state"
)

// A command to forget assets proves that its release was deployed, even if no run of the release follows.
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

// A timer ended the last run of the asset. A rebuild folds timers last, so the command must wait for them.
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
	for range 12 {
		snap, _ := c.Latest().Get()
		if snap.State.Runs.Get(second).State.Terminal() {
			break
		}
		w.clock.pass(time.Hour)
		w.Now = w.clock.Now()
		for timer := range snap.State.Timers.All {
			if timer.State == state.TimerScheduled && timer.TimerType != event.TimerWake {
				w.step(c, w.append(w.Fire(timer)))
				break
			}
		}
	}
	snap, _ := c.Latest().Get()
	require.True(t, snap.State.Runs.Get(second).State.Terminal(), "%v", w.states(c, second))
	w.step(c, w.append(&event.AssetsForgotten{CommandID: w.ids.New(), Assets: []string{"test/a"}, Reason: "x"}))
	snap, _ = c.Latest().Get()
	require.NotNil(t, snap.State.Forgotten.Get("test/a"), "folded")
	w.verify()
	rebuildBare(t, w)
	snap, _ = w.open("two").Latest().Get()
	require.NotNil(t, snap.State.Forgotten.Get("test/a"), "after a bare rebuild")
}
