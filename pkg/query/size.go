package query

import (
	"database/sql/driver"
	"fmt"
	"reflect"
	"unsafe"

	"github.com/duckdb/duckdb-go/v2"
	"github.com/duckdb/duckdb-go/v2/mapping"
)

// Estimates of the memory, in bytes, that a converted value takes in Go in addition to its text.
const (
	cellBytes   = 24  // the cell in its row or list, and a number that it points to
	structBytes = 128 // the driver's map, and the [render.Fields] made from it
	fieldBytes  = 64
	// jsonFactor is the estimated memory per byte of JSON. The factor is large because the driver decodes JSON, and each
	// character may become a value.
	jsonFactor = 16
	// comparisonsPerByte is how many comparisons of keys count as one byte of a map's size. When the driver converts a
	// map, it compares each key with all earlier keys, and cannot be interrupted. Because comparisons count, the limit
	// of a row's size also limits the time. At a limit of 64 MiB, the maps of a row take a few seconds.
	comparisonsPerByte = 16
)

// sizes measures the rows of a result before the driver converts them. A row can contain a list of millions of values,
// so a check after the conversion would be too late.
type sizes struct {
	result mapping.Result
	most   int64
	chunk  mapping.IdxT // the next chunk
	rows   []int64      // the sizes of those rows of the current chunk that the method next has not returned
}

// newSizes returns the sizes of the rows of a result. A size above "most" is not exact, because measuring stops there.
func newSizes(rows driver.Rows, most int64) (*sizes, error) {
	result, err := resultOf(rows)
	if err != nil {
		return nil, err
	}
	return &sizes{result: result, most: most}, nil
}

// resultOf returns the DuckDB result from which the driver's rows are read.
func resultOf(rows driver.Rows) (mapping.Result, error) {
	if result := field[mapping.Result](rows, "res"); result != nil {
		return *result, nil
	}
	return mapping.Result{}, fmt.Errorf("measure the result: rows of type %T have no field res: this build is broken, report it", rows)
}

// field returns an unexported field of the driver's rows, or nil if they have no such field of type T.
func field[T any](rows driver.Rows, name string) *T {
	if value := reflect.ValueOf(rows); value.Kind() == reflect.Pointer && value.Elem().Kind() == reflect.Struct {
		found := value.Elem().FieldByName(name)
		if found.IsValid() && found.Type() == reflect.TypeFor[T]() {
			return (*T)(found.Addr().UnsafePointer())
		}
	}
	return nil
}

// next returns the size of the next row, or false at the end of the result.
func (s *sizes) next() (int64, bool) {
	if len(s.rows) == 0 {
		s.load()
	}
	if len(s.rows) == 0 {
		return 0, false
	}
	size := s.rows[0]
	s.rows = s.rows[1:]
	return size, true
}

// load measures the rows of the next chunk.
func (s *sizes) load() {
	chunk := mapping.ResultGetChunk(s.result, s.chunk)
	if chunk.Ptr == nil {
		return
	}
	defer mapping.DestroyDataChunk(&chunk)
	s.chunk++
	s.rows = make([]int64, mapping.DataChunkGetSize(chunk))
	for i := range mapping.DataChunkGetColumnCount(chunk) {
		vector := mapping.DataChunkGetVector(chunk, i)
		kind := mapping.VectorGetColumnType(vector)
		column := newMeasure(vector, kind, s.most)
		mapping.DestroyLogicalType(&kind)
		for row := range s.rows {
			if s.rows[row] <= s.most {
				s.rows[row] += column.sizeAt(uint64(row))
			}
		}
	}
}

// measure measures the values of one vector of a chunk.
type measure struct {
	kind     duckdb.Type
	data     unsafe.Pointer
	valid    unsafe.Pointer // nil if no value is NULL
	factor   int64          // bytes of memory per byte of a text
	length   uint64         // the number of values of an array
	children []*measure
	most     int64 // measuring stops above this size
}

func newMeasure(vector mapping.Vector, kind mapping.LogicalType, most int64) *measure {
	m := &measure{
		kind: mapping.GetTypeId(kind), data: mapping.VectorGetData(vector), valid: mapping.VectorGetValidity(vector), factor: 1, most: most,
	}
	child := func(vector mapping.Vector) {
		kind := mapping.VectorGetColumnType(vector)
		defer mapping.DestroyLogicalType(&kind)
		m.children = append(m.children, newMeasure(vector, kind, most))
	}
	switch m.kind {
	case duckdb.TYPE_VARCHAR:
		if mapping.LogicalTypeGetAlias(kind) == "JSON" {
			m.factor = jsonFactor
		}
	case duckdb.TYPE_LIST, duckdb.TYPE_MAP:
		child(mapping.ListVectorGetChild(vector))
	case duckdb.TYPE_ARRAY:
		m.length = uint64(mapping.ArrayTypeArraySize(kind))
		child(mapping.ArrayVectorGetChild(vector))
	case duckdb.TYPE_STRUCT:
		for i := range mapping.StructTypeChildCount(kind) {
			child(mapping.StructVectorGetChild(vector, i))
		}
	case duckdb.TYPE_UNION: // stored as a struct of a tag and the members
		for i := range mapping.UnionTypeMemberCount(kind) + 1 {
			child(mapping.StructVectorGetChild(vector, i))
		}
	}
	return m
}

// sizeAt estimates how many bytes of memory the value in a row takes after the driver has converted it.
func (m *measure) sizeAt(row uint64) int64 {
	if m.null(row) {
		return cellBytes
	}
	switch m.kind {
	case duckdb.TYPE_VARCHAR, duckdb.TYPE_BLOB, duckdb.TYPE_BIT, duckdb.TYPE_BIGNUM, duckdb.TYPE_GEOMETRY:
		const textBytes = 16 // DuckDB's string_t, which begins with the length
		return cellBytes + m.factor*int64(*(*uint32)(unsafe.Add(m.data, row*textBytes)))
	case duckdb.TYPE_LIST, duckdb.TYPE_MAP:
		entry := *(*struct{ offset, length uint64 })(unsafe.Add(m.data, row*16))
		size := m.list(entry.offset, entry.length)
		if m.kind == duckdb.TYPE_MAP && size <= m.most {
			size += int64(entry.length * entry.length / comparisonsPerByte) //nolint:gosec // the method list has checked the length
		}
		return size
	case duckdb.TYPE_ARRAY:
		return m.list(row*m.length, m.length)
	case duckdb.TYPE_STRUCT, duckdb.TYPE_UNION:
		size := int64(structBytes)
		for _, child := range m.children {
			if size += fieldBytes + child.sizeAt(row); size > m.most {
				break
			}
		}
		return size
	}
	return cellBytes
}

func (m *measure) list(offset, length uint64) int64 {
	if length > uint64(m.most)/cellBytes {
		return m.most + 1
	}
	size := int64(cellBytes)
	for row := offset; row < offset+length && size <= m.most; row++ {
		size += m.children[0].sizeAt(row)
	}
	return size
}

// null reports whether the value in a row is NULL. In DuckDB's bit mask, 1 means a valid value.
func (m *measure) null(row uint64) bool {
	return m.valid != nil && *(*uint64)(unsafe.Add(m.valid, row/64*8))&(1<<(row%64)) == 0
}
