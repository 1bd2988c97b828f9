package fold_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/state"
)

// promised is a world whose release has a deadline, a freshness limit or an SLA for asset test/a.
type promised struct{ *alerted }

func newPromised(t foldtest.TB, w event.WatchedAsset) *promised {
	w.Asset = "test/a"
	p := &promised{newAlerted(t)}
	p.MustFold(&event.ProjectDeployed{
		DeployID: p.ID(), Release: strings.Repeat("a", 64), Force: true, Kind: event.DeployLocal, Watched: []event.WatchedAsset{w},
		Alerts: []event.AlertRule{rule("late", event.CauseDeadlineMissed, event.CauseFreshnessMissed, event.CauseSLAMissed), rule("over", event.CauseRecovered)},
	})
	return p
}

func (w *promised) row() *state.Promise { return w.State.Promises.Get("test/a") }

// redeploy deploys a second release, with different deadlines and limits for test/a.
func (w *promised) redeploy(watched event.WatchedAsset) {
	watched.Asset = "test/a"
	w.MustFold(&event.ProjectDeployed{
		DeployID: w.ID(), Release: strings.Repeat("b", 64), Force: true, Kind: event.DeployLocal, Watched: []event.WatchedAsset{watched},
		Alerts: []event.AlertRule{rule("late", event.CauseDeadlineMissed, event.CauseFreshnessMissed, event.CauseSLAMissed), rule("over", event.CauseRecovered)},
	})
}

// judge returns an automator's verdict about the next deadline. The deadline after it is a day later.
func (w *promised) judge(verdict string, missing ...string) *event.DeadlineJudged {
	row := w.row()
	item := event.JudgedDeadline{
		Asset: row.AssetKey, Version: row.Version, Period: row.Period, DueAt: row.DueAt, Verdict: verdict, Missing: missing, ObservedSeq: w.State.FoldSeq,
	}
	next := row.DueAt.Time()
	if row.DueAt == 0 {
		next = w.Now
	}
	next = next.Add(24 * time.Hour)
	item.Next, item.NextAt = next.Format("2006-01-02"), event.At(next)
	return &event.DeadlineJudged{Items: []event.JudgedDeadline{item}}
}

// causes sends the pending notifications, and returns their causes.
func (w *promised) causes() (causes []string) {
	for _, row := range w.send(event.NotificationSent) {
		causes = append(causes, row.Cause)
	}
	return causes
}

// In this test, only the wake timer and the automator cause events. No worker reports anything.
func TestDeadlineMissedWithoutWorkersAlerts(t *testing.T) {
	w := newPromised(t, event.WatchedAsset{Deadline: &event.Deadline{By: "09:00"}})
	require.NotZero(t, w.row().WantedAt, "an automator is asked for the first deadline")
	w.MustFold(w.judge(""))
	due := w.row().DueAt
	require.Equal(t, due, w.row().NextAt)
	require.True(t, w.wake())
	require.NotZero(t, w.row().WantedAt)
	missed := w.judge(event.DeadlineMissed, "")
	w.MustFold(missed)
	require.Equal(t, []string{event.CauseDeadlineMissed}, w.causes())
	require.Equal(t, state.Stale, w.Fold(missed).Row.Outcome, "a second automator says the same")
	misses := w.State.MissesOf("test/a")
	require.Len(t, misses, 1)
	require.Equal(t, due, misses[0].DueAt)
	require.Equal(t, due.Add(24*time.Hour), w.row().NextAt)

	w.end("a", event.Succeeded)
	require.Equal(t, []string{event.CauseRecovered}, w.causes())
	require.Empty(t, w.State.MissesOf("test/a"))
	require.NotZero(t, w.State.DeadlineMisses.Get(misses[0].MissID).MetAt)
	require.NoError(t, w.State.Verify())
}

