package view

import (
	"cmp"
	"slices"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/state"
)

// Status describes the progress of a run.
type Status struct {
	RunID       string         `json:"run_id"`
	State       state.RunState `json:"state"`
	Trigger     string         `json:"trigger"`
	ParentRunID string         `json:"parent_run_id,omitempty"`
	RunKey      string         `json:"run_key,omitempty"`
	// Assets and Partitions list the first requested assets and partitions. The totals count all of them.
	Assets          []string `json:"assets"`
	AssetsTotal     int32    `json:"assets_total"`
	Partitions      []string `json:"partitions"`
	PartitionsTotal int32    `json:"partitions_total"`

	CreatedAt   event.Time `json:"created_at"`
	CompletedAt event.Time `json:"completed_at,omitempty,omitzero"`
	// Seconds is the duration of the run, or the time since its creation if it is still running.
	Seconds    float64 `json:"seconds"`
	TasksTotal int32   `json:"tasks_total"`
	// Tasks counts the tasks by state, without group nodes.
	Tasks    map[string]int32 `json:"tasks"`
	Running  []RunningTask    `json:"running"`
	Retrying []FailedTask     `json:"retrying"`
	Failed   []FailedTask     `json:"failed"`
	Waits    []Wait           `json:"waits"`
	Error    string           `json:"error,omitempty"`
	// Cancelled is the reason for the cancellation.
	Cancelled string `json:"cancel_reason,omitempty"`
	// Repeat counts the failed tasks by what a user must do to repeat them. Next lists these actions.
	Repeat Repeat `json:"-"`
	Next   []Step `json:"next"`
}

// RunningTask is a task that is running.
type RunningTask struct {
	TaskKey  string     `json:"task_key"`
	Attempt  int32      `json:"attempt"`
	Worker   string     `json:"worker"`
	Since    event.Time `json:"since"`
	Progress int32      `json:"progress,omitempty"`
	Message  string     `json:"message,omitempty"`
}

// FailedTask is a task whose last attempt failed.
type FailedTask struct {
	TaskKey string `json:"task_key"`
	Attempt int32  `json:"attempt"`
	Of      int32  `json:"max_attempts"`
	Error   string `json:"error"`
	// Again is the time of the next retry.
	Again event.Time `json:"again_at,omitempty,omitzero"`
	// Quarantine describes the output of the task that a check has blocked, and the decision about that output.
	Quarantine *Quarantined `json:"quarantine,omitempty"`
	// Attempts describes the last attempt in words: see [Attempts].
	Attempts string `json:"-"`
}

func newFailedTask(s *state.State, t *state.Task, again event.Time) FailedTask {
	return FailedTask{t.TaskKey, t.Attempt, t.MaxAttempts, ErrorLine(t.ErrorCode, t.ErrorMessage), again, QuarantineOf(s, t), Attempts(t)}
}

// StatusOf returns the status of a run.
func StatusOf(s *state.State, r *state.Run, now event.Time) *Status {
	st := &Status{
		RunID: r.RunID, State: r.State, Trigger: r.TriggerType, ParentRunID: r.ParentRunID, RunKey: r.RunKey,
		Assets: Names(r.RootAssets), AssetsTotal: r.RootAssetsTotal,
		Partitions: Names(r.Partitions), PartitionsTotal: r.PartitionsTotal,
		CreatedAt: r.CreatedAt, CompletedAt: r.CompletedAt, Seconds: Took(r, now).Seconds(), TasksTotal: r.TasksTotal,
		Tasks: map[string]int32{}, Running: []RunningTask{}, Retrying: []FailedTask{}, Failed: []FailedTask{},
		Waits: append([]Wait{}, Waits(s, r)...), Error: OneLine(Problem(r.ErrorCode, r.ErrorMessage)), Cancelled: r.CancelReason,
	}
	s.TasksOf(r.RunID, func(t *state.Task) bool {
		if t.Kind != event.KindGroup {
			st.add(s, t)
		}
		return true
	})
	st.Repeat, st.Next = RepeatOf(s, r.RunID), []Step{}
	if r.State.Terminal() && r.State != state.RunSucceeded {
		st.Next = st.Repeat.Steps(r.RunID)
	}
	slices.SortStableFunc(st.Running, func(a, b RunningTask) int { return cmp.Compare(a.Since, b.Since) })
	return st
}

func (st *Status) add(s *state.State, t *state.Task) {
	st.Tasks[string(t.State)]++
	switch t.State {
	case state.TaskRunning:
		row := RunningTask{TaskKey: t.TaskKey, Attempt: t.Attempt, Worker: t.WorkerID, Since: t.StartedAt}
		if beat := s.Heartbeats.Get(t.Key()); beat != nil {
			row.Progress, row.Message = beat.Progress, beat.Message
		}
		st.Running = append(st.Running, row)
	case state.TaskRetryWait:
		st.Retrying = append(st.Retrying, newFailedTask(s, t, t.RetryNotBefore))
	case state.TaskFailed:
		st.Failed = append(st.Failed, newFailedTask(s, t, 0))
	case state.TaskPlanned, state.TaskBlocked, state.TaskReady, state.TaskDispatched, state.TaskSkipped,
		state.TaskCancelled, state.TaskSucceeded:
	}
}
