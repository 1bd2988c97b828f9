package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/servo-orchestration/servo/pkg/embedded"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

// trigger starts a run, or finds the one to follow.
type trigger func(context.Context, *session) (engine.Ticket, error)

// runner starts a run and stays with it until it has ended, whoever executes
// it: this process or, for as long as there is one, the folder's owner.
type runner struct {
	a       *app
	options embedded.Options
	// assets are those that the project declares; nil: unknown.
	assets  []plan.Asset
	trigger trigger
	// progress is what has been shown of the run, by whichever session.
	progress *progress
	// resumed says that the runs are those that earlier processes have left: each that the
	// trigger finds is followed, until it gives errNothingLeft.
	resumed bool
	// reports are what is told at the end, of each run that was followed; reported: it was.
	reports  []assetReport
	reported bool
	// failed is why the command does, of runs that have ended.
	failed error

	mu          sync.Mutex
	session     *session
	ticket      engine.Ticket
	interrupted bool
	lingering   bool // for the runs of others
	asked       sync.WaitGroup
}

// carry runs the trigger and follows its run to the end, taking over when the
// one who executes it goes away.
func (r *runner) carry(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	giveBack := r.a.signal.take(func(sig os.Signal, n int) { r.onSignal(ctx, cancel, sig, n) })
	defer giveBack()
	defer r.asked.Wait()
	for {
		err := r.once(ctx)
		if !errors.Is(err, errOwnerGone) || ctx.Err() != nil {
			return r.leaving(ctx, err)
		}
		r.a.note("servo: %v; continuing in this process", err)
	}
}

// once is carry with one session.
func (r *runner) once(ctx context.Context) error {
	s, err := r.a.open(ctx, r.options)
	if err != nil {
		return err
	}
	r.hold(s)
	err = r.a.guard(ctx, s, r.through)
	r.hold(nil)
	if err != nil && s.stack == nil && r.a.left(ctx, s, err) {
		err = errOwnerGone // what failed, failed because of that
	}
	err = errors.Join(err, s.close())
	if s.stack != nil && (err == nil || r.stopped(ctx)) {
		r.sayLeft(ctx, s)
	}
	return err
}

// through follows the run, or one after the other those that were left, to the end; and
// then, in the process that executes them, the runs of others.
func (r *runner) through(ctx context.Context, s *session) error {
	for {
		err := r.begin(ctx, s)
		if r.resumed && errors.Is(err, errNothingLeft) {
			return nil
		}
		if err != nil {
			return err
		}
		final, err := r.follow(ctx, s, r.ticket.RunID)
		if err == nil {
			err = r.ended(ctx, s, final)
			if err == nil && len(r.ticket.LeftOut) > 0 {
				r.failed = errReported // the warning at the start names them
			}
		}
		if err != nil {
			return err
		}
		if r.stopped(ctx) {
			return nil
		}
		if !r.resumed {
			break
		}
		r.mu.Lock()
		r.ticket = engine.Ticket{}
		r.mu.Unlock()
	}
	if s.stack == nil {
		return nil
	}
	if err := r.report(); err != nil {
		return err
	}
	return r.linger(ctx, s)
}

// stopped reports whether somebody wants the process to end.
func (r *runner) stopped(ctx context.Context) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.interrupted || errors.Is(context.Cause(ctx), errInterrupted)
}

// linger waits for the runs of others, which this process executes and would break off by
// its end: those that were left to it, and those that it has taken over. Whoever is tired
// of it loses nothing.
func (r *runner) linger(ctx context.Context, s *session) error {
	r.mu.Lock()
	r.lingering = true
	r.mu.Unlock()
	for {
		snap, err := s.Snapshots.Current(ctx)
		if err != nil {
			return err
		}
		under := underWay(snap.State)
		if len(under) == 0 {
			return nil
		}
		run := under[0]
		r.a.note("also executing run %s (%s of %s done) and waiting for it; Ctrl-C leaves it untouched",
			r.a.style.bold(run.RunID), grouped(int64(done(run))), plural(int(run.TasksTotal), "task"))
		final, err := r.follow(ctx, s, run.RunID)
		if r.stopped(ctx) {
			return nil
		}
		if err != nil {
			return err
		}
		r.a.failures(final, run.RunID)
		r.a.tellEnd(final.Runs.Get(run.RunID))
	}
}

// underWay are the runs that have not ended and are not held back, oldest first.
func underWay(s *state.State) []*state.Run {
	return slices.DeleteFunc(live(s), func(run *state.Run) bool { return run.State == state.RunPaused })
}

// sayLeft says which runs of others this process had a part in and has left as they are.
func (r *runner) sayLeft(ctx context.Context, s *session) {
	snap, err := s.Snapshots.Current(context.WithoutCancel(ctx)) // is in memory
	if err != nil {
		return
	}
	var left []string
	for _, run := range underWay(snap.State) {
		if run.RunID != r.ticket.RunID { // of which [runner.leaving] speaks
			left = append(left, run.RunID)
		}
	}
	const most = 5
	switch n := len(left); n {
	case 0:
	case 1:
		r.a.note("servo: run %s is not finished; resume it with `servo run --resume`, show it with `servo status %s`", left[0], left[0])
	default:
		names := strings.Join(left[:min(n, most)], ", ")
		if n > most {
			names += fmt.Sprintf(" and %d more", n-most)
		}
		r.a.note("servo: runs %s are not finished; resume them with `servo run --resume`, list them with `servo runs`", names)
	}
}