// A verdict names at most 500 partitions, and counts the others.
func TestDeadlineMissOfManyPartitionsIsJudgedAgain(t *testing.T) {
	w := newPromised(t, event.WatchedAsset{Deadline: &event.Deadline{By: "09:00"}})
	w.MustFold(w.judge(""))
	require.True(t, w.wake())
	again := w.judge(event.DeadlineMissed, "")
	again.Items[0].More = 100
	w.MustFold(again)
	require.Equal(t, []string{event.CauseDeadlineMissed}, w.causes())
	unnamed := func() (rows []*state.DeadlineMiss) {
		w.State.UnnamedMisses(func(row *state.DeadlineMiss) bool {
			rows = append(rows, row)
			return true
		})
		return rows
	}
	require.Empty(t, unnamed(), "the partition is named")
	before := w.State.FoldSeq
	w.end("a", event.Succeeded)
	require.Empty(t, w.causes(), "100 partitions are still missing")
	require.Len(t, unnamed(), 1)
	require.Equal(t, state.Stale, w.Fold(again).Row.Outcome, "it has not observed the output")

	fresh := func(verdict string, missing ...string) *event.DeadlineJudged {
		p := &event.DeadlineJudged{Items: []event.JudgedDeadline{again.Items[0]}}
		x := &p.Items[0]
		x.Verdict, x.Missing, x.More, x.ObservedSeq, x.Next, x.NextAt = verdict, missing, 0, w.State.FoldSeq, "", 0
		return p
	}
	due := w.row().DueAt
	for _, early := range []*event.DeadlineJudged{fresh(event.DeadlineMissed, "k"), fresh(event.DeadlineMet)} {
		early.Items[0].ObservedSeq = before
		require.Equal(t, state.Stale, w.Fold(early).Row.Outcome, "it has not observed the output either")
	}
	w.MustFold(fresh(event.DeadlineMissed, "k"))
	require.Equal(t, `["k"]`, w.State.MissesOf("test/a")[0].Missing)
	require.Empty(t, unnamed())
	require.Empty(t, w.causes(), "it has been reported")
	require.Equal(t, due, w.row().DueAt, "the next deadline is not judged")

	more := fresh(event.DeadlineMissed, "l")
	require.Equal(t, state.Stale, w.Fold(more).Row.Outcome, "the miss names a partition")
	require.NoError(t, w.State.Verify())
}

func TestDeadlineMissEndsIfNothingElseIsMissing(t *testing.T) {
	w := newPromised(t, event.WatchedAsset{Deadline: &event.Deadline{By: "09:00"}})
	w.MustFold(w.judge(""))
	require.True(t, w.wake())
	missed := w.judge(event.DeadlineMissed, "")
	missed.Items[0].More = 100
	w.MustFold(missed)
	w.end("a", event.Succeeded)
	require.Equal(t, []string{event.CauseDeadlineMissed}, w.causes())
	met := &event.DeadlineJudged{Items: []event.JudgedDeadline{missed.Items[0]}}
	x := &met.Items[0]
	x.Verdict, x.Missing, x.More, x.ObservedSeq = event.DeadlineMet, nil, 0, w.State.FoldSeq
	w.MustFold(met)
	require.Equal(t, []string{event.CauseRecovered}, w.causes())
	require.Empty(t, w.State.MissesOf("test/a"))
	require.Equal(t, state.Stale, w.Fold(met).Row.Outcome, "a second automator says the same")
	require.NoError(t, w.State.Verify())
}

func TestDeadlineMissEndsWithDeadline(t *testing.T) {
	for _, promise := range []*event.WatchedAsset{nil, {MaxLagSec: 3600}} {
		w := newPromised(t, event.WatchedAsset{Deadline: &event.Deadline{By: "09:00"}})
		w.MustFold(w.judge(""))
		require.True(t, w.wake())
		w.MustFold(w.judge(event.DeadlineMissed, ""))
		require.Len(t, w.State.MissesOf("test/a"), 1)
		if promise == nil {
			w.deploy(event.DeployLocal)
		} else {
			w.redeploy(*promise)
		}
		require.Empty(t, w.State.MissesOf("test/a"))
		require.NoError(t, w.State.Verify())
	}
}

