package worker

import (
	"context"
	"database/sql"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/quality"
	"github.com/servo-orchestration/servo/pkg/testcase"
)

// givenSchema holds the tables with given rows. Its name cannot be the namespace of an asset.
const givenSchema = `"given rows"`

func tableName(i int) string { return givenSchema + ".t" + strconv.Itoa(i) }
func viewName(asset ids.AssetKey) string {
	return quoteName(asset.Namespace) + "." + quoteName(asset.Name)
}

// givenTable describes a database table with the given rows of an asset.
type givenTable struct {
	asset ids.AssetKey
	name  string
	// open means that the columns of the asset are not known, so the asset may have columns that the test omits.
	open bool
	// added are columns that the query reads but the test omits. Their values are NULL.
	added []string
}

// table creates a table with the given rows of an asset, and a view with the asset's name.
func (r *testRunner) table(ctx context.Context, g *testcase.Given, i int) (givenTable, error) {
	columns, known := r.columns[g.Asset]
	t := givenTable{asset: g.Asset, name: tableName(i), open: !known}
	var rows string
	var err error
	if g.SQL != "" {
		rows, err = r.queried(ctx, g, columns)
	} else {
		rows, err = written(g, columns, known)
	}
	if err != nil {
		return t, err
	}
	if _, err := r.d.exec(ctx, "CREATE OR REPLACE TABLE "+t.name+" AS "+rows); err != nil {
		return t, r.wrongRows(ctx, g, columns, err)
	}
	if _, err := r.d.exec(ctx, "CREATE SCHEMA IF NOT EXISTS "+quoteName(g.Asset.Namespace)); err != nil {
		return t, fmt.Errorf("create the given rows: %w", err)
	}
	return t, r.view(ctx, &t)
}

// view creates the view of an asset with given rows.
func (r *testRunner) view(ctx context.Context, t *givenTable) error {
	var more strings.Builder
	for _, name := range t.added {
		more.WriteString(", NULL AS " + quoteName(name))
	}
	if _, err := r.d.exec(ctx, "CREATE OR REPLACE VIEW "+viewName(t.asset)+" AS SELECT *"+more.String()+" FROM "+t.name); err != nil {
		return fmt.Errorf("create the given rows: %w", err)
	}
	return nil
}

// written returns a query for the given rows, if the test lists them. Columns that the test omits are NULL.
func written(g *testcase.Given, columns []resultColumn, known bool) (string, error) {
	if !known {
		columns = givenColumns(g)
	}
	if len(columns) == 0 {
		return "", &testcase.Problem{
			At: g.At, Message: "the columns of " + g.Asset.SQL() + " are not known, and no rows are given",
			Suggestion: "give it {sql: SELECT … WHERE false} with typed columns",
		}
	}
	if err := checkCells(g.Rows, columns, "the columns of "+g.Asset.SQL()+" are "); err != nil {
		return "", err
	}
	list := make([]string, len(columns))
	for i, c := range columns {
		list[i] = "c" + strconv.Itoa(i) + " AS " + quoteName(c.name)
	}
	if len(g.Rows) == 0 {
		for i, c := range columns {
			list[i] = "CAST(NULL AS " + c.kind + ") AS " + quoteName(c.name)
		}
		return "SELECT " + strings.Join(list, ", ") + " WHERE false", nil
	}
	return "SELECT " + strings.Join(list, ", ") + " FROM (VALUES " + values(g.Rows, columns) + ") AS t(" + positions(len(columns)) + ")", nil
}

// values returns rows as SQL VALUES. Each row has all columns.
func values(rows []testcase.Row, columns []resultColumn) string {
	var b strings.Builder
	for i := range rows {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteByte('(')
		for j, c := range columns {
			if j > 0 {
				b.WriteString(", ")
			}
			var value testcase.Value
			if cell := rows[i].Cell(c.name); cell != nil {
				value = cell.Value
			}
			b.WriteString(value.SQL(c.kind))
		}
		b.WriteByte(')')
	}
	return b.String()
}

// positions returns names for n columns by position: c0, c1 and so on.
func positions(n int) string {
	names := make([]string, n)
	for i := range names {
		names[i] = "c" + strconv.Itoa(i)
	}
	return strings.Join(names, ", ")
}

