package fold

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/state"
)

// runTriggered creates a run.
func (f *folder) runTriggered(p *event.RunTriggered) verdict {
	if f.peekRun(p.RunID) != nil {
		return noChange
	}
	f.expireRunKeys()
	if p.RunKey != "" {
		put(f, f.st.RunKeys, &state.RunKey{
			RunKey: p.RunKey, RunID: p.RunID, Fingerprint: p.Fingerprint, ExpiresAt: f.st.FoldTime.Add(RunKeyTTL),
		})
	}
	f.rememberRetry(p)
	run := &state.Run{
		RunID: p.RunID, PlanID: p.PlanID, RunKey: p.RunKey,
		TriggerType: p.Trigger.Type, Trigger: jsonOf(p.Trigger), ParentRunID: p.Trigger.ParentRunID,
		State: state.RunPending, Labels: jsonOfMap(p.Labels), MaxParallelism: p.MaxParallelism, TimeoutSec: p.TimeoutSec,
		CancelGraceSec: orDefault(p.CancelGraceSec, DefaultCancelGraceSec),
		Release:        p.Release, Vars: jsonOfMap(p.Vars), RootRun: p.RootRun,
		AllowIncomplete: p.AllowIncomplete,
		CreatedAt:       f.at(), LastActivityAt: f.at(),
	}
	if p.RequestID != "" {
		f.startRequest(run, p)
	}
	run.Asked(p.RootAssets, p.PartitionSelection)
	f.runs[p.RunID] = run
	f.appeared = append(f.appeared, p.RunID)
	return folded
}

// rememberRetry records the last retry of a chain. The row that it writes stays in the live state when the run of
// this retry moves to history.
func (f *folder) rememberRetry(p *event.RunTriggered) {
	if p.RootRun == "" {
		return
	}
	key := state.RetryKey(p.RootRun)
	if last := f.st.RunKeys.Get(key); last == nil || last.RunID < p.RunID {
		put(f, f.st.RunKeys, &state.RunKey{RunKey: key, RunID: p.RunID, Fingerprint: p.Fingerprint, ExpiresAt: f.st.FoldTime.Add(RunKeyTTL)})
	}
}

// expireRunKeys removes up to two expired keys. It is called whenever a run or a command adds keys, of which there
// are at most two. So the table does not grow with the number of past runs.
func (f *folder) expireRunKeys() {
	const limit = 2
	for _, old := range f.st.ExpiredRunKeys(f.st.FoldTime, limit) {
		row := *old
		remove(f, f.st.RunKeys, &row)
	}
}

// planCreated creates the tasks and edges of a run.
func (f *folder) planCreated(p *event.PlanCreated) verdict {
	run := f.peekRun(p.RunID)
	if run.PlanRef != "" || run.TasksTotal > 0 {
		return noChange
	}
	if run.State.Terminal() {
		return stale("the run had ended before its plan appeared")
	}
	run = f.run(p.RunID)
	run.PlanRef, run.PlanID = p.PlanRef, p.PlanID
	run.InputsSeq, run.InputsAt = f.observedSeq(p.RunID, p.ObservedSeq), p.ObservedTime
	f.appeared = append(f.appeared, p.RunID)
	if len(p.Tasks) == 0 && p.PlanRef != "" {
		plan, ok := f.plan[p.PlanRef]
		if !ok {
			panic("fold: plan " + p.PlanRef + " was not fetched before its event was folded")
		}
		if plan.Err != "" {
			f.failRun(run, CodePlanUnreadable, plan.Err)
			return folded
		}
	}
	defs := f.tasksOf(p)
	if detail := f.mismatch(run, defs); detail != "" {
		f.failRun(run, CodePlanUnreadable, detail)
		return folded
	}
	f.createTasks(run, defs)
	return folded
}

func (f *folder) failRun(run *state.Run, code, message string) {
	run.State, run.ErrorCode, run.ErrorMessage = state.RunFailed, code, message
	run.CompletedAt = f.at()
}

func (f *folder) createTasks(run *state.Run, defs []event.TaskDef) {
	indegree := make(map[string]int32, len(defs))
	for i := range defs {
		indegree[defs[i].TaskKey] = int32(len(defs[i].DependsOn)) //nolint:gosec // a task has at most one edge from each task of the plan
		for _, up := range defs[i].DependsOn {
			put(f, f.st.Deps, &state.Dep{RunID: run.RunID, Upstream: up, Downstream: defs[i].TaskKey})
		}
	}
	var empty []string // group nodes without upstreams
	for i := range defs {
		task := f.newTask(run, &defs[i])
		task.DepsTotal = indegree[task.TaskKey]
		if task.Kind != event.KindGroup {
			run.TasksTotal++
		}
		f.putTask(task, "")
		if len(defs[i].Partitions) > 0 {
			put(f, f.st.Batches, &state.Batch{RunID: run.RunID, TaskKey: task.TaskKey, Partitions: jsonOf(defs[i].Partitions)})
		}
		if task.DepsTotal > 0 {
			continue
		}
		if task.Kind == event.KindGroup {
			empty = append(empty, task.TaskKey)
		} else {
			f.makeReady(task)
		}
	}
	for _, key := range empty {
		f.endEmptyGroupNode(f.st.Tasks.Get(state.Key2{A: run.RunID, B: key}))
	}
	complete(run)
}

