package repair

import (
	"hash/maphash"

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
