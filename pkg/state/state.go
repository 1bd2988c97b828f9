// Package state holds a domain's projections in memory: the tables, and what is
// derived from them so that the fold never scans.
//
// A State is a value with O(1) copies. The compactor folds into one and hands
// out copies as snapshots; readers share them. The indexes are functions of the
// rows alone: a state loaded from files decides exactly as the one that wrote
// them would have.
package state

import (
	"math"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
)

type (
	// RunTable is the table runs.
	RunTable = Table[string, Run, *Run]
	// TaskTable is the table tasks.
	TaskTable = Table[Key2, Task, *Task]
	// DepTable is the table dep_satisfaction.
	DepTable = Table[Key3, Dep, *Dep]
	// TimerTable is the table timers.
	TimerTable = Table[string, Timer, *Timer]
	// DispatchTable is the table dispatch_outbox.
	DispatchTable = Table[string, Dispatch, *Dispatch]
	// AttemptTable is the table attempts.
	AttemptTable = Table[AttemptKey, Attempt, *Attempt]
	// HeartbeatTable is the table heartbeats.
	HeartbeatTable = Table[Key2, Heartbeat, *Heartbeat]
	// RunKeyTable is the table run_keys.
	RunKeyTable = Table[string, RunKey, *RunKey]
	// ConflictTable is the table run_key_conflicts.
	ConflictTable = Table[Key2, RunKeyConflict, *RunKeyConflict]
	// LimitTable is the table limits.
	LimitTable = Table[Key2, Limit, *Limit]
	// PartitionTable is the table partition_status.
	PartitionTable = Table[Key2, Partition, *Partition]
	// EntryTable is the table ledger_entries.
	EntryTable = Table[Key2, Entry, *Entry]
)

// State is the projections of one domain. Read the tables; change them through
// the Put methods only, which keep the indexes.
type State struct {
	Domain ids.Domain
	// FoldSeq is the number of the last event folded.
	FoldSeq int64
	// FoldTime is the greatest timestamp of an event folded.
	FoldTime event.Time

	Runs       RunTable
	Tasks      TaskTable
	Deps       DepTable
	Timers     TimerTable
	Outbox     DispatchTable
	Attempts   AttemptTable
	Heartbeats HeartbeatTable
	RunKeys    RunKeyTable
	Conflicts  ConflictTable
	Limits     LimitTable
	Partitions PartitionTable
	Entries    EntryTable

	index index
}

// New is the empty state of a domain.
func New(d ids.Domain) *State {
	return &State{
		Domain:     d,
		Runs:       newTable[string, Run, *Run](compareString),
		Tasks:      newTable[Key2, Task, *Task](compare2),
		Deps:       newTable[Key3, Dep, *Dep](compare3),
		Timers:     newTable[string, Timer, *Timer](compareString),
		Outbox:     newTable[string, Dispatch, *Dispatch](compareString),
		Attempts:   newTable[AttemptKey, Attempt, *Attempt](compareAttempt),
		Heartbeats: newTable[Key2, Heartbeat, *Heartbeat](compare2),
		RunKeys:    newTable[string, RunKey, *RunKey](compareString),
		Conflicts:  newTable[Key2, RunKeyConflict, *RunKeyConflict](compare2),
		Limits:     newTable[Key2, Limit, *Limit](compare2),
		Partitions: newTable[Key2, Partition, *Partition](compare2),
		Entries:    newTable[Key2, Entry, *Entry](compare2),
		index:      newIndex(),
	}
}

// Copy is a state that starts as this one, in constant time. Neither sees what
// happens to the other. Copying counts as writing: one goroutine at a time.
func (s *State) Copy() *State {
	return &State{
		Domain: s.Domain, FoldSeq: s.FoldSeq, FoldTime: s.FoldTime,
		Runs:       s.Runs.copy(),
		Tasks:      s.Tasks.copy(),
		Deps:       s.Deps.copy(),
		Timers:     s.Timers.copy(),
		Outbox:     s.Outbox.copy(),
		Attempts:   s.Attempts.copy(),
		Heartbeats: s.Heartbeats.copy(),
		RunKeys:    s.RunKeys.copy(),
		Conflicts:  s.Conflicts.copy(),
		Limits:     s.Limits.copy(),
		Partitions: s.Partitions.copy(),
		Entries:    s.Entries.copy(),
		index:      s.index.copy(),
	}
}

