package state

import (
	"cmp"
	"encoding/json"
	"fmt"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/table"
)

// Meta contains the columns that every row has.
type Meta = table.Meta

// RunState is the state of a run.
type RunState string

// Run states.
const (
	RunPending    RunState = "PENDING" // no task has been admitted yet
	RunRunning    RunState = "RUNNING"
	RunPaused     RunState = "PAUSED" // admits no more tasks
	RunCancelling RunState = "CANCELLING"
	RunSucceeded  RunState = "SUCCEEDED"
	RunFailed     RunState = "FAILED"
	RunCancelled  RunState = "CANCELLED"
	RunTimedOut   RunState = "TIMED_OUT"
)

// Terminal reports whether a run in this state never changes again.
func (s RunState) Terminal() bool {
	switch s {
	case RunSucceeded, RunFailed, RunCancelled, RunTimedOut:
		return true
	case RunPending, RunRunning, RunPaused, RunCancelling:
	}
	return false
}

// Run is a row of runs.
type Run struct {
	RunID        string   `col:"run_id,key"`
	PlanID       string   `col:"plan_id"`
	PlanRef      string   `col:"plan_ref,null"`
	RunKey       string   `col:"run_key,null"`
	TriggerType  string   `col:"trigger_type,dict"`
	Trigger      string   `col:"trigger"` // JSON
	ParentRunID  string   `col:"parent_run_id,null"`
	State        RunState `col:"state,dict"`
	ErrorCode    string   `col:"error_code,null,dict"`
	ErrorMessage string   `col:"error_message,null"`
	// The requested assets and partitions: the first few as a JSON list, and the total number. Every
	// change of the run writes this row, so its size must not depend on the request.
	RootAssets      string `col:"root_assets,null"`
	RootAssetsTotal int32  `col:"root_assets_total"`
	Partitions      string `col:"partition_selection,null"`
	PartitionsTotal int32  `col:"partition_selection_total"`

	Labels         string `col:"labels,null"`      // JSON
	MaxParallelism int32  `col:"max_parallelism"`  // 0: no limit of its own
	TimeoutSec     int32  `col:"timeout_sec"`      // 0: none
	CancelGraceSec int32  `col:"cancel_grace_sec"` // before a cancel is forced

	Release string `col:"release,null"` // the release that the run executes
	Vars    string `col:"vars,null"`    // JSON: the variables that the request overrides
	// AllowIncomplete means that the request accepted missing partitions of upstream assets.
	AllowIncomplete bool `col:"allow_incomplete"`
	// RequestID is the request that the run was planned for; "": a caller triggered it. ScheduleID and
	// TickID are those of the request.
	RequestID  string `col:"request_id,null"`
	ScheduleID string `col:"schedule_id,null,dict"`
	TickID     string `col:"tick_id,null"`
	// RootRun is the first run of the chain of retries; "": this run. See [Run.Root].
	RootRun string `col:"root_run,null"`
	// InputsSeq and InputsAt are the fold sequence and the fold time of the state on which the first
	// run of the chain was planned.
	InputsSeq int64      `col:"inputs_seq"`
	InputsAt  event.Time `col:"inputs_at,null"`
	// SLAAt is when the run of a schedule has taken too long; 0: never, or this is reported already.
	SLAAt event.Time `col:"sla_at,null"`

	TasksTotal     int32 `col:"tasks_total"`
	TasksBlocked   int32 `col:"tasks_blocked"`
	TasksReady     int32 `col:"tasks_ready"`
	TasksDispatch  int32 `col:"tasks_dispatched"`
	TasksRunning   int32 `col:"tasks_running"`
	TasksRetryWait int32 `col:"tasks_retry_wait"`
	TasksSkipped   int32 `col:"tasks_skipped"`
	TasksCancelled int32 `col:"tasks_cancelled"`
	TasksFailed    int32 `col:"tasks_failed"`
	TasksSucceeded int32 `col:"tasks_succeeded"`

	CancelEventID     string     `col:"cancel_event_id,null"`
	CancelReason      string     `col:"cancel_reason,null"`
	CancelRequestedAt event.Time `col:"cancel_requested_at,null"`
	CreatedAt         event.Time `col:"created_at"`
	StartedAt         event.Time `col:"started_at,null"`
	CompletedAt       event.Time `col:"completed_at,null"`
	LastActivityAt    event.Time `col:"last_activity_at"`
	Meta
}