func TestDeadlineVerdictIsStaleAfterOutput(t *testing.T) {
	w := newPromised(t, event.WatchedAsset{Deadline: &event.Deadline{By: "09:00"}})
	w.MustFold(w.judge(""))
	require.True(t, w.wake())
	verdict := w.judge(event.DeadlineMissed, "")
	w.end("a", event.Succeeded) // task a ends after the automator's verdict
	require.Equal(t, state.Stale, w.Fold(verdict).Row.Outcome)
	require.NotZero(t, w.row().WantedAt, "it is judged again")
	w.MustFold(w.judge(event.DeadlineMet))
	require.Empty(t, w.causes())
	require.Equal(t, state.Stale, w.Fold(w.judge(event.DeadlineMet)).Row.Outcome, "nobody asked")
}

func TestDeadlineErrorIsRetriedLater(t *testing.T) {
	w := newPromised(t, event.WatchedAsset{Deadline: &event.Deadline{By: "09:00"}})
	failed := w.judge("")
	failed.Items[0].Error = "unknown zone"
	w.MustFold(failed)
	require.Equal(t, "unknown zone", w.row().Error)
	require.Equal(t, event.At(w.Now.Add(time.Minute)), w.row().NextAt)
	require.True(t, w.wake())
	w.MustFold(w.judge(""))
	require.Empty(t, w.row().Error)
}

func TestDeadlineChangeStartsOver(t *testing.T) {
	w := newPromised(t, event.WatchedAsset{Deadline: &event.Deadline{By: "09:00"}})
	old := w.judge("")
	w.MustFold(old)
	w.MustFold(&event.ProjectDeployed{
		DeployID: w.ID(), Release: strings.Repeat("b", 64), Force: true, Kind: event.DeployLocal,
		Watched: []event.WatchedAsset{{Asset: "test/a", Deadline: &event.Deadline{By: "10:00"}}},
	})
	require.Zero(t, w.row().NextAt)
	require.Equal(t, state.Stale, w.Fold(old).Row.Outcome, "it is about the old definition")
	w.deploy(event.DeployLocal)
	require.Nil(t, w.row())
	require.NoError(t, w.State.Verify())
}

func TestFreshnessMissedAlertsUntilNextOutput(t *testing.T) {
	w := newPromised(t, event.WatchedAsset{MaxLagSec: 3600})
	require.True(t, w.wake())
	require.Equal(t, event.At(foldtest.Epoch.Add(time.Hour)), event.At(w.Now))
	require.Equal(t, []string{event.CauseFreshnessMissed}, w.causes())
	require.Zero(t, w.row().LagAt)
	w.end("a", event.Succeeded)
	require.Equal(t, []string{event.CauseRecovered}, w.causes())
	require.Equal(t, w.row().DataAt.Add(time.Hour), w.row().LagAt)
	w.Pass(30 * time.Minute)
	w.end("a", event.Succeeded)
	require.True(t, w.wake())
	require.Empty(t, w.causes(), "nothing is late")
	require.NoError(t, w.State.Verify())
}

// In the table of partitions, the rows of test/b follow those of test/a, and must not be taken for outputs of test/a.
func TestFreshnessBeginsWithNewestOutputOfAsset(t *testing.T) {
	w := &promised{newAlerted(t)}
	w.end("a", event.Succeeded)
	made := event.At(w.Now)
	w.Pass(240 * time.Hour)
	w.end("b", event.Succeeded)
	w.redeploy(event.WatchedAsset{MaxLagSec: 86400})
	require.Equal(t, made, w.row().DataAt)
	require.True(t, w.wake())
	require.Equal(t, []string{event.CauseFreshnessMissed}, w.causes(), "it is nine days late")
}

