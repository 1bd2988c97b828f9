package control_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/control"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
)

func TestAttentionIsWhenWorkMayBeStuck(t *testing.T) {
	type attention struct {
		after time.Duration
		ok    bool
	}
	acknowledged := func(w *foldtest.World) {
		for _, row := range w.State.Timers.Rows() {
			w.MustFold(&event.TimerEnqueued{TimerID: row.TimerID, Generation: row.Generation})
		}
	}
	for name, c := range map[string]struct {
		happens func(w *foldtest.World)
		want    attention
	}{
		"nothing has happened":       {func(*foldtest.World) {}, attention{}},
		"a task waits for the queue": {func(w *foldtest.World) { w.Run(foldtest.Task("a")) }, attention{0, true}},
		"a task runs": {func(w *foldtest.World) {
			w.MustFold(w.Started(w.Run(foldtest.Task("a")), "a", 1))
			acknowledged(w)
		}, attention{0, true}},
		"a run has ended": {func(w *foldtest.World) {
			w.MustFold(w.Finished(w.Run(foldtest.Task("a")), "a", 1, event.Succeeded))
		}, attention{}},
		"a timer that is not in a queue": {func(w *foldtest.World) {
			w.MustFold(&event.TimerRequested{TimerID: "timer:cron:x:1", TimerType: foldtest.TimerOther, FireAt: event.At(w.Now.Add(time.Hour))})
		}, attention{control.PendingAge, true}},
		"a timer in a queue": {func(w *foldtest.World) {
			w.MustFold(&event.TimerRequested{TimerID: "timer:cron:x:1", TimerType: foldtest.TimerOther, FireAt: event.At(w.Now.Add(time.Hour))})
			acknowledged(w)
		}, attention{time.Hour + control.TimerGrace, true}},
		"a timer with hops": {func(w *foldtest.World) {
			w.MustFold(&event.TimerRequested{TimerID: "timer:cron:x:1", TimerType: foldtest.TimerOther, FireAt: event.At(w.Now.Add(1000 * time.Hour))})
			w.MustFold(&event.TimerEnqueued{TimerID: "timer:cron:x:1", HopAt: event.At(w.Now.Add(700 * time.Hour))})
		}, attention{700*time.Hour + control.TimerGrace, true}},
		"a timer that has fired": {func(w *foldtest.World) {
			w.MustFold(&event.TimerRequested{TimerID: "timer:cron:x:1", TimerType: foldtest.TimerOther, FireAt: event.At(w.Now)})
			w.MustFold(w.Fire(w.Timer(foldtest.TimerOther)))
		}, attention{}},
		"a run waits for a slot": {func(w *foldtest.World) {
			w.MustFold(&event.LimitSet{CommandID: w.ID(), Scope: event.ScopeWorkspace, Slots: 0})
			w.Run(foldtest.Task("a"))
		}, attention{}},
		"a request waits for its time": {func(w *foldtest.World) {
			w.MustFold(&event.RunRequested{CommandID: w.ID(), At: event.At(w.Now.Add(time.Hour)), Run: event.RunSpec{All: true}})
			acknowledged(w)
		}, attention{time.Hour + control.TimerGrace, true}},
		"a request is to be planned": {func(w *foldtest.World) {
			w.MustFold(&event.RunRequested{CommandID: w.ID(), At: event.At(w.Now), Run: event.RunSpec{All: true}})
			w.MustFold(w.Fire(w.Timer(event.TimerWake)))
		}, attention{control.AutomationAge, true}},
		"schedules are to be defined": {func(w *foldtest.World) {
			w.MustFold(&event.ProjectDeployed{
				DeployID: w.ID(), Release: strings.Repeat("a", 64), Kind: event.DeployRelease, Schedules: "0123456789abcdef",
			})
		}, attention{control.AutomationAge, true}},
		"an event of a newer version": {func(w *foldtest.World) {
			w.Apply(fold.Group{Entry: w.ID(), ID: "g", Reason: event.ReasonUnsupported})
		}, attention{control.UnsupportedEvery, true}},
	} {
		w := foldtest.New(t)
		c.happens(w)
		now := event.At(w.Now)
		at, ok := control.Attention(w.State, now)
		got := attention{ok: ok}
		if ok {
			got.after = at.Sub(now)
		}
		require.Equal(t, c.want, got, name)
	}
}

