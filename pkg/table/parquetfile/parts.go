package parquetfile

import (
	"bytes"
	"fmt"
	"reflect"
	"sync"

	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/metadata"

	"github.com/servo-orchestration/servo/pkg/table"
)

// Open implements [table.Divided]. The parts are row groups.
func (*Format) Open(data []byte) (_ table.Parts, err error) {
	defer func() {
		if recovered := recover(); recovered != nil { // see Decode
			err = fmt.Errorf("the file is corrupt: %v", recovered)
		}
	}()
	if len(data) > MaxFileBytes {
		return nil, fmt.Errorf("%d bytes exceed the limit of %d", len(data), MaxFileBytes)
	}
	reader, err := file.NewParquetReader(bytes.NewReader(data), file.WithReadProps(readerProperties(new(buffers))))
	if err != nil {
		return nil, err
	}
	if err := checkCount(reader.NumRows(), int64(len(data))); err != nil {
		return nil, err
	}
	p := &parts{data: data, meta: reader.MetaData(), columns: map[string]int{}, bounds: map[string][]interval{}}
	for i := range p.meta.Schema.NumColumns() {
		p.columns[p.meta.Schema.Column(i).Path()] = i
	}
	total := int64(0)
	for i := range reader.NumRowGroups() {
		n := reader.RowGroup(i).NumRows()
		if n < 0 || n > reader.NumRows()-total {
			return nil, fmt.Errorf("row group %d: declares %d rows, more than the file", i, n)
		}
		total += n
		p.rows = append(p.rows, int(n))
	}
	return p, nil
}

// parts are the row groups of a file.
type parts struct {
	data    []byte
	meta    *metadata.FileMetaData
	rows    []int
	columns map[string]int // the index of each column

	mu     sync.Mutex
	bounds map[string][]interval // the bounds of each part, for each column whose bounds were requested
}

// interval contains the bounds of a text column in a part.
type interval struct {
	least, greatest string
	known           bool
}

// Len implements [table.Parts].
func (p *parts) Len() int { return len(p.rows) }

// Rows implements [table.Parts].
func (p *parts) Rows(part int) int { return p.rows[part] }

// Bounds implements [table.Parts].
func (p *parts) Bounds(part int, column string) (least, greatest string, known bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	found, has := p.bounds[column]
	if !has {
		found = make([]interval, len(p.rows))
		for i := range found {
			found[i] = p.interval(i, column)
		}
		p.bounds[column] = found
	}
	return found[part].least, found[part].greatest, found[part].known
}

// interval reads the statistics of a column in a part. Without valid statistics, the bounds are unknown.
func (p *parts) interval(part int, column string) (found interval) {
	defer func() {
		if recover() != nil {
			found = interval{}
		}
	}()
	at, has := p.columns[column]
	if !has {
		return interval{}
	}
	chunk, err := p.meta.RowGroup(part).ColumnChunk(at)
	if err != nil {
		return interval{}
	}
	statistics, err := chunk.Statistics()
	if err != nil || statistics == nil || !statistics.HasMinMax() {
		return interval{}
	}
	text, ok := statistics.(*metadata.ByteArrayStatistics)
	if !ok {
		return interval{}
	}
	return interval{string(text.Min()), string(text.Max()), true}
}

// Decode implements [table.Parts].
func (p *parts) Decode(s *table.Schema, part int, within []table.Range, add func() reflect.Value) (err error) {
	defer func() {
		if recovered := recover(); recovered != nil { // the Parquet library may panic: see Format.Decode
			err = fmt.Errorf("the file is corrupt: %v", recovered)
		}
	}()
	memory := unused.Get().(*scratch) //nolint:errcheck // the pool has only values of this type
	reader, err := file.NewParquetReader(bytes.NewReader(p.data), file.WithMetadata(p.meta), file.WithReadProps(readerProperties(&memory.buffers)))
	if err != nil {
		return err
	}
	where, err := locate(s, p.meta.Schema)
	if err != nil {
		return err
	}
	d := decoder{schema: s, reader: reader, add: add, within: within, scratch: memory}
	d.cells.grow(min(batchCells, p.rows[part]))
	if err := d.readGroup(part, where, int64(p.rows[part])); err != nil {
		return fmt.Errorf("row group %d: %w", part, err)
	}
	memory.release()
	return nil
}

// checkCount rejects a number of rows that is impossible for a file of the given size.
func checkCount(count, size int64) error {
	if count < 0 || count > MaxRows || count > size*maxRowsPerByte {
		return fmt.Errorf("a file of %d bytes cannot have the %d rows that its footer declares", size, count)
	}
	return nil
}