// Key returns the primary key.
func (r *Run) Key() string { return r.RunID }

func (*Run) newTable() store { return new(rowTable[string, Run, *Run]) }

// Root returns the first run of the run's chain of retries.
func (r *Run) Root() string { return cmp.Or(r.RootRun, r.RunID) }

// maxNamed is the maximum number of requested assets, and of requested partitions, in a run's row.
const maxNamed = 20

// Asked stores the number of requested assets and partitions, and the first of each.
func (r *Run) Asked(assets, partitions []string) {
	r.RootAssets, r.RootAssetsTotal = firstOf(assets)
	r.Partitions, r.PartitionsTotal = firstOf(partitions)
}

func firstOf(list []string) (text string, total int32) {
	if len(list) == 0 {
		return "", 0
	}
	raw, err := json.Marshal(list[:min(len(list), maxNamed)])
	if err != nil {
		panic(fmt.Sprintf("state: encode strings as JSON: %v", err))
	}
	return string(raw), int32(len(list)) //nolint:gosec // at most event.MaxSelection
}

// TaskState is the state of a task.
type TaskState string

// Task states, in the order of their ranks.
const (
	TaskPlanned    TaskState = "PLANNED" // not yet evaluated; never in a published row
	TaskBlocked    TaskState = "BLOCKED"
	TaskReady      TaskState = "READY"      // admitted once it has an outbox row
	TaskDispatched TaskState = "DISPATCHED" // has a queue task
	TaskRunning    TaskState = "RUNNING"
	TaskRetryWait  TaskState = "RETRY_WAIT"
	TaskSkipped    TaskState = "SKIPPED"
	TaskCancelled  TaskState = "CANCELLED"
	TaskFailed     TaskState = "FAILED"
	TaskSucceeded  TaskState = "SUCCEEDED"
)

// TaskStates returns the states of published rows, in the order of their ranks.
func TaskStates() []TaskState {
	return []TaskState{
		TaskBlocked, TaskReady, TaskDispatched, TaskRunning, TaskRetryWait, TaskSkipped, TaskCancelled, TaskFailed, TaskSucceeded,
	}
}

// Rank orders the states of one attempt: an attempt never returns to a state of a lower rank. The
// states with rank 10 and above are terminal.
func (s TaskState) Rank() int {
	switch s {
	case TaskPlanned:
		return 0
	case TaskBlocked:
		return 1
	case TaskReady:
		return 2
	case TaskDispatched:
		return 3
	case TaskRunning:
		return 4
	case TaskRetryWait:
		return 5
	case TaskSkipped:
		return 10
	case TaskCancelled:
		return 11
	case TaskFailed:
		return 12
	case TaskSucceeded:
		return 13
	}
	return -1
}

// Terminal reports whether a task in this state never changes again.
func (s TaskState) Terminal() bool { return s.Rank() >= TaskSkipped.Rank() }

