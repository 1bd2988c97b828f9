package view

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/state"
)

// AssetReport summarizes a run's tasks of one asset.
type AssetReport struct {
	RunID string
	Asset string
	Tasks int
	// Rows and Bytes are the totals of the outputs.
	Rows, Bytes int64
	// StartedAt is the start of the first task; 0: none has started. EndedAt is the end of the last task.
	StartedAt, EndedAt event.Time
	States             map[state.TaskState]int
}

// AssetReports returns the reports of a run's assets, in the order in which they started.
func AssetReports(s *state.State, runID string) []AssetReport {
	index := map[string]int{}
	var reports []AssetReport
	s.TasksOf(runID, func(t *state.Task) bool {
		if t.Kind == event.KindGroup {
			return true
		}
		name := cmp.Or(t.AssetKey, t.TaskKey)
		at, ok := index[name]
		if !ok {
			at = len(reports)
			index[name] = at
			reports = append(reports, AssetReport{RunID: runID, Asset: name, States: map[state.TaskState]int{}})
		}
		reports[at].add(t)
		return true
	})
	slices.SortStableFunc(reports, func(a, b AssetReport) int {
		switch {
		case a.StartedAt == 0 && b.StartedAt != 0:
			return 1
		case a.StartedAt != 0 && b.StartedAt == 0:
			return -1
		}
		return cmp.Or(cmp.Compare(a.StartedAt, b.StartedAt), cmp.Compare(a.EndedAt, b.EndedAt), cmp.Compare(a.Asset, b.Asset))
	})
	return reports
}

func (r *AssetReport) add(t *state.Task) {
	r.Tasks++
	r.States[t.State]++
	if t.State == state.TaskSucceeded {
		r.Rows += t.RowCount
		r.Bytes += t.ByteSize
	}
	if t.StartedAt != 0 {
		if r.StartedAt == 0 || t.StartedAt < r.StartedAt {
			r.StartedAt = t.StartedAt
		}
		r.EndedAt = max(r.EndedAt, t.CompletedAt)
	}
}

// Took returns the time from the first start to the last end of a task.
func (r *AssetReport) Took() time.Duration { return max(r.EndedAt.Sub(r.StartedAt), 0) }

// State returns the state of all tasks or, if their states differ, the number of tasks in each state.
func (r *AssetReport) State() string {
	var parts []string
	for _, s := range []state.TaskState{
		state.TaskSucceeded, state.TaskFailed, state.TaskSkipped, state.TaskCancelled, state.TaskRunning,
		state.TaskRetryWait, state.TaskDispatched, state.TaskReady, state.TaskBlocked,
	} {
		switch n := r.States[s]; {
		case n == r.Tasks:
			return string(s)
		case n > 0:
			parts = append(parts, fmt.Sprintf("%d %s", n, s))
		}
	}
	return strings.Join(parts, ", ")
}

// Failure is an error, and the tasks that failed with this error.
type Failure struct {
	Code, Message string
	Tasks         []*state.Task
}

// Failures groups the failed tasks of a run by error, in the order of the tasks.
func Failures(s *state.State, runID string) []*Failure {
	type key struct{ code, message string }
	index := map[key]*Failure{}
	var found []*Failure
	s.TasksOf(runID, func(t *state.Task) bool {
		if t.State != state.TaskFailed {
			return true
		}
		k := key{t.ErrorCode, t.ErrorMessage}
		if index[k] == nil {
			index[k] = &Failure{Code: t.ErrorCode, Message: t.ErrorMessage}
			found = append(found, index[k])
		}
		index[k].Tasks = append(index[k].Tasks, t)
		return true
	})
	return found
}
