package parquetfile

import "encoding/binary"

const (
	rleGroup = 8 // number of values that are packed together
	// rleRun is the maximum number of groups in a packed run, so that its head fits in one byte.
	rleRun = 63
)

// hybrid writes small numbers in Parquet's hybrid encoding: a number that occurs at least eight times in a row
// becomes a repeated run, which has a count; other numbers are packed bit by bit in groups of eight. hybrid chooses
// between the two as Arrow's encoder does, so that both write the same bytes.
type hybrid struct {
	buf   []byte
	width int // number of bits of each value

	group  [rleGroup]uint32 // values that have not been written yet
	filled int
	value  uint32 // the value that was put last
	count  int    // how often this value was put consecutively
	head   int    // the position in buf at which the current packed run starts, or -1
	groups int    // number of groups in the current packed run
}

// reset starts a sequence of numbers at the end of buf. The parameter width is the number of bits of each number.
func (h *hybrid) reset(buf []byte, width int) { *h = hybrid{buf: buf, width: width, head: -1} }

func (h *hybrid) put(v uint32) {
	if h.value == v {
		h.count++
		if h.count > rleGroup {
			return // the value only extends the repeated run
		}
	} else {
		if h.count >= rleGroup {
			h.repeat()
		}
		h.count, h.value = 1, v
	}
	h.group[h.filled] = v
	h.filled++
	if h.filled < rleGroup {
		return
	}
	if h.count >= rleGroup {
		h.filled = 0 // the group belongs to the repeated run
		h.endRun()
		return
	}
	h.pack()
	h.count = 0
}

// finish writes the pending values, and fills the last group with zeros.
func (h *hybrid) finish() []byte {
	switch {
	case h.count > 0 && h.groups == 0 && (h.filled == 0 || h.count == h.filled):
		h.repeat()
	case h.filled > 0:
		clear(h.group[h.filled:])
		h.pack()
	}
	h.endRun()
	return h.buf
}

// repeat writes the repeated run.
func (h *hybrid) repeat() {
	h.buf = binary.AppendUvarint(h.buf, uint64(h.count)<<1) //nolint:gosec // not negative
	for bits := 0; bits < h.width; bits += 8 {
		h.buf = append(h.buf, byte(h.value>>bits)) //nolint:gosec // one byte of the value
	}
	h.count, h.filled = 0, 0
}

// pack appends the group to the current packed run.
func (h *hybrid) pack() {
	if h.head < 0 {
		h.head = len(h.buf)
		h.buf = append(h.buf, 0)
	}
	bits, n := uint64(0), 0
	for _, v := range h.group {
		bits |= uint64(v) << n
		for n += h.width; n >= 8; n -= 8 {
			h.buf = append(h.buf, byte(bits)) //nolint:gosec // the lowest byte
			bits >>= 8
		}
	}
	h.filled = 0
	h.groups++
	if h.groups == rleRun {
		h.endRun()
	}
}

// endRun writes the head of the current packed run.
func (h *hybrid) endRun() {
	if h.head >= 0 {
		h.buf[h.head] = byte(h.groups)<<1 | 1 //nolint:gosec // at most 63
	}
	h.head, h.groups = -1, 0
}
