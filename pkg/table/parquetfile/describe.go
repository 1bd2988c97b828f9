package parquetfile

import (
	"encoding/binary"

	"github.com/servo-orchestration/servo/pkg/table"
)

// The numbers that the writer uses, as the Parquet specification defines them.
const (
	magic = "PAR1"

	physicalBoolean   = 0
	physicalInt32     = 1
	physicalInt64     = 2
	physicalByteArray = 6

	convertedUTF8   = 0
	convertedMicros = 10

	pageData       = 0
	pageDictionary = 2

	encodingPlain      = 0
	encodingRLE        = 3
	encodingDictionary = 8

	codecZstd     = 6
	formatVersion = 2
)

// column describes a column of a file: the properties that all chunks of the column share.
type column struct {
	table.Column
	physical int64
	bounded  bool // each row group stores the least and the greatest value of the column
}

func physicalType(t table.Type) int64 {
	switch t {
	case table.Varchar:
		return physicalByteArray
	case table.Integer:
		return physicalInt32
	case table.Boolean:
		return physicalBoolean
	case table.Bigint, table.Timestamp:
		return physicalInt64
	}
	panic("parquetfile: unknown type " + string(t))
}

// bounds are the statistics of a column in a row group.
type bounds struct {
	wanted      bool
	set         bool
	nulls       int64
	least, most int64
	first, last string
}

// number extends the bounds to include v.
func (b *bounds) number(v int64) {
	if !b.set {
		b.set, b.least, b.most = true, v, v
		return
	}
	b.least, b.most = min(b.least, v), max(b.most, v)
}

// text extends the bounds to include v. It returns false if v is too long to be stored as a bound.
func (b *bounds) text(v string) bool {
	if !b.wanted {
		return true
	}
	if !b.set {
		b.set, b.first, b.last = true, v, v
	} else {
		b.first, b.last = min(b.first, v), max(b.last, v)
	}
	return len(v) <= boundBytes
}

// write writes the bounds as a field. For a column without statistics, the field is an empty struct.
func (b *bounds) write(t *compact, id int, c *column) {
	outer := t.begin(id)
	if b.wanted {
		number := c.physical != physicalByteArray
		least, most := b.first, b.last
		if number && b.set {
			least, most = plain(c, b.least), plain(c, b.most)
			t.binary(1, most) // for numbers, the deprecated fields are written, too
			t.binary(2, least)
		}
		t.i64(3, b.nulls)
		if b.set {
			t.binary(5, most)
			t.binary(6, least)
		}
	}
	t.end(outer)
}

// plain returns the plain encoding of a number.
func plain(c *column, v int64) string {
	data := binary.LittleEndian.AppendUint64(nil, uint64(v)) //nolint:gosec // the same bits
	if c.physical == physicalInt32 {
		data = data[:4]
	}
	return string(data)
}

// dictionaryPage writes the page with the dictionary of the column, and encodes the values of the column as indexes
// into this dictionary.
func (w *writer) dictionaryPage(to *chunk) {
	packed := w.compress(w.dict)
	w.head.reset()
	w.head.i32(1, pageDictionary)
	w.head.i32(2, int64(len(w.dict)))
	w.head.i32(3, int64(len(packed)))
	outer := w.head.begin(7)
	w.head.i32(1, int64(len(w.places)))
	w.head.i32(2, encodingPlain)
	w.head.boolean(3, false)
	w.head.end(outer)
	w.head.end(0)
	w.appendPage(to, packed, len(w.dict))

	width := placeBits(len(w.places))
	w.index.reset(append(w.values, byte(width)), width)
	for _, place := range w.indices {
		w.index.put(uint32(place)) //nolint:gosec // not negative
	}
	w.values = w.index.finish()
}

// placeBits returns how many bits an index into a dictionary of the given size needs.
func placeBits(size int) int {
	if size == 1 {
		return 1
	}
	n := 0
	for ; size > 1<<n; n++ {
		continue
	}
	return n
}

// dataPage writes the page with the definition levels and the values of the column.
func (w *writer) dataPage(c *column, to *chunk) {
	page := w.values
	if c.Nullable {
		levels := w.levels.finish()
		binary.LittleEndian.PutUint32(levels, uint32(len(levels)-4)) //nolint:gosec // a page fits in 32 bits
		w.levels.buf = append(levels, page...)
		page = w.levels.buf
	}
	to.data = int64(len(w.out))
	packed := w.compress(page)
	w.head.reset()
	w.head.i32(1, pageData)
	w.head.i32(2, int64(len(page)))
	w.head.i32(3, int64(len(packed)))
	outer := w.head.begin(5)
	w.head.i32(1, int64(len(w.rows)))
	w.head.i32(2, encodingOf(c))
	w.head.i32(3, encodingRLE)
	w.head.i32(4, encodingRLE)
	to.bounds.write(&w.head, 5, c)
	w.head.end(outer)
	w.head.end(0)
	w.appendPage(to, packed, len(page))
}

