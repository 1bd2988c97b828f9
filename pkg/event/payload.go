package event

import (
	"encoding/json"
	"strconv"
)

// Payload is the content of an event. The set is sealed: a new kind needs a type here, a
// schema, and a case in the fold.
//
//sumtype:decl
type Payload interface {
	// Type is the event type, for example "TaskFinished".
	Type() string
	// Version is the version of the payload's schema.
	Version() int
	// Key is the natural key with a verb as prefix.
	Key() string

	payload()
}

// Trigger is the cause of a run.
type Trigger struct {
	// Type is "manual", "cron", "sensor", "materialization", "webhook", "backfill" or "retry".
	Type        string `json:"type"`
	UserID      string `json:"user_id,omitempty"`
	ScheduleID  string `json:"schedule_id,omitempty"` // for a retry: the schedule of the first run of its chain
	TickID      string `json:"tick_id,omitempty"`     // the tick of the schedule
	SensorID    string `json:"sensor_id,omitempty"`
	WebhookID   string `json:"webhook_id,omitempty"`
	BackfillID  string `json:"backfill_id,omitempty"`
	ParentRunID string `json:"parent_run_id,omitempty"`
	// UpstreamMaterializationID is the materialization that triggered the run.
	UpstreamMaterializationID string `json:"upstream_materialization_id,omitempty"`
}

// RunTriggered is the intent to run a plan. The same group contains the [PlanCreated] of the run.
type RunTriggered struct {
	RunID   string  `json:"run_id"`
	PlanID  string  `json:"plan_id"`
	Trigger Trigger `json:"trigger"`
	// RootAssets are the requested asset keys.
	RootAssets []string `json:"root_assets,omitempty"`
	// RunKey makes the run unique in its domain for 30 days.
	RunKey string `json:"run_key,omitempty"`
	// Fingerprint identifies the request: a second request with the same run key and another fingerprint is a conflict.
	Fingerprint        string            `json:"fingerprint,omitempty"`
	PartitionSelection []string          `json:"partition_selection,omitempty"`
	MaxParallelism     int32             `json:"max_parallelism,omitempty"`
	TimeoutSec         int32             `json:"timeout_sec,omitempty"`
	CancelGraceSec     int32             `json:"cancel_grace_sec,omitempty"`
	Labels             map[string]string `json:"labels,omitempty"`
	// Release is the hash of the release that the run executes; "": no release is deployed.
	Release string `json:"release,omitempty"`
	// RootRun is the first run of the chain of retries; "": the run is not a retry.
	RootRun string `json:"root_run,omitempty"`
	// AfterRun is the last run of the chain of retries that the writer has seen. The retry is rejected if another retry
	// of the chain has been created since.
	AfterRun string `json:"after_run,omitempty"`
	// Vars are the values of variables that the request overrides.
	Vars map[string]string `json:"vars,omitempty"`
	// AllowIncomplete means that the request accepts missing partitions of upstream assets.
	AllowIncomplete bool `json:"allow_incomplete,omitempty"`
	// RequestID is the id of the row of run_requests for which the run was planned; "": a caller has triggered the run
	// directly. If RequestID is set, RunID is the run of the request.
	RequestID string `json:"request_id,omitempty"`
	// Chunk says which partitions of a backfill's chunk the run materializes; nil: the request is not for a chunk.
	Chunk *ChunkPlan `json:"chunk,omitempty"`
}

// Task kinds.
const (
	KindTask = "task"
	// KindGroup is a node that is never dispatched. It succeeds as soon as its upstreams have ended as its trigger rule
	// requires. A downstream task needs only one edge to it instead of an edge to each upstream.
	KindGroup = "group"
	// KindCheck is a task that only checks the visible output of a partition. It materializes nothing. The kind occurs
	// only in stored plans, never in events. A build that does not know this kind rejects the plan, so it never treats
	// a check as a materialization of the partition.
	KindCheck = "check"
)

// OutputNone is the output of a task that leaves no files.
const OutputNone = "none"

// Trigger rules: when a task may start, given how its upstreams ended.
const (
	RuleAllSuccess = "all_success" // every upstream succeeded
	RuleNoneFailed = "none_failed" // every upstream succeeded or was skipped
	RuleAllDone    = "all_done"    // every upstream ended, with any outcome
)

// Limits of a batch: the number of partitions of a task, and the total length of their keys in
// bytes.
const (
	MaxBatch      = 1000
	MaxBatchBytes = 64 << 10
)

