package view

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/state"
)

func seconds(n int32) time.Duration { return time.Duration(n) * time.Second }

// headline explains the state of the task in one sentence.
func (x *explainer) headline(e *Explanation) string {
	t := x.task
	switch t.State {
	case state.TaskPlanned:
		return "PLANNED: not evaluated yet"
	case state.TaskBlocked:
		return "BLOCKED: " + x.blocked(e.Upstreams)
	case state.TaskReady:
		return "READY: " + x.ready(e)
	case state.TaskDispatched:
		return "DISPATCHED: " + x.dispatched(e.Dispatch)
	case state.TaskRunning:
		return "RUNNING: " + x.running(e)
	case state.TaskRetryWait:
		return "RETRY_WAIT: " + x.retryWait()
	case state.TaskSkipped:
		return "SKIPPED: " + x.skipped(e)
	case state.TaskCancelled:
		return "CANCELLED: " + x.cancelled(e)
	case state.TaskFailed:
		return x.failedOrApproved(e.Quarantine)
	case state.TaskSucceeded:
		return "SUCCEEDED: " + x.succeeded()
	}
	return string(t.State)
}

// since formats how long ago a time is.
func (x *explainer) since(at event.Time) string { return Span(x.now.Sub(at)) }

// blocked names the unresolved upstreams.
func (x *explainer) blocked(upstreams []Edge) string {
	var open []string
	for _, e := range upstreams {
		if e.Resolution != "" {
			continue
		}
		up := x.s.Tasks.Get(state.Key2{A: x.task.RunID, B: e.TaskKey})
		switch {
		case up == nil:
			open = append(open, ids.ReadableKey(e.TaskKey))
		case up.TriggerRule == event.RuleAllDone && up.Kind == event.KindGroup:
			open = append(open, x.openOrder(up))
		case up.Kind == event.KindGroup:
			open = append(open, x.openMembers(up))
		default:
			open = append(open, fmt.Sprintf("%s (%s)", ids.ReadableKey(up.TaskKey), x.standing(up)))
		}
	}
	if len(open) == 0 {
		return "all upstreams have ended; the next fold unblocks the task"
	}
	return fmt.Sprintf("waits for %s", Some(open))
}

// openOrder names the unfinished tasks upstream of an order node: a group node that only orders tasks. The explained
// task waits for these tasks, but does not read their outputs.
func (x *explainer) openOrder(node *state.Task) string {
	var open []string
	queue := []string{node.TaskKey}
	for len(queue) > 0 {
		edges := x.upstreams(queue[0])
		queue = queue[1:]
		for _, e := range edges {
			up := x.s.Tasks.Get(state.Key2{A: x.task.RunID, B: e.TaskKey})
			switch {
			case e.Resolution != "" || up == nil:
			case up.Kind == event.KindGroup:
				queue = append(queue, e.TaskKey)
			default:
				open = append(open, fmt.Sprintf("%s (%s)", ids.ReadableKey(e.TaskKey), x.standing(up)))
			}
		}
	}
	return "the end of " + Some(open) + ", whose output it does not read"
}

// openMembers counts, by state, the members that a group still waits for.
func (x *explainer) openMembers(group *state.Task) string {
	members := x.upstreams(group.TaskKey)
	states := map[state.TaskState]int{}
	open := 0
	for _, m := range members {
		if m.Resolution == "" {
			open++
			states[m.State]++
		}
	}
	var parts []string
	for _, s := range []state.TaskState{
		state.TaskRunning, state.TaskRetryWait, state.TaskDispatched, state.TaskReady, state.TaskBlocked,
	} {
		if n := states[s]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, s))
		}
	}
	return fmt.Sprintf("%d of the %d partitions of %s (%s)", open, len(members),
		strings.TrimSuffix(group.TaskKey, "[*]"), strings.Join(parts, ", "))
}

