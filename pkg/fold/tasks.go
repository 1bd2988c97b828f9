package fold

import (
	"slices"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/state"
)

// putTask writes a task and updates its run's counters. The parameter old is the task's previous state.
func (f *folder) putTask(t *state.Task, old state.TaskState) {
	if t.SLAAt = 0; f.st.Promises.Len() > 0 {
		t.SLAAt = f.slaAt(t)
	}
	put(f, f.st.Tasks, t)
	if t.Kind == event.KindGroup || t.State == old {
		return
	}
	run := f.run(t.RunID)
	if n := counter(run, old); n != nil {
		*n--
	}
	if n := counter(run, t.State); n != nil {
		*n++
	}
	if t.State.Terminal() {
		complete(run)
	}
}

func counter(run *state.Run, s state.TaskState) *int32 {
	switch s {
	case state.TaskBlocked:
		return &run.TasksBlocked
	case state.TaskReady:
		return &run.TasksReady
	case state.TaskDispatched:
		return &run.TasksDispatch
	case state.TaskRunning:
		return &run.TasksRunning
	case state.TaskRetryWait:
		return &run.TasksRetryWait
	case state.TaskSkipped:
		return &run.TasksSkipped
	case state.TaskCancelled:
		return &run.TasksCancelled
	case state.TaskFailed:
		return &run.TasksFailed
	case state.TaskSucceeded:
		return &run.TasksSucceeded
	case state.TaskPlanned:
	}
	return nil
}

// makeReady begins the next attempt of a task, which then waits for a slot.
func (f *folder) makeReady(current *state.Task) {
	t := *current
	t.State = state.TaskReady
	f.beginAttempt(&t, t.Attempt+1)
	t.ReadyAt, t.RetryNotBefore = f.at(), 0
	f.putTask(&t, current.State)
}

// beginAttempt makes n the current attempt and clears the fields of the previous one. When the first attempt begins,
// beginAttempt records whether the task reads all of its upstreams. At this point, an upstream may seem to be
// unfinished: a rebuild from the bare ledger folds timers last, so it may fold a report about the attempt before the
// timer that ended the upstream.
func (f *folder) beginAttempt(t *state.Task, n int32) {
	if t.Attempt == 0 && (t.DepsSatisfied < t.DepsTotal || t.LeftOut > 0) {
		t.LeftOut = f.seq
	}
	t.Attempt = n
	t.AttemptID = ids.AttemptID(f.domain(), t.RunID, t.TaskKey, n)
	t.AdmittedAt, t.StartedAt, t.LastHeartbeatAt, t.WorkerID = 0, 0, 0, ""
	t.Outcome, t.ErrorCode, t.ErrorMessage = "", "", ""
}

// end puts a task into a terminal state and resolves its outgoing edges. The parameter current is the stored row of the
// task, and next is a copy that end changes and writes.
func (f *folder) end(current, next *state.Task, s state.TaskState, outcome string) {
	next.State, next.Outcome = s, outcome
	next.CompletedAt, next.AdmittedAt, next.RetryNotBefore = f.at(), 0, 0
	f.putTask(next, current.State)
	if (s == state.TaskFailed || s == state.TaskSucceeded) && f.alerting() {
		f.endedTasks = append(f.endedTasks, next)
	}
	f.resolve(next)
}

// resolution returns the resolution of the outgoing edges of a task in a terminal state.
func resolution(s state.TaskState) state.Resolution {
	switch s {
	case state.TaskSucceeded:
		return state.ResolvedSuccess
	case state.TaskFailed:
		return state.ResolvedFailed
	case state.TaskSkipped:
		return state.ResolvedSkipped
	case state.TaskCancelled:
		return state.ResolvedCancelled
	case state.TaskPlanned, state.TaskBlocked, state.TaskReady, state.TaskDispatched, state.TaskRunning, state.TaskRetryWait:
	}
	panic("fold: state " + string(s) + " is not terminal")
}