// TaskDef is a task of a plan.
type TaskDef struct {
	TaskKey      string `json:"task_key"`
	Kind         string `json:"kind,omitempty"` // "": task
	AssetKey     string `json:"asset_key,omitempty"`
	PartitionKey string `json:"partition_key,omitempty"`
	// Partitions are the partitions of a batch; PartitionKey is the first of them. Empty: the task materializes
	// PartitionKey only.
	Partitions []string `json:"partitions,omitempty"`

	DependsOn   []string `json:"depends_on,omitempty"`
	TriggerRule string   `json:"trigger_rule,omitempty"` // "": all_success
	WorkerQueue string   `json:"worker_queue,omitempty"` // "": the queue named default
	Pool        string   `json:"pool,omitempty"`
	Priority    int32    `json:"priority,omitempty"` // a task of greater priority starts first

	// Output is OutputNone for a task that leaves no files and thus no commit marker.
	Output string `json:"output,omitempty"`
	// Code is the code fingerprint of the asset; "": unknown.
	Code string `json:"code,omitempty"`

	// Checks are the names of the asset's checks of severity CRITICAL, and ErrorChecks those of severity ERROR. A success
	// must report their results.
	Checks      []string `json:"checks,omitempty"`
	ErrorChecks []string `json:"error_checks,omitempty"`
	// RequireQuality lists assets whose degraded outputs the task must not read. If a task in DependsOn makes a
	// degraded output of a listed asset, the task with RequireQuality is skipped.
	RequireQuality []string `json:"require_quality,omitempty"`
	// Quarantine says how long a blocked output is kept for a decision; nil: a blocked output is not kept.
	Quarantine *Quarantine `json:"quarantine,omitempty"`

	MaxAttempts         int32 `json:"max_attempts,omitempty"` // 0: 1
	RetryInitialDelayMS int64 `json:"retry_initial_delay_ms,omitempty"`
	RetryMaxDelayMS     int64 `json:"retry_max_delay_ms,omitempty"`
	// RetryMultiplierPermille is the backoff factor in thousandths: 2000 doubles the delay.
	RetryMultiplierPermille int32 `json:"retry_multiplier_permille,omitempty"`
	// RetryJitterPermille is the random part of the delay, in thousandths.
	RetryJitterPermille int32 `json:"retry_jitter_permille,omitempty"`
	// RetryUserErrors also retries errors of the category "user" that the worker reports as
	// retryable.
	RetryUserErrors bool `json:"retry_user_errors,omitempty"`
	// RetryOn contains the codes and categories of errors that are always retried, and RetryNever those that are never
	// retried. RetryNever wins. Other errors are retried if they are retryable.
	RetryOn    []string `json:"retry_on,omitempty"`
	RetryNever []string `json:"retry_never,omitempty"`

	TimeoutSec          int32 `json:"timeout_sec,omitempty"`           // 0: no timeout
	HeartbeatTimeoutSec int32 `json:"heartbeat_timeout_sec,omitempty"` // 0: the default
}

// PlanCreated contains a run's plan if the plan is small, and a reference to the stored plan otherwise.
type PlanCreated struct {
	RunID  string `json:"run_id"`
	PlanID string `json:"plan_id"`
	// PlanRef is the object key of the execution plan.
	PlanRef     string    `json:"plan_ref"`
	Fingerprint string    `json:"fingerprint,omitempty"`
	TasksTotal  int32     `json:"tasks_total,omitempty"`
	Tasks       []TaskDef `json:"tasks,omitempty"`
	// ObservedSeq and ObservedTime are the fold sequence and the fold time of the state on which the run was planned. A
	// retry usually copies the values of the run that it repeats. But the state on which that run was planned may already
	// show a later output than the one that the retry reads. Then the retry has values from before that output.
	ObservedSeq  int64 `json:"observed_seq,omitempty"`
	ObservedTime Time  `json:"observed_time,omitempty,omitzero"`
	// ObservedThrough, ObservedLast and ObservedEntries identify the ledger entries in the state on which the run was
	// planned, for a rebuild from the bare ledger. The state contained every entry below ObservedThrough. ObservedEntries
	// is a hash of the state's other entries up to ObservedLast, except entries of fired timers. All three fields are
	// empty for a retry.
	ObservedThrough string `json:"observed_through,omitempty"`
	ObservedLast    string `json:"observed_last,omitempty"`
	ObservedEntries string `json:"observed_entries,omitempty"`
}

