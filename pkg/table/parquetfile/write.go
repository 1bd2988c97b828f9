package parquetfile

import (
	"encoding/binary"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/parquet/compress"

	"github.com/servo-orchestration/servo/pkg/table"
)

// Most files have fifty columns and few rows. For such files, Arrow's writer is slow, because it allocates 10 kB for
// each column. The writer below reuses its memory and writes the same bytes. It always writes one page per column and
// row group. Files with more text or longer statistics than these limits are written by Arrow's writer.
const (
	// pageBytes is the size at which Arrow's writer ends a page of text.
	pageBytes = 1 << 20
	// boundBytes is the maximum length of a text that this writer stores as a bound of a column.
	boundBytes = 1 << 10
	// keptBytes is the maximum size of a file whose buffers are reused.
	keptBytes = 1 << 20
	// smallPage is the maximum size of a page whose compressed form is kept. If the next small page has the same
	// content, it need not be compressed again.
	smallPage = 32
)

// writer writes files with one page per column and row group. Writers are reused.
type writer struct {
	out  []byte
	meta compact // the row groups, for the footer
	zstd compress.Codec

	rows   []reflect.Value
	values []byte // the values of the column, encoded
	levels hybrid // for each row, whether the column has a value
	index  hybrid // for each value, its index in the dictionary
	head   compact
	page   []byte
	packed []byte

	places  map[string]int32
	dict    []byte
	indices []int32

	// The last small page, and its compressed form. They are kept because the pages of all columns without values are
	// equal.
	small, smallPacked []byte
}

var writers = sync.Pool{New: func() any {
	codec, err := compress.GetCodec(compress.Codecs.Zstd)
	if err != nil {
		panic(err)
	}
	return &writer{zstd: codec, places: map[string]int32{}}
}}

// release returns the writer to the pool for reuse, unless its buffers are large.
func (w *writer) release() {
	clear(w.rows[:cap(w.rows)])
	clear(w.places) // the keys refer to texts in rows, and would keep them in memory
	if cap(w.out)+cap(w.page)+cap(w.packed) <= keptBytes {
		writers.Put(w)
	}
}

// write returns the file with n rows, or nil if it needs more than one page per column.
func (w *writer) write(form *layout, n int, row func(i int) reflect.Value) ([]byte, error) {
	w.out = append(w.out[:0], magic...)
	w.meta.reset()
	groups := (n + rowGroupRows - 1) / rowGroupRows
	for g := range groups {
		w.rows = w.rows[:0]
		for i := g * rowGroupRows; i < min((g+1)*rowGroupRows, n); i++ {
			w.rows = append(w.rows, row(i))
		}
		if fits, err := w.group(form, g); err != nil || !fits {
			return nil, err
		}
	}
	w.footer(form, groups, n)
	return slices.Clone(w.out), nil
}

// group writes a row group. It reports whether each column fits in one page.
func (w *writer) group(form *layout, ordinal int) (bool, error) {
	at := int64(len(w.out))
	outer := w.meta.open()
	w.meta.list(1, thriftStruct, len(form.columns))
	total := chunk{}
	for i := range form.columns {
		c := &form.columns[i]
		written := chunk{at: int64(len(w.out))}
		if fits, err := w.column(c, &written); err != nil {
			return false, fmt.Errorf("column %s: %w", c.Name, err)
		} else if !fits {
			return false, nil
		}
		w.describe(c, &written)
		total.size += written.size
		total.unpacked += written.unpacked
	}
	w.meta.i64(2, total.unpacked)
	w.meta.i64(3, int64(len(w.rows)))
	if len(form.sorted) > 0 {
		w.meta.list(4, thriftStruct, len(form.sorted))
		for _, column := range form.sorted {
			sorting := w.meta.open()
			w.meta.i32(1, int64(column))
			w.meta.boolean(2, false)
			w.meta.boolean(3, false)
			w.meta.end(sorting)
		}
	}
	w.meta.i64(5, at)
	w.meta.i64(6, total.size)
	w.meta.i16(7, int64(ordinal))
	w.meta.end(outer)
	return true, nil
}

