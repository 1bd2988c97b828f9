package query

import (
	"bytes"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unsafe"

	"github.com/duckdb/duckdb-go/v2"
	"github.com/duckdb/duckdb-go/v2/mapping"

	"github.com/servo-orchestration/servo/pkg/query/render"
)

// exactValues reads once more those values of a result that the driver does not return exactly. The driver decodes
// each number in JSON as a float64, and so rounds long decimals and integers beyond 2^53. It returns TIME as a time
// of day, which is never 24:00:00, and omits the seconds of the offset of a TIMETZ.
type exactValues struct {
	result  mapping.Result
	columns []bool // whether a column contains such values, possibly nested
	next    mapping.IdxT
	chunk   mapping.DataChunk // contains the current row; its Ptr is nil before the first row
	vectors []*exactVector    // the columns of the chunk; nil for a column without such values
	row     uint64            // the next row in the chunk
	rows    uint64
}

// newExactValues prepares to read the values of a result. It returns nil if the driver returns all values exactly.
func newExactValues(rows driver.Rows, columns int) (*exactValues, error) {
	result, err := resultOf(rows)
	if err != nil {
		return nil, err
	}
	x := &exactValues{result: result, columns: make([]bool, columns)}
	found := false
	for i := range x.columns {
		kind := mapping.ColumnLogicalType(&result, mapping.IdxT(i)) //nolint:gosec // not negative
		x.columns[i] = isChanged(kind)
		found = found || x.columns[i]
		mapping.DestroyLogicalType(&kind)
	}
	if !found {
		return nil, nil //nolint:nilnil // there is nothing to read; that is not an error
	}
	return x, nil
}

// isChanged reports whether the driver changes values of a type, or values within them.
func isChanged(kind mapping.LogicalType) bool {
	has := func(part mapping.LogicalType) bool {
		defer mapping.DestroyLogicalType(&part)
		return isChanged(part)
	}
	switch mapping.GetTypeId(kind) {
	case duckdb.TYPE_TIME, duckdb.TYPE_TIME_TZ:
		return true
	case duckdb.TYPE_VARCHAR:
		return mapping.LogicalTypeGetAlias(kind) == "JSON"
	case duckdb.TYPE_LIST:
		return has(mapping.ListTypeChildType(kind))
	case duckdb.TYPE_ARRAY:
		return has(mapping.ArrayTypeChildType(kind))
	case duckdb.TYPE_MAP:
		return has(mapping.MapTypeKeyType(kind)) || has(mapping.MapTypeValueType(kind))
	case duckdb.TYPE_STRUCT:
		for i := range mapping.StructTypeChildCount(kind) {
			if has(mapping.StructTypeChildType(kind, i)) {
				return true
			}
		}
	case duckdb.TYPE_UNION:
		for i := range mapping.UnionTypeMemberCount(kind) {
			if has(mapping.UnionTypeMemberType(kind, i)) {
				return true
			}
		}
	}
	return false
}

// read reads the next row of the driver. The driver fails if JSON has a number that a float64 cannot represent. In this
// case, read reads the row's values one by one.
func (x *exactValues) read(rows driver.Rows, values []driver.Value) error {
	err := rows.Next(values)
	if isHugeNumber(err) {
		return x.readRow(rows, values)
	}
	return err
}

// decode replaces values of the next row with exact values. The driver has already converted this row to "values".
func (x *exactValues) decode(values []driver.Value) (err error) {
	for x.row == x.rows {
		x.close()
		if x.chunk = mapping.ResultGetChunk(x.result, x.next); x.chunk.Ptr == nil {
			return nil
		}
		x.next++
		x.row, x.rows = 0, uint64(mapping.DataChunkGetSize(x.chunk))
		x.vectors = make([]*exactVector, len(x.columns))
		for i, has := range x.columns {
			if has {
				x.vectors[i] = newExactVector(mapping.DataChunkGetVector(x.chunk, mapping.IdxT(i))) //nolint:gosec // not negative
			}
		}
	}
	for i, v := range x.vectors {
		if v != nil {
			if values[i], err = v.decode(x.row, values[i]); err != nil {
				return fmt.Errorf("%w: index: %d", err, i)
			}
		}
	}
	x.row++
	return nil
}