// resolve resolves the outgoing edges of an ended task. As a result, downstream tasks may become ready, or end
// without running. If one ends, resolve also resolves its outgoing edges. Each edge is resolved only once, and then
// changes the counters of its downstream task, unless this task has already ended: the row of an ended task is final.
func (f *folder) resolve(ended *state.Task) {
	queue := []*state.Task{ended}
	for len(queue) > 0 {
		up := queue[0]
		queue = queue[1:]
		var open []*state.Dep
		f.st.Downstream(up.RunID, up.TaskKey, func(d *state.Dep) bool {
			if d.Resolution == "" {
				open = append(open, d)
			}
			return true
		})
		for _, dep := range open {
			if down := f.resolveEdge(dep, up); down != nil {
				queue = append(queue, down)
			}
		}
	}
}

// resolveEdge resolves one edge. It returns the downstream task if the resolution ends that task, or nil.
func (f *folder) resolveEdge(dep *state.Dep, up *state.Task) *state.Task {
	edge := *dep
	edge.Resolution = resolution(up.State)
	current := f.st.Tasks.Get(state.Key2{A: dep.RunID, B: dep.Downstream})
	degraded := refuses(current, up)
	if degraded {
		edge.Resolution = state.ResolvedSkipped
	}
	edge.Satisfied = edge.Resolution == state.ResolvedSuccess
	edge.SatisfiedAt, edge.SatisfyingAttempt = up.CompletedAt, up.Attempt
	put(f, f.st.Deps, &edge)

	if current.State.Terminal() {
		return nil
	}
	down := *current
	down.DepsResolved++
	switch {
	case degraded:
		down.ErrorCode = CodeUpstreamDegraded // replaced if the task ends for another reason
	case edge.Satisfied:
		down.DepsSatisfied++
		if f.overtaken(up) {
			down.LeftOut = f.seq
		}
	}
	if up.Quality == state.Degraded && down.Kind == event.KindGroup && down.TriggerRule == event.RuleAllSuccess {
		down.Quality = state.Degraded // the node represents its upstreams
	}
	f.putTask(&down, current.State)
	if down.State != state.TaskBlocked {
		return nil
	}
	switch next, code := decide(&down, up); next {
	case state.TaskReady:
		if down.Kind == event.KindGroup {
			return f.endGroupNode(&down)
		}
		f.makeReady(&down)
	case state.TaskSkipped:
		return f.endWithoutRun(&down, state.TaskSkipped, event.Skipped, code)
	case state.TaskCancelled:
		return f.endWithoutRun(&down, state.TaskCancelled, event.Cancelled, "")
	case state.TaskBlocked, state.TaskPlanned, state.TaskDispatched, state.TaskRunning, state.TaskRetryWait,
		state.TaskFailed, state.TaskSucceeded:
	}
	return nil
}

// overtaken reports whether an upstream task has succeeded, but its output is not visible, because a run that was
// triggered later had already materialized the partition. Tasks of the upstream's own run still read this output. A
// group node represents its upstreams, unless it is an order node: a task after an order node does not read the tasks
// before it.
func (f *folder) overtaken(up *state.Task) bool {
	if up.Kind == event.KindGroup {
		return up.LeftOut > 0 && up.TriggerRule != event.RuleAllDone
	}
	if up.AssetKey == "" || up.Kind == event.KindCheck {
		return false
	}
	hidden := func(partition string) bool {
		row := f.st.Partitions.Get(state.Key2{A: up.AssetKey, B: partition})
		return row != nil && isLater(row.RunID, row.TaskKey, up)
	}
	if batch := f.st.BatchOf(up.RunID, up.TaskKey); batch != nil {
		return slices.ContainsFunc(batch, hidden)
	}
	return hidden(up.PartitionKey)
}

// refuses reports whether a task must not read the output of an upstream task because the output is degraded.
func refuses(t, up *state.Task) bool {
	return t.RequireQuality != "" && up.State == state.TaskSucceeded && up.Quality == state.Degraded &&
		slices.Contains(namesOf(t.RequireQuality), up.AssetKey)
}