// chunk describes a column of a row group.
type chunk struct {
	at, data       int64 // where the chunk and its data page start
	size, unpacked int64 // sizes of the pages with their heads, in bytes: compressed and uncompressed
	bounds         bounds
}

// column writes the pages of a column. It returns false if the column does not fit in one page.
func (w *writer) column(c *column, to *chunk) (bool, error) {
	w.levels.reset(append(w.levels.buf[:0], 0, 0, 0, 0), 1) // four bytes for the length, then the levels
	w.values = w.values[:0]
	to.bounds = bounds{wanted: c.bounded}
	switch c.Type {
	case table.Varchar:
		fits, err := w.gatherText(c, &to.bounds)
		if err != nil || !fits {
			return false, err
		}
	case table.Boolean:
		w.gatherBooleans(c)
	default:
		w.gatherNumbers(c, &to.bounds)
	}
	if c.Dict {
		w.dictionaryPage(to)
	}
	w.dataPage(c, to)
	return true, nil
}

// writeLevel writes the definition level of a row, and reports whether the row has a value to write. The parameter
// value is false for a zero value, which is NULL in a nullable column.
func (w *writer) writeLevel(c *column, b *bounds, value bool) bool {
	if !c.Nullable {
		return true
	}
	if !value {
		w.levels.put(0)
		b.nulls++
		return false
	}
	w.levels.put(1)
	return true
}

// gatherText encodes the texts of the column: one after the other, or as indexes into a dictionary. It reports
// whether the texts fit in one page.
func (w *writer) gatherText(c *column, b *bounds) (bool, error) {
	clear(w.places)
	w.dict, w.indices = w.dict[:0], w.indices[:0]
	size, last := 0, int32(0)
	previous := ""
	for _, row := range w.rows {
		v := c.Of(row).String()
		if !w.writeLevel(c, b, v != "") {
			continue
		}
		if size += len(v) + 4; size >= pageBytes {
			return false, nil
		}
		if c.Dict && len(w.indices) > 0 && v == previous {
			w.indices = append(w.indices, last)
			continue
		}
		if !utf8.ValidString(v) {
			return false, fmt.Errorf("%.80q is not UTF-8", v)
		}
		if !b.text(v) {
			return false, nil
		}
		if !c.Dict {
			w.values = appendText(w.values, v)
			continue
		}
		place, known := w.places[v]
		if !known {
			place = int32(len(w.places)) //nolint:gosec // there are at most as many texts as rows in a group
			w.places[v] = place
			w.dict = appendText(w.dict, v)
		}
		w.indices, previous, last = append(w.indices, place), v, place
	}
	return true, nil
}

// appendText appends the length of a text and the text.
func appendText(to []byte, v string) []byte {
	to = binary.LittleEndian.AppendUint32(to, uint32(len(v))) //nolint:gosec // below pageBytes
	return append(to, v...)
}

func (w *writer) gatherNumbers(c *column, b *bounds) {
	for _, row := range w.rows {
		v := c.Of(row).Int()
		if !w.writeLevel(c, b, v != 0) {
			continue
		}
		b.number(v)
		if c.Type == table.Integer {
			w.values = binary.LittleEndian.AppendUint32(w.values, uint32(v)) //nolint:gosec // the field has 32 bits
		} else {
			w.values = binary.LittleEndian.AppendUint64(w.values, uint64(v)) //nolint:gosec // the same bits
		}
	}
}

func (w *writer) gatherBooleans(c *column) {
	n := 0
	for _, row := range w.rows {
		v := c.Of(row).Bool()
		if !w.writeLevel(c, &bounds{}, v) {
			continue
		}
		if n%8 == 0 {
			w.values = append(w.values, 0)
		}
		if v {
			w.values[n/8] |= 1 << (n % 8)
		}
		n++
	}
}

// compress returns the compressed page.
func (w *writer) compress(page []byte) []byte {
	if len(page) > smallPage {
		w.packed = w.zstd.Encode(w.packed[:0], page)
		return w.packed
	}
	if len(w.smallPacked) == 0 || string(w.small) != string(page) {
		w.small = append(w.small[:0], page...)
		w.smallPacked = w.zstd.Encode(w.smallPacked[:0], page)
	}
	return w.smallPacked
}