// givenColumns returns the columns of given rows, with types inferred from the values.
func givenColumns(g *testcase.Given) []resultColumn {
	var columns []resultColumn
	values := map[string][]testcase.Value{}
	for i := range g.Rows {
		for _, cell := range g.Rows[i].Cells {
			key := strings.ToLower(cell.Name)
			if values[key] == nil {
				columns = append(columns, resultColumn{name: cell.Name})
			}
			values[key] = append(values[key], cell.Value)
		}
	}
	for i := range columns {
		columns[i].kind = testcase.TypeOf(values[strings.ToLower(columns[i].name)])
	}
	return columns
}

// checkCells returns an error about the first cell whose column is unknown or has another type.
func checkCells(rows []testcase.Row, columns []resultColumn, all string) error {
	for i := range rows {
		for _, cell := range rows[i].Cells {
			at := slices.IndexFunc(columns, func(c resultColumn) bool { return strings.EqualFold(c.name, cell.Name) })
			if at < 0 {
				return unknownColumn(cell.NameAt, cell.Name, columns, all)
			}
			if !cell.Value.Fits(columns[at].kind) {
				return wrongType(&cell, columns[at])
			}
		}
	}
	return nil
}

func unknownColumn(at testcase.Place, name string, columns []resultColumn, all string) error {
	var names []string
	for _, c := range columns {
		names = append(names, c.name)
	}
	suggestion := all + strings.Join(names, ", ")
	if near := plan.Suggest(name, names); near != "" {
		suggestion = "did you mean " + near + "?"
	}
	return &testcase.Problem{At: at, Message: fmt.Sprintf("unknown column %q", name), Suggestion: suggestion}
}

func wrongType(cell *testcase.Cell, c resultColumn) error {
	return &testcase.Problem{At: cell.At, Message: fmt.Sprintf("column %s has the type %s, got %s", c.name, c.kind, cell.Value)}
}

// queried returns a query for the given rows of an asset, if the test defines them with a query.
func (r *testRunner) queried(ctx context.Context, g *testcase.Given, columns []resultColumn) (string, error) {
	query := r.given[g]
	var found []resultColumn
	err := query.err
	if err == nil {
		found, err = r.d.describe(ctx, query.description())
	}
	if err != nil {
		return "", &testcase.Problem{At: g.SQLAt, Message: "the query of the given rows failed: " + plainError(err)}
	}
	if len(columns) == 0 {
		columns = found
	}
	for _, c := range found {
		if !slices.ContainsFunc(columns, func(k resultColumn) bool { return strings.EqualFold(k.name, c.name) }) {
			return "", unknownColumn(g.SQLAt, c.name, columns, "the columns of "+g.Asset.SQL()+" are ")
		}
	}
	list := make([]string, len(columns))
	for i, c := range columns {
		kind, _ := exactType(c.kind)
		at := slices.IndexFunc(found, func(f resultColumn) bool { return strings.EqualFold(f.name, c.name) })
		value := "CAST(NULL AS " + kind + ")"
		if at >= 0 {
			value = exactCast("c"+strconv.Itoa(at), found[at].kind, resultColumn{c.name, kind})
		}
		list[i] = value + " AS " + quoteName(c.name)
	}
	return "SELECT " + strings.Join(list, ", ") + " FROM (" + query.text + "\n) AS t(" + positions(len(found)) + ")", nil
}

// exactCast returns a cast to the type of a column. The cast fails for a value that it would change. A column of type
// DOUBLE or FLOAT is an exception: it stores the nearest floating-point number.
func exactCast(value, from string, to resultColumn) string {
	cast := "CAST(" + value + " AS " + to.kind + ")"
	if from == to.kind || to.kind == "DOUBLE" || to.kind == "FLOAT" {
		return cast
	}
	message := quote("column "+to.name+" has the type "+to.kind+", got ") + " || CAST(" + value + " AS VARCHAR) || " + quote(" of the type "+from+": cast it in the query")
	return "CASE WHEN CAST(" + cast + " AS " + from + ") IS DISTINCT FROM " + value + " THEN error(" + message + ") ELSE " + cast + " END"
}

