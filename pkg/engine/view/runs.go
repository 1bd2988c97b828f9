package view

import (
	"cmp"
	"encoding/json"
	"time"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/state"
)

// Took returns the duration of a run, or the time since its creation if it is still running.
func Took(r *state.Run, now event.Time) time.Duration {
	return cmp.Or(r.CompletedAt, now).Sub(r.CreatedAt)
}

// TaskTook returns the duration of a task, or the time since its start if it is still running. It returns false if
// the task has not started.
func TaskTook(t *state.Task, now event.Time) (took time.Duration, started bool) {
	if t.StartedAt == 0 {
		return 0, false
	}
	return max(cmp.Or(t.CompletedAt, now).Sub(t.StartedAt), 0), true
}

// Done returns the number of a run's tasks that have ended.
func Done(r *state.Run) int32 {
	return r.TasksSucceeded + r.TasksFailed + r.TasksSkipped + r.TasksCancelled
}

// StateCount is the number of a run's tasks in a state.
type StateCount struct {
	State state.TaskState
	Tasks int32
}

// Counts returns the number of a run's tasks in each state. The states of tasks that have ended come first. The state
// of tasks that wait for others comes last.
func Counts(r *state.Run) []StateCount {
	return []StateCount{
		{state.TaskSucceeded, r.TasksSucceeded},
		{state.TaskFailed, r.TasksFailed},
		{state.TaskSkipped, r.TasksSkipped},
		{state.TaskCancelled, r.TasksCancelled},
		{state.TaskRunning, r.TasksRunning},
		{state.TaskDispatched, r.TasksDispatch},
		{state.TaskRetryWait, r.TasksRetryWait},
		{state.TaskReady, r.TasksReady},
		{state.TaskBlocked, r.TasksBlocked},
	}
}

// Names returns the names in a column that contains a JSON list, such as the assets of a run.
func Names(list string) []string {
	names := []string{}
	if json.Unmarshal([]byte(list), &names) != nil {
		return []string{}
	}
	return names
}