// standing returns a task's state and, for some states, since when or until when the task is in it.
func (x *explainer) standing(t *state.Task) string {
	switch t.State {
	case state.TaskRunning:
		return "RUNNING for " + x.since(t.StartedAt)
	case state.TaskRetryWait:
		return fmt.Sprintf("RETRY_WAIT, attempt %d in %s", t.Attempt+1, Span(t.RetryNotBefore.Sub(x.now)))
	case state.TaskReady:
		return "READY for " + x.since(t.ReadyAt)
	case state.TaskPlanned, state.TaskBlocked, state.TaskDispatched, state.TaskSkipped, state.TaskCancelled,
		state.TaskFailed, state.TaskSucceeded:
	}
	return string(t.State)
}

// ready names the limit that keeps a ready task waiting.
func (x *explainer) ready(e *Explanation) string {
	if x.task.AdmittedAt != 0 {
		if e.Dispatch == nil {
			return "the task has a slot but no dispatch; the sweeper dispatches it again"
		}
		return fmt.Sprintf("got a slot %s ago and is being handed to queue %s", x.since(x.task.AdmittedAt), x.task.WorkerQueue)
	}
	switch x.run.State {
	case state.RunPaused:
		return "the run is paused and admits no tasks"
	case state.RunCancelling:
		return "the run is being cancelled and admits no tasks"
	case state.RunPending, state.RunRunning, state.RunSucceeded, state.RunFailed, state.RunCancelled, state.RunTimedOut:
	}
	ahead := ""
	if n := x.ahead(); n > 0 {
		ahead = fmt.Sprintf("; %s of this run ahead of it", Count(n, "task"))
	}
	for _, l := range e.Limits {
		if !l.Full {
			continue
		}
		scope := map[string]string{
			"run": "a slot of the run", event.ScopePool: "a slot in pool " + l.Name, event.ScopeWorkspace: "a slot of the workspace",
		}[l.Scope]
		return fmt.Sprintf("waits for %s: %d of %d in use by %s%s", scope, l.InUse, l.Slots, Some(l.Holders), ahead)
	}
	return "a slot is free; the next fold admits the task" + ahead
}

// ahead counts the ready tasks of the same run and pool that will be admitted before the explained task.
func (x *explainer) ahead() int {
	n := 0
	x.s.ReadyTasks(x.task.RunID, func(t *state.Task) bool {
		if t.TaskKey == x.task.TaskKey {
			return false
		}
		if t.Pool == x.task.Pool {
			n++
		}
		return true
	})
	return n
}

func (x *explainer) dispatched(d *Dispatch) string {
	if d == nil {
		return "the task has no dispatch; the sweeper dispatches it again"
	}
	text := fmt.Sprintf("in queue %s for %s; no worker has started it yet", x.task.WorkerQueue, x.since(d.EnqueuedAt))
	if d.Generation > 0 {
		text += fmt.Sprintf(" (dispatched %d times)", d.Generation+1)
	}
	return text + x.alsoQueued()
}

func (x *explainer) running(e *Explanation) string {
	t := x.task
	text := fmt.Sprintf("on %s for %s, attempt %d of %d", cmp.Or(t.WorkerID, "an unnamed worker"), x.since(t.StartedAt), t.Attempt, t.MaxAttempts)
	if h := e.Heartbeat; h != nil {
		text += fmt.Sprintf("; last heartbeat %s ago", x.since(h.At))
		if h.Message != "" {
			text += fmt.Sprintf(" (%s)", h.Message)
		}
	}
	if t.TimeoutSec > 0 {
		text += fmt.Sprintf("; times out in %s", Span(t.StartedAt.Add(seconds(t.TimeoutSec)).Sub(x.now)))
	}
	if x.run.State == state.RunCancelling {
		deadline := x.run.CancelRequestedAt.Add(seconds(x.run.CancelGraceSec))
		text += fmt.Sprintf("; the run is being cancelled, and the attempt will end within %s", Span(deadline.Sub(x.now)))
	}
	return text
}

func (x *explainer) retryWait() string {
	t := x.task
	when := fmt.Sprintf("at %s (in %s)", t.RetryNotBefore.Time().Format(time.RFC3339), Span(t.RetryNotBefore.Sub(x.now)))
	if t.RetryNotBefore <= x.now {
		when = fmt.Sprintf("as soon as its timer fires (due %s ago)", x.since(t.RetryNotBefore))
	}
	return fmt.Sprintf("attempt %d failed with %s; attempt %d of %d starts %s%s",
		t.Attempt, headProblem(t.ErrorCode, t.ErrorMessage), t.Attempt+1, t.MaxAttempts, when, granted(t))
}

