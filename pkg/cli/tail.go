package cli

import (
	"context"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"time"

	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/embedded"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

// While the task prints nothing, the state is read at intervals that start at firstLook and double up to folderLook
// or cloudLook. Output arrives as a stream, independent of these intervals.
const (
	firstLook  = 50 * time.Millisecond
	folderLook = time.Second
	cloudLook  = 5 * time.Second
)

// tail follows the log of a task: it shows the log of the newest attempt that has started, and then the logs of later
// attempts.
type tail struct {
	a              *app
	runID, taskKey string
	// only is the number of the attempt that the user has requested. 0: show the newest attempt and all later ones.
	only int32
	// current returns the newest published state.
	current func(context.Context) (*snapshot.Snapshot, error)
	// stream writes the output of an attempt until its execution ends. It returns [embedded.ErrNotExecuting] if no
	// reachable process executes the attempt.
	stream func(context.Context, *state.Attempt, io.Writer) error
	// stored reads the log of an attempt that has ended.
	stored func(context.Context, *state.State, *state.Task, int32) (engine.Log, error)
	// part reads the text that a worker has added to the stored log of a running attempt since the last call.
	part     func(context.Context, *state.Attempt, *engine.LogParts) ([]byte, error)
	mostLook time.Duration

	shown    int32  // attempts up to this number were shown, or need not be shown
	begun    bool   // an attempt whose log is shown has been found
	streamed string // the id of the attempt that was streamed to its end
	broken   string // the id of the attempt whose stream broke after text was shown
	partly   partly // what was shown of the stored log of a running attempt
	said     string
	look     time.Duration
}

// tailLogs follows the log of a task until the task has ended. If attempt is not 0, it follows only this attempt.
func (a *app) tailLogs(ctx context.Context, v published, task *state.Task, attempt int32) error {
	t := &tail{
		a: a, runID: task.RunID, taskKey: task.TaskKey, only: attempt, mostLook: folderLook,
		current: v.Reader().Current,
		stream: func(ctx context.Context, attempt *state.Attempt, out io.Writer) error {
			o, ok := owner(ctx, v.dir)
			if !ok {
				return errNoOwner
			}
			return o.FollowLog(ctx, attempt.AttemptID, out)
		},
		stored: func(ctx context.Context, s *state.State, task *state.Task, attempt int32) (engine.Log, error) {
			return engine.ReadLog(ctx, v.Store, s, task, attempt)
		},
		part: func(ctx context.Context, attempt *state.Attempt, parts *engine.LogParts) ([]byte, error) {
			return parts.Next(ctx, v.Store, contract.LogKey(v.Domain, attempt.RunID, attempt.TaskKey, attempt.Attempt, attempt.AttemptID))
		},
	}
	if inCloud(v.dir) {
		t.mostLook = cloudLook
		t.stream = func(context.Context, *state.Attempt, io.Writer) error { return embedded.ErrNotExecuting }
	}
	return t.follow(ctx)
}

// errNoOwner means that no process owns the state folder.
var errNoOwner = errors.New("no process executes the run")

// follow writes the output of the task, or of the requested attempt, until it has ended. It returns an error if the
// task or the attempt did not succeed.
func (t *tail) follow(ctx context.Context) error {
	t.look = firstLook
	for {
		s, task, err := t.find(ctx)
		if err != nil {
			return err
		}
		attempt := t.next(s)
		if attempt != nil {
			t.begun, t.shown = true, attempt.Attempt-1 // show this attempt and all later ones
		}
		switch {
		case attempt != nil && attempt.State == state.AttemptClosed:
			if err := t.ended(ctx, s, task, attempt); err != nil {
				return err
			}
			if attempt.Attempt == t.only {
				return t.result(attempt.Outcome == string(event.Succeeded), fmt.Sprintf("attempt %d of %s", attempt.Attempt, t.taskKey), attempt.Outcome)
			}
			continue
		case attempt == nil && task.State.Terminal():
			return t.reportEnd(ctx, s, task)
		case attempt == nil:
			t.say("waiting: %s is %s", t.taskKey, task.State)
		case attempt.AttemptID != t.streamed:
			if err := t.running(ctx, attempt); err != nil {
				return err
			}
		}
		if err := t.a.Clock.Sleep(ctx, t.look); err != nil {
			return err
		}
		t.look = min(2*t.look, t.mostLook)
	}
}

// find returns the task, and a state that contains it.
func (t *tail) find(ctx context.Context) (*state.State, *state.Task, error) {
	snap, err := t.current(ctx)
	if err != nil {
		return nil, nil, err
	}
	s, err := snap.WithRun(ctx, t.runID)
	if err != nil {
		return nil, nil, err
	}
	if s != nil {
		if task := s.Tasks.Get(state.Key2{A: t.runID, B: t.taskKey}); task != nil {
			return s, task, nil
		}
	}
	return nil, nil, fmt.Errorf("run %s is no longer in the state; list the runs with `servo runs`", t.runID)
}

// next returns the attempt to show. This is the requested attempt, if the user has requested one. Otherwise, it is the
// first attempt after those already shown or, at the beginning, the newest attempt that has started. next returns nil
// if there is no such attempt, or if it has not started.
func (t *tail) next(s *state.State) *state.Attempt {
	var found *state.Attempt
	s.AttemptsOf(t.runID, t.taskKey, func(a *state.Attempt) bool {
		switch {
		case t.only != 0 && a.Attempt != t.only, a.Attempt <= t.shown, a.StartedAt == 0 && a.Attempt != t.only:
			return true
		case a.StartedAt != 0 || a.State == state.AttemptClosed:
			found = a
		}
		return !t.begun || found == nil
	})
	return found
}

// running writes the output of a running attempt: as a stream from the process that executes it or, if that process
// cannot be reached, from the stored parts of the log.
func (t *tail) running(ctx context.Context, attempt *state.Attempt) error {
	out := &sink{w: t.a.Stdout}
	err := t.stream(ctx, attempt, out)
	switch {
	case out.err != nil:
		return out.err
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err == nil:
		t.streamed = attempt.AttemptID
		t.look = firstLook
	case errors.Is(err, errNoOwner):
		t.say("waiting: attempt %d of %s has started, but no process executes it; resume the run with `servo run --resume`", attempt.Attempt, t.taskKey)
	case errors.Is(err, embedded.ErrNotExecuting):
		return t.parts(ctx, attempt)
	case out.written:
		t.broken = attempt.AttemptID
		t.say("the process that executed attempt %d of %s has ended; the log is shown again from its beginning", attempt.Attempt, t.taskKey)
	default:
		t.say("waiting: %v", err)
	}
	return nil
}

// partly describes what was shown of an attempt's log while a worker that cannot be reached executed the attempt.
type partly struct {
	attemptID string
	parts     engine.LogParts
	text      hash.Hash32 // hash of the shown text
	length    int
}

// parts writes the text that another worker has added to the stored log of an attempt since the last call.
func (t *tail) parts(ctx context.Context, attempt *state.Attempt) error {
	if attempt.AttemptID == t.broken {
		return nil // the beginning of the log was already shown: wait until the attempt is delivered again or ends
	}
	p := &t.partly
	if p.attemptID != attempt.AttemptID {
		*p = partly{attemptID: attempt.AttemptID, text: crc32.NewIEEE()}
	}
	text, err := t.part(ctx, attempt, &p.parts)
	if err != nil {
		t.say("waiting: the log of attempt %d of %s cannot be read: %v", attempt.Attempt, t.taskKey, err)
		return nil
	}
	if p.parts.Restarted {
		t.say("attempt %d of %s is executed again; the log is shown again from its beginning", attempt.Attempt, t.taskKey)
		p.text, p.length = crc32.NewIEEE(), 0
	}
	_, _ = p.text.Write(text) // writing to a hash cannot fail
	p.length += len(text)
	// The message appears only after the longest interval. Earlier, it could be wrong: the execution may have ended, or
	// a redelivery may be imminent.
	if p.length == 0 && t.look == t.mostLook {
		t.say("waiting: another worker is executing attempt %d of %s, and has not stored any of its log so far", attempt.Attempt, t.taskKey)
	}
	_, err = t.a.Stdout.Write(text)
	return err //nolint:wrapcheck // the reader has gone
}

// rest returns the part of a stored log that was not shown yet. If the text that was shown is not the beginning of
// this log, it returns the whole log.
func (t *tail) rest(attempt *state.Attempt, log engine.Log) []byte {
	p := &t.partly
	if p.attemptID != attempt.AttemptID || p.length == 0 {
		return log.Text
	}
	if p.length <= len(log.Text) && crc32.ChecksumIEEE(log.Text[:p.length]) == p.text.Sum32() {
		return log.Text[p.length:]
	}
	t.say("text of attempt %d of %s is missing above; the log is shown again from its beginning", attempt.Attempt, t.taskKey)
	return log.Text
}

// ended shows the log of an attempt that has ended, unless it was streamed to its end.
func (t *tail) ended(ctx context.Context, s *state.State, task *state.Task, attempt *state.Attempt) error {
	t.shown, t.look = attempt.Attempt, firstLook
	if attempt.AttemptID != t.streamed {
		log, err := t.stored(ctx, s, task, attempt.Attempt)
		switch {
		case errors.Is(err, engine.ErrNotFound):
			t.a.note("%v", err)
		case err != nil:
			return err
		default:
			if _, err := t.a.Stdout.Write(t.rest(attempt, log)); err != nil {
				return err
			}
			t.a.notePartial(log)
		}
	}
	if attempt.RetryReason != "" && t.only == 0 {
		t.say("attempt %d of %s %s: %s; the next attempt follows", attempt.Attempt, t.taskKey, attempt.Outcome, attempt.ErrorMessage)
	}
	return nil
}

// reportEnd reports how the task has ended.
func (t *tail) reportEnd(ctx context.Context, s *state.State, task *state.Task) error {
	if t.only != 0 || !t.begun && task.State == state.TaskSucceeded {
		_, err := t.stored(ctx, s, task, t.only) // fails if there is no such attempt
		return err
	}
	return t.result(task.State == state.TaskSucceeded, t.taskKey, string(task.State))
}

func (t *tail) result(succeeded bool, what, how string) error {
	if succeeded {
		return nil
	}
	t.a.note("servo: %s ended as %s; `servo explain %s %s` shows why", what, how, t.runID, quoted(readable(t.taskKey)))
	return errReported
}

// say prints a message unless it repeats the previous one.
func (t *tail) say(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); text != t.said {
		t.said = text
		t.a.note("%s", text)
	}
}

// sink remembers the error of a writer, so that it can be told apart from an error of the stream.
type sink struct {
	w       io.Writer
	written bool
	err     error
}

// Write implements [io.Writer].
func (s *sink) Write(p []byte) (n int, err error) {
	n, s.err = s.w.Write(p)
	s.written = s.written || n > 0
	return n, s.err
}
