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

// A tick may be planned late. b reads all days of a. It must also read the days that have begun and become visible
// after the time of the tick, because its inputs are compared with the versions that were visible when the run was
// planned.
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
	w.fireTimers()
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

// While a request waits, a run that was requested later materializes the same partition. The output of the request's
// run would stay hidden. So the request is refused, and gets a later run.
func TestRequestIsPlannedAgainIfOvertaken(t *testing.T) {
	w := newFixture(t, false)
	r := request(asset("a"))
	now := clock.System{}.Now()
	asked, err := w.RequestRun(t.Context(), now.Add(-time.Hour), event.RunSpec{All: true})
	require.NoError(t, err)
	w.fireTimers()
	first := w.state().Requests.Get(asked.ID)
	w.cfg.IDs.Observe(first.RunID)
	later := w.run(request(asset("a")))
	w.report(w.finished(later.RunID, "raw/a", event.Succeeded))
	snap, err := w.Current(t.Context())
	require.NoError(t, err)
	_, err = w.PlanRequest(t.Context(), snap, first, r, now)
	require.ErrorIs(t, err, engine.ErrOvertaken)
	require.ErrorContains(t, err, "run "+later.RunID+", which was requested later, has already made raw/a")
	require.NotErrorAs(t, err, new(*engine.PlanError), "the request is planned again")

	w.cfg.IDs.Observe(ids.AtTime(now.Add(10 * time.Second))) // the delay before the next try is at least this long
	require.NoError(t, w.RefuseRequest(t.Context(), first, "", event.Error{Code: "OVERTAKEN", Category: event.CategoryUser, Message: err.Error(), Retryable: true}))
	w.fireTimers()
	second := w.state().Requests.Get(asked.ID)
	require.Equal(t, state.RequestPending, second.State)
	require.Greater(t, second.RunID, later.RunID)
	snap, err = w.Current(t.Context())
	require.NoError(t, err)
	planned, err := w.PlanRequest(t.Context(), snap, second, r, now)
	require.NoError(t, err)
	require.NoError(t, w.StartRequest(t.Context(), planned))
	w.report(w.finished(second.RunID, "raw/a", event.Succeeded))
	require.Equal(t, second.RunID, w.state().Partitions.Get(state.Key2{A: "raw/a"}).RunID)
}
