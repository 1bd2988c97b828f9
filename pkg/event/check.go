package event

import (
	"encoding/json"
	"fmt"

	"github.com/servo-orchestration/servo/pkg/ids"
)

// Trigger types.
var triggerTypes = []string{"manual", "cron", "sensor", "materialization", "webhook", "backfill", "retry"}

// payload validates the payload of an event.
func (c *checker) payload(p Payload) {
	switch p := p.(type) {
	case *RunTriggered:
		c.runTriggered(p)
	case *PlanCreated:
		c.planCreated(p)
	case *RunCancelRequested:
		c.ulid("payload.run_id", p.RunID)
		c.text("payload.reason", p.Reason, MaxMessage)
		c.commandKey(p.CommandKey, p.Fingerprint)
	case *LimitSet:
		c.limitSet(p)
	case *ProjectDeployed:
		c.projectDeployed(p)
	case *QuarantineResolved:
		c.quarantineResolved(p)
	case *PartitionsChanged:
		c.partitionsChanged(p)
	case *PartitionsMarked:
		c.partitionsMarked(p)
	case *RunRequested:
		c.runRequested(p)
	case *RequestRefused:
		c.requestRefused(p)
	case *SchedulesDefined:
		c.schedulesDefined(p)
	case *CalendarAdvanced:
		c.calendarAdvanced(p)
	case *AutomationCommand:
		c.automationCommand(p)
	case *RevisionPinned:
		c.revisionPinned(p)
	case *AssetsForgotten:
		c.assetsForgotten(p)
	case *BackfillCreated:
		c.backfillCreated(p)
	case *NotificationEnded:
		c.notificationEnded(p)
	case *DeadlineJudged:
		c.deadlineJudged(p)
	case *DispatchRequested:
		c.dispatch(p.DispatchID, p.RunID, p.TaskKey, p.Attempt, p.Generation)
		c.ulid("payload.attempt_id", p.AttemptID)
		c.text("payload.worker_queue", p.WorkerQueue, MaxName)
	case *DispatchEnqueued:
		c.dispatch(p.DispatchID, p.RunID, p.TaskKey, p.Attempt, p.Generation)
		c.cloudTaskID(p.QueueTaskName)
	case *DispatchFailed:
		c.dispatch(p.DispatchID, p.RunID, p.TaskKey, p.Attempt, p.Generation)
		c.failure("payload.error", &p.Error)
	case *TimerRequested:
		c.timerRequested(p)
	case *TimerEnqueued:
		c.timer(p.TimerID, p.Generation)
		c.cloudTaskID(p.QueueTaskName)
		c.optionalTime("payload.hop_at", p.HopAt)
	case *TimerFired:
		c.timer(p.TimerID, p.Generation)
		c.time("payload.fired_at", p.FiredAt)
		c.optionalTime("payload.observed.caught_up_at", p.Observed.CaughtUpAt)
		c.count("payload.observed.revision", p.Observed.Revision)
	case *TaskStarted:
		c.worker(p.AttemptRef)
		c.optionalHex("payload.plan", p.Plan, digitsOfCode)
		c.time("payload.started_at", p.StartedAt)
	case *TaskHeartbeat:
		c.worker(p.AttemptRef)
		c.time("payload.heartbeat_at", p.HeartbeatAt)
		c.atMost("payload.progress", int64(p.Progress), 100)
		c.text("payload.message", p.Message, MaxMessage)
	case *TaskFinished:
		c.worker(p.AttemptRef)
		c.optionalHex("payload.plan", p.Plan, digitsOfCode)
		c.taskFinished(p)
	}
}