// plainError returns the message of an error of DuckDB in one line.
func plainError(err error) string {
	if e, ok := asQueryError(err, ""); ok {
		message, _, _ := strings.Cut(strings.TrimSpace(e.message), "\n")
		return strings.TrimRight(message, "!")
	}
	return err.Error()
}

// wrongRows returns an error that names the value that DuckDB cannot cast to the type of its column.
func (r *testRunner) wrongRows(ctx context.Context, g *testcase.Given, columns []resultColumn, err error) error {
	if g.SQL != "" {
		return &testcase.Problem{At: g.SQLAt, Message: "the query of the given rows failed: " + plainError(err)}
	}
	if len(columns) == 0 {
		columns = givenColumns(g)
	}
	if bad := r.wrongCell(ctx, g.Rows, columns); bad != nil {
		return bad
	}
	return &testcase.Problem{At: g.At, Message: "DuckDB cannot create a table of these rows: " + plainError(err)}
}

// wrongCell returns an error for the first value that DuckDB cannot cast to the type of its column, or nil.
func (r *testRunner) wrongCell(ctx context.Context, rows []testcase.Row, columns []resultColumn) error {
	for i := range rows {
		for _, cell := range rows[i].Cells {
			at := slices.IndexFunc(columns, func(c resultColumn) bool { return strings.EqualFold(c.name, cell.Name) })
			if at < 0 || cell.Value.Kind == testcase.Null {
				continue
			}
			if _, err := r.d.exec(ctx, "SELECT "+cell.Value.SQL(columns[at].kind)); err != nil {
				return wrongType(&cell, columns[at])
			}
		}
	}
	return nil
}

// maxAddedColumns is the maximum number of NULL columns that [testRunner.describe] adds to the given rows for a
// query.
const maxAddedColumns = 100

// unknownNames match DuckDB's errors about unknown columns.
var unknownNames = []*regexp.Regexp{
	regexp.MustCompile(`^Referenced column "([^"]+)" not found`),
	regexp.MustCompile(`does not have a column named "([^"]+)"`),
	regexp.MustCompile(`^Column "([^"]+)" does not exist on `),
}

