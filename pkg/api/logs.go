package api

import (
	"bytes"
	"context"
	"errors"
	"io"
	"time"
	"unicode/utf8"

	"connectrpc.com/connect"

	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/servov1"
	"github.com/servo-orchestration/servo/pkg/state"
)

// Logs are the logs of the attempts that this process executes.
type Logs interface {
	// ReadLog returns the log of an attempt so far. found is false for an attempt that this process does
	// not execute.
	ReadLog(attemptID string) (text []byte, found bool)
	// FollowLog copies the log of an attempt to out, from its beginning to its end. While the attempt runs, FollowLog
	// waits for more text. If out has the method Omitted(n int64) error, FollowLog calls it instead of writing the line
	// that replaces n omitted bytes.
	FollowLog(ctx context.Context, attemptID string, out io.Writer) (found bool, err error)
}

// Sizes of the parts of a log, in bytes.
const (
	defaultLogPart = 64 << 10
	minLogPart     = utf8.UTFMax // enough for the longest character
)

// attemptLog is the log of an attempt. While the attempt runs, text is the log so far, and complete is false.
type attemptLog struct {
	row      *state.Attempt
	text     []byte
	complete bool
}

// endingWait limits how long a read waits for the report of an attempt whose execution has just ended.
const endingWait = 500 * time.Millisecond

// readLog returns the log of an attempt so far. When an execution ends, its log leaves the memory of the worker a moment
// before its report is published. A read in this moment waits for the report.
func (s *server) readLog(ctx context.Context, runID, taskKey string, attempt int32) (*attemptLog, error) {
	waiting, cancel := context.WithTimeout(ctx, endingWait)
	defer cancel()
	for {
		before, err := s.Engine.Current(ctx)
		if err != nil {
			return nil, err
		}
		log, ending, err := s.logNow(ctx, runID, taskKey, attempt)
		if !ending {
			return log, err
		}
		if _, late := s.Engine.Await(waiting, before.Revision); late != nil {
			return log, err
		}
	}
}

// logNow returns the log of an attempt so far. If the log does not exist yet, ending reports whether this process may
// have finished the attempt a moment ago.
func (s *server) logNow(ctx context.Context, runID, taskKey string, attempt int32) (log *attemptLog, ending bool, err error) {
	rows, task, err := s.findTask(ctx, runID, taskKey)
	if err != nil {
		return nil, false, err
	}
	row, err := engine.FindAttempt(rows, task, attempt)
	// as_of determines only which attempt is meant. The newest rows of this attempt are read.
	if err == nil && readingOf(ctx).asOf != "" {
		rows, task, row, err = s.newestAttempt(ctx, row)
	}
	if err != nil {
		return nil, false, err
	}
	open := s.Logs != nil && row.State != state.AttemptClosed
	if open {
		if text, found := s.Logs.ReadLog(row.AttemptID); found {
			return &attemptLog{row: row, text: text}, false, nil
		}
	}
	stored, err := engine.ReadLog(ctx, s.Engine.Store(), rows, task, row.Attempt)
	if err != nil {
		return nil, open && errors.Is(err, engine.ErrNotFound), err
	}
	return &attemptLog{row, stored.Text, row.State == state.AttemptClosed}, false, nil
}

// newestAttempt returns the newest rows of an attempt and its task, and a state that contains them.
func (s *server) newestAttempt(ctx context.Context, of *state.Attempt) (*state.State, *state.Task, *state.Attempt, error) {
	snap, err := s.Engine.Current(ctx)
	if err != nil {
		return nil, nil, nil, err
	}
	rows, run, err := engine.FindRun(ctx, snap, of.RunID)
	if err != nil {
		return nil, nil, nil, err
	}
	task, err := engine.FindTask(rows, run.RunID, of.TaskKey)
	if err != nil {
		return nil, nil, nil, err
	}
	row, err := engine.FindAttempt(rows, task, of.Attempt)
	return rows, task, row, err
}

// ReadLog implements the call.
func (s *server) ReadLog(ctx context.Context, r *servov1.ReadLogRequest) (*servov1.LogChunk, error) {
	log, err := s.readLog(ctx, r.GetRunId(), r.GetTaskKey(), r.GetAttempt())
	if err != nil {
		return nil, err
	}
	return log.part(r.GetOffset(), max(orDefault(r.GetLimit(), defaultLogPart), minLogPart)), nil
}

// part returns a part of a log. The part never ends within a character.
//
// Offsets count omitted text, too. Otherwise they would change while the attempt runs: a long log keeps only its
// beginning and its end, so more text is omitted as the log grows.
func (l *attemptLog) part(offset int64, limit int) *servov1.LogChunk {
	from, to, omitted := contract.ParseOmitted(l.text)
	first := int64(from) + omitted // the offset of l.text[to]
	length := first + int64(len(l.text)-to)
	offset = min(offset, length)
	if omitted > 0 && offset >= int64(from) && offset < first {
		return l.chunk(offset, contract.OmittedText(first-offset), first, l.complete && first == length)
	}
	start, stop := offset, len(l.text)
	switch {
	case offset >= first:
		start = offset - first + int64(to)
	case omitted > 0:
		stop = from
	}
	end := min(int(start)+limit, stop)
	text := l.text[start:end]
	if whole := end == stop && (l.complete || stop == from && omitted > 0); !whole {
		text = wholeCharacters(text)
	}
	next := offset + int64(len(text))
	return l.chunk(offset, text, next, l.complete && next == length)
}

