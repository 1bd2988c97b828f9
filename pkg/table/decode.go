package table

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/schema"
)

// maxRowsPerByte tells a file from a bomb: keys are text and unique, so no
// compression holds a row in an eighth of a byte.
const maxRowsPerByte = 8

// batchCells is how many cells of a column are decoded at a time.
const batchCells = 4096

// Decode reads a file that Encode wrote, in this build or another. The rows
// come in ascending order of their keys. It checks the form of the data, not
// its checksum: who fetched the file compares that with the manifest.
func (t *Table[R]) Decode(data []byte) (rows []*R, err error) {
	defer func() {
		// The decoder of the Parquet library trusts some of what it reads.
		if recovered := recover(); recovered != nil {
			rows, err = nil, fmt.Errorf("decode %s: the file is corrupt: %v", t.name, recovered)
		}
	}()
	if len(data) > MaxFileBytes {
		return nil, fmt.Errorf("decode %s: %d bytes are more than the limit of %d", t.name, len(data), MaxFileBytes)
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
	values []reflect.Value // of the rows of the current row group
	cells  *cells
}

func (d *decoder[R]) run(size int64) error {
	count := d.reader.NumRows()
	if count < 0 || count > MaxRows || count > size*maxRowsPerByte {
		return fmt.Errorf("a file of %d bytes says that it has %d rows", size, count)
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
		return fmt.Errorf("the file has %d rows and says %d", len(d.rows), count)
	}
	for i := 1; i < len(d.rows); i++ {
		if d.table.Compare(d.rows[i-1], d.rows[i]) >= 0 {
			return fmt.Errorf("row %d (%s) is not after the row before it", i, d.table.Key(d.rows[i]))
		}
	}
	return nil
}

// locate finds the table's columns in a file: -1 for one that it lacks.
func (t *Table[R]) locate(found *schema.Schema) ([]int, error) {
	if root := found.Root().Name(); root != t.name && slices.ContainsFunc(All(), func(d Description) bool { return d.Name == root }) {
		return nil, fmt.Errorf("the file is of the table %s", root)
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
				return nil, fmt.Errorf("column %s: the file has it twice", c.Name)
			}
			if err := c.accepts(found.Column(j)); err != nil {
				return nil, fmt.Errorf("column %s: %w", c.Name, err)
			}
			where[i] = j
		}
		if where[i] < 0 && c.required() {
			return nil, fmt.Errorf("column %s: the file lacks it", c.Name)
		}
	}
	return where, nil
}

func (c *column) accepts(found *schema.Column) error {
	physical, logical := parquetType(c.Type)
	if found.PhysicalType() != physical || found.MaxRepetitionLevel() != 0 || found.MaxDefinitionLevel() > 1 {
		return fmt.Errorf("the file has it as %v, it must be %s", found.PhysicalType(), c.Type)
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
	return fmt.Errorf("the file has it as %v, it must be %s", has, c.Type)
}

func (d *decoder[R]) readGroup(index int, where []int, limit int64) error {
	group := d.reader.RowGroup(index)
	count := group.NumRows()
	if count < 0 || count > limit-int64(len(d.rows)) {
		return fmt.Errorf("it says that it has %d rows", count)
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
			return fmt.Errorf("column %s: it is compressed with %v, not zstd", c.Name, codec)
		}
		in, err := group.Column(where[i])
		if err != nil {
			return fmt.Errorf("column %s: %w", c.Name, err)
		}
		err = d.readColumn(in, c, int(count))
		in.Close() // it gives buffers back and cannot fail
		if err != nil {
			return fmt.Errorf("column %s: %w", c.Name, err)
		}
	}
	return nil
}

// readColumn sets one field of the group's rows. The first column, a key, makes
// the rows as its cells come: what the footer says is not believed.
func (d *decoder[R]) readColumn(in file.ColumnChunkReader, c *column, count int) error {
	d.cells.begin(c)
	for done := 0; done < count; {
		n, err := d.cells.read(in, min(batchCells, count-done))
		if err != nil {
			return err
		}
		if n == 0 {
			return fmt.Errorf("it ends after %d of %d rows", done, count)
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

// cells are a batch of one column's values, and what is remembered between
// batches so that text that repeats is held once.
type cells struct {
	column *column
	levels []int16
	used   []int // for each cell, its value's place; -1 for NULL
	bytes  []parquet.ByteArray
	i32    []int32
	i64    []int64
	bools  []bool

	last   string
	known  map[string]string
	copied int64
}

// maxKnown bounds the texts that one column remembers.
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

// read takes up to n cells off the column.
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

// place notes where each cell's value is.
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
		return fmt.Errorf("%d cells have %d values", next, present)
	}
	return nil
}

// set gives a field the value of cell i.
func (b *cells) set(field reflect.Value, i int) error {
	at := b.used[i]
	if at < 0 {
		if b.column.required() {
			return fmt.Errorf("it is NULL, which it never is")
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

// text copies a value out of the page. The one before it, and what a dictionary
// column has had, is not copied again: runs and states repeat by the thousand.
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
			return "", fmt.Errorf("the file holds more than %d bytes of text", int64(MaxTextBytes))
		}
		text = string(value)
		if b.known != nil && len(b.known) < maxKnown {
			b.known[text] = text
		}
	}
	b.last = text
	return text, nil
}