// Drain forgets which rows were changed: they are stored now.
func (s *State) Drain() {
	clear(s.Runs.changed)
	clear(s.Tasks.changed)
	clear(s.Deps.changed)
	clear(s.Timers.changed)
	clear(s.Outbox.changed)
	clear(s.Attempts.changed)
	clear(s.Heartbeats.changed)
	clear(s.RunKeys.changed)
	clear(s.Conflicts.changed)
	clear(s.Limits.changed)
	clear(s.Partitions.changed)
	clear(s.Entries.changed)
}

// Rows are rows of every table: a delta, or everything.
type Rows struct {
	Runs       []*Run
	Tasks      []*Task
	Deps       []*Dep
	Timers     []*Timer
	Outbox     []*Dispatch
	Attempts   []*Attempt
	Heartbeats []*Heartbeat
	RunKeys    []*RunKey
	Conflicts  []*RunKeyConflict
	Limits     []*Limit
	Partitions []*Partition
	Entries    []*Entry
}

// Len is the number of rows.
func (r *Rows) Len() int {
	return len(r.Runs) + len(r.Tasks) + len(r.Deps) + len(r.Timers) + len(r.Outbox) + len(r.Attempts) +
		len(r.Heartbeats) + len(r.RunKeys) + len(r.Conflicts) + len(r.Limits) + len(r.Partitions) + len(r.Entries)
}

// MinSeq is the least sequence number of the rows that history may have, or the
// greatest number where there are none.
func (r *Rows) MinSeq() int64 {
	least := int64(math.MaxInt64)
	least = min(least, minSeq(r.Runs), minSeq(r.Tasks), minSeq(r.Deps))
	return min(least, minSeq(r.Attempts), minSeq(r.Conflicts), minSeq(r.Entries))
}

func minSeq[R any, P interface {
	*R
	RowMeta() *Meta
}](rows []*R) int64 {
	least := int64(math.MaxInt64)
	for _, row := range rows {
		least = min(least, P(row).RowMeta().Seq)
	}
	return least
}

// Changed are the rows that changed since the last Drain, tombstones included.
func (s *State) Changed() *Rows {
	return &Rows{
		Runs: s.Runs.Changed(), Tasks: s.Tasks.Changed(), Deps: s.Deps.Changed(), Timers: s.Timers.Changed(),
		Outbox: s.Outbox.Changed(), Attempts: s.Attempts.Changed(), Heartbeats: s.Heartbeats.Changed(),
		RunKeys: s.RunKeys.Changed(), Conflicts: s.Conflicts.Changed(), Limits: s.Limits.Changed(),
		Partitions: s.Partitions.Changed(), Entries: s.Entries.Changed(),
	}
}

// All are all current rows.
func (s *State) All() *Rows {
	return &Rows{
		Runs: s.Runs.Rows(), Tasks: s.Tasks.Rows(), Deps: s.Deps.Rows(), Timers: s.Timers.Rows(),
		Outbox: s.Outbox.Rows(), Attempts: s.Attempts.Rows(), Heartbeats: s.Heartbeats.Rows(),
		RunKeys: s.RunKeys.Rows(), Conflicts: s.Conflicts.Rows(), Limits: s.Limits.Rows(),
		Partitions: s.Partitions.Rows(), Entries: s.Entries.Rows(),
	}
}

