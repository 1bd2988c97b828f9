// Package state contains the projections of a domain in memory: the tables, and the indexes with which the fold finds
// rows without scanning tables. This package is not a stable API.
//
// Copying a State takes constant time. The compactor folds into one State and shares copies as
// snapshots. The indexes depend only on the rows. So the fold makes the same decisions with a state that was loaded
// from files as with the state that was written to these files.
package state

import (
	"reflect"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
)

// State contains the projections of one domain. Change its tables only with their methods Put, which update the
// indexes.
type State struct {
	Domain ids.Domain
	// FoldSeq is the number of the last folded event.
	FoldSeq int64
	// FoldTime is the greatest timestamp of the folded events.
	FoldTime event.Time

	Tables

	stores []store // the tables in Tables, in the order of the declarations
	index  *index
}

// New returns the empty state of a domain.
func New(d ids.Domain) *State {
	s := &State{Domain: d, stores: make([]store, len(declarations)), index: newIndex()}
	fields := reflect.ValueOf(&s.Tables).Elem()
	for i := range s.stores {
		t := newTable(rowTypeOf(fields.Type().Field(i)))
		t.open(s, declarations[i])
		s.stores[i] = t
		fields.Field(i).Set(reflect.ValueOf(t))
	}
	return s
}

// Copy returns a copy in constant time, without the record of changes. Neither state sees later
// changes of the other. Copy also writes to s: while it runs, no other goroutine may use s.
func (s *State) Copy() *State {
	c := &State{
		Domain: s.Domain, FoldSeq: s.FoldSeq, FoldTime: s.FoldTime,
		stores: make([]store, len(s.stores)), index: s.index.copy(),
	}
	fields := reflect.ValueOf(&c.Tables).Elem()
	for i, t := range s.stores {
		c.stores[i] = t.copyFor(c, fields.Field(i).Addr().Interface())
	}
	return c
}

// Drain clears the record of changed rows. Call it after the changes have been stored.
func (s *State) Drain() {
	for _, t := range s.stores {
		t.drain()
	}
}

// rows returns one list of each table.
func (s *State) rows(list func(store) any) *Rows {
	lists := make([]any, len(s.stores))
	for i, t := range s.stores {
		lists[i] = list(t)
	}
	return &Rows{lists}
}

// Changed returns the rows that changed since the last Drain, including tombstones.
func (s *State) Changed() *Rows { return s.rows(store.changes) }

// All returns all current rows.
func (s *State) All() *Rows { return s.rows(store.list) }

// Load applies stored rows, including tombstones, without recording them as changes. If the state already has a row
// with the same key, the loaded row must not be older.
func (s *State) Load(rows *Rows) {
	for i, list := range rows.lists {
		s.stores[i].load(list)
	}
}

// Counts returns the number of rows of each table by name.
func (s *State) Counts() map[string]int64 {
	counts := make(map[string]int64, len(s.stores))
	for i, t := range s.stores {
		counts[declarations[i].Name] = int64(t.Len())
	}
	return counts
}

// Diff compares two states row by row and describes each difference in a line. The parameter limit is the maximum
// number of lines. Diff returns no lines if the states are equal.
func Diff(want, got *State, limit int) []string {
	var lines []string
	for i, d := range declarations {
		for line := range d.diff(want.stores[i].list(), got.stores[i].list()) {
			if len(lines) == limit {
				return lines
			}
			lines = append(lines, d.Name+": "+line)
		}
	}
	return lines
}

// Approximate memory of a row in bytes: its struct, its strings, and its nodes in the table and in the indexes.
const (
	largeRow = 1000 // size of a row of a table with the option large, in bytes
	smallRow = 400  // size of a row of any other table, in bytes
)

// Bytes returns approximately how much memory the state uses. It does not visit the rows.
func (s *State) Bytes() int64 {
	n := 0
	for i, t := range s.stores {
		if declarations[i].large {
			n += largeRow * t.Len()
		} else {
			n += smallRow * t.Len()
		}
	}
	return int64(n)
}

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
