package query

import (
	"bytes"
	"database/sql/driver"
	"encoding/json"
	"strconv"
	"strings"
	"unsafe"

	"github.com/duckdb/duckdb-go/v2"
	"github.com/duckdb/duckdb-go/v2/mapping"

	"github.com/servo-orchestration/servo/pkg/query/render"
)

// exactJSON decodes the JSON of a result a second time, because the driver decodes each number as a float64 and so
// rounds long decimals and integers beyond 2^53.
type exactJSON struct {
	result  mapping.Result
	columns []bool // whether the values of a column contain JSON
	next    mapping.IdxT
	chunk   mapping.DataChunk // contains the current row; its Ptr is nil before the first row
	vectors []*jsonVector     // the columns of the chunk; nil for a column without JSON
	row     uint64            // the next row in the chunk
	rows    uint64
}

// newExactJSON prepares to decode the JSON of a result. It returns nil if the result has no JSON.
func newExactJSON(rows driver.Rows, columns int) (*exactJSON, error) {
	result, err := resultOf(rows)
	if err != nil {
		return nil, err
	}
	x := &exactJSON{result: result, columns: make([]bool, columns)}
	found := false
	for i := range x.columns {
		kind := mapping.ColumnLogicalType(&result, mapping.IdxT(i)) //nolint:gosec // not negative
		x.columns[i] = hasJSON(kind)
		found = found || x.columns[i]
		mapping.DestroyLogicalType(&kind)
	}
	if !found {
		return nil, nil //nolint:nilnil // there is nothing to decode; that is not an error
	}
	return x, nil
}

// hasJSON reports whether values of a type contain JSON. It ignores unions, whose members the driver decodes.
func hasJSON(kind mapping.LogicalType) bool {
	has := func(part mapping.LogicalType) bool {
		defer mapping.DestroyLogicalType(&part)
		return hasJSON(part)
	}
	switch mapping.GetTypeId(kind) {
	case duckdb.TYPE_VARCHAR:
		return mapping.LogicalTypeGetAlias(kind) == "JSON"
	case duckdb.TYPE_LIST:
		return has(mapping.ListTypeChildType(kind))
	case duckdb.TYPE_ARRAY:
		return has(mapping.ArrayTypeChildType(kind))
	case duckdb.TYPE_MAP:
		return has(mapping.MapTypeValueType(kind))
	case duckdb.TYPE_STRUCT:
		for i := range mapping.StructTypeChildCount(kind) {
			if has(mapping.StructTypeChildType(kind, i)) {
				return true
			}
		}
	}
	return false
}

// decode replaces the JSON values in the cells of the next row, which the driver has already converted, with exact
// values.
func (x *exactJSON) decode(values []driver.Value) {
	for x.row == x.rows {
		x.close()
		if x.chunk = mapping.ResultGetChunk(x.result, x.next); x.chunk.Ptr == nil {
			return
		}
		x.next++
		x.row, x.rows = 0, uint64(mapping.DataChunkGetSize(x.chunk))
		x.vectors = make([]*jsonVector, len(x.columns))
		for i, has := range x.columns {
			if has {
				x.vectors[i] = newJSONVector(mapping.DataChunkGetVector(x.chunk, mapping.IdxT(i))) //nolint:gosec // not negative
			}
		}
	}
	for i, v := range x.vectors {
		if v != nil {
			values[i] = v.decode(x.row, values[i])
		}
	}
	x.row++
}

// close frees the current chunk.
func (x *exactJSON) close() {
	if x.chunk.Ptr != nil {
		mapping.DestroyDataChunk(&x.chunk)
	}
}

// jsonVector is a vector of a chunk whose values contain JSON.
type jsonVector struct {
	kind     duckdb.Type
	data     unsafe.Pointer
	length   uint64        // the number of values of an array
	children []*jsonVector // nil for a part without JSON
	names    []string      // the names of the fields of a struct
}

