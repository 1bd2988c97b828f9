package event

import "fmt"

// MaxMarked is the maximum number of partitions that one event marks.
const MaxMarked = 1000

// Marks of an output.
const (
	MarkStale   = "stale"   // the output must be materialized again
	MarkFresh   = "fresh"   // the output is up to date with everything that the writer saw
	MarkMissing = "missing" // the output is wrong: readers no longer find it
)

// PartitionsMarked is a person's command to mark outputs of an asset. A mark ends when a later
// output of its partition becomes visible.
type PartitionsMarked struct {
	// CommandID makes the command unique. The marks of a command replace the marks of every command with a smaller id.
	// Only the mark "missing" is never replaced.
	CommandID string `json:"command_id"`
	Asset     string `json:"asset"`
	// Mark is "stale", "fresh" or "missing".
	Mark       string            `json:"mark"`
	Partitions []MarkedPartition `json:"partitions"`
	// ObservedSeq and ObservedTime are the fold sequence and the fold time of the state that the writer saw. The mark
	// "fresh" means up to date with that state.
	ObservedSeq  int64  `json:"observed_seq"`
	ObservedTime Time   `json:"observed_time,omitempty,omitzero"`
	Reason       string `json:"reason"`
}

// MarkedPartition is a partition and the output that the writer saw in it.
type MarkedPartition struct {
	Partition         string `json:"partition,omitempty"`
	MaterializationID string `json:"materialization_id"`
	// RunID is the run that made the output. "": it is not known.
	RunID string `json:"run_id,omitempty"`
}

func (c *checker) partitionsMarked(p *PartitionsMarked) {
	c.ulid("payload.command_id", p.CommandID)
	c.assetKey("payload.asset", p.Asset)
	c.oneOf("payload.mark", p.Mark, MarkStale, MarkFresh, MarkMissing)
	c.atMost("payload.partitions (count)", int64(len(p.Partitions)), MaxMarked)
	for i, m := range p.Partitions {
		c.partition(fmt.Sprintf("payload.partitions[%d].partition", i), m.Partition)
		c.ulid(fmt.Sprintf("payload.partitions[%d].materialization_id", i), m.MaterializationID)
		c.optionalULID(fmt.Sprintf("payload.partitions[%d].run_id", i), m.RunID)
	}
	c.count("payload.observed_seq", p.ObservedSeq)
	c.optionalTime("payload.observed_time", p.ObservedTime)
	c.text("payload.reason", p.Reason, MaxMessage)
}
