package fold

import (
	"cmp"
	"strconv"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/state"
)

// accept checks the attempt of a worker's report (INV-8). It returns the task, whose current attempt is now the
// reported one, or nil and a verdict.
//
// If the task has ended, no report is accepted. Otherwise, a report of the current attempt is accepted in every state
// of the task. A later attempt is adopted: its report proves that the fold once decided to dispatch it, although this
// state does not contain the decision. An earlier attempt is stale.
func (f *folder) accept(ref event.AttemptRef) (*state.Task, verdict) {
	t := f.st.Tasks.Get(state.Key2{A: ref.RunID, B: ref.TaskKey})
	switch {
	case ref.AttemptID != ids.AttemptID(f.domain(), ref.RunID, ref.TaskKey, ref.Attempt):
		return nil, stale("the attempt id does not belong to attempt " + strconv.Itoa(int(ref.Attempt)))
	case t.State.Terminal() && ref.Attempt == t.Attempt:
		return nil, noChange
	case t.State.Terminal():
		return nil, stale("the task had ended")
	case ref.Attempt < t.Attempt:
		return nil, stale("attempt " + strconv.Itoa(int(t.Attempt)) + " is the current one")
	case ref.Attempt > t.Attempt:
		return f.adopt(t, ref), verdict{}
	case t.State == state.TaskReady && t.AdmittedAt == 0:
		return f.admitReported(t), verdict{}
	}
	return t, verdict{}
}

// adopt makes a later attempt the current one. It copies the number of granted attempts from the report, because this
// state may not contain the losses for which they were granted.
func (f *folder) adopt(current *state.Task, ref event.AttemptRef) *state.Task {
	t := *current
	f.closeAttempt(&t, closing{outcome: event.Failed, code: CodeSuperseded, message: "a later attempt reported"})
	grant(&t, ref.GrantedAttempts-t.GrantedAttempts)
	if beyond := ref.Attempt - t.MaxAttempts; beyond > 0 { // attempts beyond the maximum must have been granted
		grant(&t, min(beyond, MaxGrantedAttempts-t.GrantedAttempts))
	}
	f.beginAttempt(&t, ref.Attempt)
	t.State, t.ReadyAt, t.RetryNotBefore = state.TaskReady, f.at(), 0
	f.putTask(&t, current.State)
	return f.admitReported(&t)
}

// admitReported admits the current attempt of a ready task regardless of limits. A worker has reported on the
// attempt, so the fold once decided to dispatch it, although this state does not contain the decision. This happens
// in a rebuild without the recorded order of entries.
func (f *folder) admitReported(current *state.Task) *state.Task {
	t := *current
	f.takeSlots(&t)
	return &t
}

func (f *folder) attempt(t *state.Task) *state.Attempt {
	return f.st.Attempts.Get(state.AttemptKey{RunID: t.RunID, TaskKey: t.TaskKey, Attempt: t.Attempt})
}

// taskStarted makes a task RUNNING.
func (f *folder) taskStarted(p *event.TaskStarted) verdict {
	current, v := f.accept(p.AttemptRef)
	switch {
	case current == nil:
		return v
	case current.State == state.TaskRetryWait:
		return stale("the attempt was closed")
	case current.State == state.TaskRunning && p.StartedAt >= current.StartedAt:
		return noChange
	}
	// If the task is already RUNNING, a heartbeat has overtaken this report, and the recorded start is too late.
	f.markRunning(current, p.AttemptRef, p.StartedAt)
	return folded
}

// markRunning makes a task RUNNING. The parameter "since" is the start time by the worker's clock. If it is later than
// the event, the time of the event is recorded.
func (f *folder) markRunning(current *state.Task, ref event.AttemptRef, since event.Time) {
	t := *current
	t.State, t.StartedAt, t.WorkerID = state.TaskRunning, min(since, f.at()), cmp.Or(t.WorkerID, ref.WorkerID)
	f.putTask(&t, current.State)
	f.dropOutbox(&t, false)
	f.recordHeartbeat(&t, f.at(), 0, "")
	f.changeAttempt(&t, func(a *state.Attempt) {
		a.State, a.StartedAt, a.WorkerID = state.AttemptRunning, t.StartedAt, t.WorkerID
	})
}

