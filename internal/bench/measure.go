package bench

import (
	"context"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

// awaiter waits for published snapshots.
type awaiter interface {
	Await(ctx context.Context, after int64) (*snapshot.Snapshot, error)
}

// patientAwaiter waits before it reads a snapshot, because reading takes CPU time from the measured system. It waits
// until all tasks have executed, but at most for pollEvery.
type patientAwaiter struct {
	awaiter
	executed <-chan struct{} // closed when all tasks have executed
}

// pollEvery is the longest time between two reads.
const pollEvery = 30 * time.Second

// Await implements awaiter.
func (p patientAwaiter) Await(ctx context.Context, after int64) (*snapshot.Snapshot, error) {
	waiting, cancel := context.WithTimeout(ctx, pollEvery)
	defer cancel()
	select {
	case <-p.executed:
	case <-waiting.Done():
	}
	return p.awaiter.Await(ctx, after)
}

// measure triggers all runs of the workload at once, and waits until they have ended.
func (cfg Config) measure(ctx context.Context, e *engine.Engine, watch awaiter, w Workload, s *sample) error {
	assets := w.assets(cfg.Size)
	if cfg.Outputs {
		for i := range assets {
			assets[i].Work.Output = ""
		}
	}
	request := engine.RunRequest{Plan: plan.Request{Assets: assets, All: true}, Trigger: event.Trigger{Type: "manual"}}
	if cfg.release != nil {
		request.Release, request.Plan = cfg.release.SHA, plan.Request{Assets: cfg.release.Code.Assets, Graph: cfg.graph}
		for i := range assets {
			request.Plan.Select = append(request.Plan.Select, assets[i].Key)
		}
	}
	began := cfg.Clock.Now()
	runs := make([]string, w.runs(cfg.Size))
	var g errgroup.Group
	for i := range runs {
		g.Go(func() error {
			handle, err := e.Run(ctx, request)
			runs[i] = handle.RunID
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	end, err := awaitEnd(ctx, watch, runs)
	if err != nil {
		return err
	}
	s.took = cfg.Clock.Now().Sub(began)
	s.tasks = len(runs) * len(assets)
	for _, run := range runs {
		hops, err := hopsOf(end.State, run)
		if err != nil {
			return err
		}
		s.hops = append(s.hops, hops...)
	}
	return nil
}

// awaitEnd waits until all runs have ended, and returns the snapshot that shows their ends.
func awaitEnd(ctx context.Context, watch awaiter, runs []string) (*snapshot.Snapshot, error) {
	live := slices.Clone(runs)
	for after := int64(0); ; {
		snap, err := watch.Await(ctx, after)
		if err != nil {
			return nil, err
		}
		live = slices.DeleteFunc(live, func(id string) bool {
			run := snap.State.Runs.Get(id)
			return run != nil && run.State.Terminal()
		})
		if len(live) == 0 {
			return snap, nil
		}
		after = snap.Revision
	}
}

// hopsOf returns, for each task of a run, the milliseconds from the end of its last upstream to its
// own end. It fails if a task did not succeed.
func hopsOf(s *state.State, run string) (hops []float64, err error) {
	ends, ready := map[string]event.Time{}, map[string]event.Time{}
	s.TasksOf(run, func(t *state.Task) bool {
		if t.State != state.TaskSucceeded {
			err = fmt.Errorf("task %s of run %s is %s: %s", t.TaskKey, t.RunID, t.State, t.ErrorMessage)
			return false
		}
		ends[t.TaskKey] = t.CompletedAt
		return true
	})
	s.Deps.Ascend(state.Key3{A: run}, func(d *state.Dep) bool {
		if d.RunID != run {
			return false
		}
		ready[d.Downstream] = max(ready[d.Downstream], ends[d.Upstream])
		return true
	})
	for task, since := range ready {
		hops = append(hops, float64(ends[task].Sub(since))/float64(time.Millisecond))
	}
	return hops, err
}
