package query

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/duckdb/duckdb-go/v2"

	"github.com/servo-orchestration/servo/pkg/query/render"
	"github.com/servo-orchestration/servo/pkg/sqltext"
)

// kind is a DuckDB type. convert needs it because the driver uses one Go type for several DuckDB types and loses the
// order of a struct's fields.
type kind struct {
	name   string // LIST, MAP, STRUCT, UNION or a scalar type
	parts  []kind // list: the element; map: key and value; struct: the fields; union: the members
	fields []string
}

// parseKind parses the name of a type. If it cannot parse the name, convert returns values of the type unchanged.
func parseKind(name string) kind {
	t := sqltext.ParseType(name)
	return kindOf(&t)
}

func kindOf(t *sqltext.Type) kind {
	k := kind{name: t.Name, fields: t.Fields}
	for i := range t.Parts {
		k.parts = append(k.parts, kindOf(&t.Parts[i]))
	}
	for i := range t.Members {
		k.parts = append(k.parts, kindOf(&t.Members[i]))
	}
	return k
}

// part returns the kind of the i-th part. If the kind is unknown, part returns the zero value.
func (k kind) part(i int) kind {
	if i >= 0 && i < len(k.parts) {
		return k.parts[i]
	}
	return kind{}
}

// convert converts a driver's value to one that package render accepts.
func (k kind) convert(value any) any {
	switch v := value.(type) {
	case time.Time:
		return k.time(v)
	case []byte:
		if k.name == "UUID" && len(v) == 16 {
			return uuid(v)
		}
		return v
	case duckdb.Decimal:
		return decimal(v)
	case *big.Int:
		return render.Number(v.String())
	case json.Number:
		return jsonNumber(v)
	case duckdb.Interval:
		return interval(v)
	case duckdb.Union:
		return k.part(slices.Index(k.fields, v.Tag)).convert(v.Value)
	case []any:
		for i, part := range v { // the list is changed in place, because the driver has created it for this row
			v[i] = k.part(0).convert(part)
		}
		return v
	case map[string]any:
		return k.structure(v)
	case duckdb.OrderedMap:
		return k.pairs(pairs{v.Keys(), v.Values()})
	case pairs:
		return k.pairs(v)
	}
	return value
}

// pairs are the keys and the values of a map, in their order.
type pairs struct{ keys, values []any }

// pairs converts a map.
func (k kind) pairs(p pairs) render.Fields {
	fields := make(render.Fields, len(p.keys))
	for i, key := range p.keys {
		fields[i] = render.Field{Name: render.Text(k.part(0).convert(key)), Value: k.part(1).convert(p.values[i])}
	}
	return fields
}

// structure returns a struct's fields in the order of its type. If the order is unknown, they are sorted by name.
func (k kind) structure(values map[string]any) render.Fields {
	fields := make(render.Fields, 0, len(values))
	for i, name := range k.fields {
		if value, ok := values[name]; ok {
			fields = append(fields, render.Field{Name: name, Value: k.parts[i].convert(value)})
		}
	}
	if len(fields) == len(values) {
		return fields
	}
	fields = fields[:0]
	for name, value := range values {
		fields = append(fields, render.Field{Name: name, Value: kind{}.convert(value)})
	}
	slices.SortFunc(fields, func(a, b render.Field) int { return strings.Compare(a.Name, b.Name) })
	return fields
}

// time returns an instant as a [time.Time], and a date or time without a zone as text. An infinite value is returned as
// text, because the driver would return the greatest or the least value of the type.
func (k kind) time(t time.Time) any {
	switch k.ticks(t) {
	case math.MaxInt64:
		return "infinity"
	case -math.MaxInt64:
		return "-infinity"
	}
	switch k.name {
	case "DATE":
		return t.Format(time.DateOnly)
	case "TIME":
		return t.Format("15:04:05.999999")
	case "TIMETZ":
		return t.Format("15:04:05.999999Z07:00")
	case "TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS":
		return t.Format("2006-01-02T15:04:05.999999999")
	}
	return t.UTC()
}

// ticks returns the number with which DuckDB stores a time. For an infinite time, this is the greatest or the least
// number.
func (k kind) ticks(t time.Time) int64 {
	const day = 24 * 60 * 60
	switch k.name {
	case "DATE":
		switch days := t.Unix() / day; days {
		case math.MaxInt32:
			return math.MaxInt64
		case -math.MaxInt32:
			return -math.MaxInt64
		default:
			return days
		}
	case "TIME", "TIMETZ":
		return 0
	case "TIMESTAMP_S":
		return t.Unix()
	case "TIMESTAMP_MS":
		return t.UnixMilli()
	case "TIMESTAMP_NS":
		return t.UnixNano()
	}
	return t.UnixMicro()
}

func uuid(b []byte) string {
	text := hex.EncodeToString(b)
	return text[:8] + "-" + text[8:12] + "-" + text[12:16] + "-" + text[16:20] + "-" + text[20:]
}

// decimal formats a decimal with all its digits after the point: 1.50 stays 1.50.
func decimal(d duckdb.Decimal) render.Number {
	digits := new(big.Int).Abs(d.Value).String()
	if missing := int(d.Scale) + 1 - len(digits); missing > 0 {
		digits = strings.Repeat("0", missing) + digits
	}
	if d.Scale > 0 {
		at := len(digits) - int(d.Scale)
		digits = digits[:at] + "." + digits[at:]
	}
	if d.Value.Sign() < 0 {
		digits = "-" + digits
	}
	return render.Number(digits)
}

// interval formats an interval as DuckDB does, for example "1 month 2 days 03:00:00".
func interval(v duckdb.Interval) string {
	var parts []string
	add := func(n int32, unit string) {
		if n == 0 {
			return
		}
		if n != 1 && n != -1 {
			unit += "s"
		}
		parts = append(parts, strconv.Itoa(int(n))+" "+unit)
	}
	add(v.Months/12, "year")
	add(v.Months%12, "month")
	add(v.Days, "day")
	if v.Micros == 0 && len(parts) > 0 {
		return strings.Join(parts, " ")
	}
	sign, micros := "", v.Micros
	if micros < 0 {
		sign, micros = "-", -micros
	}
	clock := fmt.Sprintf("%s%02d:%02d:%02d", sign, micros/3_600_000_000, micros/60_000_000%60, micros/1_000_000%60)
	if rest := micros % 1_000_000; rest != 0 {
		clock += strings.TrimRight(fmt.Sprintf(".%06d", rest), "0")
	}
	return strings.Join(append(parts, clock), " ")
}