// describe binds the query of the tested asset. If the query reads a column that the test omits, and exactly one
// given asset has unknown columns, describe adds the column to that asset. The column contains only NULLs, to which
// DuckDB's binder assigns the type that the query needs.
func (r *testRunner) describe(ctx context.Context, query *resolvedQuery, asset *plan.Asset, tables []givenTable) ([]resultColumn, error) {
	s := query.description()
	for range maxAddedColumns {
		columns, err := r.d.describe(ctx, s)
		if err == nil {
			return columns, refuseUnstorable(columns)
		}
		t := onlyOpen(tables)
		name := unknownName(err)
		if name == "" || t == nil || slices.Contains(t.added, name) {
			return nil, withAdded(sqlFailure(s.explain(err, asset.Query)), t)
		}
		t.added = append(t.added, name)
		if err := r.view(ctx, t); err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("the query reads more than %d columns that are not given", maxAddedColumns)
}

// withAdded adds the names of the added columns to an error, because these columns may cause the error.
func withAdded(err error, t *givenTable) error {
	if t == nil || len(t.added) == 0 {
		return err
	}
	return fmt.Errorf("%w\n\nThe test has no values for these columns of %s, so their types are unknown: %s. Add a value for each of them to a row",
		err, t.asset.SQL(), strings.Join(t.added, ", "))
}

// onlyOpen returns the only table whose asset may have columns that the test omits. If there is no such table, or
// more than one, it returns nil.
func onlyOpen(tables []givenTable) (found *givenTable) {
	for i := range tables {
		if tables[i].open && found != nil {
			return nil
		}
		if tables[i].open {
			found = &tables[i]
		}
	}
	return found
}

// unknownName returns the name of the unknown column in an error of DuckDB, or "".
func unknownName(err error) string {
	e, ok := asQueryError(err, "")
	if !ok || e.kind != "Binder" {
		return ""
	}
	for _, pattern := range unknownNames {
		if m := pattern.FindStringSubmatch(e.message); m != nil {
			return m[1]
		}
	}
	return ""
}

// pick returns the positions of the columns to compare, and their names and types.
func pick(t *testcase.Test, asset *plan.Asset, columns []resultColumn) (at []int, picked []testcase.Column, err error) {
	declared := quality.DeclaredIntegers(asset.Work.Checks)
	if len(t.Expect.Rows) == 0 { // compare every column, so that the query evaluates every expression
		for i, c := range columns {
			at = append(at, i)
			kind, _ := storedType(c, declared)
			picked = append(picked, testcase.Column{Name: c.name, Kind: kind})
		}
		return at, picked, nil
	}
	for _, cell := range t.Expect.Rows[0].Cells {
		i := slices.IndexFunc(columns, func(c resultColumn) bool { return strings.EqualFold(c.name, cell.Name) })
		if i < 0 {
			return nil, nil, unknownColumn(cell.NameAt, cell.Name, columns, "the query returns ")
		}
		at = append(at, i)
		kind, _ := storedType(columns[i], declared)
		picked = append(picked, testcase.Column{Name: columns[i].name, Kind: kind})
	}
	return at, picked, nil
}

// maxActualRows is the maximum number of rows that a tested query may return.
const maxActualRows = 10_000

// rows executes the query of the tested asset, and returns the columns at the given positions.
func (r *testRunner) rows(ctx context.Context, query *resolvedQuery, asset *plan.Asset, columns []resultColumn, at []int) ([][]testcase.Field, error) {
	result, _ := exact(query, columns, asset.Work.Checks)
	list := make([]string, len(columns))
	for i := range columns {
		list[i] = "CAST(c" + strconv.Itoa(i) + " AS VARCHAR)"
	}
	s := result.within("SELECT "+strings.Join(list, ", ")+" FROM (", "\n) AS result("+positions(len(columns))+")")
	rows, err := r.fields(ctx, s.text, len(columns))
	if err != nil {
		return nil, sqlFailure(s.explain(err, asset.Query))
	}
	for i, row := range rows {
		picked := make([]testcase.Field, len(at))
		for j, position := range at {
			picked[j] = row[position]
		}
		rows[i] = picked
	}
	return rows, nil
}

// fields returns the rows of a query whose columns are text.
func (r *testRunner) fields(ctx context.Context, text string, columns int) (found [][]testcase.Field, err error) {
	rows, err := r.d.conn.QueryContext(ctx, text)
	if err != nil {
		return nil, err
	}
	defer func() {
		if closeErr := rows.Close(); err == nil {
			err = closeErr
		}
	}()
	values, targets := make([]sql.NullString, columns), make([]any, columns)
	for i := range values {
		targets[i] = &values[i]
	}
	for rows.Next() {
		if len(found) == maxActualRows {
			return nil, fmt.Errorf("the query returns more than %d rows: test with fewer", maxActualRows)
		}
		if err := rows.Scan(targets...); err != nil {
			return nil, err
		}
		row := make([]testcase.Field, columns)
		for i, v := range values {
			row[i] = testcase.Field{Text: v.String, Null: !v.Valid}
		}
		found = append(found, row)
	}
	return found, rows.Err()
}

// expected returns the expected rows as DuckDB formats them in the types of the result.
func (r *testRunner) expected(ctx context.Context, t *testcase.Test, picked []testcase.Column) ([][]testcase.Field, error) {
	if len(t.Expect.Rows) == 0 {
		return nil, nil
	}
	columns := make([]resultColumn, len(picked))
	list := make([]string, len(picked))
	for i, c := range picked {
		columns[i] = resultColumn{c.Name, c.Kind}
		list[i] = "CAST(c" + strconv.Itoa(i) + " AS VARCHAR)"
	}
	if err := checkCells(t.Expect.Rows, columns, "the query returns "); err != nil {
		return nil, err
	}
	rows, err := r.fields(ctx, "SELECT "+strings.Join(list, ", ")+" FROM (VALUES "+values(t.Expect.Rows, columns)+") AS t("+positions(len(columns))+")", len(columns))
	if err == nil {
		return rows, nil
	}
	if bad := r.wrongCell(ctx, t.Expect.Rows, columns); bad != nil {
		return nil, bad
	}
	return nil, &testcase.Problem{At: t.Expect.At, Message: "the expected rows cannot be read: " + plainError(err)}
}