// Load applies stored rows, tombstones included, without counting them as
// changes. Every row must be newer than what the state has for its key.
func (s *State) Load(rows *Rows) {
	// Tasks go before heartbeats: a heartbeat's deadline needs its task's time-out.
	load(rows.Runs, s.loadRun)
	load(rows.Tasks, s.loadTask)
	load(rows.Deps, func(r *Dep) { s.Deps.load(r) })
	load(rows.Timers, func(r *Timer) { s.Timers.load(r) })
	load(rows.Outbox, func(r *Dispatch) { s.Outbox.load(r) })
	load(rows.Attempts, func(r *Attempt) { s.Attempts.load(r) })
	load(rows.Heartbeats, func(r *Heartbeat) { s.index.heartbeat(s, s.Heartbeats.load(r), r) })
	load(rows.RunKeys, func(r *RunKey) { s.index.runKey(s.RunKeys.load(r), r) })
	load(rows.Conflicts, func(r *RunKeyConflict) { s.Conflicts.load(r) })
	load(rows.Limits, func(r *Limit) { s.Limits.load(r) })
	load(rows.Partitions, func(r *Partition) { s.Partitions.load(r) })
	load(rows.Entries, func(r *Entry) { s.index.entry(s.Entries.load(r), r) })
}

func load[R any](rows []*R, put func(*R)) {
	for _, row := range rows {
		put(row)
	}
}

func (s *State) loadRun(r *Run) { s.index.run(s, s.Runs.load(r), r) }

func (s *State) loadTask(r *Task) { s.index.task(s, s.Tasks.load(r), r) }

// PutRun changes a row of runs.
func (s *State) PutRun(r *Run) { s.index.run(s, s.Runs.set(r), r) }

// PutTask changes a row of tasks.
func (s *State) PutTask(r *Task) { s.index.task(s, s.Tasks.set(r), r) }

// PutDep changes a row of dep_satisfaction.
func (s *State) PutDep(r *Dep) { s.Deps.set(r) }

// PutTimer changes a row of timers.
func (s *State) PutTimer(r *Timer) { s.Timers.set(r) }

// PutDispatch changes a row of dispatch_outbox.
func (s *State) PutDispatch(r *Dispatch) { s.Outbox.set(r) }

// PutAttempt changes a row of attempts.
func (s *State) PutAttempt(r *Attempt) { s.Attempts.set(r) }

// PutHeartbeat changes a row of heartbeats.
func (s *State) PutHeartbeat(r *Heartbeat) { s.index.heartbeat(s, s.Heartbeats.set(r), r) }

// PutRunKey changes a row of run_keys.
func (s *State) PutRunKey(r *RunKey) { s.index.runKey(s.RunKeys.set(r), r) }

// PutConflict changes a row of run_key_conflicts.
func (s *State) PutConflict(r *RunKeyConflict) { s.Conflicts.set(r) }

// PutLimit changes a row of limits.
func (s *State) PutLimit(r *Limit) { s.Limits.set(r) }

// PutPartition changes a row of partition_status.
func (s *State) PutPartition(r *Partition) { s.Partitions.set(r) }

// PutEntry changes a row of ledger_entries.
func (s *State) PutEntry(r *Entry) { s.index.entry(s.Entries.set(r), r) }

// TasksOf calls yield for the tasks of a run in the order of their keys.
func (s *State) TasksOf(runID string, yield func(*Task) bool) {
	s.Tasks.Ascend(Key2{A: runID}, func(t *Task) bool { return t.RunID == runID && yield(t) })
}

// Downstream calls yield for the edges that leave a task.
func (s *State) Downstream(runID, taskKey string, yield func(*Dep) bool) {
	s.Deps.Ascend(Key3{A: runID, B: taskKey}, func(d *Dep) bool {
		return d.RunID == runID && d.Upstream == taskKey && yield(d)
	})
}

// AttemptsOf calls yield for the attempts at a task, first to last.
func (s *State) AttemptsOf(runID, taskKey string, yield func(*Attempt) bool) {
	s.Attempts.Ascend(AttemptKey{RunID: runID, TaskKey: taskKey}, func(a *Attempt) bool {
		return a.RunID == runID && a.TaskKey == taskKey && yield(a)
	})
}