// readRow reads the values of the driver's current row one by one, and advances the driver. In place of JSON that the
// driver cannot decode, it stores a value that decode replaces.
func (x *exactValues) readRow(rows driver.Rows, values []driver.Value) error {
	chunk, row := field[duckdb.DataChunk](rows, "chunk"), field[int](rows, "rowCount")
	if chunk == nil || row == nil {
		return fmt.Errorf("rows of type %T have no current row: this build is broken, report it", rows)
	}
	for i := range values {
		value, err := chunk.GetValue(i, *row)
		if isHugeNumber(err) && x.isJSON(i) {
			value, err = json.Number("0"), nil
		}
		if err != nil {
			return err
		}
		if bits, ok := value.(duckdb.Bit); ok {
			value = bits.String()
		}
		values[i] = value
	}
	*row++
	return nil
}

// hugeNumber is a part of the driver's error if a float64 cannot represent a number in JSON. The driver has no error
// value for this case.
const hugeNumber = "json: cannot unmarshal number"

func isHugeNumber(err error) bool { return err != nil && strings.Contains(err.Error(), hugeNumber) }

// isJSON reports whether a column has the type JSON.
func (x *exactValues) isJSON(column int) bool {
	kind := mapping.ColumnLogicalType(&x.result, mapping.IdxT(column)) //nolint:gosec // not negative
	defer mapping.DestroyLogicalType(&kind)
	return mapping.GetTypeId(kind) == duckdb.TYPE_VARCHAR && mapping.LogicalTypeGetAlias(kind) == "JSON"
}

// close frees the current chunk.
func (x *exactValues) close() {
	if x.chunk.Ptr != nil {
		mapping.DestroyDataChunk(&x.chunk)
	}
}

// exactVector is a vector of a chunk with values that the driver changes.
type exactVector struct {
	kind     duckdb.Type
	data     unsafe.Pointer
	length   uint64         // the number of values of an array
	tags     unsafe.Pointer // for each value of a union, the number of its member
	children []*exactVector // nil for a part that the driver does not change
	names    []string       // the names of the fields of a struct
}

// newExactVector describes a vector. It returns nil if the driver does not change its values.
func newExactVector(vector mapping.Vector) *exactVector {
	kind := mapping.VectorGetColumnType(vector)
	defer mapping.DestroyLogicalType(&kind)
	if !isChanged(kind) {
		return nil
	}
	v := &exactVector{kind: mapping.GetTypeId(kind), data: mapping.VectorGetData(vector)}
	switch v.kind {
	case duckdb.TYPE_LIST:
		v.children = []*exactVector{newExactVector(mapping.ListVectorGetChild(vector))}
	case duckdb.TYPE_MAP: // a list of structs of a key and a value
		const key, value = 0, 1
		entries := mapping.ListVectorGetChild(vector)
		v.children = []*exactVector{
			newExactVector(mapping.StructVectorGetChild(entries, key)), newExactVector(mapping.StructVectorGetChild(entries, value)),
		}
	case duckdb.TYPE_ARRAY:
		v.length = uint64(mapping.ArrayTypeArraySize(kind))
		v.children = []*exactVector{newExactVector(mapping.ArrayVectorGetChild(vector))}
	case duckdb.TYPE_STRUCT:
		for i := range mapping.StructTypeChildCount(kind) {
			v.names = append(v.names, mapping.StructTypeChildName(kind, i))
			v.children = append(v.children, newExactVector(mapping.StructVectorGetChild(vector, i)))
		}
	case duckdb.TYPE_UNION: // a struct of the tag and the members
		v.tags = mapping.VectorGetData(mapping.StructVectorGetChild(vector, 0))
		for i := range mapping.UnionTypeMemberCount(kind) {
			v.children = append(v.children, newExactVector(mapping.StructVectorGetChild(vector, i+1)))
		}
	}
	return v
}

