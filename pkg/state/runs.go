package state

import (
	"cmp"
	"encoding/json"
	"fmt"

	"github.com/servo-orchestration/servo/pkg/event"
)

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
	// RootAssets and Partitions are JSON lists of the first requested assets and partitions. The totals count all
	// requested assets and partitions, listed or not. Every change of the run writes this row, so the size of the row
	// must not depend on the request.
	RootAssets      string `col:"root_assets,null"`
	RootAssetsTotal int32  `col:"root_assets_total"`
	Partitions      string `col:"partition_selection,null"`
	PartitionsTotal int32  `col:"partition_selection_total"`

	Labels         string `col:"labels,null"`      // JSON
	MaxParallelism int32  `col:"max_parallelism"`  // 0: the run has no limit of its own
	TimeoutSec     int32  `col:"timeout_sec"`      // 0: none
	CancelGraceSec int32  `col:"cancel_grace_sec"` // how long tasks may continue after a cancellation

	Release string `col:"release,null"` // the release that the run executes
	Vars    string `col:"vars,null"`    // JSON: the variables that the request overrides, with values
	// AllowIncomplete means that the request accepted missing partitions of upstream assets.
	AllowIncomplete bool `col:"allow_incomplete"`
	// RequestID is the request that the run was planned for; "": a caller triggered it. ScheduleID and TickID are copied
	// from the request.
	RequestID  string `col:"request_id,null"`
	ScheduleID string `col:"schedule_id,null,dict"`
	TickID     string `col:"tick_id,null"`
	// RootRun is the first run of the chain of retries; "": this run. See [Run.Root].
	RootRun string `col:"root_run,null"`
	// InputsSeq and InputsAt are the fold sequence and the fold time of the state on which the first
	// run of the chain was planned.
	InputsSeq int64      `col:"inputs_seq"`
	InputsAt  event.Time `col:"inputs_at,null"`
	// SLAAt is the time at which a run that a schedule started exceeds its SLA. 0: there is no such time, or the miss
	// was already reported.
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

// Asked stores the requested assets and partitions in the row: how many there are, and the first few of each.
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

// Limit is a row of limits: how many tasks of a scope may run at once. The row of a removed limit stays: its version is
// the id of the event that removed the limit, and the fold ignores events about the limit whose ids are smaller.
type Limit struct {
	Scope   string `col:"scope,key"`
	Name    string `col:"name,key"` // empty for the workspace
	Slots   int32  `col:"slots"`    // if removed: the number that older builds still apply
	Removed bool   `col:"removed"`
	Meta
}

// Key returns the primary key.
func (r *Limit) Key() Key2 { return Key2{r.Scope, r.Name} }

func (*Limit) newTable() store { return new(rowTable[Key2, Limit, *Limit]) }