// RunCancelRequested is the command to end a run early.
type RunCancelRequested struct {
	RunID  string `json:"run_id"`
	Reason string `json:"reason,omitempty"`
	// Force ends running attempts immediately, without a grace period.
	Force bool `json:"force,omitempty"`
	// CommandKey and Fingerprint deduplicate the command, as in [AutomationCommand].
	CommandKey  string `json:"command_key,omitempty"`
	Fingerprint string `json:"fingerprint,omitempty"`
}

// Limit scopes.
const (
	ScopeWorkspace = "workspace"
	ScopePool      = "pool"
)

// LimitSet is the command to set or remove the limit of a scope: how many of its tasks may
// run at once.
type LimitSet struct {
	// CommandID makes the command unique.
	CommandID string `json:"command_id"`
	// Scope is "workspace" or "pool".
	Scope string `json:"scope"`
	// Name is the pool's name; empty for the workspace.
	Name  string `json:"name,omitempty"`
	Slots int32  `json:"slots"`
	// Remove removes the limit. Slots then contains the number of slots that the scope has without a limit, for builds
	// that do not know Remove.
	Remove bool `json:"remove,omitempty"`
}

// DispatchRequested requests that a lost attempt be dispatched again. The first dispatch of an attempt needs no
// event: the fold derives it.
type DispatchRequested struct {
	RunID       string `json:"run_id"`
	TaskKey     string `json:"task_key"`
	Attempt     int32  `json:"attempt"`
	AttemptID   string `json:"attempt_id"`
	DispatchID  string `json:"dispatch_id"`
	Generation  int32  `json:"generation"`
	WorkerQueue string `json:"worker_queue,omitempty"`
}

// Error is a failure reported by a worker or a queue.
type Error struct {
	Code      string `json:"code,omitempty"`
	Category  string `json:"category,omitempty"`
	Message   string `json:"message,omitempty"`
	Retryable bool   `json:"retryable,omitempty"`
	// Details describe the error for programs: a JSON object of at most [MaxDetails] bytes.
	Details string `json:"details,omitempty"`
	// SuggestedAction says what to do next.
	SuggestedAction string `json:"suggested_action,omitempty"`
	// RetryAfterMS is the minimum delay before a retry; 0: only the retry policy determines the delay.
	RetryAfterMS int64 `json:"retry_after_ms,omitempty"`
}

// DispatchEnqueued acknowledges that the queue has accepted the queue task of an attempt.
type DispatchEnqueued struct {
	DispatchID    string `json:"dispatch_id"`
	RunID         string `json:"run_id"`
	TaskKey       string `json:"task_key"`
	Attempt       int32  `json:"attempt"`
	Generation    int32  `json:"generation"`
	QueueTaskName string `json:"queue_task_name"`
	// Deduplicated reports that the queue already had a queue task with this name.
	Deduplicated bool `json:"deduplicated,omitempty"`
}

// DispatchFailed reports that the queue permanently rejected the queue task of an attempt.
type DispatchFailed struct {
	DispatchID string `json:"dispatch_id"`
	RunID      string `json:"run_id"`
	TaskKey    string `json:"task_key"`
	Attempt    int32  `json:"attempt"`
	Generation int32  `json:"generation"`
	Error      Error  `json:"error"`
}

// Timer types.
const (
	TimerRetry = "RETRY"
	// TimerLiveness is the domain's timer for its earliest deadline: the next heartbeat, the timeout of a task or a run,
	// the end of a cancellation's grace period, or the expiry of an output in quarantine.
	TimerLiveness = "LIVENESS"
	// TimerWake is the domain's timer for its earliest planned time: when a schedule ticks, a request is to run, a
	// notification is to be sent, or a deadline, a freshness limit or an SLA is to be judged.
	TimerWake = "WAKE"
)

// TimerRequested requests a timer that the fold does not derive, or requests that a lost timer be scheduled again.
type TimerRequested struct {
	TimerID    string          `json:"timer_id"`
	TimerType  string          `json:"timer_type"`
	Generation int32           `json:"generation"`
	FireAt     Time            `json:"fire_at"`
	Payload    json.RawMessage `json:"payload,omitempty"`
}