// taskHeartbeat records a heartbeat. It changes only the table of heartbeats, unless it has overtaken the report of
// the start.
func (f *folder) taskHeartbeat(p *event.TaskHeartbeat) verdict {
	t, v := f.accept(p.AttemptRef)
	switch {
	case t == nil:
		return v
	case t.State == state.TaskRetryWait:
		return stale("the attempt was closed")
	}
	if !f.recordHeartbeat(t, f.at(), p.Progress, p.Message) {
		return noChange
	}
	if t.State != state.TaskRunning {
		f.markRunning(t, p.AttemptRef, p.HeartbeatAt)
	}
	return folded
}

// recordHeartbeat writes a task's heartbeat. It returns false if the heartbeat is not newer than the last one of the
// attempt.
func (f *folder) recordHeartbeat(t *state.Task, at event.Time, progress int32, message string) bool {
	old := f.st.Heartbeats.Get(t.Key())
	if old != nil && old.AttemptID == t.AttemptID && old.LastHeartbeatAt >= at {
		return false
	}
	put(f, f.st.Heartbeats, &state.Heartbeat{
		RunID: t.RunID, TaskKey: t.TaskKey, AttemptID: t.AttemptID, LastHeartbeatAt: at,
		Progress: progress, Message: message,
	})
	return true
}

// taskFinished closes an attempt and determines the next state of its task.
func (f *folder) taskFinished(p *event.TaskFinished) verdict {
	c := closing{outcome: p.Outcome, metrics: jsonOfMap(p.Metrics), log: p.Log}
	if len(p.CheckResults) > 0 {
		c.checks = jsonOf(p.CheckResults)
	}
	if p.Error != nil {
		c.code, c.message, c.retryable = p.Error.Code, p.Error.Message, p.Error.Retryable
		c.category, c.retryAfterMS = p.Error.Category, p.Error.RetryAfterMS
		c.details, c.suggestion = p.Error.Details, p.Error.SuggestedAction
	}
	c.retryable = c.retryable && c.code != CodeCheckFailed
	reported := f.st.Tasks.Get(state.Key2{A: p.RunID, B: p.TaskKey})
	whole(reported, f.st.BatchOf(p.RunID, p.TaskKey), p, &c)
	quality := gate(reported, p, &c)
	current, v := f.accept(p.AttemptRef)
	if current == nil {
		f.recordSuperseded(p, c)
		return v
	}
	if current.State == state.TaskRetryWait && c.outcome != event.Succeeded {
		return noChange // the attempt was already closed as a failure
	}
	t := *current
	if t.Kind != event.KindCheck {
		t.Quality = quality
	}
	f.recordChecks(&t, p)
	if a := f.attempt(current); current.State == state.TaskRetryWait && a != nil && a.RetryReason == state.RetryInfrastructure {
		grant(&t, -1) // the attempt was not lost: withdraw the attempt that was granted for it
	}
	t.StartedAt = earliest(t.StartedAt, p.StartedAt)
	t.WorkerID = cmp.Or(t.WorkerID, p.WorkerID)
	if out := p.Output; out != nil && c.outcome == event.Succeeded && t.Kind != event.KindCheck {
		t.OutputURI, t.RowCount, t.ByteSize, t.SchemaHash = out.URI, out.RowCount, out.ByteSize, out.SchemaHash
	}
	if p.CodeChanged {
		t.Code = state.ChangedCode
	}
	f.finish(current, &t, c)
	if t.State == state.TaskSucceeded && t.Kind != event.KindCheck && t.AssetKey != "" {
		f.learn(t.AssetKey, t.PartitionKey, t.RunID, t.MaterializationID, measuredIn(p.CheckResults))
		f.measure(&t, p.Metrics)
	}
	if t.State == state.TaskFailed && t.ErrorCode == CodeCheckFailed {
		f.quarantine(&t, p)
	}
	return folded
}