func (f *folder) newTask(run *state.Run, def *event.TaskDef) *state.Task {
	task := &state.Task{
		RunID: run.RunID, TaskKey: def.TaskKey, TaskID: ids.TaskID(f.domain(), run.RunID, def.TaskKey),
		Kind: orDefault(def.Kind, event.KindTask), AssetKey: def.AssetKey, PartitionKey: def.PartitionKey,
		State: state.TaskBlocked, TriggerRule: orDefault(def.TriggerRule, event.RuleAllSuccess),
		WorkerQueue: orDefault(def.WorkerQueue, "default"), Pool: def.Pool, Priority: def.Priority, Output: def.Output, Code: def.Code,
		Checks: jsonOfList(def.Checks), ErrorChecks: jsonOfList(def.ErrorChecks), RequireQuality: jsonOfList(def.RequireQuality),
		MaxAttempts:             max(def.MaxAttempts, 1),
		RetryInitialDelayMS:     orDefault(def.RetryInitialDelayMS, defaultInitialDelayMS),
		RetryMaxDelayMS:         orDefault(def.RetryMaxDelayMS, defaultMaxDelayMS),
		RetryMultiplierPermille: orDefault(def.RetryMultiplierPermille, defaultMultiplierPermille),
		RetryJitterPermille:     def.RetryJitterPermille,
		RetryUserErrors:         def.RetryUserErrors,
		RetryOn:                 strings.Join(def.RetryOn, ","),
		RetryNever:              strings.Join(def.RetryNever, ","),
		TimeoutSec:              def.TimeoutSec,
		HeartbeatTimeoutSec:     orDefault(def.HeartbeatTimeoutSec, DefaultHeartbeatTimeoutSec),
		CreatedAt:               f.at(),
	}
	if q := def.Quarantine; q != nil {
		task.QuarantineSec, task.QuarantineApprove = q.ExpiresSec, q.Approve
	}
	return task
}

// cancelRequested cancels a run. Tasks that are not running are cancelled immediately. Running tasks get a grace
// period, unless the request forces the cancellation.
func (f *folder) cancelRequested(p *event.RunCancelRequested) verdict {
	run := f.peekRun(p.RunID)
	switch {
	case run.State.Terminal():
		return stale("the run had ended")
	case run.State == state.RunCancelling && !p.Force:
		return noChange
	}
	f.cancelRun(f.run(p.RunID), orDefault(p.Reason, "cancelled on request"), p.Force)
	return folded
}

func (f *folder) cancelRun(run *state.Run, reason string, force bool) {
	if run.State != state.RunCancelling {
		run.State, run.CancelEventID, run.CancelRequestedAt = state.RunCancelling, f.ev.ID, f.at()
		run.CancelReason = reason
	}
	var tasks []*state.Task
	f.st.TasksOf(run.RunID, func(t *state.Task) bool {
		if !t.State.Terminal() && (force || t.State != state.TaskRunning) {
			tasks = append(tasks, t)
		}
		return true
	})
	for _, t := range tasks {
		f.cancelTask(t, reason)
	}
	complete(run)
}

// cancelTask cancels a task of a run that is being cancelled. The task may have already ended because of the
// cancellation of an upstream task.
func (f *folder) cancelTask(t *state.Task, reason string) {
	current := f.st.Tasks.Get(t.Key())
	if current.State.Terminal() {
		return
	}
	next := *current
	if current.AdmittedAt != 0 {
		next.ErrorCode, next.ErrorMessage = CodeCancelled, reason
	}
	f.closeAttempt(&next, closing{outcome: event.Cancelled, code: CodeCancelled, message: reason, unqueue: true})
	f.end(current, &next, state.TaskCancelled, string(event.Cancelled))
}

// complete ends a run if its last task has ended. The final state depends on the states of its
// tasks and on whether it was cancelled.
func complete(run *state.Run) {
	done := run.TasksSkipped + run.TasksCancelled + run.TasksFailed + run.TasksSucceeded
	if run.State.Terminal() || done < run.TasksTotal {
		return
	}
	switch {
	case run.State == state.RunCancelling && run.ErrorCode == CodeRunTimeout:
		run.State = state.RunTimedOut
	case run.State == state.RunCancelling:
		run.State = state.RunCancelled
	case run.TasksFailed > 0:
		run.State = state.RunFailed
	case run.TasksCancelled > 0:
		run.State = state.RunCancelled
	default:
		run.State = state.RunSucceeded
	}
	run.CompletedAt = run.LastActivityAt
}

// limitSet sets or removes a limit. The command with the latest event id wins, regardless of the order of folding.
func (f *folder) limitSet(p *event.LimitSet) verdict {
	old := f.st.Limits.Get(state.Key2{A: p.Scope, B: p.Name})
	switch {
	case old != nil && old.Version == f.ev.ID:
		return noChange
	case old != nil && old.Version > f.ev.ID:
		if old.Removed {
			return stale("a later command has removed the limit")
		}
		return stale(fmt.Sprintf("a later command has set the limit to %d", old.Slots))
	}
	put(f, f.st.Limits, &state.Limit{Scope: p.Scope, Name: p.Name, Slots: p.Slots, Removed: p.Remove})
	return folded
}

// peekRun returns a run, including the group's changes so far. The caller must not change the run.
func (f *folder) peekRun(runID string) *state.Run {
	if run, ok := f.runs[runID]; ok {
		return run
	}
	return f.st.Runs.Get(runID)
}

func jsonOf(v any) string {
	raw, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("fold: encode a value as JSON: %v", err))
	}
	return string(raw)
}

func jsonOfMap[V any](m map[string]V) string {
	if len(m) == 0 {
		return ""
	}
	return jsonOf(m) // with sorted keys
}
