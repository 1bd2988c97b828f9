package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/embedded"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
	"github.com/servo-orchestration/servo/pkg/worker"
)

// tailed is a task whose log is followed. Each sleep between two reads of the state advances the task by one step.
type tailed struct {
	tail
	out, err bytes.Buffer
	state    *state.State
	steps    []func()
	slept    []time.Duration
}

// Now implements [clock.Clock].
func (f *tailed) Now() time.Time { return time.Time{} }

// Sleep implements [clock.Clock]: it performs the next step.
func (f *tailed) Sleep(_ context.Context, d time.Duration) error {
	f.slept = append(f.slept, d)
	if len(f.steps) == 0 {
		return errors.New("nothing more happens")
	}
	f.steps[0]()
	f.steps = f.steps[1:]
	return nil
}

const tailedRun, tailedTask = "01KAJ2T0000000000000000000", "a/b"

func newTailed() *tailed {
	f := &tailed{state: state.New(ids.Domain{Tenant: "acme", Workspace: "main"})}
	f.state.Runs.Put(&state.Run{RunID: tailedRun, State: state.RunRunning})
	f.task(state.TaskBlocked)
	f.tail = tail{
		a:     &app{Env: Env{Clock: f, Stdout: &f.out, Stderr: &f.err}},
		runID: tailedRun, taskKey: tailedTask, mostLook: folderLook,
		current: func(context.Context) (*snapshot.Snapshot, error) {
			return &snapshot.Snapshot{State: f.state.Copy()}, nil
		},
		stream: func(context.Context, *state.Attempt, io.Writer) error { return embedded.ErrNotExecuting },
		part:   func(context.Context, *state.Attempt, *engine.LogParts) ([]byte, error) { return nil, nil },
		stored: func(_ context.Context, _ *state.State, _ *state.Task, n int32) (engine.Log, error) {
			return engine.Log{Text: []byte{'0' + byte(n)}}, nil
		},
	}
	return f
}

func (f *tailed) task(s state.TaskState) {
	f.state.Tasks.Put(&state.Task{RunID: tailedRun, TaskKey: tailedTask, State: s})
}

func (f *tailed) attempt(n int32, s state.AttemptState, outcome string) {
	row := &state.Attempt{RunID: tailedRun, TaskKey: tailedTask, Attempt: n, AttemptID: string('0' + n), State: s, Outcome: outcome}
	if s != state.AttemptAdmitted {
		row.StartedAt = 1
	}
	if outcome == "failed" {
		row.RetryReason, row.ErrorMessage = "POLICY", "exit status 3"
	}
	f.state.Attempts.Put(row)
}

func TestTailWaitsForTaskToStart(t *testing.T) {
	f := newTailed()
	nothing := func() {}
	f.steps = []func(){
		nothing, nothing, nothing, nothing, nothing, nothing,
		func() { f.task(state.TaskDispatched); f.attempt(1, state.AttemptAdmitted, "") },
		func() { f.task(state.TaskRunning); f.attempt(1, state.AttemptRunning, "") },
		func() { f.task(state.TaskSucceeded); f.attempt(1, state.AttemptClosed, string(event.Succeeded)) },
	}
	f.stream = func(_ context.Context, _ *state.Attempt, out io.Writer) error {
		_, err := out.Write([]byte("live\n"))
		return err
	}
	require.NoError(t, f.follow(t.Context()))
	require.Equal(t, "live\n", f.out.String(), "streamed output is not shown again")
	require.Equal(t, "waiting: a/b is BLOCKED\nwaiting: a/b is DISPATCHED\n", f.err.String(), "each is printed once")
	ms := time.Millisecond
	require.Equal(t, []time.Duration{50 * ms, 100 * ms, 200 * ms, 400 * ms, 800 * ms, time.Second, time.Second, time.Second, 50 * ms}, f.slept)
}

func TestTailShowsEveryAttempt(t *testing.T) {
	f := newTailed()
	f.task(state.TaskRunning)
	f.attempt(1, state.AttemptClosed, "failed")
	f.attempt(2, state.AttemptRunning, "")
	f.stream = func(context.Context, *state.Attempt, io.Writer) error { return errNoOwner }
	f.steps = []func(){
		func() { // three attempts start and end between two reads of the state
			f.task(state.TaskFailed)
			f.attempt(2, state.AttemptClosed, "failed")
			f.attempt(3, state.AttemptClosed, "failed")
			f.attempt(4, state.AttemptClosed, "timed_out")
		},
	}
	require.ErrorIs(t, f.follow(t.Context()), errReported)
	require.Equal(t, "234", f.out.String(), "it starts with the newest, and skips none")
	require.Contains(t, f.err.String(), "attempt 2 of a/b has started, but no process executes it; resume the run with `servo run --resume`\n")
	require.Contains(t, f.err.String(), "attempt 3 of a/b failed: exit status 3; the next attempt follows\n")
	require.Contains(t, f.err.String(), "servo: a/b ended as FAILED; `servo explain "+tailedRun+" a/b` shows why\n")
}