// recordSuperseded records the end of an attempt whose report arrives after a later attempt has replaced it. It changes
// only the attempt's own row. As a result, this row does not depend on the order in which the reports of the two
// attempts are folded.
func (f *folder) recordSuperseded(p *event.TaskFinished, c closing) {
	key := state.AttemptKey{RunID: p.RunID, TaskKey: p.TaskKey, Attempt: p.Attempt}
	old := f.st.Attempts.Get(key)
	t := f.st.Tasks.Get(state.Key2{A: p.RunID, B: p.TaskKey})
	if p.Attempt >= t.Attempt || old != nil && old.ErrorCode != CodeSuperseded ||
		p.AttemptID != ids.AttemptID(f.domain(), p.RunID, p.TaskKey, p.Attempt) {
		return
	}
	row := state.Attempt{
		RunID: p.RunID, TaskKey: p.TaskKey, Attempt: p.Attempt, AttemptID: p.AttemptID, CreatedAt: f.at(),
	}
	if old != nil {
		row = *old
	}
	row.StartedAt, row.WorkerID = earliest(row.StartedAt, p.StartedAt), cmp.Or(row.WorkerID, p.WorkerID)
	f.fillClosed(&row, c)
	row.RetryReason = c.retryReason(t)
	put(f, f.st.Attempts, &row)
}

// earliest returns the earlier of two start times of an attempt; 0 means unknown. (If a heartbeat overtakes the report
// of the start, the time of the heartbeat is recorded as the start time, which is too late.)
func earliest(a, b event.Time) event.Time {
	if a == 0 || b == 0 {
		return a + b
	}
	return min(a, b)
}

// finish closes the current attempt of a task. The task then ends or waits for a retry.
func (f *folder) finish(current, t *state.Task, c closing) {
	cancelling := f.peekRun(t.RunID).State == state.RunCancelling
	f.closeAttempt(t, c)
	t.ErrorCode, t.ErrorMessage = c.code, c.message
	switch {
	case cancelling:
		// A task that succeeds after a cancellation was requested also counts as cancelled, and its output stays
		// invisible.
		t.OutputURI, t.RowCount, t.ByteSize, t.SchemaHash, t.Quality = "", 0, 0, "", ""
		t.ErrorCode = orDefault(t.ErrorCode, CodeCancelled)
		f.end(current, t, state.TaskCancelled, string(event.Cancelled))
	case c.outcome == event.Succeeded:
		if t.Kind != event.KindCheck {
			t.MaterializationID = ids.MaterializationID(f.domain(), t.RunID, t.TaskKey)
		}
		f.end(current, t, state.TaskSucceeded, string(c.outcome))
		f.materialized(t, c.cells)
	case c.outcome == event.Skipped:
		f.end(current, t, state.TaskSkipped, string(c.outcome))
	case c.lost(t) && t.GrantedAttempts < MaxGrantedAttempts:
		grant(t, 1)
		f.retryLater(current, t, c, state.RetryInfrastructure, lossBackoff(t))
	case c.mayRetry(t) && t.Attempt < t.MaxAttempts:
		f.retryLater(current, t, c, state.RetryPolicy, max(Backoff(t), min(c.retryAfterMS, event.MaxRetryAfterMS)))
	default:
		f.end(current, t, state.TaskFailed, string(c.outcome))
	}
}

// closing describes the end of an attempt.
type closing struct {
	outcome       event.Outcome
	code, message string
	retryable     bool
	// category is the reported category of the error. If it is "", the code determines the category.
	category            string
	details, suggestion string
	retryAfterMS        int64
	metrics, log        string
	checks              string
	// cells are the outputs of the partitions of a batch.
	cells []event.OutputCell
	// unqueue means that the queue task must be deleted if the attempt has not started.
	unqueue bool
}

// closeAttempt closes the current attempt, if it is open. It frees the attempt's slots and deletes
// its timer, outbox row and heartbeat.
func (f *folder) closeAttempt(t *state.Task, c closing) {
	if old := f.st.Heartbeats.Get(t.Key()); old != nil {
		t.LastHeartbeatAt = old.LastHeartbeatAt
		row := *old
		remove(f, f.st.Heartbeats, &row)
	}
	t.AdmittedAt = 0
	f.dropTimer(t)
	f.dropOutbox(t, c.unqueue)
	if a := f.attempt(t); a == nil || a.State == state.AttemptClosed && c.outcome != event.Succeeded {
		return // already closed; only a success changes the row of a closed attempt
	}
	f.changeAttempt(t, func(a *state.Attempt) {
		a.StartedAt, a.WorkerID = earliest(a.StartedAt, t.StartedAt), cmp.Or(a.WorkerID, t.WorkerID)
		f.fillClosed(a, c)
	})
}