func TestAttentionDetectsMissingLivenessTimer(t *testing.T) {
	w := foldtest.New(t)
	run := w.RunWith(event.RunTriggered{TimeoutSec: 3600}, foldtest.Retrying("a", 2))
	w.MustFold(w.Finished(run, "a", 1, event.Failed))
	require.Zero(t, w.State.SlotsInUse())
	lost := *w.Timer(event.TimerLiveness)
	lost.Deleted = true
	w.State.Timers.Put(&lost)
	at, ok := control.Attention(w.State, event.At(w.Now))
	require.True(t, ok)
	require.Equal(t, event.At(w.Now), at)
}

// INV-5, for wakeups: no sweep finds an action before the time that Attention returns. Attention must consider the
// time HopAt of timers, and the age of timers that are not in a queue.
func TestINV5SweepIsEmptyBeforeAttention(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		w := foldtest.New(r)
		var runs []string
		for range rapid.IntRange(1, 25).Draw(r, "events") {
			happen(r, w, &runs)
			now := event.At(w.Now)
			at, ok := control.Attention(w.State, now)
			for _, later := range []time.Duration{
				0, control.PendingAge, time.Duration(rapid.Int64Range(0, int64(48*time.Hour)).Draw(r, "later")), at.Sub(now) - time.Microsecond,
			} {
				if later < 0 || ok && now.Add(later) >= at {
					continue
				}
				if found := control.Sweep(w.State, now.Add(later)); len(found) > 0 {
					r.Fatalf("%s after the last event a sweep returns %v, but attention is due %v, %s after it", later, describe(found), ok, at.Sub(now))
				}
			}
		}
	})
}

// happen applies a random event.
func happen(r *rapid.T, w *foldtest.World, runs *[]string) {
	w.Pass(time.Duration(rapid.SampledFrom([]int{0, 1, 20, 700}).Draw(r, "seconds")) * time.Second)
	run := func() string { return (*runs)[rapid.IntRange(0, len(*runs)-1).Draw(r, "run")] }
	task := func() string { return rapid.SampledFrom([]string{"a", "b"}).Draw(r, "task") }
	what := rapid.IntRange(0, 8).Draw(r, "what")
	if len(*runs) == 0 {
		what = 0
	}
	timers := w.State.Timers.Rows()
	if len(timers) == 0 && what >= 6 {
		what = 1
	}
	switch what {
	case 0:
		p := event.RunTriggered{TimeoutSec: rapid.SampledFrom([]int32{0, 3600}).Draw(r, "timeout")}
		*runs = append(*runs, w.RunWith(p, foldtest.Retrying("a", 3), foldtest.Task("b", "a")))
	case 1:
		w.Fold(&event.TimerRequested{
			TimerID: fmt.Sprintf("timer:cron:x:%d", rapid.IntRange(0, 2).Draw(r, "cron")), TimerType: foldtest.TimerOther,
			FireAt: event.At(w.Now.Add(time.Duration(rapid.SampledFrom([]int{1, 3, 1000}).Draw(r, "hours")) * time.Hour)),
		})
	case 2:
		w.Fold(w.Started(run(), task(), 1))
	case 3:
		w.Fold(w.Finished(run(), task(), 1, rapid.SampledFrom([]event.Outcome{event.Succeeded, event.Failed}).Draw(r, "outcome")))
	case 4:
		w.Fold(&event.RunCancelRequested{RunID: run(), Force: rapid.Bool().Draw(r, "force")})
	case 5:
		w.Fold(enqueued(run(), task()))
	case 6, 7:
		row := timers[rapid.IntRange(0, len(timers)-1).Draw(r, "timer")]
		p := &event.TimerEnqueued{TimerID: row.TimerID, Generation: row.Generation}
		if row.FireAt.Sub(event.At(w.Now)) > fold.DispatchDeadline && rapid.Bool().Draw(r, "hop") {
			p.HopAt = event.At(w.Now.Add(fold.DispatchDeadline))
		}
		w.Fold(p)
	case 8:
		row := timers[rapid.IntRange(0, len(timers)-1).Draw(r, "timer")]
		if row.FireAt.Time().After(w.Now) {
			w.Now = row.FireAt.Time()
		}
		w.Fold(w.Fire(row))
	}
}