// Task is a row of tasks.
type Task struct {
	RunID        string    `col:"run_id,key"`
	TaskKey      string    `col:"task_key,key"`
	TaskID       string    `col:"task_id"`
	Kind         string    `col:"kind,dict"`
	AssetKey     string    `col:"asset_key,null,dict"`
	PartitionKey string    `col:"partition_key,null,dict"`
	State        TaskState `col:"state,dict"`
	TriggerRule  string    `col:"trigger_rule,dict"`
	WorkerQueue  string    `col:"worker_queue,dict"`
	Pool         string    `col:"pool,null,dict"`
	Priority     int32     `col:"priority"`
	Output       string    `col:"output,null,dict"` // event.OutputNone: the task writes no files
	Code         string    `col:"code,null,dict"`   // the asset's code fingerprint
	// Checks and ErrorChecks are the names of the checks of severity CRITICAL and ERROR, as JSON.
	Checks      string `col:"checks,null,dict"`
	ErrorChecks string `col:"error_checks,null,dict"`
	// RequireQuality lists the assets whose degraded outputs the task must not read, as JSON.
	RequireQuality string `col:"require_quality,null,dict"`
	// QuarantineSec is how long an output that a check has blocked waits for a decision; 0: it is not
	// kept. QuarantineApprove publishes it when it expires.
	QuarantineSec     int64 `col:"quarantine_sec"`
	QuarantineApprove bool  `col:"quarantine_approve"`

	Attempt   int32  `col:"attempt"` // the number of the attempt from 1; 0: none yet
	AttemptID string `col:"attempt_id,null"`

	DepsTotal     int32 `col:"deps_total"`
	DepsSatisfied int32 `col:"deps_satisfied_count"` // resolved as SUCCESS
	DepsResolved  int32 `col:"deps_resolved_count"`  // resolved in any way
	// LeftOut is 0 if all upstreams had succeeded when the task became ready. Otherwise it is the fold
	// sequence number at which the task became ready. The task does not read later outputs of the
	// upstreams that had not succeeded.
	LeftOut int64 `col:"left_out"`

	// MaxAttempts is the limit of the task's policy plus GrantedAttempts.
	MaxAttempts int32 `col:"max_attempts"`
	// GrantedAttempts is the number of attempts granted for losses to infrastructure.
	GrantedAttempts         int32      `col:"granted_attempts"`
	RetryInitialDelayMS     int64      `col:"retry_initial_delay_ms"`
	RetryMaxDelayMS         int64      `col:"retry_max_delay_ms"`
	RetryMultiplierPermille int32      `col:"retry_multiplier_permille"`
	RetryJitterPermille     int32      `col:"retry_jitter_permille"`
	RetryUserErrors         bool       `col:"retry_user_errors"`
	RetryOn                 string     `col:"retry_on,null,dict"`    // codes and categories, joined by commas
	RetryNever              string     `col:"retry_never,null,dict"` // like RetryOn, but wins over it
	RetryNotBefore          event.Time `col:"retry_not_before,null"`

	TimeoutSec          int32      `col:"timeout_sec"` // 0: none
	HeartbeatTimeoutSec int32      `col:"heartbeat_timeout_sec"`
	LastHeartbeatAt     event.Time `col:"last_heartbeat_at,null"` // set when the attempt closes

	WorkerID    string     `col:"worker_id,null,dict"`
	CreatedAt   event.Time `col:"created_at"`
	ReadyAt     event.Time `col:"ready_at,null"`
	AdmittedAt  event.Time `col:"admitted_at,null"` // set while the task has its slots
	StartedAt   event.Time `col:"started_at,null"`
	CompletedAt event.Time `col:"completed_at,null"`

	Outcome           string `col:"outcome,null,dict"`
	ErrorCode         string `col:"error_code,null,dict"`
	ErrorMessage      string `col:"error_message,null"`
	OutputURI         string `col:"output_uri,null"`
	RowCount          int64  `col:"row_count"`
	ByteSize          int64  `col:"byte_size"`
	SchemaHash        string `col:"schema_hash,null"`
	MaterializationID string `col:"materialization_id,null"`
	Quality           string `col:"quality,null,dict"`
	// SLAAt is when the task has taken too long; 0: never, or it is reported. SLAMissed names the bounds that
	// it has missed: run, task.
	SLAAt     event.Time `col:"sla_at,null"`
	SLAMissed string     `col:"sla_missed,null,dict"`
	Meta
}

// Key returns the primary key.
func (r *Task) Key() Key2 { return Key2{r.RunID, r.TaskKey} }

func (*Task) newTable() store { return new(rowTable[Key2, Task, *Task]) }

// Resolution is how the upstream task of an edge ended.
type Resolution string

// Resolutions.
const (
	ResolvedSuccess   Resolution = "SUCCESS"
	ResolvedFailed    Resolution = "FAILED"
	ResolvedSkipped   Resolution = "SKIPPED"
	ResolvedCancelled Resolution = "CANCELLED"
)

// Dep is a row of dep_satisfaction: one edge of a run's graph.
type Dep struct {
	RunID             string     `col:"run_id,key"`
	Upstream          string     `col:"upstream_task_key,key"`
	Downstream        string     `col:"downstream_task_key,key"`
	Satisfied         bool       `col:"satisfied"`
	Resolution        Resolution `col:"resolution,null,dict"`
	SatisfiedAt       event.Time `col:"satisfied_at,null"`
	SatisfyingAttempt int32      `col:"satisfying_attempt"` // 0: none
	Meta
}

