package worker

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/event"
)

// reports holds the state of an attempt's reports to the control plane. The goroutine of the heartbeats and the
// goroutine that executes the attempt share it.
type reports struct {
	calls *callbacks
	// sent is set by the first report of the attempt, either of its start or of its end. The response to the
	// delivery may contain the report of the end only if that report is the first.
	sent atomic.Bool
	// startAccepted means that the report of the start was accepted. startMu serializes the reports of the start.
	startAccepted atomic.Bool
	startMu       sync.Mutex
}

// start reports the start. It returns 0 if the attempt may execute. Otherwise it returns the HTTP status with which
// the worker answers the queue.
func (a *attempt) start(ctx context.Context) int {
	status, err := a.reportStart(ctx, a.startedAt.Add(startTimeout))
	switch {
	case err != nil || isTransient(status):
		a.log.WarnContext(ctx, "could not report the start; leaving the redelivery to the queue", "status", status, "error", err)
		return http.StatusInternalServerError
	case isOK(status):
		return 0
	case status == http.StatusConflict:
		a.log.InfoContext(ctx, "skipping an attempt that is not the current one")
	default:
		// The URL is invalid, and a redelivery would have the same URL. So the queue should drop the task. The sweeper then
		// dispatches it again with a new URL.
		a.log.ErrorContext(ctx, "the start was rejected; dropping the delivery", "status", status)
	}
	return http.StatusOK
}

// reportStart reports the start, retries until the given time, and takes new URLs from the response. If the start was
// accepted before, it does nothing.
func (a *attempt) reportStart(ctx context.Context, until event.Time) (status int, err error) {
	a.reports.startMu.Lock()
	defer a.reports.startMu.Unlock()
	if a.reports.startAccepted.Load() {
		return http.StatusOK, nil
	}
	var answer contract.StartedResponse
	status, err = a.reports.calls.deliver(ctx, until, contract.VerbStarted, contract.Started{
		AttemptID: a.env.AttemptID, WorkerID: a.w.cfg.WorkerID, StartedAt: a.startedAt,
	}, &answer)
	if err == nil && isOK(status) {
		a.reports.calls.renew(answer.Callbacks)
		a.reports.startAccepted.Store(true)
	}
	return status, err
}

// reportLateStart reports the start of an attempt that its envelope has admitted, if the attempt runs longer than
// lateStart. For an attempt that ends earlier, the report of the end is enough: it contains the time of the start.
func (a *attempt) reportLateStart(ctx context.Context) {
	if a.w.cfg.Clock.Sleep(ctx, lateStart) == nil && a.reports.sent.CompareAndSwap(false, true) {
		a.beat(ctx)
	}
}

// heartbeatInterval returns the pause between two heartbeats: at most a third of the task's heartbeat timeout, so that
// one slow response does not cause a timeout.
func (a *attempt) heartbeatInterval() time.Duration {
	every := a.w.cfg.HeartbeatEvery
	if limit := time.Duration(a.env.HeartbeatTimeoutSec) * time.Second / 3; limit > 0 {
		every = min(every, limit)
	}
	return every
}

// heartbeats sends heartbeats until ctx is done, and stops the attempt if a response requests that.
func (a *attempt) heartbeats(ctx context.Context) {
	for every := a.heartbeatInterval(); a.w.cfg.Clock.Sleep(ctx, every) == nil; {
		if !a.beat(ctx) {
			return
		}
	}
}

// beat sends a heartbeat or, if the report of the start has not been accepted yet, the start. It returns false if no
// more heartbeats may be sent.
func (a *attempt) beat(ctx context.Context) bool {
	var answer contract.HeartbeatResponse
	var status int
	var err error
	if !a.reports.startAccepted.Load() {
		status, err = a.reportStart(ctx, a.now().Add(startTimeout))
	} else {
		status, err = a.reports.calls.post(ctx, contract.VerbHeartbeat, contract.Heartbeat{
			AttemptID: a.env.AttemptID, WorkerID: a.w.cfg.WorkerID, HeartbeatAt: a.now(),
		}, &answer)
	}
	switch {
	case ctx.Err() != nil:
		return false
	case err != nil || !isOK(status) && status != http.StatusConflict:
		a.log.WarnContext(ctx, "a heartbeat was not accepted", "status", status, "error", err)
	case status == http.StatusConflict:
		a.job.stop(errReplaced)
		return false
	default:
		a.reports.calls.renew(answer.Callbacks)
		if answer.ShouldCancel {
			a.job.stop(cancelledError{answer.Reason})
		}
	}
	return true
}

