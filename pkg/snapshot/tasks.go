package snapshot

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/state"
	"github.com/servo-orchestration/servo/pkg/table"
)

// TaskHead contains the columns of a task that a [TaskQuery] compares.
type TaskHead struct {
	RunID    string          `col:"run_id,key"`
	TaskKey  string          `col:"task_key,key"`
	Kind     string          `col:"kind,dict"`
	AssetKey string          `col:"asset_key,null,dict"`
	State    state.TaskState `col:"state,dict"`
}

var taskHeadSchema = &table.Of[TaskHead]("tasks").Schema

const taskKeyColumn = "task_key"

// TaskQuery is a query for the tasks of a run, in the order of their keys.
type TaskQuery struct {
	RunID string
	// After is a task key: only tasks with greater keys are returned. "" means that the query starts at the first task.
	After string
	Limit int
	// Match reports whether the query accepts a task. If it is nil, the query accepts all tasks.
	Match func(TaskHead) bool
	// Most is the approximate maximum number of tasks of a closed run that the query examines; 0: no limit.
	Most int
}

// TaskPage is the result of a [TaskQuery].
type TaskPage struct {
	Tasks []*state.Task
	// Next is the value of [TaskQuery.After] for the next page. It is "" after the last page. If Next is not "", Tasks
	// may still contain fewer tasks than Limit, because Most can end a query early.
	Next string
}

// FindTasks returns tasks of a run, live or closed. It decodes only the needed parts of a large closed run.
func (s *Snapshot) FindTasks(ctx context.Context, q TaskQuery) (TaskPage, error) {
	f := taskFinder{h: s.History, q: q}
	rows := s.State
	if rows.Runs.Get(q.RunID) == nil {
		if f.h.divided() {
			return f.closed(ctx)
		}
		closed, err := f.h.Run(ctx, q.RunID)
		if closed == nil || err != nil {
			return TaskPage{}, err
		}
		rows = closed
	}
	page := TaskPage{}
	rows.Tasks.Ascend(state.Key2{A: q.RunID, B: q.After}, func(t *state.Task) bool {
		switch {
		case t.RunID != q.RunID:
			return false
		case !f.accepts(&TaskHead{t.RunID, t.TaskKey, t.Kind, t.AssetKey, t.State}):
			return true
		case len(page.Tasks) == q.Limit:
			page.Next = page.Tasks[q.Limit-1].TaskKey
			return false
		}
		page.Tasks = append(page.Tasks, t)
		return true
	})
	return page, nil
}

// Task returns a task of a run, or nil if the run has no such task.
func (s *Snapshot) Task(ctx context.Context, runID, taskKey string) (*state.Task, error) {
	if s.State.Runs.Get(runID) != nil {
		return s.State.Tasks.Get(state.Key2{A: runID, B: taskKey}), nil
	}
	page, err := s.FindTasks(ctx, TaskQuery{RunID: runID, Limit: 1, Match: func(t TaskHead) bool { return t.TaskKey == taskKey }})
	if err != nil || len(page.Tasks) == 0 {
		return nil, err
	}
	return page.Tasks[0], nil
}

// FailedTask is a task that failed or was skipped, and the partitions that it should have materialized.
type FailedTask struct {
	Task       *state.Task
	Partitions []string
}

// FailedTasks returns the failed tasks of a run, and the tasks that were cancelled because the run timed out. It
// caches the result for closed runs.
func (s *Snapshot) FailedTasks(ctx context.Context, run *state.Run) ([]FailedTask, error) {
	if !s.History.divided() || s.State.Runs.Get(run.RunID) != nil {
		return s.matchingTasks(ctx, run, isFailed(run))
	}
	names := []string{run.RunID}
	for _, table := range []string{tasksDeclaration.Name, batchesDeclaration.Name} {
		files, err := s.History.segments(ctx, table, run.RunID)
		if err != nil {
			return nil, err
		}
		for _, f := range files {
			names = append(names, f.Key)
		}
	}
	key := strings.Join(names, " ")
	failed, has := s.History.codec.failed.get(key)
	if has {
		return failed, nil
	}
	failed, err := s.matchingTasks(ctx, run, isFailed(run))
	if err == nil {
		s.History.codec.failed.put(key, failed, 1+len(failed))
	}
	return failed, err
}

