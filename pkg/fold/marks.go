package fold

import (
	"fmt"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/state"
)

// A mark names the output that its writer saw. So the fold never needs the row of the partition, which may exist only
// in history. A mark of an output that is no longer visible has no effect.

// checkMarks rejects a command that would exceed the limit of marks.
func (f *folder) checkMarks(p *event.PartitionsMarked, c *checked) verdict {
	for _, m := range p.Partitions {
		if f.st.Marks.Get(state.Key3{A: p.Asset, B: m.Partition, C: m.MaterializationID}) == nil {
			c.marked++
		}
	}
	if detail := MarkLimit(f.st, c.marked); detail != "" && c.marked > 0 {
		return verdict{outcome: state.Conflict, detail: detail}
	}
	return verdict{}
}

// MarkLimit describes the limit that would be exceeded with more marks, or returns "".
func MarkLimit(s *state.State, more int) string {
	if have := s.Marks.Len(); have+more > state.MaxMarks {
		return fmt.Sprintf("cannot mark %d more partitions: %d are marked, and at most %d may be; materialize marked partitions to end their marks",
			more, have, state.MaxMarks)
	}
	return ""
}

// partitionsMarked marks outputs. The command with the greatest id wins, regardless of the order of folding. One
// exception: no command makes a hidden output visible again.
func (f *folder) partitionsMarked(p *event.PartitionsMarked) verdict {
	result := noChange
	for _, m := range p.Partitions {
		old := f.st.Marks.Get(state.Key3{A: p.Asset, B: m.Partition, C: m.MaterializationID})
		switch {
		case old == nil:
		case old.CommandID == p.CommandID || old.Mark == event.MarkMissing && p.Mark == event.MarkMissing:
			continue
		case old.Mark == event.MarkMissing || old.CommandID > p.CommandID && p.Mark != event.MarkMissing:
			if result.outcome == state.NoChange {
				result = stale("a later command has marked the partitions")
			}
			continue
		}
		row := &state.Mark{
			AssetKey: p.Asset, PartitionKey: m.Partition, MaterializationID: m.MaterializationID, Mark: p.Mark,
			CommandID: p.CommandID, MarkedSeq: f.seq, MarkedAt: f.at(), MarkedBy: f.ev.Actor, Reason: p.Reason,
		}
		if p.Mark == event.MarkFresh {
			row.InputsSeq = f.observedSeq(p.CommandID, p.ObservedSeq)
		}
		put(f, f.st.Marks, row)
		result = folded
	}
	if p.Mark == event.MarkMissing {
		f.unlearn(p.Asset, p.Partitions)
	}
	return result
}

// observedSeq returns the fold sequence number of the state that the writer of an event saw. The parameter observed is
// the number that the writer has put into the event. A writer may claim too high a number, so the result is at most the
// number of the previous event. In a rebuild from the bare ledger, all events get new numbers, and observed means
// nothing. Then observedSeq returns the new number, which [Group.Inputs] contains. The parameter id is its key there:
// the id of the event's run or command.
func (f *folder) observedSeq(id string, observed int64) int64 {
	if f.inputs != nil {
		return f.inputs[id]
	}
	return min(observed, f.seq-1)
}

// endMarks removes the marks of the earlier outputs of a partition.
func (f *folder) endMarks(row *state.Partition) {
	if f.st.Marks.Len() == 0 { // avoid an allocation in the usual case
		return
	}
	var ended []*state.Mark
	f.st.Marks.Ascend(state.Key3{A: row.AssetKey, B: row.PartitionKey}, func(m *state.Mark) bool {
		if m.AssetKey != row.AssetKey || m.PartitionKey != row.PartitionKey {
			return false
		}
		if m.MaterializationID != row.MaterializationID {
			ended = append(ended, m)
		}
		return true
	})
	for _, m := range ended {
		dead := *m
		remove(f, f.st.Marks, &dead)
	}
}

// show makes an output the visible output of its partition.
func (f *folder) show(row *state.Partition) {
	put(f, f.st.Partitions, row)
	f.endMarks(row)
	f.delivered(row)
}
