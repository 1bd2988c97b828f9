package repair

import (
	"hash/maphash"
	"maps"

	"github.com/servo-orchestration/servo/pkg/state"
)

// sums identify a set of rows of history by checksums: for each table, the sum of the hashes of its rows, with a random
// seed. Equal sums mean equal rows, except for hash collisions.
type sums struct {
	seed   maphash.Seed
	from   string // rows of runs below this id are ignored, because they may be missing
	tables map[string]uint64
	// reopened contains the rows of the unpaged tables with Declaration.Reopens. History may contain several versions of
	// such a row, but the method equal compares only the newest ones. So these rows, which are few, are stored instead of
	// summed.
	reopened *state.Rows
	live     *state.State
}

func newSums(from string, live *state.State) *sums {
	return &sums{maphash.MakeSeed(), from, map[string]uint64{}, &state.Rows{}, live}
}

// add adds rows. The caller must add only the newest version of each row of a paged table.
func (s *sums) add(rows *state.Rows) (err error) {
	paged, rows := rows.Paged()
	for d, list := range paged.WithoutSuperseded(s.live).Lists {
		s.tables[d.Name] += d.Hash(s.seed, list)
	}
	kept := rows.KeptFrom(s.from)
	for d, list := range kept.Lists {
		if !d.Reopens {
			s.tables[d.Name] += d.Hash(s.seed, list)
		}
	}
	s.reopened, err = state.Merge([]*state.Rows{s.reopened, kept.Reopening()})
	return err
}

// equal reports whether s and other have the same rows. It ignores rows that the live state supersedes.
func (s *sums) equal(other *sums) bool {
	own, others := state.New(s.live.Domain), state.New(s.live.Domain)
	own.Load(s.reopened.WithoutSuperseded(s.live))
	others.Load(other.reopened.WithoutSuperseded(s.live))
	return maps.Equal(s.tables, other.tables) && len(state.Diff(own, others, 1)) == 0
}
