package worker

import (
	"bytes"
	"context"
	"errors"
	"io"

	"github.com/servo-orchestration/servo/pkg/secret"
)

// liveLog is the log of an attempt that is executing.
type liveLog struct {
	text *boundedLog
	mask *secret.Mask
}

// FollowLog copies the log of an attempt to out: first the text so far, and then new text until the execution ends. The
// result found reports whether this worker executes the attempt. The copy has the same text as the log that is stored
// at the end. If out has the method Omitted, FollowLog calls it instead of writing the line that replaces n omitted
// bytes.
func (w *Worker) FollowLog(ctx context.Context, attemptID string, out io.Writer) (found bool, err error) {
	w.mu.Lock()
	j := w.jobs[attemptID]
	w.mu.Unlock()
	if j == nil {
		return false, nil
	}
	select {
	case <-j.live:
	case <-j.done: // the execution ended before it had a log
		return true, nil
	case <-ctx.Done():
		return true, ctx.Err()
	}
	// saveLog masks the whole text a second time, so this copy must do the same.
	masked := j.log.mask.Writer(out)
	var omit func(int64) error
	if gaps, ok := out.(interface{ Omitted(n int64) error }); ok {
		omit = func(n int64) error {
			if err := masked.Flush(); err != nil {
				return err
			}
			return gaps.Omitted(n)
		}
	}
	err = j.log.text.follow(ctx, masked, omit)
	return true, errors.Join(err, masked.Flush())
}

// ReadLog returns the log of an attempt so far. The result found reports whether this worker executes the attempt.
// ReadLog omits text at the end of the log that may be the beginning of a secret.
func (w *Worker) ReadLog(attemptID string) (text []byte, found bool) {
	w.mu.Lock()
	j := w.jobs[attemptID]
	w.mu.Unlock()
	if j == nil {
		return nil, false
	}
	select {
	case <-j.live:
	default:
		return nil, true // the execution has no log yet
	}
	var masked bytes.Buffer
	_, _ = j.log.mask.Writer(&masked).Write(j.log.text.bytes()) // writing to a buffer cannot fail
	return masked.Bytes(), true
}