func (c *checker) runTriggered(p *RunTriggered) {
	c.ulid("payload.run_id", p.RunID)
	c.ulid("payload.plan_id", p.PlanID)
	c.oneOf("payload.trigger.type", p.Trigger.Type, triggerTypes...)
	c.text("payload.trigger.user_id", p.Trigger.UserID, MaxName)
	c.text("payload.trigger.schedule_id", p.Trigger.ScheduleID, MaxName)
	c.text("payload.trigger.sensor_id", p.Trigger.SensorID, MaxName)
	c.text("payload.trigger.webhook_id", p.Trigger.WebhookID, MaxName)
	c.text("payload.trigger.backfill_id", p.Trigger.BackfillID, MaxName)
	c.optionalULID("payload.trigger.parent_run_id", p.Trigger.ParentRunID)
	c.optionalULID("payload.trigger.upstream_materialization_id", p.Trigger.UpstreamMaterializationID)
	c.atMost("payload.root_assets (count)", int64(len(p.RootAssets)), MaxSelection)
	for i, key := range p.RootAssets {
		c.assetKey(fmt.Sprintf("payload.root_assets[%d]", i), key)
	}
	c.runKey("payload.run_key", p.RunKey)
	c.text("payload.fingerprint", p.Fingerprint, MaxName)
	c.atMost("payload.partition_selection (count)", int64(len(p.PartitionSelection)), MaxSelection)
	for i, s := range p.PartitionSelection {
		c.text(fmt.Sprintf("payload.partition_selection[%d]", i), s, MaxRef)
	}
	c.count("payload.max_parallelism", int64(p.MaxParallelism))
	c.count("payload.timeout_sec", int64(p.TimeoutSec))
	c.count("payload.cancel_grace_sec", int64(p.CancelGraceSec))
	c.labels("payload.labels", p.Labels)
	if p.Release != "" {
		c.hex("payload.release", p.Release, digitsOfRelease)
	}
	c.optionalULID("payload.root_run", p.RootRun)
	c.optionalULID("payload.after_run", p.AfterRun)
	c.text("payload.request_id", p.RequestID, MaxRequestID)
	c.text("payload.trigger.tick_id", p.Trigger.TickID, MaxName)
	c.vars(p.Vars)
	c.chunkPlan("payload.chunk", p.Chunk)
}

func (c *checker) planCreated(p *PlanCreated) {
	c.ulid("payload.run_id", p.RunID)
	c.ulid("payload.plan_id", p.PlanID)
	c.text("payload.plan_ref", p.PlanRef, MaxRef)
	c.text("payload.fingerprint", p.Fingerprint, MaxName)
	c.count("payload.tasks_total", int64(p.TasksTotal))
	c.count("payload.observed_seq", p.ObservedSeq)
	c.optionalTime("payload.observed_time", p.ObservedTime)
	c.optionalULID("payload.observed_through", p.ObservedThrough)
	c.optionalULID("payload.observed_last", p.ObservedLast)
	c.text("payload.observed_entries", p.ObservedEntries, MaxName)
	switch {
	case len(p.Tasks) == 0 && p.PlanRef == "":
		c.fail("payload.plan_ref", "is empty: a plan without inline tasks needs a reference")
	case len(p.Tasks) > 0 && p.TasksTotal != 0 && int(p.TasksTotal) != len(p.Tasks):
		c.refuse(ReasonBadPlan, "payload.tasks_total", "is %d, but the plan has %d tasks", p.TasksTotal, len(p.Tasks))
	}
	if c.err == nil {
		c.tasks("payload.tasks", p.Tasks, KindTask, KindGroup)
	}
}

func (c *checker) limitSet(p *LimitSet) {
	c.name("payload.command_id", p.CommandID)
	c.oneOf("payload.scope", p.Scope, ScopeWorkspace, ScopePool)
	c.text("payload.name", p.Name, MaxName)
	if (p.Scope == ScopePool) != (p.Name != "") {
		c.fail("payload.name", "%q is not allowed: the name is required for a pool, and must be empty for the workspace", p.Name)
	}
	c.count("payload.slots", int64(p.Slots))
}

func (c *checker) timerRequested(p *TimerRequested) {
	c.timer(p.TimerID, p.Generation)
	c.oneOf("payload.timer_type", p.TimerType, TimerRetry, TimerLiveness, TimerWake)
	c.time("payload.fire_at", p.FireAt)
	if len(p.Payload) == 0 {
		return
	}
	c.text("payload.payload", string(p.Payload), MaxTimerData)
	if p.Payload[0] != '{' || !json.Valid(p.Payload) {
		c.fail("payload.payload", "is not an object")
	}
}

func (c *checker) taskFinished(p *TaskFinished) {
	c.oneOf("payload.outcome", string(p.Outcome),
		string(Succeeded), string(Failed), string(Skipped), string(Cancelled), string(TimedOut))
	c.failure("payload.error", p.Error)
	if p.Output != nil {
		if p.Output.URI == "" {
			c.fail("payload.output.uri", "is empty")
		}
		c.text("payload.output.uri", p.Output.URI, MaxRef)
		c.count("payload.output.row_count", p.Output.RowCount)
		c.count("payload.output.byte_size", p.Output.ByteSize)
		c.text("payload.output.schema_hash", p.Output.SchemaHash, MaxName)
		c.atMost("payload.output.cells (count)", int64(len(p.Output.Cells)), MaxBatch)
		for i := range p.Output.Cells {
			c.count(fmt.Sprintf("payload.output.cells[%d].row_count", i), p.Output.Cells[i].RowCount)
			c.count(fmt.Sprintf("payload.output.cells[%d].byte_size", i), p.Output.Cells[i].ByteSize)
		}
	}
	c.optionalULID("payload.materialization_id", p.MaterializationID)
	c.atMost("payload.check_results (count)", int64(len(p.CheckResults)), MaxChecks)
	for i, r := range p.CheckResults {
		path := fmt.Sprintf("payload.check_results[%d]", i)
		c.name(path+".name", r.Name)
		c.text(path+".severity", r.Severity, MaxName)
		c.text(path+".phase", r.Phase, MaxName)
		c.count(path+".failing", r.Failing)
		c.text(path+".actual", r.Actual, MaxRef)
		c.text(path+".season", r.Season, MaxName)
		c.text(path+".metric", r.Metric, MaxRef)
		c.text(path+".expected", r.Expected, MaxRef)
		c.text(path+".message", r.Message, MaxMessage)
		c.text(path+".sample", r.Sample, MaxRef)
	}
	c.atMost("payload.log (bytes)", int64(len(p.Log)), MaxLog)
	c.atMost("payload.metrics (count)", int64(len(p.Metrics)), MaxMetrics)
	for key := range p.Metrics {
		c.name("payload.metrics (a key)", key)
	}
	c.optionalTime("payload.started_at", p.StartedAt)
	c.optionalTime("payload.completed_at", p.CompletedAt)
}

