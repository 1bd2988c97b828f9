package engine_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/faultblob"
	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/wakeup"
)

// newUnnotifiedFixture returns a fixture whose notifications are all lost. Its services fold only the entries that a
// sweep of domains with wakeups finds.
func newUnnotifiedFixture(t *testing.T, sweeps bool) *fixture {
	t.Helper()
	w := newFixture(t, false)
	w.cfg.Compactor = engine.Services{Domain: foldtest.Domain, Store: w.cfg.Store, Snapshots: w.Snapshots, Clock: clock.System{}}
	w.Engine = engine.New(w.cfg).As(engine.User("jane"))
	swept := make(chan struct{})
	go func() {
		defer close(swept)
		for sweeps && (clock.System{}).Sleep(t.Context(), time.Minute) == nil {
			markers, err := wakeup.List(t.Context(), w.blobs, event.At(clock.System{}.Now()))
			if err == nil && len(markers) > 0 {
				_, err = w.compact.Compact(t.Context(), compactor.Request{Barrier: true})
			}
			if err != nil && t.Context().Err() == nil {
				t.Errorf("sweep: %v", err)
			}
		}
	}()
	t.Cleanup(func() { <-swept })
	return w
}

func oneTask() engine.RunRequest {
	return engine.RunRequest{
		Plan:    plan.Request{Assets: []plan.Asset{{Key: ids.AssetKey{Namespace: "n", Name: "a"}, Work: plan.Work{Command: []string{"x"}}, WorkerQueue: "default"}}, All: true},
		Trigger: event.Trigger{Type: "manual"},
	}
}

// The notification of an entry may be lost while the domain has no wakeup. The next sweep must find the entry. An
// earlier version of Servo found it only in the full sweep, which runs once a day.
func TestServicesFindRunByNextSweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newUnnotifiedFixture(t, true)
		began := clock.System{}.Now()
		handle, err := w.Run(t.Context(), oneTask())
		require.NoError(t, err)
		require.NotNil(t, w.state().Runs.Get(handle.RunID))
		require.LessOrEqual(t, clock.System{}.Now().Sub(began), 61*time.Second)
	})
}

func TestServicesWaitWithoutRightToMark(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newUnnotifiedFixture(t, true)
		w.faults(func(_ faultblob.Op, key string) faultblob.Fault {
			if _, err := wakeup.ParseKey(key); err == nil {
				return faultblob.FailBefore
			}
			return faultblob.None
		})
		_, err := w.Run(t.Context(), oneTask())
		require.ErrorContains(t, err, "no service has folded it after 2m0s")
		require.ErrorContains(t, err, "create wakeup of acme/prod")
	})
}

func TestServicesReportThatNothingFolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newUnnotifiedFixture(t, false)
		_, err := w.Run(t.Context(), oneTask())
		require.ErrorContains(t, err, "no service has folded it after 2m0s")
		require.ErrorContains(t, err, "The appended events stay in the ledger")
		_, err = w.cfg.Compactor.Compact(t.Context(), compactor.Request{Barrier: true})
		require.ErrorContains(t, err, "POST /v1/sweep?full=true")
	})
}
