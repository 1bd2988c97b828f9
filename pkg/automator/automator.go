// Package automator makes the decisions that the fold cannot make by itself: it plans requested runs, asks the
// calendar for the instants of schedules, and defines the schedules of a release. This package is not a stable API.
//
// An automator runs beside the dispatcher and keeps no state that must survive a restart. It finds its work in the
// projections, and every event that it appends names the state that it saw. The id of the run that a request starts
// is derived from the request. So each piece of work takes effect only once, even if two automators do it at the same
// time, or one repeats it after a crash.
package automator

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/servo-orchestration/servo/pkg/backfill"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/control"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/selector"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

// Principal is the actor of the events that automators append.
const Principal = "service:automator"

// Config configures an automator.
type Config struct {
	// Engine reads and changes the domain. Its events have the actor [Principal].
	Engine *engine.Engine
	Clock  clock.Clock
	Logger *slog.Logger
	// Root is the folder of the project. Tasks of a release without an archive of the project's files execute in that
	// folder. If Root is "", the automator refuses requests for such releases.
	Root string
}

// Automator is the automator of one domain.
type Automator struct {
	cfg    Config
	engine *engine.Engine
	wake   chan struct{}
	newest *project // the release that was read last; only Run uses it
	memory *semaphore.Weighted
	// These are caches: pinned has the releases that backfills name, documents has the documents that list the chunks of
	// backfills, and changed has the chunks that do not fit a release.
	pinned    kept[*project]
	documents kept[*backfill.Document]
	changed   kept[engine.ChangedChunks]
}

// New returns an automator. It does nothing until [Automator.Run] is called.
func New(cfg Config) *Automator {
	return &Automator{cfg: cfg, engine: cfg.Engine.As(Principal), wake: make(chan struct{}, 1), memory: semaphore.NewWeighted(starting)}
}

// Nudge tells the automator that a state has work for it. It does not block.
func (a *Automator) Nudge() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// React nudges the automator if a state has work for it.
func (a *Automator) React(s *state.State) {
	if !control.Automate(s, 1).Empty() {
		a.Nudge()
	}
}

const (
	// batch is the maximum number of schedules, and also of requests, that one pass handles.
	batch = 200
	// parallel is how many requests are planned at once. starting is how many small runs start at once.
	parallel = 4
	starting = 64
	// The wait after a failed pass starts at minWait, and doubles with each failed pass up to maxWait.
	minWait = time.Second
	maxWait = 30 * time.Second
)

// Run works until ctx is done. Unfinished work stays in the projections, where the next automator finds it.
func (a *Automator) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-a.wake:
		}
		if a.drain(ctx) != nil {
			return nil //nolint:nilerr // ctx is done
		}
	}
}

// drain works until the current state has no more work.
func (a *Automator) drain(ctx context.Context) error {
	done := attempts{}
	for wait := minWait; ; {
		left, err := a.pass(ctx, done)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			a.cfg.Logger.WarnContext(ctx, "schedules and requests are delayed; will retry", slog.Duration("wait", wait), slog.Any("error", err))
		case left == nothingLeft:
			return nil
		case left == someLeft:
			wait = minWait
			continue
		}
		nudged, err := a.pause(ctx, wait, err != nil)
		if err != nil {
			return err
		}
		if !nudged {
			wait = min(2*wait, maxWait)
		}
	}
}

// pause waits for a nudge, but at most for the given time, and reports whether there was a nudge. After a failed pass,
// it waits for at least minWait, so that frequent nudges cause at most one pass per minWait.
func (a *Automator) pause(ctx context.Context, longest time.Duration, failed bool) (nudged bool, err error) {
	if failed {
		if err := a.cfg.Clock.Sleep(ctx, minWait); err != nil {
			return false, err
		}
		longest -= minWait
	}
	sleeping, cancel := context.WithCancel(ctx)
	defer cancel()
	slept := make(chan error, 1)
	go func() { slept <- a.cfg.Clock.Sleep(sleeping, longest) }()
	select {
	case err := <-slept:
		return false, err
	case <-a.wake:
		return true, ctx.Err()
	}
}

// progress says which work remains after a pass.
type progress int

const (
	nothingLeft progress = iota
	someLeft
	failedLeft // the remaining work was tried recently without effect, and will be tried again later
)

// pass handles some of the work of the current state. It skips work that, according to the parameter done, was
// handled less than retryAfter ago.
func (a *Automator) pass(ctx context.Context, done attempts) (progress, error) {
	snap, err := a.engine.Current(ctx)
	if err != nil {
		return failedLeft, err
	}
	now := a.cfg.Clock.Now()
	done.forget(now)
	work := control.Automate(snap.State, batch)
	if work.Empty() {
		return nothingLeft, nil
	}
	late := len(work.Wanted) > 0
	work.Wanted = slices.DeleteFunc(work.Wanted, func(r *state.Schedule) bool { return !done.begin("schedule "+r.ScheduleID, r.Seq, now) })
	work.Pending = slices.DeleteFunc(work.Pending, func(r *state.RunRequest) bool { return !done.begin("request "+r.RequestID, r.Seq, now) })
	work.Deadlines = slices.DeleteFunc(work.Deadlines, func(r *state.Promise) bool { return !done.begin("deadline "+r.AssetKey, r.Seq, now) })
	work.Misses = slices.DeleteFunc(work.Misses, func(r *state.DeadlineMiss) bool { return !done.begin("miss "+r.MissID, r.Seq, now) })
	// Replace the definition of a schedule only after all instants up to the deployment have been decided by the old
	// definition.
	if d := work.Define; late || d != nil && !done.begin("deployment "+d.DeployID, snap.State.FoldSeq, now) {
		work.Define = nil
	}
	if work.Empty() {
		return failedLeft, nil
	}
	return someLeft, a.handle(ctx, snap, work)
}

// handle does the work of a snapshot. The parts of this work run at the same time, so that their events share ledger
// entries.
func (a *Automator) handle(ctx context.Context, snap *snapshot.Snapshot, work control.Automation) error {
	var g errgroup.Group
	g.SetLimit(starting)
	if len(work.Wanted) > 0 {
		g.Go(func() error { return a.advance(ctx, work.Wanted) })
	}
	// Read the release once, before the goroutines below start: they share it and need no lock.
	var p *project
	var err error
	if len(work.Pending) > 0 || len(work.Deadlines)+len(work.Misses) > 0 || work.Define != nil && work.Define.Schedules != "" {
		p, err = a.current(ctx, snap)
	}
	if work.Define != nil {
		g.Go(func() error { return a.define(ctx, snap, work.Define, p, err) })
	}
	if len(work.Deadlines)+len(work.Misses) > 0 {
		g.Go(func() error { return a.judge(ctx, snap, work, p, err) })
	}
	for _, row := range work.Pending {
		g.Go(func() error { return a.plan(ctx, snap, row, p, err) })
	}
	return g.Wait()
}

// current returns the project of the release that is deployed in a snapshot. It caches the newest project.
func (a *Automator) current(ctx context.Context, snap *snapshot.Snapshot) (*project, error) {
	sha := snap.State.Release()
	if sha == "" {
		return nil, errNoRelease
	}
	if a.newest == nil || a.newest.sha != sha {
		release, code, err := a.engine.ReadRelease(ctx, sha)
		if err != nil {
			return nil, err
		}
		a.newest = newProject(sha, release, code)
		a.newest.catalog = selector.NewCatalog(code.Assets)
	}
	return a.newest, nil
}