// Key returns the primary key.
func (r *Dep) Key() Key3 { return Key3{r.RunID, r.Upstream, r.Downstream} }

func (*Dep) newTable() store { return new(rowTable[Key3, Dep, *Dep]) }

// TimerState is the state of a timer.
type TimerState string

// Timer states.
const (
	TimerScheduled TimerState = "SCHEDULED"
	TimerFired     TimerState = "FIRED"
	TimerCancelled TimerState = "CANCELLED"
)

// Timer is a row of timers.
type Timer struct {
	TimerID       string     `col:"timer_id,key"`
	QueueTaskName string     `col:"queue_task_name"`
	TimerType     string     `col:"timer_type,dict"`
	RunID         string     `col:"run_id,null"`
	TaskKey       string     `col:"task_key,null"`
	Attempt       int32      `col:"attempt"`
	AttemptID     string     `col:"attempt_id,null"`
	Generation    int32      `col:"generation"`
	State         TimerState `col:"state,dict"`
	FireAt        event.Time `col:"fire_at"`
	HopAt         event.Time `col:"hop_at,null"` // when the queue calls, if that is before FireAt
	CreatedAt     event.Time `col:"created_at"`
	EnqueuedAt    event.Time `col:"enqueued_at,null"`
	FiredAt       event.Time `col:"fired_at,null"`
	Payload       string     `col:"payload,null"` // JSON
	Meta
}

// Key returns the primary key.
func (r *Timer) Key() string { return r.TimerID }

func (*Timer) newTable() store { return new(rowTable[string, Timer, *Timer]) }

// DispatchStatus is the progress of a dispatch.
type DispatchStatus string

// Dispatch states. A row is deleted when its attempt starts or closes.
const (
	DispatchPending DispatchStatus = "PENDING" // the queue task must be created
	DispatchCreated DispatchStatus = "CREATED" // the queue task exists
	DispatchFailed  DispatchStatus = "FAILED"  // the queue rejected the task permanently
	// DispatchCancelled marks a tombstone whose attempt was cancelled before it started: the queue
	// task must be deleted.
	DispatchCancelled DispatchStatus = "CANCELLED"
)

// Dispatch is a row of dispatch_outbox: an admitted attempt that has not started. The row contains
// everything that the task envelope needs.
type Dispatch struct {
	DispatchID          string         `col:"dispatch_id,key"`
	QueueTaskName       string         `col:"queue_task_name"`
	RunID               string         `col:"run_id"`
	TaskKey             string         `col:"task_key"`
	Attempt             int32          `col:"attempt"`
	AttemptID           string         `col:"attempt_id"`
	MaxAttempts         int32          `col:"max_attempts"`
	Generation          int32          `col:"generation"`
	Status              DispatchStatus `col:"status,dict"`
	WorkerQueue         string         `col:"worker_queue,dict"`
	PlanRef             string         `col:"plan_ref,dict"`
	AssetKey            string         `col:"asset_key,null,dict"`
	PartitionKey        string         `col:"partition_key,null,dict"`
	TimeoutSec          int32          `col:"timeout_sec"`
	HeartbeatTimeoutSec int32          `col:"heartbeat_timeout_sec"`
	CreatedAt           event.Time     `col:"created_at"`
	EnqueuedAt          event.Time     `col:"enqueued_at,null"`
	Deadline            event.Time     `col:"deadline,null"` // when the sweeper inspects a CREATED row
	Error               string         `col:"error,null"`
	Meta
}

// Key returns the primary key.
func (r *Dispatch) Key() string { return r.DispatchID }

func (*Dispatch) newTable() store { return new(rowTable[string, Dispatch, *Dispatch]) }

// AttemptState is the state of an attempt.
type AttemptState string

// Attempt states.
const (
	AttemptAdmitted AttemptState = "ADMITTED" // has its slots, has not started
	AttemptRunning  AttemptState = "RUNNING"
	AttemptClosed   AttemptState = "CLOSED"
)

