package state

import (
	"iter"
	"time"

	"github.com/servo-orchestration/servo/pkg/event"
)

// ClosedAfter is how long after its end a run is closed: what is said of it from
// then on comes too late.
const ClosedAfter = 15 * time.Minute

// Closed reports whether a run is closed at a fold time.
func (r *Run) Closed(now event.Time) bool {
	return r.State.Terminal() && now.Sub(r.CompletedAt) >= ClosedAfter
}

// Cut says what is in history and not in the live state: what was closed when the
// state had this fold sequence and time, and entries of the ledger below a ULID,
// but for those that wait for something. The zero Cut: nothing.
type Cut struct {
	Seq     int64
	Time    event.Time
	Entries string
	// Runs is a ULID below which closed runs are not kept: history may have some of
	// their rows, or none.
	Runs string
}

// Recorded reports whether the state has an entry of the ledger.
func (s *State) Recorded(entry string) bool {
	found := false
	s.Entries.Ascend(Key2{A: entry}, func(row *Entry) bool {
		found = row.Entry == entry
		return false
	})
	return found
}

// Evict takes out what a cut leaves to history, and gives it. It is no change:
// none of it is in [State.Changed]. Rows of runs that are not there go as well:
// merged deltas may have brought them back.
func (s *State) Evict(c Cut) *Rows {
	out := &Rows{}
	if c.Time == 0 {
		return out
	}
	for run := range s.Runs.All {
		if run.Closed(c.Time) && run.Seq <= c.Seq {
			out.Runs = append(out.Runs, run)
		}
	}
	for _, run := range out.Runs {
		s.loadRun(&Run{RunID: run.RunID, State: run.State, Meta: Meta{Deleted: true}})
	}
	gone := func(runID string, m *Meta) bool { return m.Seq <= c.Seq && s.Runs.Get(runID) == nil }
	out.Tasks = byRun(&s.Tasks, gone, func(run string) Key2 { return Key2{A: run} }, func(r *Task) string { return r.RunID })
	for _, row := range out.Tasks {
		s.loadTask(&Task{RunID: row.RunID, TaskKey: row.TaskKey, Pool: row.Pool, Meta: Meta{Deleted: true}})
	}
	out.Deps = byRun(&s.Deps, gone, func(run string) Key3 { return Key3{A: run} }, func(r *Dep) string { return r.RunID })
	for _, row := range out.Deps {
		s.Deps.remove(row.Key())
	}
	out.Attempts = byRun(&s.Attempts, gone, func(run string) AttemptKey { return AttemptKey{RunID: run} }, func(r *Attempt) string { return r.RunID })
	for _, row := range out.Attempts {
		s.Attempts.remove(row.Key())
	}
	for row := range s.Conflicts.All {
		if row.Seq <= c.Seq && c.Time.Sub(row.DetectedAt) >= ClosedAfter {
			out.Conflicts = append(out.Conflicts, row)
		}
	}
	for _, row := range out.Conflicts {
		s.Conflicts.remove(row.Key())
	}
	for row := range s.Entries.All {
		if row.Entry >= c.Entries {
			break
		}
		if row.Seq <= c.Seq && !row.Waits() {
			out.Entries = append(out.Entries, row)
		}
	}
	for _, row := range out.Entries {
		s.Entries.remove(row.Key())
	}
	return out
}

// byRun are the rows that are gone, run by run: it looks at the first row of a run
// that stays, and passes over the others.
func byRun[K comparable, R any, P Row[K, R]](
	t *Table[K, R, P], gone func(runID string, m *Meta) bool, first func(runID string) K, runOf func(*R) string,
) []*R {
	var out []*R
	for from := ""; ; {
		stays := ""
		t.Ascend(first(from), func(row *R) bool {
			if gone(runOf(row), P(row).RowMeta()) {
				out = append(out, row)
				return true
			}
			stays = runOf(row)
			return false
		})
		if stays == "" {
			return out
		}
		from = stays + "\x00"
	}
}

// Chunks are the rows of history's tables in portions that have up to n of each.
func (r *Rows) Chunks(n int) iter.Seq[*Rows] {
	return func(yield func(*Rows) bool) {
		rest := *r
		for {
			portion := &Rows{
				Runs: first(&rest.Runs, n), Tasks: first(&rest.Tasks, n), Deps: first(&rest.Deps, n), Attempts: first(&rest.Attempts, n),
				Conflicts: first(&rest.Conflicts, n), Entries: first(&rest.Entries, n),
			}
			if portion.Len() == 0 || !yield(portion) {
				return
			}
		}
	}
}

func first[R any](rows *[]*R, n int) []*R {
	n = min(n, len(*rows))
	portion := (*rows)[:n]
	*rows = (*rows)[n:]
	return portion
}

// Superseded leaves out of what history has the rows that a live state has anew: a
// conflict that was said again.
func (r *Rows) Superseded(live *State) *Rows {
	out := *r
	out.Conflicts = only(r.Conflicts, func(row *RunKeyConflict) bool { return live.Conflicts.Get(row.Key()) == nil })
	return &out
}

// KeptFrom are the rows without those of runs below an id.
func (r *Rows) KeptFrom(runID string) *Rows {
	if runID == "" {
		return r
	}
	out := *r
	out.Runs = only(r.Runs, func(row *Run) bool { return row.RunID >= runID })
	out.Tasks = only(r.Tasks, func(row *Task) bool { return row.RunID >= runID })
	out.Deps = only(r.Deps, func(row *Dep) bool { return row.RunID >= runID })
	out.Attempts = only(r.Attempts, func(row *Attempt) bool { return row.RunID >= runID })
	out.Conflicts = only(r.Conflicts, func(row *RunKeyConflict) bool { return row.RunID >= runID })
	return &out
}

// OfRun are the rows of one run.
func (r *Rows) OfRun(runID string) *Rows {
	return &Rows{
		Runs:     only(r.Runs, func(row *Run) bool { return row.RunID == runID }),
		Tasks:    only(r.Tasks, func(row *Task) bool { return row.RunID == runID }),
		Deps:     only(r.Deps, func(row *Dep) bool { return row.RunID == runID }),
		Attempts: only(r.Attempts, func(row *Attempt) bool { return row.RunID == runID }),
	}
}

func only[R any](rows []*R, is func(*R) bool) []*R {
	var out []*R
	for _, row := range rows {
		if is(row) {
			out = append(out, row)
		}
	}
	return out
}
