package quality

import (
	"cmp"
	"fmt"
	"math/big"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/servo-orchestration/servo/pkg/ids"
)

// Target has the names and values that the SQL of a check depends on.
type Target struct {
	// Table is the asset whose rows are checked. The SQL reads this asset, and other assets, as tables.
	Table ids.AssetKey
	// Stored is the name, in SQL, of a table with only the stored columns of the asset, without its
	// partition columns. "": Table itself has only the stored columns.
	Stored string
	// Now is the time at which the age of the newest value is measured.
	Now time.Time
	// Previous is the number of rows of the previous materialization. It is negative if there is none.
	Previous int64
}

// Compiled is a check as SQL.
type Compiled struct {
	// Failing is a SELECT that returns the failing rows. It is empty for [Anomaly].
	Failing string
	// Count is a SELECT of the number of failing rows. Empty: the caller counts the rows of Failing.
	Count string
	// Value is a SELECT of the measured value, in one row and one column. Empty: the check measures only
	// the number of failing rows.
	Value string
	// Expected describes the values that pass.
	Expected string
}

// Compile returns a check of a built-in kind or of the kind [SQL] as SQL. The check must be valid.
func (c *Check) Compile(t Target) Compiled {
	table := Table(t.Table)
	switch p := &c.Params; c.Kind {
	case NotNull:
		return Compiled{Failing: where(table, each(c.Columns, " OR ", "%s IS NULL")), Expected: "no NULL in " + list(c.Columns)}
	case Unique:
		groups := ", count(*) AS \"rows\" FROM " + table + " WHERE " + each(c.Columns, " AND ", "%s IS NOT NULL") +
			" GROUP BY " + names(c.Columns) + " HAVING count(*) > 1"
		return Compiled{
			Failing:  "SELECT " + names(c.Columns) + groups,
			Count:    "SELECT CAST(coalesce(sum(repeated - 1), 0) AS BIGINT) FROM (SELECT NULL" + groups + ") AS t(unused, repeated)",
			Expected: "one row for each " + list(c.Columns),
		}
	case RowCount:
		return c.rowCount(table, t.Previous)
	case AcceptedValues:
		return p.acceptedValues(table, c.Columns[0])
	case Relationships:
		return p.relationships(table, c.Columns[0])
	case Range:
		return p.inRange(table, c.Columns[0])
	case Regex:
		column := Name(c.Columns[0])
		return Compiled{
			Failing:  where(table, column+" IS NOT NULL AND NOT regexp_matches(CAST("+column+" AS VARCHAR), "+Quote(p.Pattern)+")"),
			Expected: "matches " + p.Pattern,
		}
	case Freshness:
		return p.freshness(table, c.Columns[0], t.Now)
	case Schema:
		return p.schema(cmp.Or(t.Stored, table))
	case Anomaly:
		return Compiled{Value: p.Watch.value(table, c.Columns)}
	}
	return Compiled{Failing: strings.TrimRight(c.SQL, "; \t\r\n")}
}

// Table returns the name of an asset's table in SQL.
func Table(key ids.AssetKey) string { return Name(key.Namespace) + "." + Name(key.Name) }

