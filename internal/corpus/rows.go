package corpus

import (
	"context"
	"fmt"
	"time"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

// partitions writes the rows of partition_status as three sorted runs, whose sizes are typical of a domain that has
// been in use for long: about two thirds of the rows, a quarter, and a sixteenth. One in a hundred partitions is
// missing.
func (w *writer) partitions(ctx context.Context) error {
	for part := range 3 {
		run, page, n := w.handle.IDs.New(), []*state.Partition(nil), 0
		flush := func() error {
			rows := state.Set(&state.Rows{}, page)
			page = make([]*state.Partition, 0, state.PageRows)
			return w.store(ctx, rows, run)
		}
		for i := range w.Assets {
			for key, p := range keysOf(&w.Assets[i]) {
				n++
				if part != partOf(n) || n%100 == 0 {
					continue
				}
				page = append(page, w.partition(&w.Assets[i], key, p, n))
				if len(page) == state.PageRows {
					if err := flush(); err != nil {
						return err
					}
				}
			}
		}
		if len(page) > 0 {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	return nil
}

// partOf returns the index of the sorted run of history that contains the nth partition.
func partOf(n int) int {
	switch {
	case n%16 == 0: //nolint:mnd // see partitions
		return 2
	case n%4 == 1: //nolint:mnd // see partitions
		return 1
	}
	return 0
}

// keysOf yields the keys of an asset's partitions in ascending order.
func keysOf(a *plan.Asset) func(yield func(string, ids.Partition) bool) {
	return func(yield func(string, ids.Partition) bool) {
		dates, tenants := &a.Partitions.Dimensions[0], &a.Partitions.Dimensions[1]
		first, _ := time.Parse(time.DateOnly, dates.Start)
		last, _ := time.Parse(time.DateOnly, dates.End)
		for day := first; !day.After(last); day = day.AddDate(0, 0, 1) {
			for _, tenant := range tenants.Values {
				p := ids.Partition{dates.Name: day.Format(time.DateOnly), tenants.Name: tenant}
				if !yield(p.Key(), p) {
					return
				}
			}
		}
	}
}

func (w *writer) partition(a *plan.Asset, key string, p ids.Partition, n int) *state.Partition {
	run := w.RunID(n % max(1, w.Runs))
	task := ids.TaskKey(a.Key, p)
	id := ids.MaterializationID(w.Domain, run, task)
	row := &state.Partition{
		AssetKey: a.Key.String(), PartitionKey: key, Status: state.Materialized, MaterializationID: id, MaterializedAt: event.At(ids.Time(run)).Add(time.Minute),
		RunID: run, TaskKey: task, OutputURI: "assets/" + w.Domain.Path() + "/" + a.Key.String() + "/" + id + "/" + id + "-0/",
		RowCount: 1000, ByteSize: 65_536, SchemaHash: "0123456789abcdef", Code: a.Code, Meta: w.meta(id),
	}
	row.VersionSeq, row.InputsSeq = row.Seq, 1<<40 // fresh, except for every 50th partition
	if n%50 == 0 {
		row.InputsSeq = 0
	}
	return row
}

// segment contains the rows of some runs. They become one segment of history in each of the three tables.
type segment struct {
	runs     []*state.Run
	tasks    []*state.Task
	attempts []*state.Attempt
}

func (s *segment) add(r *state.Run, t *state.Task, a *state.Attempt) {
	s.runs, s.tasks, s.attempts = append(s.runs, r), append(s.tasks, t), append(s.attempts, a)
}

func (s *segment) rows() *state.Rows {
	return state.Set(state.Set(state.Set(&state.Rows{}, s.runs), s.tasks), s.attempts)
}

// runs writes the closed runs into history, and some runs that have just ended into the base. Every
// twentieth run of the newest fifth is in a separate segment, as if it had taken longer than the other runs.
func (w *writer) runs(ctx context.Context) error {
	var usual, long segment
	flush := func(s *segment) error {
		rows := s.rows()
		*s = segment{}
		return w.store(ctx, rows, "")
	}
	for i := range w.Runs {
		outcome := state.RunSucceeded
		switch {
		case i%Rare == w.Runs%Rare/2:
			outcome = state.RunCancelled
		case w.random.IntN(100) == 0: //nolint:mnd // a hundredth
			outcome = state.RunFailed
		}
		r := w.run(w.RunID(i), outcome, 1)
		a := &w.Assets[w.random.IntN(len(w.Assets))]
		r.Asked([]string{a.Key.String()}, nil)
		t, attempt := w.task(r, a, w.anyPartition(a), outcome)
		if i%20 == 0 && i > w.Runs/5*4 {
			long.add(r, t, attempt)
			continue
		}
		if usual.add(r, t, attempt); len(usual.runs) == snapshot.MaxSegment {
			if err := flush(&usual); err != nil {
				return err
			}
		}
	}
	for _, s := range []*segment{&usual, &long} {
		if len(s.runs) > 0 {
			if err := flush(s); err != nil {
				return err
			}
		}
	}
	r := w.run(w.LargeRun(), state.RunFailed, w.Tasks)
	r.TasksFailed, r.TasksSucceeded = 0, 0
	for _, p := range keysOf(&w.Assets[0]) {
		if len(usual.tasks) == w.Tasks {
			break
		}
		outcome := state.RunSucceeded
		if r.TasksSucceeded++; len(usual.tasks)%100 == 50 {
			outcome, r.TasksFailed, r.TasksSucceeded = state.RunFailed, r.TasksFailed+1, r.TasksSucceeded-1
		}
		t, attempt := w.task(r, &w.Assets[0], p, outcome)
		usual.tasks, usual.attempts = append(usual.tasks, t), append(usual.attempts, attempt)
	}
	r.TasksTotal = int32(len(usual.tasks)) //nolint:gosec // few
	usual.runs = append(usual.runs, r)
	if err := flush(&usual); err != nil {
		return err
	}
	for i := range live {
		r := w.run(ids.AtTime(w.Now.Add(time.Duration(i-live)*time.Second)), state.RunSucceeded, 1)
		t, attempt := w.task(r, &w.Assets[0], w.anyPartition(&w.Assets[0]), state.RunSucceeded)
		usual.add(r, t, attempt)
	}
	w.base = *usual.rows()
	return nil
}

func (w *writer) anyPartition(a *plan.Asset) ids.Partition {
	dates, tenants := &a.Partitions.Dimensions[0], a.Partitions.Dimensions[1].Values
	first, _ := time.Parse(time.DateOnly, dates.Start)
	last, _ := time.Parse(time.DateOnly, dates.End)
	day := first.AddDate(0, 0, w.random.IntN(int(last.Sub(first).Hours())/24+1))
	return ids.Partition{dates.Name: day.Format(time.DateOnly), "tenant": tenants[w.random.IntN(len(tenants))]}
}

func (w *writer) run(id string, outcome state.RunState, tasks int) *state.Run {
	at := event.At(ids.Time(id))
	r := &state.Run{
		RunID: id, PlanID: ids.AttemptID(w.Domain, id, "plan", 0), TriggerType: "schedule", Trigger: `{"type":"schedule"}`, State: outcome,
		ScheduleID: fmt.Sprintf("nightly-%d", w.random.IntN(100)), TasksTotal: int32(tasks), CreatedAt: at, //nolint:gosec // few
		StartedAt: at.Add(time.Second), CompletedAt: at.Add(time.Minute), LastActivityAt: at.Add(time.Minute), InputsSeq: 1, Meta: w.meta(id),
	}
	switch outcome {
	case state.RunFailed:
		r.TasksFailed, r.ErrorCode, r.ErrorMessage = 1, "TASK_FAILED", "a task has failed"
	case state.RunCancelled:
		r.TasksCancelled, r.CancelReason = 1, "not needed"
	default:
		r.TasksSucceeded = 1
	}
	return r
}

func (w *writer) task(r *state.Run, a *plan.Asset, p ids.Partition, outcome state.RunState) (*state.Task, *state.Attempt) {
	key := ids.TaskKey(a.Key, p)
	t := &state.Task{
		RunID: r.RunID, TaskKey: key, TaskID: ids.AttemptID(w.Domain, r.RunID, key, 0), Kind: event.KindTask, AssetKey: a.Key.String(), PartitionKey: p.Key(),
		TriggerRule: "all_success", WorkerQueue: "default", Code: a.Code, Attempt: 1, MaxAttempts: 1, State: state.TaskSucceeded,
		StartedAt: r.StartedAt, CompletedAt: r.CompletedAt, RowCount: 1000, ByteSize: 65_536, Meta: w.meta(r.RunID),
	}
	attempt := &state.Attempt{
		RunID: r.RunID, TaskKey: key, Attempt: 1, AttemptID: ids.AttemptID(w.Domain, r.RunID, key, 1), State: state.AttemptClosed, WorkerID: "local-1",
		CreatedAt: r.CreatedAt, StartedAt: r.StartedAt, FinishedAt: r.CompletedAt, Outcome: string(event.Succeeded), Meta: w.meta(r.RunID),
	}
	switch outcome {
	case state.RunFailed:
		t.State, t.ErrorCode, t.ErrorMessage = state.TaskFailed, "COMMAND_FAILED", "exit status 1: the source has no rows for this day"
		attempt.Outcome, attempt.ErrorCode, attempt.ErrorMessage = string(event.Failed), t.ErrorCode, t.ErrorMessage
	case state.RunCancelled:
		t.State, attempt.Outcome = state.TaskCancelled, string(event.Cancelled)
	default:
	}
	return t, attempt
}
