package view

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/state"
)

// queued counts tasks in a queue, and lists their runs.
type queued struct {
	tasks int
	runs  []string
}

func (q *queued) add(run string) {
	if q.tasks++; !slices.Contains(q.runs, run) {
		q.runs = append(q.runs, run)
	}
}

// alsoQueued describes the other tasks in the queue of the explained task that may start before it. It reads only the
// outbox, so it may count a task that has just started.
func (x *explainer) alsoQueued() string {
	own := x.s.Outbox.Get(ids.DispatchID(x.task.RunID, x.task.TaskKey, x.task.Attempt))
	if own == nil {
		return ""
	}
	var greater, sameRun, equal queued
	for row := range x.s.Outbox.All {
		switch {
		case row == own || row.WorkerQueue != own.WorkerQueue || row.Status != state.DispatchCreated && row.Status != state.DispatchPending:
		case row.Priority > own.Priority:
			greater.add(row.RunID)
		case row.Priority < own.Priority:
		case row.RunID != own.RunID:
			equal.add(row.RunID)
		case row.CreatedAt <= own.CreatedAt:
			sameRun.add(row.RunID)
		}
	}
	var parts []string
	if greater.tasks > 0 {
		parts = append(parts, fmt.Sprintf("%s of greater priority (%s)", Count(greater.tasks, "task"), x.origins(greater.runs)))
	}
	if sameRun.tasks > 0 {
		parts = append(parts, fmt.Sprintf("%s of this run (queued at the same time or earlier)", Count(sameRun.tasks, "task")))
	}
	if equal.tasks > 0 {
		parts = append(parts, fmt.Sprintf("%s of the same priority (%s)", Count(equal.tasks, "task"), x.origins(equal.runs)))
	}
	if len(parts) == 0 {
		return ""
	}
	return "; the queue also has " + strings.Join(parts, ", and ")
}

// origins names the given runs, or the backfills to which they belong.
func (x *explainer) origins(runs []string) string {
	var names []string
	for _, id := range runs {
		name := "run " + id
		var trigger event.Trigger
		if run := x.s.Runs.Get(id); run != nil && json.Unmarshal([]byte(run.Trigger), &trigger) == nil && trigger.BackfillID != "" {
			name = "backfill " + trigger.BackfillID
		}
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return Some(names)
}