// chunk returns a part of a log. The part consists of the given text.
func (l *attemptLog) chunk(offset int64, text []byte, next int64, whole bool) *servov1.LogChunk {
	return &servov1.LogChunk{
		Attempt: l.row.Attempt, State: servov1.AttemptState_Value(enumNumber(servov1.AttemptState_Value(0).Descriptor(), string(l.row.State))),
		Offset: offset, Text: string(bytes.ToValidUTF8(text, []byte("\uFFFD"))), NextOffset: next, Complete: whole,
	}
}

// wholeCharacters cuts an incomplete character from the end of a text.
func wholeCharacters(text []byte) []byte {
	for i := 1; i < utf8.UTFMax && i <= len(text); i++ {
		if tail := text[len(text)-i:]; utf8.RuneStart(tail[0]) {
			if !utf8.FullRune(tail) {
				return text[:len(text)-i]
			}
			break
		}
	}
	return text
}

// TailLog implements the call.
func (s *server) TailLog(ctx context.Context, r *servov1.TailLogRequest, to *connect.ServerStream[servov1.LogChunk]) error {
	leave, err := s.streams.enter()
	if err != nil {
		return err
	}
	defer leave()
	log, err := s.readLog(ctx, r.GetRunId(), r.GetTaskKey(), r.GetAttempt())
	if err != nil {
		return err
	}
	offset := r.GetOffset()
	if !log.complete && s.Logs != nil {
		w := &chunkWriter{log: attemptLog{row: log.row}, skip: offset, at: offset, to: to}
		found, err := s.Logs.FollowLog(ctx, log.row.AttemptID, w)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			return err
		case found:
			return w.finish()
		}
		// If the attempt has ended meanwhile, its complete log is in the store.
		if log, err = s.readLog(ctx, r.GetRunId(), r.GetTaskKey(), log.row.Attempt); err != nil {
			return err
		}
	}
	if !log.complete {
		return refuse(unavailable, "the log of attempt %d of %s cannot be followed here: another process executes the attempt", log.row.Attempt, log.row.TaskKey)
	}
	for {
		part := log.part(offset, defaultLogPart)
		if err := to.Send(part); err != nil || part.GetComplete() {
			return err //nolint:wrapcheck // the client has disconnected
		}
		offset = part.GetNextOffset()
	}
}

// chunkWriter sends the bytes that are written to it as parts of a log.
type chunkWriter struct {
	log  attemptLog
	skip int64 // number of bytes that the client already has
	at   int64 // the offset of the bytes in rest
	rest []byte
	to   *connect.ServerStream[servov1.LogChunk]
}

// errDisconnected means that the client of a stream is gone.
var errDisconnected = errors.New("the client has disconnected")

// Write implements [io.Writer].
func (w *chunkWriter) Write(p []byte) (int, error) {
	n := len(p)
	skipped := min(w.skip, int64(n))
	w.skip -= skipped
	w.rest = append(w.rest, p[skipped:]...)
	for len(w.rest) > 0 {
		part := (&attemptLog{row: w.log.row, text: w.rest[:min(len(w.rest), defaultLogPart)]}).part(0, defaultLogPart)
		if part.GetNextOffset() == 0 {
			break // the remaining bytes are an incomplete character
		}
		if err := w.send(part); err != nil {
			return 0, err
		}
	}
	return n, nil
}

// Omitted sends the line that replaces n omitted bytes. If a part of a character precedes the omitted bytes, it is
// sent as it is.
func (w *chunkWriter) Omitted(n int64) error {
	skipped := min(w.skip, n)
	w.skip -= skipped
	if n -= skipped; n == 0 {
		return nil
	}
	if len(w.rest) > 0 {
		if err := w.send(w.log.chunk(0, w.rest, int64(len(w.rest)), false)); err != nil {
			return err
		}
	}
	part := w.log.chunk(w.at, contract.OmittedText(n), w.at+n, false)
	w.at += n
	if err := w.to.Send(part); err != nil {
		return errors.Join(errDisconnected, err)
	}
	return nil
}

func (w *chunkWriter) send(part *servov1.LogChunk) error {
	w.rest = w.rest[part.GetNextOffset():]
	part.Offset = w.at
	part.NextOffset += w.at
	w.at = part.GetNextOffset()
	if err := w.to.Send(part); err != nil {
		return errors.Join(errDisconnected, err)
	}
	return nil
}

// finish sends the rest of a log as its last part.
func (w *chunkWriter) finish() error {
	last := (&attemptLog{row: w.log.row, text: w.rest, complete: true}).part(0, len(w.rest))
	last.State = servov1.AttemptState_CLOSED
	return w.send(last)
}
