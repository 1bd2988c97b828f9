package repair

import (
	"hash/maphash"

	"github.com/oklog/ulid/v2"

	"github.com/servo-orchestration/servo/pkg/state"
)

// sums stand for rows of history in whatever order they come: of each table the sum of
// its rows' hashes, by a seed that nobody can know. Two sets of rows with the same sums
// are the same.
type sums struct {
	seed   maphash.Seed
	from   string // rows of runs below that may be there or not
	tables map[string]uint64
	// conflicts are few, and may be said again after they were closed: the last one counts.
	conflicts map[state.Key2]*state.RunKeyConflict
}

func newSums(from string) *sums {
	return &sums{maphash.MakeSeed(), from, map[string]uint64{}, map[state.Key2]*state.RunKeyConflict{}}
}

func (s *sums) add(rows *state.Rows) {
	kept := rows.KeptFrom(s.from)
	addRows(s, "runs", kept.Runs)
	addRows(s, "tasks", kept.Tasks)
	addRows(s, "dep_satisfaction", kept.Deps)
	addRows(s, "attempts", kept.Attempts)
	addRows(s, "ledger_entries", kept.Entries)
	for _, row := range kept.Conflicts {
		if known := s.conflicts[row.Key()]; known == nil || known.Seq < row.Seq {
			s.conflicts[row.Key()] = row
		}
	}
}

func addRows[R comparable](s *sums, table string, rows []*R) {
	for _, row := range rows {
		s.tables[table] += maphash.Comparable(s.seed, *row)
	}
}

// same reports whether both stand for the same rows, but for those that a live state has
// anew.
func (s *sums) same(other *sums, live *state.State) bool {
	for _, table := range []string{"runs", "tasks", "dep_satisfaction", "attempts", "ledger_entries"} {
		if s.tables[table] != other.tables[table] {
			return false
		}
	}
	return s.hasConflicts(other, live) && other.hasConflicts(s, live)
}

func (s *sums) hasConflicts(other *sums, live *state.State) bool {
	for key, row := range other.conflicts {
		if own := s.conflicts[key]; live.Conflicts.Get(key) == nil && (own == nil || *own != *row) {
			return false
		}
	}
	return true
}

// leaving takes out of a state that is being replayed what a cut leaves to history, as
// soon as it is closed: nothing of it changes any more.
type leaving struct {
	cut    state.Cut
	sums   *sums
	runs   map[ulid.ULID]struct{}
	groups int // since the last time
}

// leavingEvery is after how many groups, at least: it looks at all runs that are there.
const leavingEvery = 256

func newLeaving(cut state.Cut, seed maphash.Seed) *leaving {
	l := &leaving{cut: cut, sums: newSums(cut.Runs), runs: map[ulid.ULID]struct{}{}}
	l.sums.seed = seed // sums by another one say nothing
	return l
}

// some takes out what is closed by now, now and then. What comes after the cut is not in
// history whatever becomes of it.
func (l *leaving) some(st *state.State) {
	if l.groups++; l.groups >= max(leavingEvery, st.Runs.Len()) && st.FoldSeq <= l.cut.Seq {
		l.groups = 0
		l.take(st, state.Cut{Seq: st.FoldSeq, Time: min(st.FoldTime, l.cut.Time), Entries: l.cut.Entries, Runs: l.cut.Runs})
	}
}

// rest takes out what is left of it in the end.
func (l *leaving) rest(st *state.State) { l.take(st, l.cut) }

func (l *leaving) take(st *state.State, cut state.Cut) {
	closed := st.Evict(cut)
	l.sums.add(closed)
	for _, run := range closed.Runs {
		if id, err := ulid.ParseStrict(run.RunID); err == nil {
			l.runs[id] = struct{}{}
		}
	}
	st.Drain() // or it would keep them as changes
}

// among are those of some runs that have left.
func (l *leaving) among(runs []string) (left []string) {
	for _, run := range runs {
		if id, err := ulid.ParseStrict(run); err == nil {
			if _, has := l.runs[id]; has {
				left = append(left, run)
			}
		}
	}
	return left
}
