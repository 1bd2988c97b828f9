package parquetfile

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/schema"

	"github.com/servo-orchestration/servo/pkg/table"
)

// maxRowsPerByte is the maximum number of rows per byte of a file. Files with more rows are rejected, because they
// are decompression bombs. Each row has a unique text key, so a genuine file never has more than 8 rows per byte.
const maxRowsPerByte = 8

// batchCells is how many cells of a column are decoded at a time.
const batchCells = 4096

// Decode implements [table.Format].
func (*Format) Decode(s *table.Schema, data []byte, add func() reflect.Value) (err error) {
	defer func() {
		// The Parquet library does not validate all of its input, and may panic.
		if recovered := recover(); recovered != nil {
			err = fmt.Errorf("the file is corrupt: %v", recovered)
		}
	}()
	if len(data) > MaxFileBytes {
		return fmt.Errorf("%d bytes exceed the limit of %d", len(data), MaxFileBytes)
	}
	memory := unused.Get().(*scratch) //nolint:errcheck // the pool has only values of this type
	reader, err := file.NewParquetReader(bytes.NewReader(data), file.WithReadProps(readerProperties(&memory.buffers)))
	if err != nil {
		return err
	}
	d := decoder{schema: s, reader: reader, add: add, scratch: memory}
	if err := d.run(int64(len(data))); err != nil {
		return err // memory is not released: the library may still use it
	}
	memory.release()
	return nil
}

// readerProperties returns the properties for a reader that only one goroutine uses.
func readerProperties(memory *buffers) *parquet.ReaderProperties {
	properties := parquet.NewReaderProperties(memory)
	properties.MaxUncompressedPageSize = maxPageBytes
	return properties
}

type decoder struct {
	schema *table.Schema
	reader *file.Reader
	add    func() reflect.Value
	rows   int64
	// scratch is the memory for decoding. Its slice scratch.values also holds the rows of the current row group.
	*scratch
	// within contains the ranges of rows to read in a row group. If it is nil, all rows are read.
	within []table.Range
}

func (d *decoder) run(size int64) error {
	count := d.reader.NumRows()
	if err := checkCount(count, size); err != nil {
		return err
	}
	where, err := locate(d.schema, d.reader.MetaData().Schema)
	if err != nil {
		return err
	}
	d.cells.grow(int(min(batchCells, count)))
	for group := range d.reader.NumRowGroups() {
		if err := d.readGroup(group, where, count); err != nil {
			return fmt.Errorf("row group %d: %w", group, err)
		}
	}
	if d.rows != count {
		return fmt.Errorf("the file has %d rows, but declares %d", d.rows, count)
	}
	return nil
}

// locate returns the index of each of the table's columns in a file, or -1 if it is
// missing.
func locate(s *table.Schema, found *schema.Schema) ([]int, error) {
	if root := found.Root().Name(); root != s.Name {
		return nil, fmt.Errorf("the file belongs to table %.80s", root)
	}
	where := make([]int, len(s.Columns))
	for i := range s.Columns {
		c := &s.Columns[i]
		where[i] = -1
		for j := range found.NumColumns() {
			if found.Column(j).Path() != c.Name {
				continue
			}
			if where[i] >= 0 {
				return nil, fmt.Errorf("column %s: duplicate", c.Name)
			}
			if err := accepts(c, found.Column(j)); err != nil {
				return nil, fmt.Errorf("column %s: %w", c.Name, err)
			}
			where[i] = j
		}
		if where[i] < 0 && c.Required() {
			return nil, fmt.Errorf("column %s: missing", c.Name)
		}
	}
	return where, nil
}

// accepts returns an error if the column c of a table cannot be read from the column found of a file. The two columns
// must have the same physical type and equivalent logical types.
func accepts(c *table.Column, found *schema.Column) error {
	physical, logical := parquetType(c.Type)
	if found.PhysicalType() != physical || found.MaxRepetitionLevel() != 0 || found.MaxDefinitionLevel() > 1 {
		return fmt.Errorf("must be %s, got %v", c.Type, found.PhysicalType())
	}
	has := found.LogicalType()
	if has == nil || has.Equals(logical) || has.IsNone() && c.Type != table.Timestamp {
		return nil
	}
	if integer, ok := has.(schema.IntLogicalType); ok && integer.IsSigned() && logical.IsNone() {
		return nil
	}
	if stamp, ok := has.(schema.TimestampLogicalType); ok && c.Type == table.Timestamp &&
		stamp.TimeUnit() == schema.TimeUnitMicros && stamp.IsAdjustedToUTC() {
		return nil
	}
	return fmt.Errorf("must be %s, got %v", c.Type, has)
}

