package state

import (
	"github.com/servo-orchestration/servo/pkg/event"
)

// TaskState is the state of a task.
type TaskState string

// Task states, in the order of their ranks.
const (
	TaskPlanned    TaskState = "PLANNED" // the edges of the task are not evaluated yet; never in a published row
	TaskBlocked    TaskState = "BLOCKED"
	TaskReady      TaskState = "READY"      // admitted if it has an outbox row; otherwise waits for a slot
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
	// QuarantineSec is how long an output that a check has blocked waits for a decision; 0: the output is not kept.
	// QuarantineApprove means that the output is published if nobody has decided when this time ends.
	QuarantineSec     int64 `col:"quarantine_sec"`
	QuarantineApprove bool  `col:"quarantine_approve"`

	Attempt   int32  `col:"attempt"` // the number of the current attempt, from 1; 0: none yet
	AttemptID string `col:"attempt_id,null"`

	DepsTotal     int32 `col:"deps_total"`
	DepsSatisfied int32 `col:"deps_satisfied_count"` // number of edges that are resolved as SUCCESS
	DepsResolved  int32 `col:"deps_resolved_count"`  // number of edges that are resolved in any way
	// LeftOut is 0 if the task has read the visible outputs of all upstreams: when it became ready, all of them had
	// succeeded, and their outputs were visible. Otherwise, LeftOut is the fold sequence number at which the task
	// became ready. There are two such cases. First: an upstream had not succeeded. If it succeeds in a later run, the
	// task has not read the new output. Second: an upstream had succeeded, but its output was not visible, because a
	// run that was triggered later had already materialized the partition. The task has read the output of its own run,
	// and not the visible output.
	LeftOut int64 `col:"left_out"`

	// MaxAttempts is the limit of the task's policy plus GrantedAttempts.
	MaxAttempts int32 `col:"max_attempts"`
	// GrantedAttempts is the number of attempts that were granted for losses: attempts that failed because of the
	// infrastructure.
	GrantedAttempts         int32      `col:"granted_attempts"`
	RetryInitialDelayMS     int64      `col:"retry_initial_delay_ms"`
	RetryMaxDelayMS         int64      `col:"retry_max_delay_ms"`
	RetryMultiplierPermille int32      `col:"retry_multiplier_permille"`
	RetryJitterPermille     int32      `col:"retry_jitter_permille"`
	RetryUserErrors         bool       `col:"retry_user_errors"`
	RetryOn                 string     `col:"retry_on,null,dict"`    // codes and categories of errors, joined by commas
	RetryNever              string     `col:"retry_never,null,dict"` // takes precedence over RetryOn; same form
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
	// SLAAt is the time at which the task exceeds its next SLA. 0: there is no such time, or the miss was already
	// reported. SLAMissed names the limits that the task has missed: run, task.
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
	HopAt         event.Time `col:"hop_at,null"` // if set, the queue task fires at this time, before FireAt, because queues limit the delay of a task
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

// Dispatch is a row of dispatch_outbox: an admitted attempt that has not started. The row contains everything from
// which the dispatcher makes the task's envelope.
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
	Deadline            event.Time     `col:"deadline,null"` // when a sweep dispatches a CREATED row again
	Error               string         `col:"error,null"`
	Priority            int32          `col:"priority"` // the priority of the task
	Meta
}

// Key returns the primary key.
func (r *Dispatch) Key() string { return r.DispatchID }

func (*Dispatch) newTable() store { return new(rowTable[string, Dispatch, *Dispatch]) }

// AttemptState is the state of an attempt.
type AttemptState string

// Attempt states.
const (
	AttemptAdmitted AttemptState = "ADMITTED" // has its slots but has not started
	AttemptRunning  AttemptState = "RUNNING"
	AttemptClosed   AttemptState = "CLOSED"
)

// Reasons why another attempt follows a closed attempt.
const (
	RetryPolicy         = "POLICY"         // the task's retry policy allows another attempt
	RetryInfrastructure = "INFRASTRUCTURE" // the infrastructure lost the attempt and the fold granted another one
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
	RetryReason  string       `col:"retry_reason,null,dict"` // "": no attempt follows
	Metrics      string       `col:"metrics,null"`           // JSON
	CheckResults string       `col:"check_results,null"`     // JSON
	Log          string       `col:"log,null"`               // the whole log, if it is short; a long log is in an object
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