func (f *folder) fillClosed(a *state.Attempt, c closing) {
	a.State, a.FinishedAt, a.Outcome = state.AttemptClosed, f.at(), string(c.outcome)
	a.ErrorCode, a.ErrorMessage, a.Retryable, a.Metrics = c.code, c.message, c.retryable, c.metrics
	a.ErrorDetails, a.Suggestion = c.details, c.suggestion
	a.RetryReason, a.CheckResults, a.Log = "", c.checks, c.log
}

func (f *folder) changeAttempt(t *state.Task, change func(*state.Attempt)) {
	old := f.attempt(t)
	if old == nil {
		return
	}
	row := *old
	change(&row)
	put(f, f.st.Attempts, &row)
}

// dropOutbox deletes the outbox row of the current attempt. Deltas contain a tombstone for each attempt. To keep deltas
// small, a tombstone has only the columns that readers need.
func (f *folder) dropOutbox(t *state.Task, unqueue bool) {
	old := f.st.Outbox.Get(ids.DispatchID(t.RunID, t.TaskKey, t.Attempt))
	if old == nil {
		return
	}
	row := state.Dispatch{DispatchID: old.DispatchID, RunID: old.RunID, TaskKey: old.TaskKey, Status: old.Status}
	if unqueue { // the dispatcher deletes the queue task of this row
		row = *old
		row.Status = state.DispatchCancelled
	}
	remove(f, f.st.Outbox, &row)
}

// materialized records the output of a task for each of its partitions. The output of the run that was triggered last
// wins. Within a run, the output of the task with the greater key wins. The order in which tasks finish does not
// matter.
//
// If the row of a partition has left the live state, the output of t wins: when a row leaves, every task that can still
// write the partition belongs to a later run than the row (ADR 076).
func (f *folder) materialized(t *state.Task, cells []event.OutputCell) {
	if t.AssetKey == "" || t.Kind == event.KindCheck {
		return
	}
	batch := f.st.BatchOf(t.RunID, t.TaskKey)
	if batch == nil {
		f.materializedPartition(t, t.PartitionKey, t.OutputURI, event.OutputCell{RowCount: t.RowCount, ByteSize: t.ByteSize})
		return
	}
	for i, key := range batch {
		var cell event.OutputCell
		uri := ""
		if t.OutputURI != "" {
			cell, uri = cells[i], ids.CellURI(t.OutputURI, key)
		}
		f.materializedPartition(t, key, uri, cell)
	}
}

// materializedPartition records the output of one partition of a task.
func (f *folder) materializedPartition(t *state.Task, partition, uri string, cell event.OutputCell) {
	f.supersede(t, partition)
	old := f.st.Partitions.Get(state.Key2{A: t.AssetKey, B: partition})
	if old != nil && isLater(old.RunID, old.TaskKey, t) {
		return
	}
	run := f.peekRun(t.RunID)
	f.show(&state.Partition{
		AssetKey: t.AssetKey, PartitionKey: partition, Status: state.Materialized,
		MaterializationID: t.MaterializationID, MaterializedAt: t.CompletedAt, RunID: t.RunID, TaskKey: t.TaskKey,
		OutputURI: uri, RowCount: cell.RowCount, ByteSize: cell.ByteSize, SchemaHash: t.SchemaHash, Quality: t.Quality,
		Code: t.Code, VersionSeq: f.seq, InputsSeq: readUpTo(run, t), RootRun: run.RootRun, LeftOut: t.LeftOut,
	})
}

// readUpTo returns the fold sequence number of the state on which the run was planned: up to this number, the task has
// read the visible outputs of other runs. readUpTo returns 0 if the task ran although an upstream had not succeeded, or
// although a later run had already materialized the partition of an upstream. In these cases, the task has not read the
// visible output of that upstream, and the task's row does not say which upstream it is.
func readUpTo(run *state.Run, t *state.Task) int64 {
	if t.LeftOut > 0 {
		return 0
	}
	return run.InputsSeq
}