// ULIDs returns the ULIDs in an event: its own id, its causes, and the ids that it names. The
// id of its ledger entry must exceed all of them.
func ULIDs(e *Envelope) []string {
	found := []string{e.ID, e.Group, e.CorrelationID, e.CausationID}
	switch p := e.Payload.(type) {
	case *RunTriggered:
		found = append(found, p.RunID, p.PlanID, p.RootRun, p.AfterRun, p.Trigger.ParentRunID, p.Trigger.UpstreamMaterializationID)
	case *PlanCreated:
		found = append(found, p.RunID, p.PlanID)
	case *RunCancelRequested:
		found = append(found, p.RunID)
	case *LimitSet:
		found = append(found, p.CommandID)
	case *ProjectDeployed:
		found = append(found, p.DeployID)
	case *QuarantineResolved:
		found = append(found, p.CommandID)
	case *PartitionsChanged:
		found = append(found, p.CommandID)
	case *PartitionsMarked:
		found = append(found, p.CommandID)
	case *RunRequested:
		found = append(found, p.CommandID)
	case *AutomationCommand:
		found = append(found, p.CommandID)
	case *SchedulesDefined:
		found = append(found, p.DeployID)
	case *RequestRefused, *CalendarAdvanced, *DeadlineJudged:
	case *NotificationEnded:
		found = append(found, p.NotificationID)
	case *RevisionPinned:
		found = append(found, p.CommandID)
	case *AssetsForgotten:
		found = append(found, p.CommandID)
	case *BackfillCreated:
		found = append(found, p.BackfillID)
	case *DispatchRequested:
		found = append(found, p.RunID, p.AttemptID)
	case *DispatchEnqueued:
		found = append(found, p.RunID)
	case *DispatchFailed:
		found = append(found, p.RunID)
	case *TimerRequested, *TimerEnqueued, *TimerFired:
	case *TaskStarted:
		found = append(found, p.RunID, p.AttemptID)
	case *TaskHeartbeat:
		found = append(found, p.RunID, p.AttemptID)
	case *TaskFinished:
		found = append(found, p.RunID, p.AttemptID, p.MaterializationID)
	}
	kept := found[:0]
	for _, id := range found {
		if ids.Valid(id) {
			kept = append(kept, id)
		}
	}
	return kept
}

// HasFiredTimer reports whether the group contains a fired timer. Decisions about deadlines must consider all facts, so
// the fold applies groups with fired timers last (ADR 035).
func HasFiredTimer(group []*Envelope) bool {
	for _, e := range group {
		if _, ok := e.Payload.(*TimerFired); ok {
			return true
		}
	}
	return false
}

// Urgent reports whether the event should be folded immediately, because somebody may be waiting for its effect.
// Acknowledgements of the queue, starts, heartbeats and outcomes of notifications are not urgent: they are folded
// with the next urgent event, or after a short delay.
func Urgent(p Payload) bool {
	switch p.(type) {
	case *RunTriggered, *PlanCreated, *RunCancelRequested, *LimitSet, *ProjectDeployed, *QuarantineResolved, *PartitionsChanged, *PartitionsMarked,
		*RunRequested, *RequestRefused, *SchedulesDefined, *CalendarAdvanced, *AutomationCommand, *RevisionPinned, *AssetsForgotten, *BackfillCreated, *DispatchRequested,
		*DispatchFailed, *TimerRequested, *TimerFired, *TaskFinished, *DeadlineJudged:
		return true
	case *DispatchEnqueued, *TimerEnqueued, *TaskStarted, *TaskHeartbeat, *NotificationEnded:
	}
	return false
}
