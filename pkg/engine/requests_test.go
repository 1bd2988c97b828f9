package engine_test

import (
	"fmt"
	"strings"
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

// Asset b reads all days of asset a. If a tick of b is planned late, the run of b must also read those days of a that
// began and became visible after the time of the tick: all outputs that were visible when the run was planned count
// as read by b.
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
	require.Len(t, planOf(t, w, run).Tasks[0].Inputs["raw/a"].Items, made.Tasks)
	e, err := engine.Staleness(t.Context(), snap, list, now)
	require.NoError(t, err)
	statuses, err := e.Statuses(b.Key, []string{ids.Partition{"region": "eu"}.Key()})
	require.NoError(t, err)
	require.Equal(t, staleness.Fresh, statuses[0])
}

// A selection that lists all keys of a dimension may exceed the limit in bytes for selections in an event.
func TestSelectionOfManyKeysRuns(t *testing.T) {
	w := newFixture(t, false)
	a := asset("a")
	tenants := space.Dimension{Name: "tenant", Kind: space.Static}
	for i := range 300 {
		tenants.Values = append(tenants.Values, fmt.Sprintf("地区-%04d", i))
	}
	a.Partitions = space.New(tenants)
	all, err := plan.ParseSelection("all")
	require.NoError(t, err)
	list, err := plan.ParseSelection("tenant=" + strings.Join(tenants.Values, ","))
	require.NoError(t, err)
	for _, selection := range []plan.Selection{all, list} {
		r := engine.RunRequest{
			Plan:    plan.Request{Root: "/project", Assets: []plan.Asset{a}, All: true, Partitions: []plan.Selection{selection}},
			Trigger: event.Trigger{Type: "manual"},
		}
		ran := w.run(r)
		require.Equal(t, 300, ran.Tasks)
		recorded := w.state().Runs.Get(ran.RunID).Partitions
		require.Contains(t, recorded, "tenant=地区-0000,地区-0001,")
		require.Contains(t, recorded, "…")
		asked, err := w.RequestRun(t.Context(), clock.System{}.Now().Add(-time.Hour), event.RunSpec{All: true})
		require.NoError(t, err)
		w.fireTimers()
		snap, err := w.Current(t.Context())
		require.NoError(t, err)
		planned, err := w.PlanRequest(t.Context(), snap, snap.State.Requests.Get(asked.ID), r, clock.System{}.Now())
		require.NoError(t, err)
		require.NoError(t, w.StartRequest(t.Context(), planned))
		require.Equal(t, 300, int(w.state().Runs.Get(w.state().Requests.Get(asked.ID).RunID).TasksTotal))
	}
}

// A partition of asset a is materialized before its period begins. A run of asset b before that time does not read this
// partition. So b must become stale when the period begins, because later runs of b read the partition.
func TestI21PeriodThatBeginsLaterMakesReaderStale(t *testing.T) {
	for _, mapping := range []space.Map{{}, {Op: space.Latest}} {
		w := newFixture(t, false)
		now := clock.System{}.Now()
		a, b := asset("a"), asset("b", "a")
		region := space.Dimension{Name: "region", Kind: space.Static, Values: []string{"eu"}}
		a.Partitions = space.New(space.Dimension{Name: "date", Kind: space.Daily, Start: now.Add(-48 * time.Hour).Format("2006-01-02")}, region)
		b.Partitions, b.Reads = space.New(region), []plan.Dep{{Asset: a.Key, Map: mapping, Requires: plan.RequiresAvailable}}
		list, eu := []plan.Asset{a, b}, ids.Partition{"region": "eu"}.Key()
		day := func(n int) string {
			return ids.Partition{"date": now.Add(time.Duration(n) * 24 * time.Hour).UTC().Format("2006-01-02"), "region": "eu"}.Key()
		}
		run := func(only map[ids.AssetKey][]string) string {
			r := engine.RunRequest{Plan: plan.Request{Root: "/project", Assets: list, Only: only, AllowFuture: true}, Trigger: event.Trigger{Type: "manual"}}
			for key := range only {
				r.Plan.Select = append(r.Plan.Select, key)
			}
			return w.run(r).RunID
		}
		finish := func(run string, outcome event.Outcome) {
			for _, task := range tasksOf(w, run) {
				if row := w.state().Tasks.Get(state.Key2{A: run, B: task}); row.Attempt > 0 && !row.State.Terminal() {
					w.report(w.finished(run, task, outcome))
				}
			}
		}
		check := func(days int, want staleness.Status) {
			t.Helper()
			snap, err := w.Current(t.Context())
			require.NoError(t, err)
			e, err := engine.Staleness(t.Context(), snap, list, now.Add(time.Duration(days)*24*time.Hour))
			require.NoError(t, err)
			x, err := e.Explain(b.Key, eu)
			require.NoError(t, err)
			require.Equal(t, want, x.Status)
			require.Equal(t, want == staleness.Stale, len(x.Newer) > 0)
		}
		finish(run(map[ids.AssetKey][]string{a.Key: {day(-2), day(-1), day(1)}}), event.Succeeded)
		finish(run(map[ids.AssetKey][]string{b.Key: {eu}}), event.Succeeded)
		check(0, staleness.Fresh)
		check(1, staleness.Stale)

		together := run(map[ids.AssetKey][]string{a.Key: {day(1)}, b.Key: {eu}})
		finish(together, event.Succeeded)
		finish(together, event.Succeeded)
		check(0, staleness.Fresh)
		check(1, staleness.Stale)
	}
}

