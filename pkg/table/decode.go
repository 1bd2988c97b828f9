package table

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/schema"
)

// maxRowsPerByte rejects decompression bombs: keys are unique text, so no row fits into
// an eighth of a byte.
const maxRowsPerByte = 8

// batchCells is how many cells of a column are decoded at a time.
const batchCells = 4096

// Decode returns the rows of a file that this or another build encoded, in ascending order
// of their keys. It validates the format, but not the checksum: callers compare that with
// the manifest.
func (t *Table[R]) Decode(data []byte) (rows []*R, err error) {
	defer func() {
		// The Parquet library does not validate all of its input.
		if recovered := recover(); recovered != nil {
			rows, err = nil, fmt.Errorf("decode %s: the file is corrupt: %v", t.name, recovered)
		}
	}()
	if len(data) > MaxFileBytes {
		return nil, fmt.Errorf("decode %s: %d bytes exceed the limit of %d", t.name, len(data), MaxFileBytes)
	}
	reader, err := file.NewParquetReader(bytes.NewReader(data), file.WithReadProps(readerProperties()))
	if err != nil {
		return nil, fmt.Errorf("decode %s: %w", t.name, err)
	}
	d := decoder[R]{table: t, reader: reader}
	if err := d.run(int64(len(data))); err != nil {
		return nil, fmt.Errorf("decode %s: %w", t.name, err)
	}
	return d.rows, nil
}

func readerProperties() *parquet.ReaderProperties {
	properties := parquet.NewReaderProperties(nil)
	properties.MaxUncompressedPageSize = maxPageBytes
	return properties
}

type decoder[R Row] struct {
	table  *Table[R]
	reader *file.Reader
	rows   []*R
	values []reflect.Value // the rows of the current row group
	cells  *cells
}

func (d *decoder[R]) run(size int64) error {
	count := d.reader.NumRows()
	if count < 0 || count > MaxRows || count > size*maxRowsPerByte {
		return fmt.Errorf("a file of %d bytes cannot have the %d rows that its footer declares", size, count)
	}
	where, err := d.table.locate(d.reader.MetaData().Schema)
	if err != nil {
		return err
	}
	d.cells = newCells(min(batchCells, count))
	for group := range d.reader.NumRowGroups() {
		if err := d.readGroup(group, where, count); err != nil {
			return fmt.Errorf("row group %d: %w", group, err)
		}
	}
	if int64(len(d.rows)) != count {
		return fmt.Errorf("the file has %d rows, but declares %d", len(d.rows), count)
	}
	for i := 1; i < len(d.rows); i++ {
		if d.table.Compare(d.rows[i-1], d.rows[i]) >= 0 {
			return fmt.Errorf("row %d (%s) is not in ascending order", i, d.table.Key(d.rows[i]))
		}
	}
	return nil
}

// locate returns the index of each of the table's columns in a file, or -1 if it is
// missing.
func (t *Table[R]) locate(found *schema.Schema) ([]int, error) {
	if root := found.Root().Name(); root != t.name && slices.ContainsFunc(All(), func(d Description) bool { return d.Name == root }) {
		return nil, fmt.Errorf("the file belongs to table %s", root)
	}
	where := make([]int, len(t.columns))
	for i := range t.columns {
		c := &t.columns[i]
		where[i] = -1
		for j := range found.NumColumns() {
			if found.Column(j).Path() != c.Name {
				continue
			}
			if where[i] >= 0 {
				return nil, fmt.Errorf("column %s: duplicate", c.Name)
			}
			if err := c.accepts(found.Column(j)); err != nil {
				return nil, fmt.Errorf("column %s: %w", c.Name, err)
			}
			where[i] = j
		}
		if where[i] < 0 && c.required() {
			return nil, fmt.Errorf("column %s: missing", c.Name)
		}
	}
	return where, nil
}

// accepts returns an error unless found has the column's physical type and an equivalent
// logical type.
func (c *column) accepts(found *schema.Column) error {
	physical, logical := parquetType(c.Type)
	if found.PhysicalType() != physical || found.MaxRepetitionLevel() != 0 || found.MaxDefinitionLevel() > 1 {
		return fmt.Errorf("must be %s, got %v", c.Type, found.PhysicalType())
	}
	has := found.LogicalType()
	if has == nil || has.Equals(logical) || has.IsNone() && c.Type != Timestamp {
		return nil
	}
	if integer, ok := has.(schema.IntLogicalType); ok && integer.IsSigned() && logical.IsNone() {
		return nil
	}
	if stamp, ok := has.(schema.TimestampLogicalType); ok && c.Type == Timestamp &&
		stamp.TimeUnit() == schema.TimeUnitMicros && stamp.IsAdjustedToUTC() {
		return nil
	}
	return fmt.Errorf("must be %s, got %v", c.Type, has)
}

