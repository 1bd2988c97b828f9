package engine_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/blob/faultblob"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/due"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold/foldtest"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
)

// untold has the engine's services fold only what a sweep by markers finds, as if each
// notification were lost.
func untold(t *testing.T, sweeps bool) *domainWorld {
	t.Helper()
	w := newDomain(t, false)
	w.Compactor = engine.Services{Domain: foldtest.Domain, Store: w.Store, Snapshots: w.Snapshots, Clock: clock.System{}}
	swept := make(chan struct{})
	go func() {
		defer close(swept)
		for sweeps && (clock.System{}).Sleep(t.Context(), time.Minute) == nil {
			markers, err := due.List(t.Context(), w.blobs, event.At(clock.System{}.Now()))
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

func once() engine.RunRequest {
	return engine.RunRequest{
		Plan:    plan.Request{Assets: []plan.Asset{{Key: ids.AssetKey{Namespace: "n", Name: "a"}, Work: plan.Work{Command: []string{"x"}}, WorkerQueue: "default"}}, All: true},
		Trigger: event.Trigger{Type: "manual"},
	}
}

// Seen to fail where nothing but a full sweep found what an idle domain's services were
// not told of: once a day.
func TestARunThatNobodyWasToldOfIsFoundByTheNextSweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := untold(t, true)
		began := clock.System{}.Now()
		ticket, err := w.Run(t.Context(), once())
		require.NoError(t, err)
		require.NotNil(t, w.state().Runs.Get(ticket.RunID))
		require.LessOrEqual(t, clock.System{}.Now().Sub(began), 61*time.Second)
	})
}

func TestWhoeverMayNotMarkADomainWaitsAllTheSame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := untold(t, true)
		w.faults(func(_ faultblob.Op, key string) faultblob.Fault {
			if _, err := due.ParseKey(key); err == nil {
				return faultblob.FailBefore
			}
			return faultblob.None
		})
		_, err := w.Run(t.Context(), once())
		require.ErrorContains(t, err, "no service has folded it after 2m0s")
		require.ErrorContains(t, err, "create wakeup of acme/prod")
	})
}

func TestWhereNoServiceRunsThatIsSaid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := untold(t, false)
		_, err := w.Run(t.Context(), once())
		require.ErrorContains(t, err, "no service has folded it after 2m0s")
		require.ErrorContains(t, err, "The appended events stay in the ledger")
		_, err = w.Compactor.Compact(t.Context(), compactor.Request{Barrier: true})
		require.ErrorContains(t, err, "POST /v1/sweep?full=true")
	})
}
