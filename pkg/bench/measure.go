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

// awaiter shows published states.
type awaiter interface {
	Await(ctx context.Context, after int64) (*snapshot.Snapshot, error)
}

// patient looks at states only when all has been executed, or has not been for
// long: who looks takes time from those who work.
type patient struct {
	awaiter
	executed <-chan struct{} // closed when all has been
}

// lookEvery is how often a patient one looks all the same.
const lookEvery = 30 * time.Second

// Await implements awaiter.
func (p patient) Await(ctx context.Context, after int64) (*snapshot.Snapshot, error) {
	waiting, cancel := context.WithTimeout(ctx, lookEvery)
	defer cancel()
	select {
	case <-p.executed:
	case <-waiting.Done():
	}
	return p.awaiter.Await(ctx, after)
}

// measure triggers the workload's runs, all at once, and waits for the end of all.
func (cfg Config) measure(ctx context.Context, e *engine.Engine, watch awaiter, w Workload, s *sample) error {
	assets := w.assets(cfg.Size)
	if cfg.Outputs {
		for i := range assets {
			assets[i].Work.Output = ""
		}
	}
	began := cfg.Clock.Now()
	runs := make([]string, w.runs(cfg.Size))
	var g errgroup.Group
	for i := range runs {
		g.Go(func() error {
			ticket, err := e.Run(ctx, engine.RunRequest{
				Plan: plan.Request{Assets: assets, All: true}, Trigger: event.Trigger{Type: "manual"},
			})
			runs[i] = ticket.RunID
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

// awaitEnd waits for the end of runs.
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

// hopsOf are the milliseconds from the end of the last task that a task of a run waited
// for to its own end. One that did not succeed is an error.
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
