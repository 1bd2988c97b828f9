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
	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

// trigger starts a run, or returns the existing run to follow.
type trigger func(context.Context, *session) (engine.RunHandle, error)

// runner starts a run and follows it to its end. If another process owns the state folder, that process executes the
// run. If none does, this process becomes the owner and executes the run.
type runner struct {
	a       *app
	options embedded.Options
	// assets are the assets that the project declares. Nil: unknown.
	assets  []plan.Asset
	trigger trigger
	// progress is the progress shown so far, across sessions.
	progress *progress
	// resumed means that the command resumes unfinished runs: it follows each run that the trigger returns, until the
	// trigger returns errNothingLeft.
	resumed bool
	// reports collects the results of the followed runs. reported means that these results have been written.
	reports  []view.AssetReport
	reported bool
	// failed is the error to return after the runs have ended.
	failed error

	mu             sync.Mutex
	session        *session
	handle         engine.RunHandle
	interrupted    bool
	awaitingOthers bool // waiting for runs that other commands started
	cancelling     sync.WaitGroup
}

// followToEnd runs the trigger and follows its run to the end. If the process that executes the run ends, this
// process resumes the run.
func (r *runner) followToEnd(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	restore := r.a.signal.replaceHandler(func(sig os.Signal, n int) { r.onSignal(ctx, cancel, sig, n) })
	defer restore()
	defer r.cancelling.Wait()
	for {
		err := r.runSession(ctx)
		if !errors.Is(err, errOwnerGone) || ctx.Err() != nil {
			return r.leaving(ctx, err)
		}
		r.a.note("servo: %v; continuing in this process", err)
	}
}

// runSession executes one session of followToEnd.
func (r *runner) runSession(ctx context.Context) error {
	s, err := r.a.open(ctx, r.options)
	if err != nil {
		return err
	}
	r.setSession(s)
	err = r.a.guard(ctx, s, r.startAndFollow)
	r.setSession(nil)
	if err != nil && s.stack == nil && r.a.ownerLost(ctx, s, err) {
		err = &lostError{err} // the cause of err is that the owner has ended
	}
	err = errors.Join(err, s.close())
	if s.stack != nil && (err == nil || r.stopped(ctx)) {
		r.noteUnfinished(ctx, s)
	}
	return err
}