func encodingOf(c *column) int64 {
	if c.Dict {
		return encodingDictionary
	}
	return encodingPlain
}

// appendPage appends the head of a page, and then the page itself, to the file.
func (w *writer) appendPage(to *chunk, packed []byte, unpacked int) {
	w.out = append(append(w.out, w.head.buf...), packed...)
	to.size += int64(len(w.head.buf) + len(packed))
	to.unpacked += int64(len(w.head.buf) + unpacked)
}

// describe writes the footer's entry for a column in a row group.
func (w *writer) describe(c *column, written *chunk) {
	t := &w.meta
	outer := t.open()
	t.i64(2, written.at)
	inner := t.begin(3)
	t.i32(1, c.physical)
	encodings := []int64{encodingPlain, encodingRLE}
	if c.Dict {
		encodings = []int64{encodingDictionary, encodingPlain, encodingRLE}
	}
	t.list(2, thriftI32, len(encodings))
	for _, e := range encodings {
		t.varint(e)
	}
	t.list(3, thriftBinary, 1)
	t.text(c.Name)
	t.i32(4, codecZstd)
	t.i64(5, int64(len(w.rows)))
	t.i64(6, written.unpacked)
	t.i64(7, written.size)
	t.i64(9, written.data)
	if c.Dict {
		t.i64(11, written.at)
	}
	if c.bounded {
		written.bounds.write(t, 12, c)
	}
	w.describePages(c)
	t.end(inner)
	t.end(outer)
}

// describePages writes how many pages of each kind and encoding the column has.
func (w *writer) describePages(c *column) {
	t := &w.meta
	page := func(kind, encoding int64) {
		outer := t.open()
		t.i32(1, kind)
		t.i32(2, encoding)
		t.i32(3, 1)
		t.end(outer)
	}
	if c.Dict {
		t.list(13, thriftStruct, 2)
		page(pageDictionary, encodingPlain)
	} else {
		t.list(13, thriftStruct, 1)
	}
	page(pageData, encodingOf(c))
}

// footer writes the footer, its length and the final magic number.
func (w *writer) footer(form *layout, groups, rows int) {
	at := len(w.out)
	t := compact{buf: append(w.out, form.schema...), last: 2}
	t.i64(3, int64(rows))
	t.list(4, thriftStruct, groups)
	t.buf = append(t.buf, w.meta.buf...)
	t.binary(6, createdBy)
	t.list(7, thriftStruct, len(form.columns))
	for range form.columns { // column orders: texts by byte, numbers by value
		outer := t.open()
		t.end(t.begin(1))
		t.end(outer)
	}
	t.end(0)
	w.out = binary.LittleEndian.AppendUint32(t.buf, uint32(len(t.buf)-at)) //nolint:gosec // files are below 4 GiB
	w.out = append(w.out, magic...)
}

// schemaOf returns the bytes with which the footer of each file of a table starts: the version and the columns.
func schemaOf(name string, columns []column) []byte {
	t := &compact{}
	t.i32(1, formatVersion)
	t.list(2, thriftStruct, len(columns)+1)
	root := t.open()
	t.binary(4, name)
	t.i32(5, int64(len(columns)))
	t.end(root)
	for i := range columns {
		c := &columns[i]
		outer := t.open()
		t.i32(1, c.physical)
		if c.Nullable {
			t.i32(3, 1)
		} else {
			t.i32(3, 0)
		}
		t.binary(4, c.Name)
		describeType(t, c.Type)
		t.end(outer)
	}
	return t.buf
}

// describeType writes the properties of a column's type that its physical type does not express.
func describeType(t *compact, of table.Type) {
	switch of {
	case table.Varchar:
		t.i32(6, convertedUTF8)
		logical := t.begin(10)
		t.end(t.begin(1))
		t.end(logical)
	case table.Timestamp:
		t.i32(6, convertedMicros)
		logical := t.begin(10)
		stamp := t.begin(8)
		t.boolean(1, true) // in UTC
		unit := t.begin(2)
		t.end(t.begin(2))
		t.end(unit)
		t.end(stamp)
		t.end(logical)
	case table.Integer, table.Bigint, table.Boolean:
	}
}