// The id of a run may contain a later time than the time of its planning, because the clock of another run was ahead.
// The run must read the periods that have begun at the time in its id.
func TestI21RunReadsPeriodsThatHaveBegunAtItsID(t *testing.T) {
	w := newFixture(t, false)
	now := clock.System{}.Now()
	a, b := asset("a"), asset("b", "a")
	region := space.Dimension{Name: "region", Kind: space.Static, Values: []string{"eu"}}
	a.Partitions = space.New(space.Dimension{Name: "at", Kind: space.Every, Minutes: 15, Start: now.Add(-24 * time.Hour).Format("2006-01-02")}, region)
	b.Partitions, b.Reads = space.New(region), []plan.Dep{{Asset: a.Key, Requires: plan.RequiresAvailable}}
	next := now.UTC().Truncate(15 * time.Minute).Add(15 * time.Minute)
	period := func(at time.Time) string {
		return ids.Partition{"at": at.Format("2006-01-02T15:04Z07:00"), "region": "eu"}.Key()
	}
	r := engine.RunRequest{Plan: plan.Request{
		Root: "/project", Assets: []plan.Asset{a, b}, Select: []ids.AssetKey{a.Key}, Only: map[ids.AssetKey][]string{a.Key: {period(next.Add(-time.Hour)), period(next)}}, AllowFuture: true,
	}, Trigger: event.Trigger{Type: "manual"}}
	first := w.run(r).RunID
	for _, task := range tasksOf(w, first) {
		w.report(w.finished(first, task, event.Succeeded))
	}
	w.cfg.IDs.Observe(ids.AtTime(next.Add(time.Minute)))
	r.Plan.Select, r.Plan.Only = []ids.AssetKey{b.Key}, map[ids.AssetKey][]string{b.Key: {ids.Partition{"region": "eu"}.Key()}}
	built := planOf(t, w, w.run(r).RunID)
	require.Len(t, built.Tasks[0].Inputs["raw/a"].Items, 2)
}

// planOf returns the stored plan of a run.
func planOf(t *testing.T, w *fixture, run string) *plan.Plan {
	t.Helper()
	data, _, err := blob.Get(t.Context(), w.blobs, w.state().Runs.Get(run).PlanRef, plan.MaxBytes)
	require.NoError(t, err)
	built, err := plan.Decode(data)
	require.NoError(t, err)
	return built
}

func tasksOf(w *fixture, run string) (keys []string) {
	w.state().TasksOf(run, func(t *state.Task) bool {
		keys = append(keys, t.TaskKey)
		return true
	})
	return keys
}

// While a request waits, a run that was requested later materializes the same partition. The output of the request's
// run would not become visible. So the request is refused. It is planned again later, with a greater run id.
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

// A request with a mistake in its selection is refused for good, even if it chooses partitions by their status.
func TestPlanRequestRefusesWrongSelectionsForGood(t *testing.T) {
	w := newFixture(t, false)
	a := asset("a")
	a.Partitions = space.New(
		space.Dimension{Name: "date", Kind: space.Daily, Start: "2025-01-01"},
		space.Dimension{Name: "region", Kind: space.Static, Values: []string{"eu"}},
	)
	snap, err := w.Current(t.Context())
	require.NoError(t, err)
	for _, c := range []struct {
		need  engine.Need
		texts []string
	}{
		{engine.NeedStale, []string{"date=foo"}},
		{engine.NeedStale, []string{"date=2024-01-01"}},
		{engine.NeedFailed, []string{"date=2025-01-02;region=eu,xx"}},
		{engine.NeedMissing, []string{"date=2025-01-02;region=xx"}},
		{"", []string{"date=foo;missing"}},
		{"", []string{"color=red;failed"}},
		{"", []string{"date=2025-01-02;missing", "date=2025-01-03"}},
	} {
		r := engine.RunRequest{Plan: plan.Request{Root: "/project", Assets: []plan.Asset{a}, Select: []ids.AssetKey{a.Key}}, Need: c.need}
		for _, text := range c.texts {
			s, err := plan.ParseSelection(text)
			require.NoError(t, err)
			r.Plan.Partitions = append(r.Plan.Partitions, s)
		}
		now := clock.System{}.Now()
		_, err := w.PlanRequest(t.Context(), snap, &state.RunRequest{RequestID: "at:x", RunID: ids.AtTime(now)}, r, now)
		require.ErrorAs(t, err, new(*engine.PlanError), "%q %q", c.need, c.texts)
	}
}