func (r *runner) hold(s *session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.session = s
}

// begin triggers the run, unless an earlier session has.
func (r *runner) begin(ctx context.Context, s *session) error {
	if r.ticket.RunID != "" {
		snap, err := s.Snapshots.Current(ctx)
		if err != nil {
			return err
		}
		st, err := snap.WithRun(ctx, r.ticket.RunID)
		if err != nil {
			return err
		}
		if st != nil {
			r.ticket.Tasks = int(st.Runs.Get(r.ticket.RunID).TasksTotal)
			return nil
		}
	}
	ticket, err := r.trigger(ctx, s)
	r.mu.Lock()
	r.ticket = ticket
	r.mu.Unlock()
	return err
}

// onSignal asks for the run to be cancelled the first time, and leaves at once
// the second time, or when the system wants the process to end.
func (r *runner) onSignal(ctx context.Context, leave context.CancelCauseFunc, sig os.Signal, n int) {
	r.mu.Lock()
	s, runID := r.session, r.ticket.RunID
	first := !r.interrupted && !r.lingering
	r.interrupted = true
	r.mu.Unlock()
	if n > 1 || !first || sig == syscall.SIGTERM || s == nil || runID == "" {
		leave(errInterrupted)
		return
	}
	r.a.note("\nservo: cancelling run %s; running tasks may take a moment to stop (press Ctrl-C again to leave)", runID)
	r.asked.Go(func() {
		err := s.Cancel(ctx, runID, "interrupted by "+r.options.Actor, false)
		if err == nil || ctx.Err() != nil || errors.Is(err, engine.ErrEnded) || s.gone(ctx) {
			return // what was asked of an owner that is gone is durable, or asked again by who is still there
		}
		r.a.note("servo: %v", err)
	})
}

// leaving says how to go on with a run that was left.
func (r *runner) leaving(ctx context.Context, err error) error {
	if err == nil || !errors.Is(context.Cause(ctx), errInterrupted) {
		return err
	}
	if r.ticket.RunID == "" {
		return errInterrupted
	}
	r.a.note("servo: run %s is not finished; resume it with `servo run --resume`, show it with `servo status`", r.ticket.RunID)
	return errors.Join(errInterrupted, errReported)
}

// How often progress is looked at.
const (
	terminalTick = 150 * time.Millisecond
	plainTick    = time.Second
	minLook      = 100 * time.Millisecond
	// lookShare keeps looking at a large run to a part of the time.
	lookShare = 10
)

// follow shows a run until it has ended.
func (r *runner) follow(ctx context.Context, s *session, runID string) (*state.State, error) {
	a := r.a
	snap, err := s.Snapshots.Current(ctx)
	_, terminal := a.width(a.Stderr)
	if r.progress == nil || r.progress.runID != runID {
		r.progress = newProgress(a.style, runID)
		r.progress.silent = r.ticket.Attached || r.resumed || r.lingering
		if err == nil && !r.lingering {
			a.announce(snap.State, r)
		}
	}
	screen := &screen{w: a.Stderr, terminal: terminal, progress: r.progress}
	tick := plainTick
	if terminal {
		tick = terminalTick
	}
	defer screen.clear()
	var last time.Time
	look := minLook
	for {
		if err != nil {
			return nil, err
		}
		st, missing := snap.WithRun(ctx, runID)
		if missing != nil {
			return nil, missing
		}
		if st == nil {
			return nil, fmt.Errorf("run %s is no longer in the state; list the runs with `servo runs`", runID)
		}
		run := st.Runs.Get(runID)
		if now := a.Clock.Now(); run.State.Terminal() || now.Sub(last) >= look {
			screen.width, _ = a.width(a.Stderr) // it may have been resized
			screen.show(st, event.At(now))
			last = a.Clock.Now()
			look = max(minLook, lookShare*last.Sub(now))
		}
		if run.State.Terminal() {
			return st, nil
		}
		snap, err = r.next(ctx, s, snap, tick)
	}
}

// next is the next published state, or the same one when a tick has passed.
func (r *runner) next(ctx context.Context, s *session, last *snapshot.Snapshot, tick time.Duration) (*snapshot.Snapshot, error) {
	ticking, stop := context.WithCancel(ctx)
	var slept sync.WaitGroup
	slept.Go(func() {
		if r.a.Clock.Sleep(ticking, tick) == nil {
			stop()
		}
	})
	snap, err := s.Snapshots.Await(ticking, last.Revision)
	if err == nil {
		snap, err = s.Snapshots.Current(ticking) // there may be more
	}
	ticked := ticking.Err() != nil
	stop()
	slept.Wait()
	if err != nil && ticked && ctx.Err() == nil {
		return last, nil
	}
	return snap, err
}