// finished returns the report of the execution's end.
func (a *attempt) finished(ctx context.Context, output *event.Output, err error) *contract.Finished {
	f := &contract.Finished{
		AttemptID: a.env.AttemptID, WorkerID: a.w.cfg.WorkerID, MaterializationID: a.env.MaterializationID,
		Metrics: a.usage.metrics, StartedAt: a.startedAt, CompletedAt: a.now(), CheckResults: a.checkResults,
		CodeChanged: a.codeChanged, Log: a.output.short,
	}
	if err == nil {
		f.Outcome, f.Output = event.Succeeded, output
		return f
	}
	f.Outcome, f.Error = verdict(ctx, a.mask, err)
	if f.Error.Code == CodeCheckFailed {
		f.Output = output
	}
	a.log.InfoContext(ctx, "the attempt did not succeed", "outcome", string(f.Outcome), "code", f.Error.Code,
		"error", f.Error.Message)
	return f
}

// encodeAnswer encodes the report of the end for the response to the delivery. If the response is lost, the queue
// redelivers the task, which then executes again. Only reports of short tasks are sent this way, so little work is
// lost.
func (a *attempt) encodeAnswer(ctx context.Context, f *contract.Finished) (report []byte, ok bool) {
	report, err := json.Marshal(f)
	if err != nil {
		a.log.ErrorContext(ctx, "could not encode the result", "error", err)
	}
	return report, err == nil && len(report) <= contract.MaxResponseBytes
}

// report reports the end, and returns the status for the queue.
func (a *attempt) report(ctx context.Context, f *contract.Finished) int {
	deadline := a.now().Add(finishTimeout)
	status, err := a.reportStart(a.job.life, deadline) // the control plane accepts an end only after a start
	if err == nil && isOK(status) {
		status, err = a.reportEnd(f, deadline)
	}
	if err == nil && status == http.StatusBadRequest && f.Outcome != event.Succeeded {
		a.log.ErrorContext(ctx, "the report of a failure was rejected; reporting only its error", "outcome", string(f.Outcome))
		status, err = a.reportEnd(errorOnly(f), deadline)
	}
	switch {
	case err == nil && isOK(status):
		return http.StatusOK
	case err == nil && status == http.StatusConflict:
		a.overruled = true
		a.log.InfoContext(ctx, "the attempt was replaced; its result is ignored")
		return http.StatusOK
	case err == nil && !isTransient(status) && status != http.StatusUnauthorized:
		a.log.ErrorContext(ctx, "the result was rejected", "status", status, "outcome", string(f.Outcome))
		return http.StatusOK
	}
	// A redelivered attempt reports its start to the envelope's longer-lived URL, gets new URLs, and finds the commit
	// marker if the task has output files. If the queue has dropped the attempt, the control plane notices the missing
	// heartbeats and starts the next attempt, which finds the marker.
	a.log.ErrorContext(ctx, "could not report the result; leaving it to a redelivery or to the next attempt",
		"status", status, "error", err)
	return http.StatusInternalServerError
}

// errorOnly returns a shorter report of a failure, without the details, the results of checks and the log. It is sent
// if the control plane has rejected the full report: without any report, the control plane would treat the attempt as
// lost and repeat it.
func errorOnly(f *contract.Finished) *contract.Finished {
	return &contract.Finished{
		AttemptID: f.AttemptID, WorkerID: f.WorkerID, Outcome: f.Outcome, StartedAt: f.StartedAt, CompletedAt: f.CompletedAt,
		Error: &event.Error{
			Code: f.Error.Code, Category: f.Error.Category, Retryable: f.Error.Retryable,
			Message: bounded(f.Error.Message + "\nThe control plane rejected the report with the details of this error."),
		},
	}
}

// reportEnd reports the end, and retries as long as the URL of the report is valid. If the queue can still redeliver
// the task, reportEnd stops at the parameter deadline, even if the URL is still valid.
func (a *attempt) reportEnd(f *contract.Finished, deadline event.Time) (status int, err error) {
	switch expires := contract.CallbackExpiry(a.reports.calls.url(contract.VerbFinished)); {
	case expires == 0:
	case a.job.released.Load():
		deadline = expires
	default:
		deadline = min(deadline, expires)
	}
	return a.reports.calls.deliver(a.job.life, deadline, contract.VerbFinished, f, nil)
}