func (d *decoder) readGroup(index int, where []int, limit int64) error {
	group := d.reader.RowGroup(index)
	count := group.NumRows()
	if count < 0 || count > limit-d.rows {
		return fmt.Errorf("declares %d rows, more than the file", count)
	}
	d.values = d.values[:0]
	for i := range d.schema.Columns {
		if where[i] < 0 {
			continue
		}
		c := &d.schema.Columns[i]
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
		in.Close() // Close releases buffers and cannot fail
		if err != nil {
			return fmt.Errorf("column %s: %w", c.Name, err)
		}
	}
	return nil
}

// readColumn sets one field of the group's rows. For the first column, which is a key, it creates the rows one by
// one, so that a wrong row count in the footer cannot waste memory.
func (d *decoder) readColumn(in file.ColumnChunkReader, c *table.Column, count int) error {
	d.cells.begin(c)
	if d.within != nil {
		return d.readWithin(in, c)
	}
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
				d.values = append(d.values, d.add())
				d.rows++
			}
			if err := d.cells.set(c.Of(d.values[done+i]), i); err != nil {
				return fmt.Errorf("row %d: %w", done+i, err)
			}
		}
		done += n
	}
	return nil
}

// readWithin does the work of readColumn if d.within is set. It sets the field only in the rows of these ranges, and
// reads no cell after the last of them.
func (d *decoder) readWithin(in file.ColumnChunkReader, c *table.Column) error {
	// done is the number of cells that were read. row is the number of rows whose field was set.
	done, row := 0, 0
	for _, r := range d.within {
		for done < r.To {
			n, err := d.cells.read(in, min(batchCells, r.To-done))
			if err != nil {
				return err
			}
			if n == 0 {
				return fmt.Errorf("ends after %d of %d rows", done, r.To)
			}
			for i := max(0, r.From-done); i < n; i++ {
				if row == len(d.values) {
					d.values = append(d.values, d.add())
					d.rows++
				}
				if err := d.cells.set(c.Of(d.values[row]), i); err != nil {
					return fmt.Errorf("row %d: %w", done+i, err)
				}
				row++
			}
			done += n
		}
	}
	return nil
}

// cells contains a batch of one column's values, and a cache of texts, so that repeated texts share memory.
type cells struct {
	column *table.Column
	levels []int16
	used   []int // for each cell the index of its value, or -1 for NULL
	bytes  []parquet.ByteArray
	i32    []int32
	i64    []int64
	bools  []bool

	last   string            // the previous text of the column
	known  map[string]string // the texts of a dictionary column
	copied int64             // the number of bytes of text copied from the file
}

// maxKnown is the maximum number of texts that are cached for a column.
const maxKnown = 1 << 16

// grow prepares the cells for a file whose batches have at most size cells.
func (b *cells) grow(size int) {
	b.copied = 0
	if len(b.levels) >= size {
		return
	}
	b.levels = make([]int16, size)
	b.used = make([]int, size)
	b.bytes = make([]parquet.ByteArray, size)
	b.i32 = make([]int32, size)
	b.i64 = make([]int64, size)
	b.bools = make([]bool, size)
}

func (b *cells) begin(c *table.Column) {
	b.column, b.last, b.known = c, "", nil
	if c.Dict {
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

// place sets b.used: the index of each cell's value.
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

// set sets a field to the value of the i-th cell.
func (b *cells) set(field reflect.Value, i int) error {
	at := b.used[i]
	if at < 0 {
		if b.column.Required() {
			return errors.New("must not be NULL")
		}
		return nil
	}
	switch b.column.Type {
	case table.Varchar:
		text, err := b.text(b.bytes[at])
		if err != nil {
			return err
		}
		field.SetString(text)
	case table.Integer:
		field.SetInt(int64(b.i32[at]))
	case table.Bigint, table.Timestamp:
		field.SetInt(b.i64[at])
	case table.Boolean:
		field.SetBool(b.bools[at])
	}
	return nil
}

// text returns a copy of a value in the page. It reuses the copy of the previous value and, in a dictionary column,
// the copies of earlier values, because values such as run ids and states repeat often.
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