func TestTailShowsStoredLogAfterBrokenStream(t *testing.T) {
	f := newTailed()
	f.task(state.TaskRunning)
	f.attempt(1, state.AttemptRunning, "")
	f.stream = func(_ context.Context, _ *state.Attempt, out io.Writer) error {
		_, _ = out.Write([]byte("half"))
		return io.ErrUnexpectedEOF
	}
	f.steps = []func(){func() { f.task(state.TaskSucceeded); f.attempt(1, state.AttemptClosed, string(event.Succeeded)) }}
	require.NoError(t, f.follow(t.Context()))
	require.Equal(t, "half1", f.out.String())
	require.Contains(t, f.err.String(), "the process that executed attempt 1 of a/b has ended; the log is shown again from its beginning\n")
}

func TestTailOfOneAttemptEndsWithIt(t *testing.T) {
	f := newTailed()
	f.only = 1
	f.task(state.TaskRetryWait)
	f.attempt(1, state.AttemptClosed, "failed")
	require.ErrorIs(t, f.follow(t.Context()), errReported)
	require.Equal(t, "1", f.out.String())
	require.Equal(t, "servo: attempt 1 of a/b ended as failed; `servo explain "+tailedRun+" a/b` shows why\n", f.err.String())
}

func TestTailEndsWithReaderOrRun(t *testing.T) {
	f := newTailed()
	f.task(state.TaskRunning)
	f.attempt(1, state.AttemptRunning, "")
	f.a.Stdout = writer(func([]byte) (int, error) { return 0, syscall.EPIPE })
	f.stream = func(_ context.Context, _ *state.Attempt, out io.Writer) error {
		_, _ = out.Write([]byte("x"))
		return errors.New("read: connection reset")
	}
	require.ErrorIs(t, f.follow(t.Context()), syscall.EPIPE)

	f = newTailed()
	f.steps = []func(){func() { f.state = state.New(f.state.Domain) }}
	require.ErrorContains(t, f.follow(t.Context()), "is no longer in the state")
}

type writer func([]byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }

// Another worker executes a command for two hours. This process sees only the stored parts of its log.
func TestTailShowsLineOfOtherWorkerIn2500ms(t *testing.T) {
	for phase := range 10 {
		f := newTailed()
		f.task(state.TaskRunning)
		f.attempt(1, state.AttemptRunning, "")
		const hours = 2 * time.Hour
		printed := time.Hour + time.Duration(phase)*100*time.Millisecond
		now, shown := time.Duration(0), time.Duration(0)
		f.part = func(context.Context, *state.Attempt, *engine.LogParts) ([]byte, error) {
			if shown == 0 && now >= printed+worker.LogPartInterval {
				shown = now
				return []byte("first line\n"), nil
			}
			return nil, nil
		}
		f.stored = func(context.Context, *state.State, *state.Task, int32) (engine.Log, error) {
			return engine.Log{Text: []byte("first line\nlast line\n")}, nil
		}
		f.a.Clock = sleeper(func(d time.Duration) {
			if now += d; now >= hours {
				f.task(state.TaskSucceeded)
				f.attempt(1, state.AttemptClosed, string(event.Succeeded))
			}
		})
		require.NoError(t, f.follow(t.Context()))
		require.LessOrEqual(t, shown-printed, 2500*time.Millisecond)
		require.Equal(t, "first line\nlast line\n", f.out.String(), "the stored log continues the shown text")
		require.Equal(t, "waiting: another worker is executing attempt 1 of a/b, and has not stored any of its log so far\n", f.err.String())
	}
}

func TestTailRepeatsLogThatDiffersFromParts(t *testing.T) {
	f := newTailed()
	f.task(state.TaskRunning)
	f.attempt(1, state.AttemptRunning, "")
	var parts []string
	f.part = func(_ context.Context, _ *state.Attempt, p *engine.LogParts) ([]byte, error) {
		p.Restarted = len(parts) == 1
		parts = append(parts, "")
		return fmt.Appendf(nil, "part %d\n", len(parts)), nil
	}
	f.stored = func(context.Context, *state.State, *state.Task, int32) (engine.Log, error) {
		return engine.Log{Text: []byte("other\n"), TaskKey: tailedTask, Attempt: 1, State: state.AttemptClosed, Partial: true}, nil
	}
	f.steps = []func(){func() {}, func() { f.task(state.TaskFailed); f.attempt(1, state.AttemptClosed, "lost") }}
	require.ErrorIs(t, f.follow(t.Context()), errReported)
	require.Equal(t, "part 1\npart 2\nother\n", f.out.String())
	require.Contains(t, f.err.String(), "attempt 1 of a/b is executed again; the log is shown again from its beginning\n")
	require.Contains(t, f.err.String(), "text of attempt 1 of a/b is missing above; the log is shown again from its beginning\n")
	require.Contains(t, f.err.String(), "servo: the log of attempt 1 of a/b is incomplete: its worker died, or could not store the end\n")
}

// sleeper is a clock that calls itself instead of sleeping.
type sleeper func(time.Duration)

// Now implements [clock.Clock].
func (sleeper) Now() time.Time { return time.Time{} }

// Sleep implements [clock.Clock].
func (s sleeper) Sleep(_ context.Context, d time.Duration) error { s(d); return nil }