// SkippedTasks returns the skipped tasks of a run.
func (s *Snapshot) SkippedTasks(ctx context.Context, run *state.Run) ([]FailedTask, error) {
	return s.matchingTasks(ctx, run, func(t TaskHead) bool { return t.Kind == event.KindTask && t.State == state.TaskSkipped })
}

func isFailed(run *state.Run) func(TaskHead) bool {
	return func(t TaskHead) bool {
		return t.Kind == event.KindTask && (t.State == state.TaskFailed || t.State == state.TaskCancelled && run.State == state.RunTimedOut)
	}
}

func (s *Snapshot) matchingTasks(ctx context.Context, run *state.Run, match func(TaskHead) bool) (failed []FailedTask, err error) {
	q := TaskQuery{RunID: run.RunID, Limit: tasksAtOnce, Match: match}
	for {
		page, err := s.FindTasks(ctx, q)
		if err != nil {
			return nil, err
		}
		for _, t := range page.Tasks {
			failed = append(failed, FailedTask{Task: t, Partitions: []string{t.PartitionKey}})
		}
		if q.After = page.Next; q.After == "" {
			break
		}
	}
	if len(failed) == 0 {
		return nil, nil
	}
	batches, err := s.batches(ctx, run.RunID)
	if err != nil {
		return nil, err
	}
	for i := range failed {
		if keys := batches.BatchOf(run.RunID, failed[i].Task.TaskKey); keys != nil {
			failed[i].Partitions = keys
		}
	}
	return failed, nil
}

// batches returns a state that contains the batches of a run.
func (s *Snapshot) batches(ctx context.Context, runID string) (*state.State, error) {
	if s.State.Runs.Get(runID) != nil {
		return s.State, nil
	}
	if !s.History.divided() {
		closed, err := s.History.Run(ctx, runID)
		if closed != nil || err != nil {
			return closed, err
		}
		return state.New(s.History.domain), nil
	}
	closed := state.New(s.History.domain)
	list, err := s.History.ofRun(ctx, batchesDeclaration, runID)
	if rows, has := list.([]*state.Batch); has {
		closed.Load(state.Set(&state.Rows{}, rows))
	}
	return closed, err
}

// tasksAtOnce is the number of tasks whose whole rows are decoded at once.
const tasksAtOnce = 10_000

// Run returns the row of a run, live or closed. It returns nil if the run does not exist.
func (s *Snapshot) Run(ctx context.Context, runID string) (*state.Run, error) {
	if run := s.State.Runs.Get(runID); run != nil {
		return run, nil
	}
	if !s.History.Kept(runID) {
		return nil, nil
	}
	if !s.History.divided() {
		closed, err := s.History.Run(ctx, runID)
		if closed == nil || err != nil {
			return nil, err
		}
		return closed.Runs.Get(runID), nil
	}
	list, err := s.History.ofRun(ctx, runsDeclaration, runID)
	if list == nil || err != nil {
		return nil, err
	}
	return list.([]*state.Run)[0], nil //nolint:errcheck // the row type of the table
}

// taskPart is a part of a segment of the table "tasks" that may contain rows of the run.
type taskPart struct {
	file  manifest.File
	parts table.Parts
	part  int
	// least is a lower bound of the keys of the run's tasks in the part.
	least string
}

// foundTask is a task that a query accepts.
type foundTask struct {
	key string
	in  *taskPart
	at  int
}

// taskFinder executes a query.
type taskFinder struct {
	h      History
	q      TaskQuery
	found  []foundTask
	looked int
	// through is the greatest key of the examined tasks.
	through string
}

func (f *taskFinder) accepts(t *TaskHead) bool {
	return t.RunID == f.q.RunID && (f.q.After == "" || t.TaskKey > f.q.After) && (f.q.Match == nil || f.q.Match(*t))
}