// Reasons why another attempt follows a closed attempt.
const (
	RetryPolicy         = "POLICY"         // the task's retry policy allows another attempt
	RetryInfrastructure = "INFRASTRUCTURE" // the loss of the attempt granted another one
)

// Attempt is a row of attempts. Each attempt of a task has a row.
type Attempt struct {
	RunID        string       `col:"run_id,key"`
	TaskKey      string       `col:"task_key,key"`
	Attempt      int32        `col:"attempt,key"`
	AttemptID    string       `col:"attempt_id"`
	State        AttemptState `col:"state,dict"`
	WorkerID     string       `col:"worker_id,null,dict"`
	CreatedAt    event.Time   `col:"created_at"`
	StartedAt    event.Time   `col:"started_at,null"`
	FinishedAt   event.Time   `col:"finished_at,null"`
	Outcome      string       `col:"outcome,null,dict"`
	ErrorCode    string       `col:"error_code,null,dict"`
	ErrorMessage string       `col:"error_message,null"`
	ErrorDetails string       `col:"error_details,null"` // JSON
	Suggestion   string       `col:"suggested_action,null"`
	Retryable    bool         `col:"retryable"`
	RetryReason  string       `col:"retry_reason,null,dict"` // "": no attempt followed
	Metrics      string       `col:"metrics,null"`           // JSON
	CheckResults string       `col:"check_results,null"`     // JSON
	Log          string       `col:"log,null"`               // the whole log, if it is short; else an object has it
	Meta
}

// Key returns the primary key.
func (r *Attempt) Key() AttemptKey { return AttemptKey{r.RunID, r.TaskKey, r.Attempt} }

func (*Attempt) newTable() store { return new(rowTable[AttemptKey, Attempt, *Attempt]) }

// Heartbeat is a row of heartbeats: the last heartbeat of a running task.
type Heartbeat struct {
	RunID           string     `col:"run_id,key"`
	TaskKey         string     `col:"task_key,key"`
	AttemptID       string     `col:"attempt_id"`
	LastHeartbeatAt event.Time `col:"last_heartbeat_at"`
	Progress        int32      `col:"progress"`
	Message         string     `col:"message,null"`
	Meta
}

// Key returns the primary key.
func (r *Heartbeat) Key() Key2 { return Key2{r.RunID, r.TaskKey} }

func (*Heartbeat) newTable() store { return new(rowTable[Key2, Heartbeat, *Heartbeat]) }

// RunKey is a row of run_keys: a run key that is in use.
type RunKey struct {
	RunKey      string     `col:"run_key,key"`
	RunID       string     `col:"run_id"`
	Fingerprint string     `col:"fingerprint"`
	ExpiresAt   event.Time `col:"expires_at"`
	Meta
}

// Key returns the primary key.
func (r *RunKey) Key() string { return r.RunKey }

func (*RunKey) newTable() store { return new(rowTable[string, RunKey, *RunKey]) }

// RunKeyConflict is a row of run_key_conflicts: a run that was rejected because another run with a
// different request uses its key.
type RunKeyConflict struct {
	RunKey              string     `col:"run_key,key"`
	RunID               string     `col:"run_id,key"` // the rejected run
	Fingerprint         string     `col:"fingerprint"`
	ExistingRunID       string     `col:"existing_run_id"`
	ExistingFingerprint string     `col:"existing_fingerprint"`
	DetectedAt          event.Time `col:"detected_at"`
	Meta
}

// Key returns the primary key.
func (r *RunKeyConflict) Key() Key2 { return Key2{r.RunKey, r.RunID} }

func (*RunKeyConflict) newTable() store { return new(rowTable[Key2, RunKeyConflict, *RunKeyConflict]) }

// Limit is a row of limits: how many tasks of a scope may run at once. The row of a removed limit
// stays: its version prevents earlier commands from setting the limit again.
type Limit struct {
	Scope   string `col:"scope,key"`
	Name    string `col:"name,key"` // empty for the workspace
	Slots   int32  `col:"slots"`    // if removed: the limit for older builds
	Removed bool   `col:"removed"`
	Meta
}

// Key returns the primary key.
func (r *Limit) Key() Key2 { return Key2{r.Scope, r.Name} }

func (*Limit) newTable() store { return new(rowTable[Key2, Limit, *Limit]) }

