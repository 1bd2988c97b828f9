package localqueue

import (
	"bytes"
	"container/heap"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/servo-orchestration/servo/pkg/queue"
)

// maxAnswerBytes is the maximum number of bytes that the queue reads from the body of an answer. The body is read so
// that the connection can be reused, and because the OnResponse function of a task may need it.
const maxAnswerBytes = 64 << 10

var errDeadline = errors.New("no answer within the dispatch deadline")

// deliver occupies one of the lane's slots. It delivers t, and then further tasks until no task of the lane is due.
func (q *Queue) deliver(l *lane, t *task) {
	for t != nil {
		status, err := q.post(q.ctx, t)
		t = q.finish(l, t, status, err)
	}
}

// finish records the outcome of a delivery and returns the next due task for its slot.
func (q *Queue) finish(l *lane, t *task, status int, err error) (next *task) {
	q.mu.Lock()
	defer q.mu.Unlock()
	// Promote waiting tasks first: endDelivery removes a group that has no due tasks, and the next task of the group may
	// have become due.
	q.promote(l)
	l.turns.endDelivery(t)
	switch {
	case q.ctx.Err() != nil || t.ended: // the queue was stopped, or the task deleted, during the delivery
	case err == nil && status/100 == 2:
		q.end(l, t)
	default:
		q.fail(l, t, status, err)
	}
	if q.ctx.Err() == nil {
		if next = l.turns.pop(); next != nil {
			return next
		}
	}
	l.inFlight--
	q.dispatch(l) // no task is due: set the alarm for the next one
	q.drop(l)
	return nil
}

// fail schedules the next attempt of a task, or drops the task. The caller must hold the lock.
func (q *Queue) fail(l *lane, t *task, status int, err error) {
	t.attempts++
	if err == nil && status < 500 {
		t.executions++
	}
	attrs := []slog.Attr{
		slog.String("queue", t.Queue), slog.String("task", t.Name), slog.String("url", t.URL),
		slog.Int("attempts", t.attempts), slog.Int("status", status), slog.Any("error", err),
	}
	if t.attempts >= q.opts.MaxAttempts {
		q.opts.Logger.LogAttrs(q.ctx, slog.LevelError, "queue task dropped: no attempts left", attrs...)
		q.end(l, t)
		return
	}
	q.opts.Logger.LogAttrs(q.ctx, slog.LevelDebug, "queue task delivery failed", attrs...)
	t.due = q.opts.Clock.Now().Add(q.backoff(t.attempts))
	heap.Push(&l.waiting, t) // t.since does not change, so the task precedes newer tasks of its group
}

// backoff returns how long to wait after the given number of failures.
func (q *Queue) backoff(failures int) time.Duration {
	wait := q.opts.MinBackoff
	for ; failures > 1 && wait < q.opts.MaxBackoff; failures-- {
		wait *= 2
	}
	return min(wait, q.opts.MaxBackoff)
}

// post sends a task to its target once, and returns the status of the answer.
func (q *Queue) post(ctx context.Context, t *task) (status int, err error) {
	ctx, release := q.withDeadline(ctx, t.DispatchDeadline)
	defer release()
	body := t.Body
	if t.Prepare != nil {
		made, wanted, err := t.Prepare(ctx)
		if err != nil {
			return 0, fmt.Errorf("prepare delivery: %w", err)
		}
		if !wanted {
			return http.StatusOK, nil
		}
		body = made
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, t.URL, bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	req.Header.Set("Content-Type", "application/json")
	for name, value := range t.Header {
		req.Header.Set(name, value)
	}
	req.Header.Set(queue.HeaderQueueName, t.Queue)
	req.Header.Set(queue.HeaderTaskName, t.Name)
	req.Header.Set(queue.HeaderRetryCount, strconv.Itoa(t.attempts))
	req.Header.Set(queue.HeaderExecutionCount, strconv.Itoa(t.executions))
	req.Header.Set(queue.HeaderETA, eta(t.due))

	resp, err := q.opts.Client.Do(req)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return 0, err
	}
	defer resp.Body.Close()
	if t.OnResponse == nil || resp.StatusCode != http.StatusOK {
		// Only the status decides; an incomplete body is not a failure.
		_, _ = io.CopyN(io.Discard, resp.Body, maxAnswerBytes)
		return resp.StatusCode, nil
	}
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswerBytes+1))
	switch {
	case err != nil:
		return 0, fmt.Errorf("read answer: %w", err)
	case len(answer) > maxAnswerBytes:
		return 0, fmt.Errorf("the answer exceeds %d bytes", maxAnswerBytes)
	}
	if err := t.OnResponse(ctx, answer); err != nil {
		return 0, fmt.Errorf("process answer: %w", err)
	}
	return resp.StatusCode, nil
}

// withDeadline returns a context that ends after d by the queue's own clock. The function release ends the context,
// and waits until the goroutine that watches the clock has ended.
func (q *Queue) withDeadline(ctx context.Context, d time.Duration) (_ context.Context, release func()) {
	if d == 0 {
		d = queue.DefaultDispatchDeadline
	}
	ctx, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if q.opts.Clock.Sleep(ctx, d) == nil {
			cancel(errDeadline)
		}
	}()
	return ctx, func() {
		cancel(nil)
		<-done
	}
}

// eta formats a time as seconds since 1970, with microseconds.
func eta(at time.Time) string {
	micros := at.UnixMicro()
	return fmt.Sprintf("%d.%06d", micros/1e6, micros%1e6)
}
