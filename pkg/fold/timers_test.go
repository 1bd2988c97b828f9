package fold_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/state"
)

const cron = "timer:cron:nightly:1767409445"

// requestCron returns the request for an external timer that is due in an hour.
func requestCron(w *foldtest.World) *event.TimerRequested {
	return &event.TimerRequested{
		TimerID: cron, TimerType: foldtest.TimerOther, FireAt: event.At(w.Now.Add(time.Hour)), Payload: []byte(`{"x":1}`),
	}
}

func TestExternalTimerFiresOnce(t *testing.T) {
	w := foldtest.New(t)
	request := requestCron(w)
	w.MustFold(request)
	require.Equal(t, state.NoChange, w.Fold(request).Row.Outcome)
	require.JSONEq(t, `{"x":1}`, w.Timer(foldtest.TimerOther).Payload)

	enqueued := &event.TimerEnqueued{TimerID: cron}
	w.MustFold(enqueued)
	require.Equal(t, event.At(w.Now), w.Timer(foldtest.TimerOther).EnqueuedAt)
	require.Equal(t, state.NoChange, w.Fold(enqueued).Row.Outcome)

	w.Pass(time.Hour)
	fired := w.Fire(w.Timer(foldtest.TimerOther))
	w.MustFold(fired)
	require.Nil(t, w.Timer(foldtest.TimerOther))
	require.Equal(t, state.Stale, w.Fold(fired).Row.Outcome, "the same call again")
	require.Equal(t, state.Stale, w.Fold(enqueued).Row.Outcome)
}

func TestEarlyTimerCallGetsNewQueueName(t *testing.T) {
	w := foldtest.New(t)
	w.MustFold(requestCron(w))
	w.MustFold(&event.TimerEnqueued{TimerID: cron, HopAt: event.At(w.Now.Add(30 * time.Minute))})
	before := w.Timer(foldtest.TimerOther)
	require.Equal(t, event.At(w.Now.Add(30*time.Minute)), before.HopAt)

	w.Pass(30 * time.Minute)
	hop := w.Fire(before)
	w.MustFold(hop)
	after := w.Timer(foldtest.TimerOther)
	require.Equal(t, before.FireAt, after.FireAt)
	require.Equal(t, int32(1), after.Generation)
	require.NotEqual(t, before.QueueTaskName, after.QueueTaskName)
	require.Zero(t, after.EnqueuedAt)
	require.Zero(t, after.HopAt)
	require.Equal(t, state.Stale, w.Fold(hop).Row.Outcome, "the same call again")
	require.Equal(t, state.Stale, w.Fold(&event.TimerEnqueued{TimerID: cron}).Row.Outcome, "an old generation")

	w.Pass(40 * time.Minute) // the call is ten minutes late
	w.MustFold(w.Fire(after))
	require.Nil(t, w.Timer(foldtest.TimerOther))
}

func TestLostTimerIsScheduledAgain(t *testing.T) {
	w := foldtest.New(t)
	w.MustFold(requestCron(w))
	w.MustFold(&event.TimerEnqueued{TimerID: cron})
	lost := w.Timer(foldtest.TimerOther)
	repair := requestCron(w)
	repair.Generation = 1
	w.MustFold(repair)
	require.Equal(t, state.NoChange, w.Fold(repair).Row.Outcome)
	again := w.Timer(foldtest.TimerOther)
	require.Equal(t, lost.FireAt, again.FireAt)
	require.Zero(t, again.EnqueuedAt)

	w.Pass(time.Hour)
	require.Equal(t, state.Stale, w.Fold(w.Fire(lost)).Row.Outcome, "the lost call is delivered late")
	w.MustFold(w.Fire(again))
	require.Nil(t, w.Timer(foldtest.TimerOther))
}

func TestTimerIsRescheduledOnLag(t *testing.T) {
	w := foldtest.New(t)
	w.MustFold(requestCron(w))
	w.Pass(time.Hour)
	fired := w.Fire(w.Timer(foldtest.TimerOther))
	fired.Observed.CaughtUpAt = fired.FiredAt.Add(-fold.MaxCompactionLag - time.Microsecond)
	w.MustFold(fired)
	again := w.Timer(foldtest.TimerOther)
	require.Equal(t, event.At(w.Now.Add(fold.LagRetry)), again.FireAt)

	w.Pass(fold.LagRetry)
	fired = w.Fire(again)
	fired.Observed.CaughtUpAt = fired.FiredAt.Add(-fold.MaxCompactionLag)
	w.MustFold(fired)
	require.Nil(t, w.Timer(foldtest.TimerOther), "a lag of exactly the maximum is allowed")
}

func TestLivenessTimerIgnoresSimilarNames(t *testing.T) {
	w := foldtest.New(t)
	w.MustFold(&event.TimerRequested{
		TimerID: "timer:liveness:!", TimerType: foldtest.TimerOther, FireAt: event.At(w.Now.Add(time.Hour)),
	})
	run := w.Run(foldtest.Task("a"))
	w.MustFold(w.Started(run, "a", 1))
	w.Pass(time.Minute)
	w.MustFold(w.Beat(run, "a", 1))
	fireLiveness(t, w)
	require.NotNil(t, w.Timer(event.TimerLiveness))
}