// startAndFollow starts a run and follows it to its end. If the command resumes runs, it follows each unfinished run in
// turn. If this process executes the runs, it then waits for runs of other commands.
func (r *runner) startAndFollow(ctx context.Context, s *session) error {
	for {
		err := r.begin(ctx, s)
		if r.resumed && errors.Is(err, errNothingLeft) {
			return nil
		}
		if err != nil {
			return err
		}
		final, err := r.follow(ctx, s, r.handle.RunID)
		if err == nil {
			err = r.ended(ctx, s, final)
			if err == nil && len(r.handle.LeftOut) > 0 {
				r.failed = errReported // a warning at the start has named the omitted assets
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
		r.handle = engine.RunHandle{}
		r.mu.Unlock()
	}
	if s.stack == nil {
		return nil
	}
	if err := r.report(); err != nil {
		return err
	}
	return r.awaitOthers(ctx, s)
}

// stopped reports whether the user has asked the process to end.
func (r *runner) stopped(ctx context.Context) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.interrupted || errors.Is(context.Cause(ctx), errInterrupted)
}

// awaitOthers waits for runs of other commands that this process executes and would interrupt by ending. It does not
// wait for runs that schedules and backfills start during the wait, because a schedule may start runs forever, and a
// backfill may start runs for days. The next process continues these runs. The user can stop waiting without losing
// anything.
func (r *runner) awaitOthers(ctx context.Context, s *session) error {
	r.mu.Lock()
	r.awaitingOthers = true
	r.mu.Unlock()
	var first runsSeen
	for {
		snap, err := s.Current(ctx)
		if err != nil {
			return err
		}
		if first == nil {
			first = runsSeen{}
			first.update(snap.State)
		}
		runs := slices.DeleteFunc(unfinished(snap.State), func(run *state.Run) bool {
			return !first[run.RunID] && (run.ScheduleID != "" || run.TriggerType == triggerBackfill)
		})
		if len(runs) == 0 {
			return nil
		}
		run := runs[0]
		r.a.note("this process also executes run %s (%s done) and waits for it; Ctrl-C stops waiting and does not cancel the run", r.a.style.bold(run.RunID), doneText(run))
		final, err := r.follow(ctx, s, run.RunID)
		if r.stopped(ctx) {
			return nil
		}
		if err != nil {
			return err
		}
		r.a.failures(final, run.RunID)
		r.a.noteEnd(final.Runs.Get(run.RunID))
	}
}

// triggerBackfill is the value of Run.TriggerType for runs of backfills.
const triggerBackfill = "backfill"

// unfinished returns the unfinished runs that are not paused, oldest first.
func unfinished(s *state.State) []*state.Run {
	return slices.DeleteFunc(live(s), func(run *state.Run) bool { return run.State == state.RunPaused })
}

// noteUnfinished prints which backfills and which runs this process leaves unfinished, except the run of this command.
func (r *runner) noteUnfinished(ctx context.Context, s *session) {
	snap, err := s.Current(context.WithoutCancel(ctx)) // the state is in memory, so this call does not block
	if err != nil {
		return
	}
	for b := range snap.State.Backfills.All {
		if b.State == state.BackfillRunning {
			r.a.note("servo: backfill %s is not finished; the next process continues it: `servo backfill wait %s`", b.BackfillID, b.BackfillID)
		}
	}
	var left []string
	for _, run := range unfinished(snap.State) {
		if run.RunID != r.handle.RunID && run.TriggerType != triggerBackfill { // [runner.leaving] reports the run of this command
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

func (r *runner) setSession(s *session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.session = s
}

// begin triggers the run, unless an earlier session has done so.
func (r *runner) begin(ctx context.Context, s *session) error {
	if r.handle.RunID != "" {
		snap, err := s.Current(ctx)
		if err != nil {
			return err
		}
		st, err := snap.WithRun(ctx, r.handle.RunID)
		if err != nil {
			return err
		}
		if st != nil {
			r.handle.Tasks = int(st.Runs.Get(r.handle.RunID).TasksTotal)
			return nil
		}
	}
	handle, err := r.trigger(ctx, s)
	r.mu.Lock()
	r.handle = handle
	r.mu.Unlock()
	return err
}

// onSignal requests the cancellation of the run at the first Ctrl-C. At the second Ctrl-C, at SIGTERM, or if no run can
// be cancelled, it calls the function leave, which ends the command without waiting for the run.
func (r *runner) onSignal(ctx context.Context, leave context.CancelCauseFunc, sig os.Signal, n int) {
	r.mu.Lock()
	s, runID := r.session, r.handle.RunID
	first := !r.interrupted && !r.awaitingOthers
	r.interrupted = true
	r.mu.Unlock()
	if n > 1 || !first || sig == syscall.SIGTERM || s == nil || runID == "" {
		leave(errInterrupted)
		return
	}
	r.a.note("\nservo: cancelling run %s; running tasks may take a moment to stop (press Ctrl-C again to leave)", runID)
	r.cancelling.Go(func() {
		err := s.Cancel(ctx, runID, "interrupted by "+r.options.Actor, false)
		if err == nil || ctx.Err() != nil || errors.Is(err, engine.ErrEnded) || s.gone(ctx) {
			return // if the owner is gone, the error does not matter: the ledger has the request, or the next session repeats it
		}
		r.a.note("servo: %v", err)
	})
}

// leaving prints how to resume the run if the user has ended the command before the run has ended.
func (r *runner) leaving(ctx context.Context, err error) error {
	if err == nil || !errors.Is(context.Cause(ctx), errInterrupted) {
		return err
	}
	if r.handle.RunID == "" {
		return errInterrupted
	}
	r.a.note("servo: run %s is not finished; resume it with `servo run --resume`, show it with `servo status`", r.handle.RunID)
	return errors.Join(errInterrupted, errReported)
}

// These intervals decide how often the progress of a followed run is shown.
const (
	terminalTick = 150 * time.Millisecond
	plainTick    = time.Second
	minLook      = 100 * time.Millisecond
	// lookShare: showing a large run may take at most about one tenth of the elapsed time.
	lookShare = 10
)

// follow shows a run until it has ended.
func (r *runner) follow(ctx context.Context, s *session, runID string) (*state.State, error) {
	a := r.a
	snap, err := s.Current(ctx)
	_, terminal := a.width(a.Stderr)
	if r.progress == nil || r.progress.RunID != runID {
		r.progress = newProgress(a.style, runID)
		r.progress.Silent = r.handle.Attached || r.resumed || r.awaitingOthers
		if err == nil && !r.awaitingOthers {
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
			screen.width, _ = a.width(a.Stderr) // the terminal may have been resized
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

// next returns the next published state. If no state is published within the duration tick, next returns the
// parameter last.
func (r *runner) next(ctx context.Context, s *session, last *snapshot.Snapshot, tick time.Duration) (*snapshot.Snapshot, error) {
	ticking, stop := context.WithCancel(ctx)
	var slept sync.WaitGroup
	slept.Go(func() {
		if r.a.Clock.Sleep(ticking, tick) == nil {
			stop()
		}
	})
	snap, err := s.Await(ticking, last.Revision)
	if err == nil {
		snap, err = s.Current(ticking) // a newer state may exist already
	}
	ticked := ticking.Err() != nil
	stop()
	slept.Wait()
	if err != nil && ticked && ctx.Err() == nil {
		return last, nil
	}
	return snap, err
}