// TimerEnqueued acknowledges that the queue has accepted the queue task of a timer.
type TimerEnqueued struct {
	TimerID       string `json:"timer_id"`
	Generation    int32  `json:"generation"`
	QueueTaskName string `json:"queue_task_name"`
	// HopAt is set if the timer is due later than the queue can schedule a task. The queue task then fires at HopAt,
	// before the timer is due, and the timer is scheduled again.
	HopAt Time `json:"hop_at,omitempty,omitzero"`
}

// Observed identifies the state that the writer of an event had read.
type Observed struct {
	// CaughtUpAt is the latest time at which the whole ledger was known to be folded.
	CaughtUpAt Time  `json:"caught_up_at,omitempty,omitzero"`
	Revision   int64 `json:"revision,omitempty"`
}

// TimerFired reports that a timer is due. The fold decides which deadlines have passed at
// FiredAt.
type TimerFired struct {
	TimerID    string   `json:"timer_id"`
	Generation int32    `json:"generation"`
	FiredAt    Time     `json:"fired_at"`
	Observed   Observed `json:"observed"`
}

// AttemptRef identifies an attempt in a worker's report.
type AttemptRef struct {
	RunID     string `json:"run_id"`
	TaskKey   string `json:"task_key"`
	Attempt   int32  `json:"attempt"`
	AttemptID string `json:"attempt_id"`
	WorkerID  string `json:"worker_id,omitempty"`
	// GrantedAttempts is the number of extra attempts that were granted because earlier attempts were lost. A fold that
	// has not seen these losses takes the number from this field.
	GrantedAttempts int32 `json:"granted_attempts,omitempty"`
}

// MaxGrantedAttempts is the maximum number of extra attempts that a task gets for lost attempts.
const MaxGrantedAttempts = 10

// TaskStarted reports that a worker has begun an attempt.
type TaskStarted struct {
	AttemptRef
	StartedAt Time `json:"started_at"`
	// Plan is a prefix of the hash of the executed plan. It is set only if two plans may exist for the run, that is,
	// if the run comes from a request.
	Plan string `json:"plan,omitempty"`
}

// TaskHeartbeat reports that an attempt is alive.
type TaskHeartbeat struct {
	AttemptRef
	HeartbeatAt Time `json:"heartbeat_at"`
	// Progress is a percentage.
	Progress int32  `json:"progress,omitempty"`
	Message  string `json:"message,omitempty"`
}

// Outcome is the result of an attempt.
type Outcome string

// Outcomes.
const (
	Succeeded Outcome = "succeeded"
	Failed    Outcome = "failed"
	Skipped   Outcome = "skipped"
	Cancelled Outcome = "cancelled"
	TimedOut  Outcome = "timed_out"
)

// Output is the output of a task, as recorded in its commit marker.
type Output struct {
	// URI is the object key of the directory that contains the files.
	URI        string `json:"uri"`
	RowCount   int64  `json:"row_count,omitempty"`
	ByteSize   int64  `json:"byte_size,omitempty"`
	SchemaHash string `json:"schema_hash,omitempty"`
	// Cells are the partitions of a batch, in the order in which its task lists them. RowCount and ByteSize of Output
	// are the sums over Cells.
	Cells []OutputCell `json:"cells,omitempty"`
}

// OutputCell is the output of one partition of a batch.
type OutputCell struct {
	RowCount int64 `json:"row_count,omitempty"`
	ByteSize int64 `json:"byte_size,omitempty"`
}

// CheckResult is the outcome of one quality check.
type CheckResult struct {
	Name     string `json:"name"`
	Passed   bool   `json:"passed"`
	Severity string `json:"severity,omitempty"` // CRITICAL, ERROR, WARNING or INFO
	Phase    string `json:"phase,omitempty"`    // PRE or POST
	// Broken means that the check could not be executed. It counts as failed.
	Broken bool `json:"broken,omitempty"`
	// Failing is the number of failing rows. Actual and Expected describe a measured value.
	Failing  int64  `json:"failing,omitempty"`
	Actual   string `json:"actual,omitempty"`
	Expected string `json:"expected,omitempty"`
	Message  string `json:"message,omitempty"`
	// Measured is a value with which later results of the check are compared; nil: none. Season is the day of the week
	// of the partition, such as monday, if only results for the same day are compared.
	Measured *int64 `json:"measured,omitempty"`
	Season   string `json:"season,omitempty"`
	// Metric names the measured value; "": the number of rows. Only results with the same metric are compared.
	Metric string `json:"metric,omitempty"`
	// Sample is the object key of a Parquet file with some of the failing rows.
	Sample string `json:"sample,omitempty"`
}

