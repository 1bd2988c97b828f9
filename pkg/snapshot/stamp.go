package snapshot

import "github.com/servo-orchestration/servo/pkg/state"

// Stamp identifies a set of rows. If the stamps of a set of rows are the same in two snapshots of one timeline, the
// rows are equal: a row that is added or changed has a greater sequence number than all rows of earlier snapshots, and
// a deleted row reduces the number of rows.
type Stamp struct {
	// History is the object key of the index of the rows in history.
	History string
	// Rows is the number of live rows, and Seq is the greatest of their sequence numbers.
	Rows int
	Seq  int64
}

func (s *Stamp) add(m *state.Meta) {
	s.Rows++
	s.Seq = max(s.Seq, m.Seq)
}

// StampOf returns the stamp of an asset's own rows that determine the statuses of its partitions: the partitions,
// their marks, the accepted codes, and the row of a forgotten asset. The statuses also depend on the keys of key sets
// and on the rows of other assets.
func (s *Snapshot) StampOf(asset string) Stamp {
	stamp := Stamp{History: s.History.indexes[partitionsTable].Key}
	s.State.Partitions.Ascend(state.Key2{A: asset}, func(row *state.Partition) bool {
		if row.AssetKey != asset {
			return false
		}
		stamp.add(&row.Meta)
		return true
	})
	s.State.MarksOf(asset, func(row *state.Mark) bool {
		stamp.add(&row.Meta)
		return true
	})
	s.State.AcceptedCodes.Ascend(state.Key2{A: asset}, func(row *state.AcceptedCode) bool {
		if row.AssetKey != asset {
			return false
		}
		stamp.add(&row.Meta)
		return true
	})
	if row := s.State.Forgotten.Get(asset); row != nil {
		stamp.add(&row.Meta)
	}
	return stamp
}

// KeysStamp returns the stamp of the keys of all key sets.
func (s *Snapshot) KeysStamp() (stamp Stamp) {
	for row := range s.State.KeySets.All {
		stamp.add(&row.Meta)
	}
	return stamp
}
