package state

import (
	"github.com/servo-orchestration/servo/pkg/event"
)

// MaxMarks is the maximum number of marks of a domain. All marks are in the live state.
const MaxMarks = 100_000

// Mark is a row of partition_marks: what a person has recorded about an output. The mark applies only while this
// output is the visible output of its partition, or would be visible without the mark. A later output ends the mark.
type Mark struct {
	AssetKey          string `col:"asset_key,key,dict"`
	PartitionKey      string `col:"partition_key,key"`
	MaterializationID string `col:"materialization_id,key"`
	// Mark is stale, fresh or missing.
	Mark string `col:"mark,dict"`
	// CommandID is the greatest id of a command that marked the output.
	CommandID string `col:"command_id"`
	// MarkedSeq is the fold sequence number of the mark. If the mark is "missing", this number is the
	// version of the partition.
	MarkedSeq int64 `col:"marked_seq"`
	// InputsSeq belongs to the mark "fresh": versions of inputs up to this fold sequence number do not make the output
	// stale. For other marks it is 0.
	InputsSeq int64      `col:"inputs_seq"`
	MarkedAt  event.Time `col:"marked_at"`
	MarkedBy  string     `col:"marked_by,null,dict"`
	Reason    string     `col:"reason,null"`
	Meta
}

// Key returns the primary key.
func (r *Mark) Key() Key3 { return Key3{r.AssetKey, r.PartitionKey, r.MaterializationID} }

func (*Mark) newTable() store { return new(rowTable[Key3, Mark, *Mark]) }

// MarksOf calls yield for the marks of the partitions of an asset, in the order of their keys. At most one mark of a
// partition applies to its current output.
func (s *State) MarksOf(asset string, yield func(*Mark) bool) {
	s.Marks.Ascend(Key3{A: asset}, func(m *Mark) bool { return m.AssetKey == asset && yield(m) })
}

// MarkOf returns the mark of a partition's output, or nil. The outputs of a forgotten asset are marked as missing.
func (s *State) MarkOf(row *Partition) *Mark {
	mark := s.Marks.Get(Key3{A: row.AssetKey, B: row.PartitionKey, C: row.MaterializationID})
	if mark != nil && mark.Mark == event.MarkMissing {
		return mark
	}
	if forgotten := s.ForgottenBy(row.AssetKey, row.RunID, row.VersionSeq); forgotten != nil {
		return forgotten.mark(row)
	}
	return mark
}

// Hidden reports whether a person has marked the output of a partition as missing, or has forgotten its asset.
func (s *State) Hidden(row *Partition) bool {
	m := s.MarkOf(row)
	return m != nil && m.Mark == event.MarkMissing
}