// TaskFinished reports the end of an attempt.
type TaskFinished struct {
	AttemptRef
	// Plan has the same meaning as in [TaskStarted].
	Plan    string  `json:"plan,omitempty"`
	Outcome Outcome `json:"outcome"`
	Error   *Error  `json:"error,omitempty"`
	// Output is the output of a success. In the report of a failure, it is the output that a check has blocked and
	// that is in quarantine.
	Output            *Output       `json:"output,omitempty"`
	MaterializationID string        `json:"materialization_id,omitempty"`
	CheckResults      []CheckResult `json:"check_results,omitempty"`
	// CodeChanged means that a file of the asset's code differed from the plan when the task began, or was written while
	// the task ran.
	CodeChanged bool `json:"code_changed,omitempty"`
	// Metrics are the worker's measurements: integers, with the unit in the name.
	Metrics map[string]int64 `json:"metrics,omitempty"`
	// Log is the whole log of the attempt, if the log is short.
	Log         string `json:"log,omitempty"`
	StartedAt   Time   `json:"started_at,omitempty,omitzero"`
	CompletedAt Time   `json:"completed_at,omitempty,omitzero"`
}

func attemptKey(verb string, r AttemptRef) string {
	return verb + ":" + r.RunID + ":" + r.TaskKey + ":" + strconv.Itoa(int(r.Attempt))
}

func generationKey(verb, id string, generation int32) string {
	return verb + ":" + id + "#" + strconv.Itoa(int(generation))
}

func (*RunTriggered) Type() string       { return "RunTriggered" }
func (*PlanCreated) Type() string        { return "PlanCreated" }
func (*RunCancelRequested) Type() string { return "RunCancelRequested" }
func (*LimitSet) Type() string           { return "LimitSet" }
func (*QuarantineResolved) Type() string { return "QuarantineResolved" }
func (*ProjectDeployed) Type() string    { return "ProjectDeployed" }
func (*PartitionsChanged) Type() string  { return "PartitionsChanged" }
func (*PartitionsMarked) Type() string   { return "PartitionsMarked" }
func (*RunRequested) Type() string       { return "RunRequested" }
func (*RequestRefused) Type() string     { return "RequestRefused" }
func (*SchedulesDefined) Type() string   { return "SchedulesDefined" }
func (*CalendarAdvanced) Type() string   { return "CalendarAdvanced" }
func (*AutomationCommand) Type() string  { return "AutomationCommand" }
func (*RevisionPinned) Type() string     { return "RevisionPinned" }
func (*AssetsForgotten) Type() string    { return "AssetsForgotten" }
func (*NotificationEnded) Type() string  { return "NotificationEnded" }
func (*DeadlineJudged) Type() string     { return "DeadlineJudged" }
func (*DispatchRequested) Type() string  { return "DispatchRequested" }
func (*DispatchEnqueued) Type() string   { return "DispatchEnqueued" }
func (*DispatchFailed) Type() string     { return "DispatchFailed" }
func (*TimerRequested) Type() string     { return "TimerRequested" }
func (*TimerEnqueued) Type() string      { return "TimerEnqueued" }
func (*TimerFired) Type() string         { return "TimerFired" }
func (*TaskStarted) Type() string        { return "TaskStarted" }
func (*TaskHeartbeat) Type() string      { return "TaskHeartbeat" }
func (*TaskFinished) Type() string       { return "TaskFinished" }

func (*RunTriggered) Version() int       { return 1 }
func (*PlanCreated) Version() int        { return 1 }
func (*RunCancelRequested) Version() int { return 1 }
func (*LimitSet) Version() int           { return 1 }
func (*QuarantineResolved) Version() int { return 1 }
func (*ProjectDeployed) Version() int    { return 1 }
func (*PartitionsChanged) Version() int  { return 1 }
func (*PartitionsMarked) Version() int   { return 1 }
func (*RunRequested) Version() int       { return 1 }
func (*RequestRefused) Version() int     { return 1 }
func (*SchedulesDefined) Version() int   { return 1 }
func (*CalendarAdvanced) Version() int   { return 1 }
func (*AutomationCommand) Version() int  { return 1 }
func (*RevisionPinned) Version() int     { return 1 }
func (*AssetsForgotten) Version() int    { return 1 }
func (*NotificationEnded) Version() int  { return 1 }
func (*DeadlineJudged) Version() int     { return 1 }
func (*DispatchRequested) Version() int  { return 1 }
func (*DispatchEnqueued) Version() int   { return 1 }
func (*DispatchFailed) Version() int     { return 1 }
func (*TimerRequested) Version() int     { return 1 }
func (*TimerEnqueued) Version() int      { return 1 }
func (*TimerFired) Version() int         { return 1 }
func (*TaskStarted) Version() int        { return 1 }
func (*TaskHeartbeat) Version() int      { return 1 }
func (*TaskFinished) Version() int       { return 1 }

