package staleness

import (
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/state"
)

// cell contains the columns of a row that an evaluation needs. A cell and its key take about 80 bytes of memory; a
// row takes 600.
type cell struct {
	version, inputs, leftOut int64
	// made is when the run of the output was requested. planned is when the first run of its chain of retries was
	// requested: retries execute the plan of that run.
	made, planned event.Time
	// These fields hold numbers that stand for texts: see the type texts. 0 stands for the empty text. For readIn, see
	// [state.Partition.ReadIn].
	code, run, root, readIn uint32
	// incomplete means that the task has possibly not read the outputs that the other runs of its chain of retries
	// made: see [state.Partition.Incomplete].
	incomplete bool
	// marked means that a person marked the output as stale.
	marked bool
	// ahead says whether the run of the output was requested before the partition's period began, if this is known: see
	// omitted.
	ahead ahead
}

// ahead says whether the run of an output was requested before the period of its partition began. It is computed when
// it is first needed.
type ahead uint8

const (
	aheadUnknown ahead = iota
	aheadNo
	aheadYes
)

// texts assigns numbers to texts, because the same texts occur in many rows. The number of the empty text is 0.
type texts map[string]uint32

func (t texts) number(text string) uint32 {
	if text == "" {
		return 0
	}
	n, known := t[text]
	if !known {
		n = uint32(len(t)) + 1 //nolint:gosec // so many different texts do not fit into memory
		t[text] = n
	}
	return n
}

func (t texts) cellOf(row *state.Partition, m *state.Mark) cell {
	made := timeOf(row.RunID, row.MaterializedAt)
	c := cell{
		version: row.VersionSeq, inputs: row.InputsSeq, leftOut: row.LeftOut, incomplete: row.Incomplete(),
		made: made, planned: min(made, timeOf(row.Root(), made)),
		code: t.number(row.Code), run: t.number(row.RunID), root: t.number(row.Root()), readIn: t.number(row.ReadIn()),
	}
	if m != nil {
		c.marked = m.Mark == event.MarkStale
		if m.Mark == event.MarkFresh {
			c.inputs, c.made, c.planned = max(c.inputs, m.InputsSeq), max(c.made, m.MarkedAt), max(c.planned, m.MarkedAt)
		}
	}
	return c
}

// timeOf returns the time in the id of a run, or the parameter "other" if the id contains no time.
func timeOf(run string, other event.Time) event.Time {
	if at := ids.Time(run); !at.IsZero() {
		return event.At(at)
	}
	return other
}

// readBy identifies the readers that may have read the output before it was visible to other runs. It returns the
// number of their chain of retries, or 0 if there is none. If the parameter incomplete is true, the reader has possibly
// read only the outputs of its own run. In this case, readBy returns the number of the run that made the output
// instead.
func (c *cell) readBy(incomplete bool) uint32 {
	if incomplete && c.readIn != 0 {
		return c.run
	}
	return c.readIn
}

// reads returns the number of the run or the chain of retries whose outputs the task of c has read.
func (c *cell) reads() uint32 {
	if c.incomplete {
		return c.run
	}
	return c.root
}

// columns contains the cells of an asset's partitions, sorted by key.
type columns struct {
	keys  []string
	cells []cell
	// next is the position after the last key that was found. It makes look-ups fast if they are in the order of the
	// keys, as they usually are.
	next int
}

// cell returns the cell of a partition, or nil if columns has none.
func (c *columns) cell(key string) *cell {
	if c.next < len(c.keys) && c.keys[c.next] == key {
		c.next++
		return &c.cells[c.next-1]
	}
	low, high := 0, len(c.keys)
	for low < high {
		if at := (low + high) / 2; c.keys[at] < key {
			low = at + 1
		} else {
			high = at
		}
	}
	if low == len(c.keys) || c.keys[low] != key {
		return nil
	}
	c.next = low + 1
	return &c.cells[low]
}

func (c *columns) has(key string) bool { return c.cell(key) != nil }
