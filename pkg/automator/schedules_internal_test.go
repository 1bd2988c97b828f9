package automator

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/calendar"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/state"
)

var cursor = time.Date(2026, 3, 28, 1, 30, 0, 0, time.UTC)

// rowOf returns the row of a schedule that waits for the calendar to list its next instants. The parameter cursor is
// the last decided instant.
func rowOf(t *testing.T, spec event.Schedule, wanted time.Time) *state.Schedule {
	t.Helper()
	spec.Name, spec.Run = "nightly", event.RunSpec{All: true}
	raw, err := json.Marshal(spec)
	require.NoError(t, err)
	return &state.Schedule{
		ScheduleID: "nightly", Version: spec.DefinitionVersion(), Spec: string(raw), Cursor: event.At(cursor), WantedAt: event.At(wanted),
	}
}

func TestAnswerListsWhatThePolicyTakes(t *testing.T) {
	hourly := event.Schedule{Cron: "30 * * * *"}
	for name, c := range map[string]struct {
		change         func(*event.Schedule)
		after          time.Duration // time of the call, as an offset from the cursor
		missed         int
		dropped        int64
		through, until time.Duration // offsets from the cursor
	}{
		"on time":               {func(*event.Schedule) {}, time.Second, 0, 0, 0, time.Hour},
		"a late call":           {func(*event.Schedule) {}, time.Hour + 10*time.Minute, 1, 0, time.Hour, 2 * time.Hour},
		"too late":              {func(*event.Schedule) {}, time.Hour + 20*time.Minute, 0, 1, time.Hour, 2 * time.Hour},
		"three days, none":      {func(*event.Schedule) {}, 72 * time.Hour, 1, 71, 72 * time.Hour, 73 * time.Hour},
		"ten minutes, none":     {func(s *event.Schedule) { s.Cron = "* * * * *" }, 10 * time.Minute, 1, 9, 10 * time.Minute, 11 * time.Minute},
		"ten minutes, buffered": {func(s *event.Schedule) { s.Cron, s.Overlap = "* * * * *", event.OverlapBufferAll }, 10 * time.Minute, 10, 0, 10 * time.Minute, 11 * time.Minute},
		"three days, latest":    {func(s *event.Schedule) { s.CatchUp = event.CatchUpLatest }, 72*time.Hour + 50*time.Minute, 1, 71, 72 * time.Hour, 73 * time.Hour},
		"outside the window":    {func(s *event.Schedule) { s.CatchUp, s.WindowSec = event.CatchUpLatest, 60 }, 72*time.Hour + 50*time.Minute, 0, 72, 72 * time.Hour, 73 * time.Hour},
		"three days, all":       {func(s *event.Schedule) { s.CatchUp = event.CatchUpAll }, 72 * time.Hour, 72, 0, 72 * time.Hour, 73 * time.Hour},
		"all of a day":          {func(s *event.Schedule) { s.CatchUp, s.WindowSec = event.CatchUpAll, 24*3600 }, 72 * time.Hour, 25, 47, 72 * time.Hour, 73 * time.Hour},
		"60 days, 1000 ticks":   {func(s *event.Schedule) { s.CatchUp = event.CatchUpAll }, 60 * 24 * time.Hour, 1000, 440, 60 * 24 * time.Hour, (60*24 + 1) * time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			spec := hourly
			c.change(&spec)
			row := rowOf(t, spec, cursor.Add(c.after))
			item := answer(row)
			require.Equal(t, item, answer(row), "every automator gives the same answer")
			require.Empty(t, item.Error)
			require.Len(t, item.Missed, c.missed)
			require.Equal(t, c.dropped, item.Dropped)
			require.Equal(t, event.At(cursor), item.After)
			require.Equal(t, event.At(cursor.Add(c.through)), item.Through)
			require.Equal(t, []event.Time{event.At(cursor.Add(c.until)), event.At(cursor.Add(c.until))}, []event.Time{item.Next, item.NextAt})
			require.Equal(t, calendar.ZoneVersion, item.Calendar)
		})
	}
}

// While a tick waits for its jitter to pass, the calendar answers that it is the next tick, not a missed one.
func TestAnswerWaitsForJitter(t *testing.T) {
	spec := event.Schedule{Cron: "30 * * * *", JitterSec: 1800}
	item := answer(rowOf(t, spec, cursor.Add(time.Hour)))
	require.Empty(t, item.Missed)
	require.Equal(t, event.At(cursor.Add(time.Hour)), item.Next)
	require.Greater(t, item.NextAt, item.Next)
	require.Equal(t, item.After, item.Through)

	later := answer(rowOf(t, spec, item.NextAt.Time()))
	require.Equal(t, []event.Time{item.Next}, later.Missed)
}

func TestAnswerEndsScheduleAfterItsEnd(t *testing.T) {
	item := answer(rowOf(t, event.Schedule{Cron: "30 * * * *", End: event.At(cursor.Add(time.Hour))}, cursor.Add(48*time.Hour)))
	require.Zero(t, item.Next)
	require.Empty(t, item.Missed)
}

func TestAnswerReportsUnknownZone(t *testing.T) {
	item := answer(rowOf(t, event.Schedule{Cron: "30 * * * *", Timezone: "Mars/Phobos"}, cursor.Add(time.Hour)))
	require.Contains(t, item.Error, "Mars/Phobos")
	require.Zero(t, item.Next)
}

func TestAttemptsRepeatUnchangedWorkLater(t *testing.T) {
	done, now := attempts{}, cursor
	require.True(t, done.begin("a", 1, now))
	require.False(t, done.begin("a", 1, now.Add(time.Second)), "it had no effect")
	require.True(t, done.begin("a", 2, now.Add(time.Second)), "the row has changed")
	done.forget(now.Add(retryAfter))
	require.True(t, done.begin("a", 1, now.Add(retryAfter)))
}

// In an earlier version, the fold asked for an instant that was still waiting for its jitter, and the calendar answered
// that the instant was not due. Fold and automator appended several events a second until the instant was due.
func TestChangeOfScheduleDoesNotWaitForJitter(t *testing.T) {
	w := foldtest.New(t)
	spec := event.Schedule{Name: "nightly", EverySec: 3600, JitterSec: 3000, Run: event.RunSpec{All: true}}
	row := func() *state.Schedule { return w.State.Schedules.Get("nightly") }
	deploy := func(release string) *event.ProjectDeployed {
		d := &event.ProjectDeployed{DeployID: w.ID(), Release: strings.Repeat(release, 64), Force: true, Kind: event.DeployRelease, Schedules: "0123456789abcdef"}
		w.MustFold(d)
		return d
	}
	define := func(d *event.ProjectDeployed) {
		w.MustFold(&event.SchedulesDefined{DeployID: d.DeployID, Last: true, Set: []event.Schedule{spec}})
	}
	ask := func() { w.MustFold(&event.CalendarAdvanced{Items: []event.CalendarItem{answer(row())}}) }
	define(deploy("a"))
	ask()
	next := row().Next
	require.Greater(t, row().NextAt, next.Add(time.Minute))
	w.Pass(next.Add(time.Minute).Sub(event.At(w.Now)))

	spec.JitterSec = 0
	d := deploy("b")
	define(d)
	require.NotZero(t, row().WantedAt, "the old definition decides its instant first")
	ask()
	define(d)
	require.Equal(t, spec.DefinitionVersion(), row().Version)
	ask()
	require.Equal(t, next.Add(time.Hour), row().Next)
	require.Equal(t, 1, w.State.Ticks.Len())
}
