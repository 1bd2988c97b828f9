package worker

import (
	"context"
	"errors"
	"unicode/utf8"

	"github.com/servo-orchestration/servo/pkg/contract"
)

// showLog lets readers follow the log. It is called when the task's secrets are known and can be
// masked.
func (a *attempt) showLog() {
	if a.output.shown {
		return
	}
	a.output.shown = true
	a.job.log = &liveLog{text: &a.output.boundedLog, mask: a.mask}
	close(a.job.live)
}

// saveLog stores the task's log in the background, unless the log is short. It returns a function that waits until the
// log is stored. A log that cannot be stored does not fail the task.
func (a *attempt) saveLog(err error) (wait func()) {
	a.output.parts.end()
	// The log may omit its middle, and so cut a secret in two. Therefore, each stream was masked as it arrived. This
	// second pass masks secrets whose parts came from two streams.
	text := a.mask.Bytes(a.output.bytes())
	if len(text) == 0 {
		a.dropAllParts()
		return func() {}
	}
	if len(text) <= int(a.env.LogBytes) && utf8.Valid(text) {
		a.output.short = string(text) // the report contains a short log, so no object is stored
		a.dropParts()
		return func() {}
	}
	key := a.logKey()
	done := make(chan struct{})
	var putErr error
	go func() {
		defer close(done)
		if _, putErr = a.w.cfg.Store.Put(a.job.life, key, text); putErr != nil {
			a.log.WarnContext(a.job.life, "could not store the log", "key", key, "error", putErr, "task_error", a.masked(err))
		}
	}()
	a.cleanups = append(a.cleanups, func() {
		if <-done; putErr == nil {
			a.output.parts.remove()
		}
	})
	return func() { <-done }
}

// logKey returns the object key of the log.
func (a *attempt) logKey() string {
	return contract.LogKey(a.domain, a.env.RunID, a.env.TaskKey, a.env.Attempt, a.env.AttemptID)
}

// dropParts makes the worker delete the parts of the log after the report of the end. Call it if this report contains
// the whole log, so that readers do not need the parts.
func (a *attempt) dropParts() {
	if a.output.parts != nil {
		a.cleanups = append(a.cleanups, a.output.parts.remove)
	}
}

// dropAllParts makes the worker delete the log parts of all executions of the attempt after the report of the end,
// unless the result of another execution counts. Call it if this execution printed nothing: the parts of an earlier
// execution would otherwise appear as the log of the attempt.
func (a *attempt) dropAllParts() {
	if a.output.parts == nil {
		return
	}
	a.cleanups = append(a.cleanups, func() {
		if !a.overruled {
			a.output.parts.removeAll()
		}
	})
}

// waitForLog waits until the log is stored.
func (a *attempt) waitForLog(ctx context.Context, saved func()) {
	if errors.Is(context.Cause(ctx), errInterrupted) {
		a.cleanups = append(a.cleanups, saved) // report first: a worker that is closing may be killed before the log is stored
		return
	}
	saved()
}
