package parquetfile

import "encoding/binary"

// Types of fields in Thrift's compact protocol.
const (
	thriftTrue   = 1
	thriftFalse  = 2
	thriftI16    = 4
	thriftI32    = 5
	thriftI64    = 6
	thriftBinary = 8
	thriftList   = 9
	thriftStruct = 12
)

// shortList is the least length that does not fit into the head of a list. Lengths from shortList on are written
// after the head.
const shortList = 15

// compact writes the structs of a Parquet file in Thrift's compact protocol. The fields of a struct
// must be written in the order of their ids.
type compact struct {
	buf  []byte
	last int // id of the previous field of the current struct
}

func (t *compact) reset() { t.buf, t.last = t.buf[:0], 0 }

// field starts a field. Its id must exceed the previous id by 1 to 15.
func (t *compact) field(id int, kind byte) {
	t.buf = append(t.buf, byte(id-t.last)<<4|kind) //nolint:gosec // a small difference
	t.last = id
}

// varint appends a number. Numbers close to zero, including negative ones, take few bytes.
func (t *compact) varint(v int64) { t.buf = binary.AppendVarint(t.buf, v) }

func (t *compact) i16(id int, v int64) { t.field(id, thriftI16); t.varint(v) }
func (t *compact) i32(id int, v int64) { t.field(id, thriftI32); t.varint(v) }
func (t *compact) i64(id int, v int64) { t.field(id, thriftI64); t.varint(v) }

func (t *compact) boolean(id int, v bool) {
	if v {
		t.field(id, thriftTrue)
	} else {
		t.field(id, thriftFalse)
	}
}

// text appends the length and the bytes of a text.
func (t *compact) text(v string) {
	t.buf = binary.AppendUvarint(t.buf, uint64(len(v)))
	t.buf = append(t.buf, v...)
}

func (t *compact) binary(id int, v string) { t.field(id, thriftBinary); t.text(v) }

// list starts a field with a list of n elements.
func (t *compact) list(id int, kind byte, n int) {
	t.field(id, thriftList)
	if n < shortList {
		t.buf = append(t.buf, byte(n)<<4|kind) //nolint:gosec // below 15
		return
	}
	t.buf = append(t.buf, shortList<<4|kind)
	t.buf = binary.AppendUvarint(t.buf, uint64(n))
}

// open starts a struct in a list, or the outermost struct. The caller must pass the result to end.
func (t *compact) open() (outer int) {
	outer, t.last = t.last, 0
	return outer
}

// begin starts a field with a struct. The caller must pass the result to end.
func (t *compact) begin(id int) (outer int) {
	t.field(id, thriftStruct)
	return t.open()
}

func (t *compact) end(outer int) { t.buf, t.last = append(t.buf, 0), outer }
