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
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

const (
	// seededTasks is how many tasks a finished run of a history has: as many as fit
	// into a group of events.
	seededTasks = 500
	// seededAtOnce is how many finished tasks are folded at once.
	seededAtOnce = 20_000
	// seededEvery is how much time passes from one such fold to the next, so that runs
	// are closed as they would be.
	seededEvery = state.ClosedAfter + 5*time.Minute
)

// past is a clock that is behind.
type past struct {
	clock.Clock

	by time.Duration
}

func (p *past) Now() time.Time { return p.Clock.Now().Add(-p.by) }

// seeder makes history: runs that have ended, as if they had been executed. What
// executing them appends to the ledger is appended, but in few entries, and the
// compactor folds it, but in few batches; nothing is synced.
type seeder struct {
	cfg      Config
	clock    *past
	store    *fileblob.Store
	ids      *ids.Source
	appender *ledger.Appender
	folding  *compactor.Compactor
	plans    map[int]*seededPlan // by the number of tasks
	waiting  []compactor.Entry
	tasks    int // in them
}

// seed puts finished tasks into an empty state folder, in runs of so many.
func (cfg Config) seed(ctx context.Context, dir string, tasks, perRun int) (err error) {
	if tasks == 0 {
		return nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make state folder: %w", err)
	}
	then := &past{cfg.Clock, seededEvery * time.Duration(1+tasks/seededAtOnce)}
	store, err := fileblob.Open(dir, fileblob.Options{NoSync: true, Now: then.Now})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	s := &seeder{cfg: cfg, clock: then, store: store, ids: ids.NewSource(then.Now, nil), plans: map[int]*seededPlan{}}
	s.appender = ledger.NewAppender(ledger.Config{
		Domain: Domain(), Store: store, IDs: s.ids, Clock: then, Logger: cfg.Logger,
		Company: time.Hour, // whoever folds has all of them written
		OnDurable: func(e ledger.Entry) {
			s.waiting = append(s.waiting, compactor.Entry{ID: e.Name, Data: e.Data, Stored: e.Object.Updated})
		},
	})
	s.folding, err = compactor.Open(ctx, compactor.Config{
		Domain: Domain(), Store: store, IDs: s.ids, Clock: then, Logger: cfg.Logger, Writer: "bench", Codec: snapshot.NewCodec(),
		Manifests: manifest.New(manifest.Config{Domain: Domain(), Store: store, IDs: s.ids, Clock: then, Logger: cfg.Logger}),
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

// run appends a run with so many tasks that all have succeeded, and folds now and
// then.
func (s *seeder) run(ctx context.Context, tasks int) error {
	groups, err := s.groups(ctx, tasks)
	if err != nil {
		return err
	}
	// Each report is a group, as of a worker, and so a row of the ledger's entries; only
	// the entries are fewer.
	if _, err := s.appender.Append(ctx, groups[0]); err != nil {
		return err
	}
	for _, group := range groups[1:] {
		if err := s.appender.AppendSoon(ctx, group); err != nil {
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

// seededPlan is a plan that is stored.
type seededPlan struct {
	ref, sha string
	tasks    []event.TaskDef
}

// plan is the plan of so many tasks that wait for nothing.
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

// groups are what is appended of a run: its trigger with its plan, and of each task that
// a queue took it, and its end.
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
			DispatchID: ids.DispatchID(run, def.TaskKey, 1), RunID: run, TaskKey: def.TaskKey, Attempt: 1, CloudTaskID: ref.AttemptID,
		}
		groups = append(groups, of(dispatched), of(&event.TaskFinished{
			AttemptRef: ref, Outcome: event.Succeeded, StartedAt: now, CompletedAt: now,
			Output: &event.Output{URI: "assets/" + Domain().Path() + "/" + def.TaskKey + "/" + run},
		}))
	}
	return groups, nil
}