// Qualities of an output. Empty: its asset has no check of severity CRITICAL or ERROR.
const (
	Passed   = "passed"
	Degraded = "degraded" // a check of severity ERROR failed
	Approved = "approved" // a check of severity CRITICAL failed, and a decision has published the output
)

// CheckResult is a row of check_results: the result of a check in the last attempt of a task that
// reported an end.
type CheckResult struct {
	RunID     string     `col:"run_id,key"`
	TaskKey   string     `col:"task_key,key"`
	Check     string     `col:"check_name,key"`
	Attempt   int32      `col:"attempt"`
	Phase     string     `col:"phase,null,dict"`
	Severity  string     `col:"severity,null,dict"`
	Passed    bool       `col:"passed"`
	Broken    bool       `col:"broken"`
	Failing   int64      `col:"failing"`
	Actual    string     `col:"actual,null"`
	Expected  string     `col:"expected,null,dict"`
	Message   string     `col:"message,null"`
	Sample    string     `col:"sample,null"`
	CheckedAt event.Time `col:"checked_at"`
	Meta
}

// Key returns the primary key.
func (r *CheckResult) Key() Key3 { return Key3{r.RunID, r.TaskKey, r.Check} }

func (*CheckResult) newTable() store { return new(rowTable[Key3, CheckResult, *CheckResult]) }

// AssetCheck is a row of asset_checks: the number of results of an asset's check, and its last results.
type AssetCheck struct {
	AssetKey        string     `col:"asset_key,key,dict"`
	Check           string     `col:"check_name,key"`
	Phase           string     `col:"phase,null,dict"`
	Severity        string     `col:"severity,null,dict"`
	Passed          int64      `col:"passed"` // number of results
	Failed          int64      `col:"failed"`
	LastRunID       string     `col:"last_run_id"`
	LastPartition   string     `col:"last_partition_key,null"`
	LastAt          event.Time `col:"last_at"`
	LastPassed      bool       `col:"last_passed"`
	FailedRunID     string     `col:"failed_run_id,null"`
	FailedPartition string     `col:"failed_partition_key,null"`
	FailedAt        event.Time `col:"failed_at,null"`
	FailedMessage   string     `col:"failed_message,null"`
	FailedSample    string     `col:"failed_sample,null"`
	Meta
}

// Key returns the primary key.
func (r *AssetCheck) Key() Key2 { return Key2{r.AssetKey, r.Check} }

func (*AssetCheck) newTable() store { return new(rowTable[Key2, AssetCheck, *AssetCheck]) }

// Materialized is the status of a partition with an output.
const Materialized = "MATERIALIZED"

// ChangedCode replaces the code fingerprint of an output if its task may have read other files than
// the plan names. It equals no fingerprint, so the output is stale under every release.
const ChangedCode = "changed"

// Partition is a row of partition_status: the current output of a partition. An unpartitioned
// asset has one row, with an empty partition key.
type Partition struct {
	AssetKey          string     `col:"asset_key,key,dict"`
	PartitionKey      string     `col:"partition_key,key"`
	Status            string     `col:"status,dict"` // MATERIALIZED
	MaterializationID string     `col:"last_materialization_id"`
	MaterializedAt    event.Time `col:"last_materialization_at"`
	RunID             string     `col:"run_id"`
	TaskKey           string     `col:"task_key"`
	OutputURI         string     `col:"output_uri,null"`
	RowCount          int64      `col:"row_count"`
	ByteSize          int64      `col:"byte_size"`
	SchemaHash        string     `col:"schema_hash,null,dict"`
	Quality           string     `col:"quality,null,dict"`
	// Code is the code fingerprint of the task that made the output; "": unknown. It may be
	// [ChangedCode].
	Code string `col:"code,null,dict"`
	// VersionSeq is the fold sequence at which the output became visible.
	VersionSeq int64 `col:"version_seq"`
	// InputsSeq, RootRun and LeftOut say what the output was made from: see [Run] and [Task]. An
	// approved output was made before it became visible: its LeftOut is never 0.
	InputsSeq int64  `col:"inputs_seq"`
	RootRun   string `col:"root_run,null"`
	LeftOut   int64  `col:"left_out"`
	Meta
}

