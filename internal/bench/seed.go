package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/servo-orchestration/servo/pkg/blob/fileblob"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/domain"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/state"
)

const (
	// seededTasks is the number of tasks in each run of a history: as many as fit into a group of events.
	seededTasks = 500
	// seededAtOnce is the number of finished tasks that are folded at once.
	seededAtOnce = 20_000
	// seededEvery is the virtual time between two folds. It is so long that each fold finds the runs of the earlier
	// folds closed.
	seededEvery = state.ClosedAfter + 5*time.Minute
)

// lateClock is a clock that is behind another clock by a fixed time.
type lateClock struct {
	clock.Clock

	by time.Duration
}

func (p *lateClock) Now() time.Time { return p.Clock.Now().Add(-p.by) }

// seeder creates finished runs as if they had been executed. It appends the events of their execution to the ledger, in
// few entries, and the compactor folds them in few batches. No file is synced to disk.
type seeder struct {
	cfg      Config
	clock    *lateClock
	store    *fileblob.Store
	ids      *ids.Source
	appender *ledger.Appender
	folding  *compactor.Compactor
	plans    map[int]*seededPlan // plans by their number of tasks
	waiting  []compactor.Entry   // entries to be folded
	tasks    int                 // number of tasks in these entries
}

// seed adds finished tasks to an empty state folder, in runs of perRun tasks.
func (cfg Config) seed(ctx context.Context, dir string, tasks, perRun int) (err error) {
	if tasks == 0 {
		return nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("create state folder: %w", err)
	}
	then := &lateClock{cfg.Clock, seededEvery * time.Duration(1+tasks/seededAtOnce)}
	store, err := fileblob.Open(dir, fileblob.Options{NoSync: true, Now: then.Now})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	h := domain.Open(domain.Handle{Domain: Domain(), Store: store, Clock: then, Logger: cfg.Logger})
	s := &seeder{cfg: cfg, clock: then, store: store, ids: h.IDs, plans: map[int]*seededPlan{}}
	s.appender = h.Appender(ledger.Config{
		Linger: time.Hour, // so long that the linger never ends: the method fold flushes the appender
		OnStored: func(e ledger.Entry) {
			s.waiting = append(s.waiting, compactor.Entry{ID: e.Name, Data: e.Data, Stored: e.Object.Updated})
		},
	})
	s.folding, err = compactor.Open(ctx, compactor.Config{
		Handle: h,
		Writer: "bench",
	})
	if err != nil {
		return err
	}
	defer s.folding.AwaitMerges()
	for done := 0; done < tasks; done += perRun {
		if err := s.run(ctx, min(perRun, tasks-done)); err != nil {
			return err
		}
	}
	return s.fold(ctx)
}

// run appends a run with succeeded tasks, and folds when enough tasks have been appended.
func (s *seeder) run(ctx context.Context, tasks int) error {
	groups, err := s.groups(ctx, tasks)
	if err != nil {
		return err
	}
	// As in production, each report is a group of its own, and so has a row of its own in the table of entries. Only
	// the number of ledger entries is smaller than in production.
	if _, err := s.appender.Append(ctx, groups[0]); err != nil {
		return err
	}
	for _, group := range groups[1:] {
		if err := s.appender.AppendBuffered(ctx, group); err != nil {
			return err
		}
	}
	if s.tasks += tasks; s.tasks < seededAtOnce {
		return nil
	}
	return s.fold(ctx)
}

func (s *seeder) fold(ctx context.Context) error {
	if err := s.appender.Flush(ctx); err != nil {
		return err
	}
	_, err := s.folding.Step(ctx, compactor.Request{Entries: s.waiting, Barrier: true})
	s.folding.AwaitMerges()
	s.waiting, s.tasks = nil, 0
	s.clock.by = max(s.clock.by-seededEvery, 0)
	return err
}

// seededPlan is a stored plan.
type seededPlan struct {
	ref, sha string
	tasks    []event.TaskDef
}

// plan returns a plan of independent tasks, and stores it if it is new.
func (s *seeder) plan(ctx context.Context, tasks int) (*seededPlan, error) {
	if p := s.plans[tasks]; p != nil {
		return p, nil
	}
	assets := make([]plan.Asset, tasks)
	for i := range assets {
		assets[i] = asset(i)
		assets[i].Key.Namespace = "history"
	}
	built, err := plan.Build(plan.Request{Assets: assets, All: true})
	if err != nil {
		return nil, err
	}
	data, sha, err := built.Encode()
	if err != nil {
		return nil, err
	}
	p := &seededPlan{ref: plan.Ref(Domain(), sha), sha: sha}
	for i := range built.Tasks {
		p.tasks = append(p.tasks, built.Tasks[i].TaskDef)
	}
	if _, err := s.store.Create(ctx, p.ref, data); err != nil {
		return nil, fmt.Errorf("store plan: %w", err)
	}
	s.plans[tasks] = p
	return p, nil
}

// groups returns the groups of events of a run. The first group has the trigger and the plan. Each task adds groups
// with its dispatch and its end.
func (s *seeder) groups(ctx context.Context, tasks int) ([][]*event.Envelope, error) {
	p, err := s.plan(ctx, tasks)
	if err != nil {
		return nil, err
	}
	run, planID := s.ids.New(), s.ids.New()
	of := func(payloads ...event.Payload) []*event.Envelope {
		group := make([]*event.Envelope, len(payloads))
		for i, p := range payloads {
			group[i] = &event.Envelope{Domain: Domain(), CorrelationID: run, Actor: "bench", Payload: p}
		}
		return group
	}
	groups := [][]*event.Envelope{of(
		&event.RunTriggered{RunID: run, PlanID: planID, Trigger: event.Trigger{Type: "manual"}},
		&event.PlanCreated{
			RunID: run, PlanID: planID, PlanRef: p.ref, Fingerprint: p.sha, TasksTotal: int32(tasks), Tasks: p.tasks, //nolint:gosec // few
		},
	)}
	now := event.At(s.clock.Now())
	for _, def := range p.tasks {
		ref := event.AttemptRef{
			RunID: run, TaskKey: def.TaskKey, Attempt: 1, AttemptID: ids.AttemptID(Domain(), run, def.TaskKey, 1), WorkerID: "bench",
		}
		dispatched := &event.DispatchEnqueued{
			DispatchID: ids.DispatchID(run, def.TaskKey, 1), RunID: run, TaskKey: def.TaskKey, Attempt: 1, QueueTaskName: ref.AttemptID,
		}
		groups = append(groups, of(dispatched), of(&event.TaskFinished{
			AttemptRef: ref, Outcome: event.Succeeded, StartedAt: now, CompletedAt: now,
			Output: &event.Output{URI: "assets/" + Domain().Path() + "/" + def.TaskKey + "/" + run},
		}))
	}
	return groups, nil
}