// decode returns the exact value of the vector in a row. The driver has converted this value to "value".
func (v *exactVector) decode(row uint64, value any) (_ any, err error) {
	if v == nil || value == nil { // an unchanged value, SQL's NULL, or JSON's null
		return value, nil
	}
	switch v.kind {
	case duckdb.TYPE_LIST:
		parts, _ := value.([]any) // the driver returns lists with this type
		return value, v.children[0].list(v.offset(row), parts)
	case duckdb.TYPE_ARRAY:
		parts, _ := value.([]any) // the driver returns arrays with this type
		return value, v.children[0].list(row*v.length, parts)
	case duckdb.TYPE_MAP:
		old, _ := value.(duckdb.OrderedMap) // the driver returns maps with this type
		return v.pairs(row, pairs{old.Keys(), old.Values()})
	case duckdb.TYPE_STRUCT:
		fields, _ := value.(map[string]any) // the driver returns structs with this type
		for i, name := range v.names {
			if fields[name], err = v.children[i].decode(row, fields[name]); err != nil {
				return nil, err
			}
		}
		return value, nil
	case duckdb.TYPE_UNION:
		union, _ := value.(duckdb.Union) // the driver returns unions with this type
		member := *(*uint8)(unsafe.Add(v.tags, row))
		union.Value, err = v.children[member].decode(row, union.Value)
		return union, err
	}
	const timeBytes = 8
	switch at := unsafe.Add(v.data, row*timeBytes); v.kind {
	case duckdb.TYPE_TIME:
		return clock(*(*int64)(at)), nil
	case duckdb.TYPE_TIME_TZ:
		return zonedClock(*(*uint64)(at)), nil
	}
	return exactJSON(v.text(row), value), nil
}

// exactJSON decodes JSON. It returns the given value if the text is not JSON.
func exactJSON(text []byte, value any) any {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var exact any
	if decoder.Decode(&exact) != nil {
		return value
	}
	return exact
}

// list decodes the elements of a list in place. The vector contains the elements of all lists. The parameter "first" is
// the position of this list's first element in the vector.
func (v *exactVector) list(first uint64, parts []any) (err error) {
	for i := range parts {
		if parts[i], err = v.decode(first+uint64(i), parts[i]); err != nil { //nolint:gosec // not negative
			return err
		}
	}
	return nil
}

// pairs decodes the entries of the map in a row. The driver drops an entry whose key it cannot distinguish from a later
// key, such as 00:00:00 and 24:00:00.
func (v *exactVector) pairs(row uint64, entries pairs) (pairs, error) {
	if uint64(len(entries.keys)) != v.count(row) {
		return entries, errors.New("the driver cannot distinguish the keys of a map: cast the column to VARCHAR")
	}
	first := v.offset(row)
	return entries, errors.Join(v.children[0].list(first, entries.keys), v.children[1].list(first, entries.values))
}

// offset returns the position of the first element of the list in a row.
func (v *exactVector) offset(row uint64) uint64 {
	const entryBytes = 16 // the offset and the length
	return *(*uint64)(unsafe.Add(v.data, row*entryBytes))
}

// count returns the number of entries of the list in a row.
func (v *exactVector) count(row uint64) uint64 {
	const entryBytes, lengthAt = 16, 8 // the offset and the length
	return *(*uint64)(unsafe.Add(v.data, row*entryBytes+lengthAt))
}

// text returns the text in a row. It is valid until its chunk is freed.
func (v *exactVector) text(row uint64) []byte {
	const textBytes, inline, inlineAt, pointerAt = 16, 12, 4, 8 // DuckDB's string_t: the length, then the text or a pointer
	at := unsafe.Add(v.data, row*textBytes)
	length := *(*uint32)(at)
	if length <= inline {
		return unsafe.Slice((*byte)(unsafe.Add(at, inlineAt)), length)
	}
	return unsafe.Slice(*(**byte)(unsafe.Add(at, pointerAt)), length)
}

// clock formats a time of day, which DuckDB stores in microseconds.
func clock(micros int64) string {
	const hour, minute, second = 3_600_000_000, 60_000_000, 1_000_000
	text := fmt.Sprintf("%02d:%02d:%02d", micros/hour, micros/minute%60, micros/second%60)
	if rest := micros % second; rest != 0 {
		text += strings.TrimRight(fmt.Sprintf(".%06d", rest), "0")
	}
	return text
}

// zonedClock formats a time of day with an offset. DuckDB stores the microseconds in the upper bits, and below them the
// difference between the greatest possible offset and the offset of the value, in seconds.
func zonedClock(bits uint64) string {
	const offsetBits, greatest, hour, minute = 24, 16*60*60 - 1, 60 * 60, 60
	text := clock(int64(bits >> offsetBits))           //nolint:gosec // 40 bits
	offset := greatest - int64(bits&(1<<offsetBits-1)) //nolint:gosec // 24 bits
	if offset == 0 {
		return text + "Z"
	}
	sign := '+'
	if offset < 0 {
		sign, offset = '-', -offset
	}
	text += fmt.Sprintf("%c%02d:%02d", sign, offset/hour, offset/minute%60)
	if seconds := offset % minute; seconds != 0 {
		text += fmt.Sprintf(":%02d", seconds)
	}
	return text
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
