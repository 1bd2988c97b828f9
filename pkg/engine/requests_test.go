package engine_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/space"
	"github.com/servo-orchestration/servo/pkg/staleness"
	"github.com/servo-orchestration/servo/pkg/state"
)

// A tick may be planned late. b reads all days of a. It must also read the days that have begun and become visible after
// the time of the tick, because it is compared with the versions that were visible when it was planned.
func TestI21LateTickReadsVisibleDays(t *testing.T) {
	w := newFixture(t, false)
	now := clock.System{}.Now()
	logical := now.Add(-72 * time.Hour)
	a, b := asset("a"), asset("b", "a")
	region := space.Dimension{Name: "region", Kind: space.Static, Values: []string{"eu"}}
	a.Partitions = space.New(space.Dimension{Name: "date", Kind: space.Daily, Start: now.Add(-120 * time.Hour).Format("2006-01-02")}, region)
	b.Partitions = space.New(region)
	list := []plan.Asset{a, b}
	first := engine.RunRequest{Plan: plan.Request{Root: "/project", Assets: list, Select: []ids.AssetKey{a.Key}}, Trigger: event.Trigger{Type: "manual"}, Need: engine.NeedMissing}
	made := w.run(first)
	require.Greater(t, made.Tasks, 3)
	for _, task := range tasksOf(w, made.RunID) {
		w.report(w.finished(made.RunID, task, event.Succeeded))
	}
	asked, err := w.RequestRun(t.Context(), now.Add(-time.Hour), event.RunSpec{All: true})
	require.NoError(t, err)
	for timer := range w.state().Timers.All {
		w.report(&event.TimerFired{
			TimerID: timer.TimerID, Generation: timer.Generation, FiredAt: event.At(now),
			Observed: event.Observed{CaughtUpAt: event.At(now)},
		})
	}
	snap, err := w.Current(t.Context())
	require.NoError(t, err)
	r := engine.RunRequest{Plan: plan.Request{Root: "/project", Assets: list, All: true}, Trigger: event.Trigger{Type: "cron"}, Need: engine.NeedStale}
	planned, err := w.PlanRequest(t.Context(), snap, snap.State.Requests.Get(asked.ID), r, logical)
	require.NoError(t, err)
	require.Equal(t, 1, planned.Tasks())
	require.NoError(t, w.StartRequest(t.Context(), planned))
	run := w.state().Requests.Get(asked.ID).RunID
	keys := tasksOf(w, run)
	require.Len(t, keys, 1)
	w.report(w.finished(run, keys[0], event.Succeeded))
	snap, err = w.Current(t.Context())
	require.NoError(t, err)
	data, _, err := blob.Get(t.Context(), w.blobs, snap.State.Runs.Get(run).PlanRef, plan.MaxBytes)
	require.NoError(t, err)
	stored, err := plan.Decode(data)
	require.NoError(t, err)
	require.Len(t, stored.Tasks[0].Inputs["raw/a"].Items, made.Tasks)
	e, err := engine.Staleness(t.Context(), snap, list, now)
	require.NoError(t, err)
	statuses, err := e.Statuses(b.Key, []string{ids.Partition{"region": "eu"}.Key()})
	require.NoError(t, err)
	require.Equal(t, staleness.Fresh, statuses[0])
}

func tasksOf(w *fixture, run string) (keys []string) {
	w.state().TasksOf(run, func(t *state.Task) bool {
		keys = append(keys, t.TaskKey)
		return true
	})
	return keys
}
