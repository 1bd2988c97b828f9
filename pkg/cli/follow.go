package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/servo-orchestration/servo/pkg/embedded"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/event"
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
	trigger trigger
	// progress is what has been shown of the run, by whichever session.
	progress *progress
	// resumed says that the run was left by an earlier process.
	resumed bool

	mu          sync.Mutex
	session     *session
	ticket      engine.Ticket
	interrupted bool
	asked       sync.WaitGroup
}

// carry runs the trigger and follows its run to the end, taking over when the
// one who executes it goes away. It gives the last state.
func (r *runner) carry(ctx context.Context) (*state.State, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	giveBack := r.a.signal.take(func(sig os.Signal, n int) { r.onSignal(ctx, cancel, sig, n) })
	defer giveBack()
	defer r.asked.Wait()
	for {
		final, err := r.once(ctx)
		if !errors.Is(err, errOwnerGone) || ctx.Err() != nil {
			return final, r.leaving(ctx, err)
		}
		r.a.note("servo: %v; carrying on in this process", err)
	}
}

// once is carry with one session.
func (r *runner) once(ctx context.Context) (final *state.State, err error) {
	s, err := r.a.open(ctx, r.options)
	if err != nil {
		return nil, err
	}
	r.hold(s)
	err = r.a.guard(ctx, s, func(ctx context.Context, s *session) error {
		if err := r.begin(ctx, s); err != nil {
			return err
		}
		final, err = r.follow(ctx, s)
		return err
	})
	r.hold(nil)
	if err != nil && s.stack == nil && r.a.left(ctx, s, err) {
		err = errOwnerGone // what failed, failed because of that
	}
	return final, errors.Join(err, s.close())
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
	first := !r.interrupted
	r.interrupted = true
	r.mu.Unlock()
	if n > 1 || !first || sig == syscall.SIGTERM || s == nil || runID == "" {
		leave(errInterrupted)
		return
	}
	r.a.note("\nservo: cancelling run %s; tasks that run may take a moment to end (once more to leave at once)", runID)
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
	r.a.note("servo: left run %s as it is; `servo run --resume` carries it on, `servo status` shows it", r.ticket.RunID)
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
func (r *runner) follow(ctx context.Context, s *session) (*state.State, error) {
	a := r.a
	snap, err := s.Snapshots.Current(ctx)
	_, terminal := a.width(a.Stderr)
	if r.progress == nil || r.progress.runID != r.ticket.RunID {
		r.progress = newProgress(a.style, r.ticket.RunID)
		r.progress.silent = r.ticket.Attached || r.resumed
		if err == nil {
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
		st, missing := snap.WithRun(ctx, r.ticket.RunID)
		if missing != nil {
			return nil, missing
		}
		if st == nil {
			return nil, fmt.Errorf("run %s is not in the state any more; `servo runs` lists what there is", r.ticket.RunID)
		}
		run := st.Runs.Get(r.ticket.RunID)
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