// Quote returns a text as a literal in SQL.
func Quote(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

// Name returns a name as an identifier in SQL.
func Name(s string) string { return `"` + strings.ReplaceAll(s, `"`, `""`) + `"` }

// SQL returns the literal as SQL text.
func (l Literal) SQL() string {
	if l.Number {
		return l.Text
	}
	return Quote(l.Text)
}

func where(table, condition string) string { return "SELECT * FROM " + table + " WHERE " + condition }

func names(columns []string) string { return each(columns, ", ", "%s") }

// each applies a format to the identifier of every column, and joins the results.
func each(columns []string, separator, format string) string {
	parts := make([]string, len(columns))
	for i, column := range columns {
		parts[i] = strings.Replace(format, "%s", Name(column), 1)
	}
	return strings.Join(parts, separator)
}

// list joins names for a message.
func list(columns []string) string { return strings.Join(columns, ", ") }

func (c *Check) rowCount(table string, previous int64) Compiled {
	low, high := c.bounds(previous)
	count := "(SELECT count(*) AS \"row_count\" FROM " + table + ") AS counted"
	var outside, bounds []string
	if low != nil {
		outside, bounds = append(outside, "\"row_count\" < "+low.String()), append(bounds, "at least "+low.String())
	}
	if high != nil {
		outside, bounds = append(outside, "\"row_count\" > "+high.String()), append(bounds, "at most "+high.String())
	}
	if len(outside) == 0 { // the partition has no previous materialization
		outside, bounds = []string{"false"}, []string{"any number: the partition has no previous materialization"}
	}
	return Compiled{
		Failing:  "SELECT * FROM " + count + " WHERE " + strings.Join(outside, " OR "),
		Value:    "SELECT \"row_count\" FROM " + count,
		Expected: strings.Join(bounds, ", "),
	}
}

// bounds returns the least and the greatest number of rows that pass, or nil if there is no such bound. A bound that
// is relative to the previous number of rows is rounded towards the stricter whole number.
func (c *Check) bounds(previous int64) (low, high *big.Int) {
	whole := func(l *Literal) *big.Int {
		if l == nil {
			return nil
		}
		n, _ := new(big.Int).SetString(l.Text, 10)
		return n
	}
	low, high = whole(c.Params.Min), whole(c.Params.Max)
	if previous < 0 {
		return low, high
	}
	million := big.NewInt(Millionths)
	if ppm := c.Params.MinOfPrevious; ppm > 0 {
		least := product(previous, ppm)
		least.Add(least, big.NewInt(Millionths-1)).Div(least, million)
		if low == nil || least.Cmp(low) > 0 {
			low = least
		}
	}
	if ppm := c.Params.MaxOfPrevious; ppm > 0 {
		most := product(previous, ppm)
		most.Div(most, million)
		if high == nil || most.Cmp(high) < 0 {
			high = most
		}
	}
	return low, high
}

func product(a, b int64) *big.Int { return new(big.Int).Mul(big.NewInt(a), big.NewInt(b)) }

// acceptedValues compares values as text, unless all listed values and the column are numbers.
func (p *Params) acceptedValues(table, column string) Compiled {
	numbers := !slices.ContainsFunc(p.Values, func(v Literal) bool { return !v.Number })
	values, texts, shown := make([]string, len(p.Values)), make([]string, len(p.Values)), make([]string, len(p.Values))
	for i, v := range p.Values {
		values[i], texts[i], shown[i] = v.SQL(), Quote(v.Text), v.Text
	}
	other := "CAST(" + Name(column) + " AS VARCHAR) NOT IN (" + strings.Join(texts, ", ") + ")"
	if numbers { // a text is never cast to a number, because the cast would round it
		other = "CASE WHEN " + numeric(Name(column)) + " THEN " + Name(column) + " NOT IN (" + strings.Join(values, ", ") + ") ELSE " + other + " END"
	}
	return Compiled{
		Failing:  where(table, Name(column)+" IS NOT NULL AND "+other),
		Expected: "one of " + strings.Join(shown, ", "),
	}
}

// numeric returns the condition that an expression has a numeric type.
func numeric(expression string) string {
	return "regexp_matches(typeof(" + expression + "), " + Quote(numberTypes) + ")"
}

// Names of types, as typeof returns them. Casts between exact numbers are exact or fail.
const (
	exactTypes  = `U?(TINY|SMALL|BIG|HUGE)INT|U?INTEGER|DECIMAL\([0-9]+,[0-9]+\)`
	floatTypes  = `FLOAT|DOUBLE`
	numberTypes = "^(" + exactTypes + "|" + floatTypes + ")$"
)

// family returns an SQL expression that groups types. It has the same value for two types if SQL compares their values
// exactly, without a cast that changes one of them. BIGINT and VARCHAR are in different groups, because the cast of
// '1.2' to BIGINT is 1. BIGINT and DOUBLE are also in different groups.
func family(kind string) string {
	for _, f := range [][2]string{{exactTypes, "exact number"}, {floatTypes, "DOUBLE"}, {"DATE|TIMESTAMP", "TIMESTAMP"}} {
		kind = "regexp_replace(" + kind + ", " + Quote("^("+f[0]+")$") + ", " + Quote(f[1]) + ")"
	}
	return kind
}

// relationships compiles a check that compares only values whose types belong to the same [family]. For
// other types, the SQL raises an error at the first row.
func (p *Params) relationships(table, column string) Compiled {
	to, _ := ids.ParseAssetKey(p.To)
	own, other := "typeof("+Name(column)+")", "typeof((SELECT "+Name(p.Field)+" FROM "+Table(to)+" LIMIT 1))"
	alike := "CASE WHEN " + family(own) + " = " + family(other) + " THEN true ELSE error(" +
		"'column ' || " + Quote(column) + " || ' is ' || " + own + " || ', and ' || " + Quote(p.Field) + " || " + Quote(" of "+p.To+" is ") + " || " + other +
		" || ': cast one of them') END"
	return Compiled{
		Failing: "SELECT candidate.* FROM (" + where(table, Name(column)+" IS NOT NULL AND "+alike) + ") AS candidate" +
			" WHERE NOT EXISTS (SELECT 1 FROM " + Table(to) + " AS known WHERE known." + Name(p.Field) + " = candidate." + Name(column) + ")",
		Expected: "a " + p.Field + " of " + p.To,
	}
}

// inRange compiles a check that values are in a range. A NaN is greater than every number.
func (p *Params) inRange(table, column string) Compiled {
	var outside, bounds []string
	if p.Min != nil {
		outside, bounds = append(outside, p.Min.beyond(column, "<")), append(bounds, "at least "+p.Min.Text)
	}
	if p.Max != nil {
		outside, bounds = append(outside, p.Max.beyond(column, ">")), append(bounds, "at most "+p.Max.Text)
	}
	return Compiled{Failing: where(table, strings.Join(outside, " OR ")), Expected: strings.Join(bounds, ", ")}
}

var (
	timePattern = regexp.MustCompile(`^[0-9]{4,6}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?$`)
	zonePattern = regexp.MustCompile(`^[0-9]{4,6}-[0-9]{2}-[0-9]{2}[T ][0-9:.]+ ?(Z|[+-][0-9]{2}(:?[0-9]{2})?)$`)
)

// beyond returns the condition that a column is beyond a bound. It compares without SQL's implicit cast of the bound to
// the type of the column: that cast would round numbers, and drop times of day and offsets.
func (l *Literal) beyond(column, operator string) string {
	name := Name(column)
	plain := name + " " + operator + " " + l.SQL()
	_, number := Num(l.Text)
	shown := l.Text
	if !l.Number {
		shown = Quote(l.Text)
	}
	mismatch := "error('column ' || " + Quote(column) + " || ' is ' || typeof(" + name + ") || ', and the bound is ' || " + Quote(shown) + " || ': write a bound of that type (numbers without quotes, times without an offset)')"
	var exact string
	switch {
	case l.Number:
		return "CASE WHEN " + numeric(name) + " THEN " + plain + " ELSE " + mismatch + " END"
	case number:
		exact = "WHEN " + numeric(name) + " THEN " + mismatch // SQL has no comparison that is valid for both a number and a text
	case timePattern.MatchString(l.Text):
		exact = "WHEN typeof(" + name + ") = 'DATE' THEN CAST(" + name + " AS TIMESTAMP) " + operator + " CAST(" + Quote(l.Text) + " AS TIMESTAMP)" +
			" WHEN typeof(" + name + ") IN ('TIMESTAMP_S', 'TIMESTAMP_MS') THEN CAST(" + name + " AS TIMESTAMP) " + operator + " CAST(" + Quote(l.Text) + " AS TIMESTAMP)"
	case zonePattern.MatchString(l.Text):
		exact = "WHEN typeof(" + name + ") IN ('DATE', 'TIMESTAMP', 'TIMESTAMP_S', 'TIMESTAMP_MS', 'TIMESTAMP_NS') THEN " + mismatch
	default: // a date or a text
		return plain
	}
	return "CASE " + exact + " ELSE " + plain + " END"
}

// futureTolerance is how far in the future the newest value may be. In eastern time zones, dates and local
// times are ahead of UTC.
const futureTolerance = 24 * time.Hour

// freshness compiles a check that fails if the newest value is too old, is too far in the future, or does not exist.
// Without the limit on the future, a single value in the far future would hide for years that no new rows arrive.
func (p *Params) freshness(table, column string, now time.Time) Compiled {
	at := func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05.999999") + "+00" }
	oldest, latest := at(now.Add(-time.Duration(p.MaxAgeSec)*time.Second)), at(now.Add(futureTolerance))
	newest := "(SELECT CAST(max(" + Name(column) + ") AS TIMESTAMPTZ) AS newest FROM " + table + ") AS measured"
	return Compiled{
		Failing: "SELECT * FROM " + newest + " WHERE newest IS NULL OR newest < CAST(" + Quote(oldest) + " AS TIMESTAMPTZ)" +
			" OR newest > CAST(" + Quote(latest) + " AS TIMESTAMPTZ)",
		Value:    "SELECT newest FROM " + newest,
		Expected: "not older than " + oldest + ", and not later than " + latest,
	}
}

// schema compiles a check that returns a row for every column that is missing, has another type or, if ForbidExtra is
// set, is not expected.
func (p *Params) schema(table string) Compiled {
	wanted := make([]string, 0, len(p.Types)+1)
	wanted = append(wanted, "SELECT NULL::VARCHAR AS name, NULL::VARCHAR AS kind WHERE false")
	shown := make([]string, len(p.Types))
	for i, t := range p.Types {
		wanted = append(wanted, "SELECT "+Quote(t.Name)+", typeof(CAST(NULL AS "+t.Type+"))")
		shown[i] = t.Name + " " + t.Type
	}
	problem, condition := "CASE WHEN made.name IS NULL THEN 'missing' WHEN wanted.name IS NULL THEN 'not expected' ELSE 'another type' END",
		"made.name IS NULL OR made.kind <> wanted.kind"
	if p.ForbidExtra {
		condition += " OR wanted.name IS NULL"
	}
	return Compiled{
		Failing: fmt.Sprintf(`SELECT coalesce(made.name, wanted.name) AS "column", %s AS problem, wanted.kind AS expected, made.kind AS actual
FROM (%s) AS wanted
FULL JOIN (SELECT column_name AS name, column_type AS kind FROM (DESCRIBE SELECT * FROM %s)) AS made ON lower(made.name) = lower(wanted.name)
WHERE %s`, problem, strings.Join(wanted, "\nUNION ALL "), table, condition),
		Expected: strings.Join(shown, ", "),
	}
}