// Key returns the primary key.
func (r *Partition) Key() Key2 { return Key2{r.AssetKey, r.PartitionKey} }

func (*Partition) newTable() store { return new(rowTable[Key2, Partition, *Partition]) }

// Root returns the first run of the chain of retries that made the output.
func (r *Partition) Root() string { return cmp.Or(r.RootRun, r.RunID) }

// ReadIn returns the first run of the chain of retries whose tasks may have read the output before others could, or "".
// An approved output has no such chain, because no task reads an output in quarantine.
func (r *Partition) ReadIn() string {
	if r.Quality == Approved {
		return ""
	}
	return r.Root()
}

// Incomplete reports whether the task of the output ran although an upstream task had not succeeded. Such a task has
// not read the older output of that upstream, even if an earlier run of its chain of retries made it. Only outputs of
// its own run were certainly read. A complete output that was approved counts as incomplete, too, if its chain was
// planned on an empty state. The row does not tell the two apart.
func (r *Partition) Incomplete() bool { return r.LeftOut > 0 && r.InputsSeq == 0 }

// Deployment is a row of deployments. The row without SupersededAt is the current deployment; it has
// the greatest id.
type Deployment struct {
	DeployID     string     `col:"deploy_id,key"`
	Release      string     `col:"release"`
	Kind         string     `col:"kind,dict"`
	Environment  string     `col:"environment,null,dict"`
	Actor        string     `col:"actor,null,dict"`
	Git          string     `col:"git,null"` // JSON
	Message      string     `col:"message,null"`
	Changes      string     `col:"changes"` // JSON
	DeployedAt   event.Time `col:"deployed_at"`
	SupersededAt event.Time `col:"superseded_at,null"`
	SupersededBy string     `col:"superseded_by,null"`
	// Schedules identifies the schedules of the release; "": it has none. SchedulesPending means that the
	// rows of schedules may differ from the release: an automator compares them.
	Schedules        string `col:"schedules,null"`
	SchedulesPending bool   `col:"schedules_pending"`
	Meta
}

// Key returns the primary key.
func (r *Deployment) Key() string { return r.DeployID }

func (*Deployment) newTable() store { return new(rowTable[string, Deployment, *Deployment]) }

// AcceptedCode is a row of accepted_codes: the codes of an asset that are accepted in place of one code.
type AcceptedCode struct {
	AssetKey string `col:"asset_key,key,dict"`
	Code     string `col:"code,key"`
	Accepts  string `col:"accepts"` // JSON
	Meta
}

// Key returns the primary key.
func (r *AcceptedCode) Key() Key2 { return Key2{r.AssetKey, r.Code} }

func (*AcceptedCode) newTable() store { return new(rowTable[Key2, AcceptedCode, *AcceptedCode]) }

// EntryOutcome is the result of folding a group of an entry.
type EntryOutcome string

// Entry outcomes.
const (
	Folded     EntryOutcome = "FOLDED"
	NoChange   EntryOutcome = "NO_CHANGE"
	Stale      EntryOutcome = "STALE"    // the attempt, timer or dispatch was replaced or has ended
	Late       EntryOutcome = "LATE"     // the run is closed
	Conflict   EntryOutcome = "CONFLICT" // excluded by another run or deployment
	DeadLetter EntryOutcome = "DEAD_LETTER"
)

// Entry is a row of ledger_entries: a processed group of an entry. A malformed line is a group of
// its own, with its line number as the name.
type Entry struct {
	Entry    string       `col:"entry,key"`
	Group    string       `col:"group_id,key"`
	Revision int64        `col:"revision"` // the manifest that published it
	FirstSeq int64        `col:"first_seq"`
	Events   int32        `col:"events"`
	Bytes    int64        `col:"bytes"`
	Outcome  EntryOutcome `col:"outcome,dict"`
	Reason   string       `col:"reason,null,dict"`
	Detail   string       `col:"detail,null"`
	RunID    string       `col:"run_id,null"` // the run that a dead letter waits for
	FoldedAt event.Time   `col:"folded_at"`
	Meta
}

// Key returns the primary key.
func (r *Entry) Key() Key2 { return Key2{r.Entry, r.Group} }

func (*Entry) newTable() store { return new(rowTable[Key2, Entry, *Entry]) }