// newJSONVector describes a vector. It returns nil if the vector has no JSON.
func newJSONVector(vector mapping.Vector) *jsonVector {
	kind := mapping.VectorGetColumnType(vector)
	defer mapping.DestroyLogicalType(&kind)
	if !hasJSON(kind) {
		return nil
	}
	v := &jsonVector{kind: mapping.GetTypeId(kind), data: mapping.VectorGetData(vector)}
	switch v.kind {
	case duckdb.TYPE_LIST:
		v.children = []*jsonVector{newJSONVector(mapping.ListVectorGetChild(vector))}
	case duckdb.TYPE_MAP: // a list of structs of a key and a value
		const value = 1
		v.children = []*jsonVector{newJSONVector(mapping.StructVectorGetChild(mapping.ListVectorGetChild(vector), value))}
	case duckdb.TYPE_ARRAY:
		v.length = uint64(mapping.ArrayTypeArraySize(kind))
		v.children = []*jsonVector{newJSONVector(mapping.ArrayVectorGetChild(vector))}
	case duckdb.TYPE_STRUCT:
		for i := range mapping.StructTypeChildCount(kind) {
			v.names = append(v.names, mapping.StructTypeChildName(kind, i))
			v.children = append(v.children, newJSONVector(mapping.StructVectorGetChild(vector, i)))
		}
	}
	return v
}

// decode returns the value of the vector in a row, with exact numbers. value is the same value as the driver has
// converted it.
func (v *jsonVector) decode(row uint64, value any) any {
	if v == nil || value == nil { // no JSON, SQL's NULL, or JSON's null
		return value
	}
	switch v.kind {
	case duckdb.TYPE_LIST:
		return v.list(v.offset(row), value)
	case duckdb.TYPE_ARRAY:
		return v.list(row*v.length, value)
	case duckdb.TYPE_MAP:
		old, _ := value.(duckdb.OrderedMap) // the driver returns maps with this type
		exact := pairs{old.Keys(), old.Values()}
		v.list(v.offset(row), exact.values)
		return exact
	case duckdb.TYPE_STRUCT:
		if fields, ok := value.(map[string]any); ok { // the driver returns structs with this type
			for i, name := range v.names {
				fields[name] = v.children[i].decode(row, fields[name])
			}
		}
		return value
	}
	decoder := json.NewDecoder(bytes.NewReader(v.text(row)))
	decoder.UseNumber()
	var exact any
	if decoder.Decode(&exact) != nil {
		return value
	}
	return exact
}

// list decodes the elements of a list. The vector v.children[0] contains the elements of all lists, and first is the
// position of this list's first element there.
func (v *jsonVector) list(first uint64, value any) any {
	parts, _ := value.([]any) // the driver returns lists with this type
	for i := range parts {
		parts[i] = v.children[0].decode(first+uint64(i), parts[i]) //nolint:gosec // not negative
	}
	return value
}

// offset returns the position of the first element of the list in a row.
func (v *jsonVector) offset(row uint64) uint64 {
	const entryBytes = 16 // the offset and the length
	return *(*uint64)(unsafe.Add(v.data, row*entryBytes))
}

// text returns the text in a row. It is valid until its chunk is freed.
func (v *jsonVector) text(row uint64) []byte {
	const textBytes, inline, inlineAt, pointerAt = 16, 12, 4, 8 // DuckDB's string_t: the length, then the text or a pointer
	at := unsafe.Add(v.data, row*textBytes)
	length := *(*uint32)(at)
	if length <= inline {
		return unsafe.Slice((*byte)(unsafe.Add(at, inlineAt)), length)
	}
	return unsafe.Slice(*(**byte)(unsafe.Add(at, pointerAt)), length)
}

// jsonNumber returns a JSON number as an int64 or a float64 if one of these types represents it exactly, and
// otherwise as its text.
func jsonNumber(n json.Number) any {
	if i, err := n.Int64(); err == nil {
		return i
	}
	f, err := n.Float64()
	if err != nil || digits(strconv.FormatFloat(f, 'e', -1, 64)) != digits(n.String()) {
		return render.Number(n)
	}
	return f
}

// digits returns the significant digits of a number.
func digits(number string) string {
	mantissa, _, _ := strings.Cut(strings.ToLower(number), "e")
	return strings.Trim(strings.Replace(mantissa, ".", "", 1), "-0")
}