func TestSLAChangeAppliesToRunningTasks(t *testing.T) {
	for name, c := range map[string]struct {
		before, after event.WatchedAsset
		causes        []string
		missed        string
	}{
		"raised":              {event.WatchedAsset{TaskSec: 600}, event.WatchedAsset{TaskSec: 7200}, nil, ""},
		"raised beside a run": {event.WatchedAsset{RunSec: 600, TaskSec: 7200}, event.WatchedAsset{RunSec: 7200, TaskSec: 7200}, nil, ""},
		"lowered":             {event.WatchedAsset{TaskSec: 36000}, event.WatchedAsset{TaskSec: 600}, []string{event.CauseSLAMissed}, "task"},
		"new":                 {event.WatchedAsset{MaxLagSec: 36000}, event.WatchedAsset{RunSec: 600}, []string{event.CauseSLAMissed}, "run"},
		"removed":             {event.WatchedAsset{TaskSec: 600}, event.WatchedAsset{MaxLagSec: 36000}, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := newPromised(t, c.before)
			run := w.Run(foldtest.Task("a"))
			w.MustFold(w.Started(run, "a", 1))
			w.redeploy(c.after)
			for w.Now.Before(foldtest.Epoch.Add(20 * time.Minute)) {
				w.Pass(5 * time.Minute)
				w.MustFold(w.Beat(run, "a", 1))
				if timer := w.State.Wake(); timer != nil && timer.State == state.TimerScheduled && timer.FireAt <= event.At(w.Now) {
					w.MustFold(w.Fire(timer))
				}
			}
			require.Equal(t, c.causes, w.causes())
			require.Equal(t, c.missed, w.State.Tasks.Get(state.Key2{A: run, B: "a"}).SLAMissed)
			require.NoError(t, w.State.Verify())
		})
	}
}

func TestSLAOfTaskAndRunAlertOnce(t *testing.T) {
	w := newPromised(t, event.WatchedAsset{RunSec: 7200, TaskSec: 1800})
	run := w.Run(foldtest.Retrying("a", 2), foldtest.Task("b"))
	w.MustFold(w.Started(run, "a", 1))
	for range 3 {
		w.Pass(10 * time.Minute)
		w.MustFold(w.Beat(run, "a", 1))
	}
	require.True(t, w.wake())
	require.Equal(t, []string{event.CauseSLAMissed}, w.causes(), "thirty minutes after the admission")
	require.Equal(t, event.At(foldtest.Epoch.Add(2*time.Hour)), w.State.Tasks.Get(state.Key2{A: run, B: "a"}).SLAAt)
	require.Zero(t, w.State.Tasks.Get(state.Key2{A: run, B: "b"}).SLAAt, "nothing is promised about it")
	w.Pass(80 * time.Minute)
	w.MustFold(w.Beat(run, "a", 1))
	require.True(t, w.wake()) // the wake timer fires to send the grouped alerts, or to judge the SLA of the run
	for w.Now.Before(foldtest.Epoch.Add(2 * time.Hour)) {
		require.True(t, w.wake())
	}
	require.Equal(t, "task run", w.State.Tasks.Get(state.Key2{A: run, B: "a"}).SLAMissed)
	require.EqualValues(t, 2, w.State.AlertRules.Get("late").Transitions)
	w.MustFold(w.Finished(run, "a", 1, event.Succeeded))
	require.Zero(t, w.State.Tasks.Get(state.Key2{A: run, B: "a"}).SLAAt)
	require.Contains(t, w.causes(), event.CauseRecovered)
	require.NoError(t, w.State.Verify())
}

func TestSLAOfScheduleAlerts(t *testing.T) {
	w := newTicking(t, event.Schedule{SLASec: 90})
	w.MustFold(&event.ProjectDeployed{
		DeployID: w.ID(), Release: strings.Repeat("b", 64), Force: true, Kind: event.DeployLocal, Schedules: w.State.Deployment().Schedules,
		Alerts: []event.AlertRule{rule("late", event.CauseSLAMissed)},
	})
	w.minutes(3, func(int) (int, bool) { return 0, false })
	row := w.State.Alerts.Get(state.Key3{A: "schedule:clock", B: event.CauseSLAMissed, C: "late"})
	require.NotNil(t, row)
	require.True(t, row.Open())
	w.finish(w.runs[0], event.Succeeded)
	require.False(t, w.State.Alerts.Get(row.Key()).Open())
	require.NoError(t, w.State.Verify())
}