func (d *decoder[R]) readGroup(index int, where []int, limit int64) error {
	group := d.reader.RowGroup(index)
	count := group.NumRows()
	if count < 0 || count > limit-int64(len(d.rows)) {
		return fmt.Errorf("declares %d rows, more than the file", count)
	}
	d.values = d.values[:0]
	for i := range d.table.columns {
		if where[i] < 0 {
			continue
		}
		c := &d.table.columns[i]
		chunk, err := group.MetaData().ColumnChunk(where[i])
		if err != nil {
			return fmt.Errorf("column %s: %w", c.Name, err)
		}
		if codec := chunk.Compression(); codec != compress.Codecs.Zstd && codec != compress.Codecs.Uncompressed {
			return fmt.Errorf("column %s: compressed with %v, not zstd", c.Name, codec)
		}
		in, err := group.Column(where[i])
		if err != nil {
			return fmt.Errorf("column %s: %w", c.Name, err)
		}
		err = d.readColumn(in, c, int(count))
		in.Close() // releases buffers and cannot fail
		if err != nil {
			return fmt.Errorf("column %s: %w", c.Name, err)
		}
	}
	return nil
}

// readColumn sets one field of the group's rows. The first column, a key, creates the
// rows one by one, so that memory does not depend on the row count in the footer.
func (d *decoder[R]) readColumn(in file.ColumnChunkReader, c *column, count int) error {
	d.cells.begin(c)
	for done := 0; done < count; {
		n, err := d.cells.read(in, min(batchCells, count-done))
		if err != nil {
			return err
		}
		if n == 0 {
			return fmt.Errorf("ends after %d of %d rows", done, count)
		}
		for i := range n {
			if done+i == len(d.values) {
				row := new(R)
				d.rows = append(d.rows, row)
				d.values = append(d.values, reflect.ValueOf(row).Elem())
			}
			if err := d.cells.set(c.of(d.values[done+i]), i); err != nil {
				return fmt.Errorf("row %d: %w", done+i, err)
			}
		}
		done += n
	}
	return nil
}

// cells holds a batch of one column's values, and a cache that interns repeated text.
type cells struct {
	column *column
	levels []int16
	used   []int // for each cell the index of its value, or -1 for NULL
	bytes  []parquet.ByteArray
	i32    []int32
	i64    []int64
	bools  []bool

	last   string            // the previous text of the column
	known  map[string]string // the texts of a dictionary column
	copied int64             // bytes of text copied from the file
}

// maxKnown is the maximum number of texts that are cached for a column.
const maxKnown = 1 << 16

func newCells(size int64) *cells {
	return &cells{
		levels: make([]int16, size),
		used:   make([]int, size),
		bytes:  make([]parquet.ByteArray, size),
		i32:    make([]int32, size),
		i64:    make([]int64, size),
		bools:  make([]bool, size),
	}
}

func (b *cells) begin(c *column) {
	b.column, b.last, b.known = c, "", nil
	if c.dict {
		b.known = make(map[string]string)
	}
}

// read reads up to n cells of a column and returns their number.
func (b *cells) read(in file.ColumnChunkReader, n int) (int, error) {
	var levels []int16
	if in.Descriptor().MaxDefinitionLevel() > 0 {
		levels = b.levels[:n]
	}
	if !in.HasNext() {
		return 0, in.Err()
	}
	var total int64
	var present int
	var err error
	switch in := in.(type) {
	case *file.ByteArrayColumnChunkReader:
		total, present, err = in.ReadBatchInPage(int64(n), b.bytes, levels, nil)
	case *file.Int32ColumnChunkReader:
		total, present, err = in.ReadBatchInPage(int64(n), b.i32, levels, nil)
	case *file.Int64ColumnChunkReader:
		total, present, err = in.ReadBatchInPage(int64(n), b.i64, levels, nil)
	case *file.BooleanColumnChunkReader:
		total, present, err = in.ReadBatchInPage(int64(n), b.bools, levels, nil)
	default:
		return 0, fmt.Errorf("no reader for %T", in)
	}
	if err != nil {
		return 0, err
	}
	return int(total), b.place(int(total), present, levels)
}

// place sets the index of each cell's value.
func (b *cells) place(total, present int, levels []int16) error {
	next := 0
	for i := range total {
		if levels != nil && levels[i] == 0 {
			b.used[i] = -1
			continue
		}
		b.used[i] = next
		next++
	}
	if next != present {
		return fmt.Errorf("%d values for %d cells that are not NULL", present, next)
	}
	return nil
}

// set sets a field to the value of cell i.
func (b *cells) set(field reflect.Value, i int) error {
	at := b.used[i]
	if at < 0 {
		if b.column.required() {
			return errors.New("must not be NULL")
		}
		return nil
	}
	switch b.column.Type {
	case Varchar:
		text, err := b.text(b.bytes[at])
		if err != nil {
			return err
		}
		field.SetString(text)
	case Integer:
		field.SetInt(int64(b.i32[at]))
	case Bigint, Timestamp:
		field.SetInt(b.i64[at])
	case Boolean:
		field.SetBool(b.bools[at])
	}
	return nil
}

// text returns a copy of a value in the page. It reuses the copy of the previous value and
// of earlier values of a dictionary column, since runs and states repeat often.
func (b *cells) text(value []byte) (string, error) {
	if string(value) == b.last {
		return b.last, nil
	}
	text, ok := b.known[string(value)]
	if !ok {
		if !utf8.Valid(value) {
			return "", fmt.Errorf("%.80q is not UTF-8", value)
		}
		if b.copied += int64(len(value)); b.copied > MaxTextBytes {
			return "", fmt.Errorf("the file has more than %d bytes of text", int64(MaxTextBytes))
		}
		text = string(value)
		if b.known != nil && len(b.known) < maxKnown {
			b.known[text] = text
		}
	}
	b.last = text
	return text, nil
}