func (p *RunTriggered) Key() string { return "run:" + p.RunID }
func (p *PlanCreated) Key() string  { return "plan:" + p.RunID }
func (p *RunCancelRequested) Key() string {
	return "cancel:" + p.RunID + ":" + strconv.FormatBool(p.Force)
}
func (p *LimitSet) Key() string        { return "limit:" + p.CommandID }
func (p *ProjectDeployed) Key() string { return "deploy:" + p.DeployID }

func (p *QuarantineResolved) Key() string { return "quarantine:" + p.CommandID }

func (p *PartitionsChanged) Key() string { return "partitions:" + p.CommandID }
func (p *PartitionsMarked) Key() string  { return "mark:" + p.CommandID }
func (p *RevisionPinned) Key() string    { return "pinned:" + p.CommandID }
func (p *AssetsForgotten) Key() string   { return "forgotten:" + p.CommandID }

func (p *RunRequested) Key() string { return "request:" + p.CommandID }

func (p *RequestRefused) Key() string {
	return generationKey("refused_request", p.RequestID, p.Generation)
}

func (p *SchedulesDefined) Key() string { return generationKey("schedules", p.DeployID, p.Part) }

func (p *AutomationCommand) Key() string { return "command:" + p.CommandID }

func (p *NotificationEnded) Key() string {
	return "notified:" + p.NotificationID + ":" + strconv.Itoa(int(p.Try))
}

func (p *DispatchRequested) Key() string {
	return generationKey("redispatch", p.DispatchID, p.Generation)
}

func (p *DispatchEnqueued) Key() string { return generationKey("enqueued", p.DispatchID, p.Generation) }

func (p *DispatchFailed) Key() string { return generationKey("refused", p.DispatchID, p.Generation) }
func (p *TimerRequested) Key() string { return generationKey("timer", p.TimerID, p.Generation) }
func (p *TimerEnqueued) Key() string  { return generationKey("scheduled", p.TimerID, p.Generation) }
func (p *TimerFired) Key() string     { return generationKey("fired", p.TimerID, p.Generation) }
func (p *TaskStarted) Key() string    { return attemptKey("started", p.AttemptRef) }
func (p *TaskHeartbeat) Key() string {
	return attemptKey("heartbeat", p.AttemptRef) + ":" + strconv.FormatInt(int64(p.HeartbeatAt), 10)
}
func (p *TaskFinished) Key() string { return attemptKey("finished", p.AttemptRef) }

func (*RunTriggered) payload()       {}
func (*PlanCreated) payload()        {}
func (*RunCancelRequested) payload() {}
func (*LimitSet) payload()           {}
func (*QuarantineResolved) payload() {}
func (*ProjectDeployed) payload()    {}
func (*PartitionsChanged) payload()  {}
func (*PartitionsMarked) payload()   {}
func (*RunRequested) payload()       {}
func (*RequestRefused) payload()     {}
func (*SchedulesDefined) payload()   {}
func (*CalendarAdvanced) payload()   {}
func (*AutomationCommand) payload()  {}
func (*RevisionPinned) payload()     {}
func (*AssetsForgotten) payload()    {}
func (*NotificationEnded) payload()  {}
func (*DeadlineJudged) payload()     {}
func (*DispatchRequested) payload()  {}
func (*DispatchEnqueued) payload()   {}
func (*DispatchFailed) payload()     {}
func (*TimerRequested) payload()     {}
func (*TimerEnqueued) payload()      {}
func (*TimerFired) payload()         {}
func (*TaskStarted) payload()        {}
func (*TaskHeartbeat) payload()      {}
func (*TaskFinished) payload()       {}