// granted says how many extra attempts a task got to replace attempts that were lost to infrastructure.
func granted(t *state.Task) string {
	if t.GrantedAttempts == 0 {
		return ""
	}
	return fmt.Sprintf("; %s granted for losses to infrastructure", Count(int(t.GrantedAttempts), "attempt"))
}

func (x *explainer) skipped(e *Explanation) string {
	chain := e.Cause
	if len(chain) == 0 {
		return "its worker reported that there was nothing to do" + x.reported()
	}
	root := chain[len(chain)-1]
	text := fmt.Sprintf("because %s is %s", ids.ReadableKey(root.TaskKey), root.State)
	if string(root.State) == string(state.TaskSucceeded) { // the output of root is degraded
		text = fmt.Sprintf("%s: because the output of %s is degraded", plan.CodeUpstreamDegraded, ids.ReadableKey(root.TaskKey))
	}
	if root.Error != "" {
		text += ": " + headProblem("", root.Error)
	}
	if len(chain) > 1 {
		text += fmt.Sprintf(" (through %s)", ids.ReadableKey(chain[0].TaskKey))
	}
	if more := len(e.RootCauses) - 1; more > 0 {
		text += fmt.Sprintf("; %d more of its upstream tasks failed", more)
	}
	return text
}

func (x *explainer) cancelled(e *Explanation) string {
	if len(e.Cause) > 0 && x.run.CancelRequestedAt == 0 {
		return x.skipped(e)
	}
	text := "with its run"
	if x.run.CancelRequestedAt != 0 {
		text += ", which was cancelled " + x.since(x.run.CancelRequestedAt) + " ago"
	}
	if x.run.CancelReason != "" {
		text += ": " + x.run.CancelReason
	}
	return text
}

func (x *explainer) reported() string {
	if p := headProblem(x.task.ErrorCode, x.task.ErrorMessage); p != "" {
		return ": " + p
	}
	return ""
}

// failedOrApproved explains a failed task. The output of a failed task may be visible, because it was approved in
// quarantine.
func (x *explainer) failedOrApproved(q *Quarantined) string {
	switch {
	case q.Approved():
		return "APPROVED: the output is " + q.String() + "; " + x.failed()
	case q != nil:
		return "FAILED: " + x.failed() + "; the output is " + q.String()
	}
	return "FAILED: " + x.failed()
}

func (x *explainer) failed() string {
	t := x.task
	why := cmp.Or(headProblem(t.ErrorCode, t.ErrorMessage), "no error message")
	if t.Attempt >= t.MaxAttempts {
		return fmt.Sprintf("%s failed with %s%s", Attempts(t), why, granted(t))
	}
	text := fmt.Sprintf("attempt %d failed with %s; not retried, because ", t.Attempt, why)
	last := x.s.Attempts.Get(state.AttemptKey{RunID: t.RunID, TaskKey: t.TaskKey, Attempt: t.Attempt})
	if last != nil && last.Retryable {
		text += "errors of the query or the command are retried only if the asset or the project sets `retries`"
	} else {
		text += "another attempt would fail in the same way"
	}
	return text + granted(t)
}

func (x *explainer) succeeded() string {
	t := x.task
	if t.Kind == event.KindGroup {
		if t.TriggerRule == event.RuleAllDone {
			return "all tasks before it have ended"
		}
		return "every task of the group has succeeded"
	}
	if t.Kind == event.KindCheck {
		return fmt.Sprintf("attempt %d of %d, in %s, %s ago: no critical check failed", t.Attempt, t.MaxAttempts, Span(t.CompletedAt.Sub(t.StartedAt)), x.since(t.CompletedAt))
	}
	return fmt.Sprintf("attempt %d of %d, in %s, with %s in %d bytes, %s ago",
		t.Attempt, t.MaxAttempts, Span(t.CompletedAt.Sub(t.StartedAt)), Count(int(t.RowCount), "row"), t.ByteSize, x.since(t.CompletedAt))
}