// decide returns the next state of a blocked task after one of its upstreams, the task up, has ended: READY, SKIPPED
// with an error code, CANCELLED or BLOCKED.
//
// A failed upstream decides immediately. If an upstream was skipped, but none has failed, decide waits until every
// upstream has ended: a failure may still follow, and the result must not depend on the order in which the upstreams
// end.
func decide(t, up *state.Task) (next state.TaskState, code string) {
	allResolved := t.DepsResolved == t.DepsTotal
	switch {
	case t.TriggerRule == event.RuleAllDone && allResolved:
		return state.TaskReady, ""
	case t.TriggerRule == event.RuleAllDone:
		return state.TaskBlocked, ""
	case up.State == state.TaskCancelled:
		return state.TaskCancelled, ""
	case stemsFromFailure(up):
		return state.TaskSkipped, CodeUpstreamFailed
	case !allResolved:
		return state.TaskBlocked, ""
	case t.TriggerRule == event.RuleNoneFailed || t.DepsSatisfied == t.DepsTotal:
		return state.TaskReady, ""
	}
	return state.TaskSkipped, orDefault(t.ErrorCode, CodeUpstreamSkipped)
}

// stemsFromFailure reports whether a task failed, or was skipped because of a failure.
func stemsFromFailure(t *state.Task) bool {
	return t.State == state.TaskFailed ||
		t.State == state.TaskSkipped && t.Attempt == 0 && t.ErrorCode == CodeUpstreamFailed
}

// endWithoutRun ends a task that does not run, either because of its upstreams or because it is a group node.
func (f *folder) endWithoutRun(current *state.Task, s state.TaskState, outcome event.Outcome, code string) *state.Task {
	next := *current
	next.State, next.Outcome, next.ErrorCode, next.CompletedAt = s, string(outcome), code, f.at()
	f.putTask(&next, current.State)
	return &next
}

// endGroupNode ends a group node whose trigger rule is satisfied.
func (f *folder) endGroupNode(current *state.Task) *state.Task {
	return f.endWithoutRun(current, state.TaskSucceeded, event.Succeeded, "")
}

// endEmptyGroupNode ends a group node without upstreams and resolves its edges.
func (f *folder) endEmptyGroupNode(current *state.Task) { f.resolve(f.endGroupNode(current)) }

// admit admits tasks while slots are free, in the order of [state.State.NextAdmissible]. It writes an outbox row for
// each task.
func (f *folder) admit() {
	for {
		next := f.st.NextAdmissible()
		if next == nil {
			return
		}
		t := *next
		f.dispatch(&t, f.takeSlots(&t).PlanRef, 0)
	}
}

// takeSlots assigns slots to the current attempt of a ready task. It makes a pending run RUNNING,
// and returns the run.
func (f *folder) takeSlots(t *state.Task) *state.Run {
	t.AdmittedAt = f.at()
	f.putTask(t, t.State)
	put(f, f.st.Attempts, &state.Attempt{
		RunID: t.RunID, TaskKey: t.TaskKey, Attempt: t.Attempt, AttemptID: t.AttemptID,
		State: state.AttemptAdmitted, CreatedAt: f.at(),
	})
	run := f.run(t.RunID)
	if run.State == state.RunPending {
		run.State, run.StartedAt = state.RunRunning, f.at()
	}
	return run
}

// dispatch writes the outbox row of a task's current attempt.
func (f *folder) dispatch(t *state.Task, planRef string, generation int32) {
	id := ids.DispatchID(t.RunID, t.TaskKey, t.Attempt)
	put(f, f.st.Outbox, &state.Dispatch{
		DispatchID: id, QueueTaskName: ids.QueueTaskID(ids.KindDispatch, f.domain(), id, generation),
		RunID: t.RunID, TaskKey: t.TaskKey, Attempt: t.Attempt, AttemptID: t.AttemptID, MaxAttempts: t.MaxAttempts,
		Generation: generation, Status: state.DispatchPending, WorkerQueue: t.WorkerQueue, PlanRef: planRef,
		AssetKey: t.AssetKey, PartitionKey: t.PartitionKey, TimeoutSec: t.TimeoutSec,
		HeartbeatTimeoutSec: t.HeartbeatTimeoutSec, CreatedAt: f.at(), Priority: t.Priority,
	})
}