// closed executes the query for a closed run.
func (f *taskFinder) closed(ctx context.Context) (page TaskPage, err error) {
	if !f.h.Kept(f.q.RunID) {
		return page, nil
	}
	left, err := f.parts(ctx)
	if err != nil {
		return page, err
	}
	for len(left) > 0 {
		next := left[0]
		done, _ := slices.BinarySearchFunc(f.found, next.least, func(t foundTask, key string) int { return strings.Compare(t.key, key) })
		if done > f.q.Limit {
			break
		}
		if f.q.Most > 0 && f.looked >= f.q.Most && f.through < next.least { // all tasks up to f.through are examined
			page.Next = f.through
			break
		}
		left = left[1:]
		if err := f.look(next); err != nil {
			return page, err
		}
	}
	if len(f.found) > f.q.Limit {
		f.found = f.found[:f.q.Limit]
		page.Next = f.found[f.q.Limit-1].key
	}
	page.Tasks, err = f.rows()
	return page, err
}

// parts returns the parts that may contain tasks of the run with keys greater than q.After. The parts are sorted by
// their least keys.
func (f *taskFinder) parts(ctx context.Context) (left []*taskPart, err error) {
	files, err := f.h.segments(ctx, tasksDeclaration.Name, f.q.RunID)
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		parts, err := f.h.open(ctx, file)
		if err != nil {
			return nil, err
		}
		for i := range parts.Len() {
			if !covers(parts, i, runIDColumn, f.q.RunID, f.q.RunID) {
				continue
			}
			p := &taskPart{file: file, parts: parts, part: i}
			from, to, known := parts.Bounds(i, runIDColumn)
			if least, greatest, keys := parts.Bounds(i, taskKeyColumn); known && keys {
				p.least = least // may be the key of a task of another run
				if from == to && greatest <= f.q.After {
					continue // all tasks of the part belong to the run
				}
			}
			left = append(left, p)
		}
	}
	slices.SortStableFunc(left, func(a, b *taskPart) int { return cmp.Compare(a.least, b.least) })
	return left, nil
}

// look examines a part, and adds the tasks that the query accepts to f.found.
func (f *taskFinder) look(p *taskPart) error {
	found, err := f.h.stretches(tasksDeclaration, p.file, p.parts, p.part)
	if err != nil {
		return err
	}
	at, has := slices.BinarySearchFunc(found, f.q.RunID, func(s stretch, id string) int { return strings.Compare(s.run, id) })
	if !has {
		return nil
	}
	rows := found[at].rows
	heads, err := f.h.taskHeads(p, rows)
	if err != nil {
		return err
	}
	f.looked += len(heads)
	f.through = max(f.through, heads[len(heads)-1].TaskKey)
	for i := range heads {
		if f.accepts(&heads[i]) {
			f.found = append(f.found, foundTask{heads[i].TaskKey, p, rows.From + i})
		}
	}
	slices.SortFunc(f.found, func(a, b foundTask) int { return strings.Compare(a.key, b.key) })
	return nil
}

// taskHeads returns the heads of the tasks in a range of rows of a part.
func (h History) taskHeads(p *taskPart, within table.Range) ([]TaskHead, error) {
	key := fmt.Sprintf("%s#%d-%d", p.file.Key, p.part, within.From)
	if known, has := h.codec.taskHeads.get(key); has {
		return known, nil
	}
	heads, err := decodeWithin[TaskHead](taskHeadSchema, p.parts, p.part, within)
	if err != nil {
		return nil, unreadable(p.file, err)
	}
	h.codec.taskHeads.put(key, heads, len(heads))
	return heads, nil
}

// rows decodes the rows of the found tasks.
func (f *taskFinder) rows() ([]*state.Task, error) {
	tasks := make([]*state.Task, len(f.found))
	places := map[*taskPart][]int{}
	for i, t := range f.found {
		places[t.in] = append(places[t.in], i)
	}
	for p, found := range places {
		at := make([]int, len(found))
		for j, i := range found {
			at[j] = f.found[i].at
		}
		list, err := tasksDeclaration.DecodePart(p.parts, p.part, rangesOf(at))
		if err != nil {
			return nil, unreadable(p.file, err)
		}
		decoded := list.([]*state.Task) //nolint:errcheck // the row type of the table
		for j, i := range found {
			tasks[i] = decoded[j]
		}
	}
	return tasks, nil
}
