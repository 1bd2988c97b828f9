package worker

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/quality"
	"github.com/servo-orchestration/servo/pkg/testcase"
)

// A unit test may expect outcomes of checks. The rows of the query are stored in a table with the types that an
// output file would have. The checks read a view of this table that has the name of the asset.

const (
	resultTable  = givenSchema + ".result"
	storedResult = givenSchema + ".stored"
)

// check returns a check of the tested asset, or nil.
func (p *preparedTests) check(t *testcase.Test, name string) *quality.Check {
	checks := p.assets[t.Asset].Work.Checks
	for i := range checks {
		if checks[i].Name == name {
			return &checks[i]
		}
	}
	return nil
}

// readByChecks returns the tables that the expected checks of a test read, except the tested asset.
func (p *preparedTests) readByChecks(t *testcase.Test) (tables []string) {
	for _, e := range t.Expect.Checks {
		c := p.check(t, e.Name)
		if c == nil {
			continue
		}
		if to, err := ids.ParseAssetKey(c.Params.To); err == nil {
			tables = append(tables, to.SQL())
		}
		if query := p.checks[checkName{t.Asset, c.Name}]; query.resolvedQuery != nil {
			tables = append(tables, query.tables...)
		}
	}
	return tables
}

// judgeChecks executes the expected checks on the rows of a query. It returns a description of the
// first difference between expected and actual results, or "".
func (r *testRunner) judgeChecks(
	ctx context.Context, t *testcase.Test, query *resolvedQuery, asset *plan.Asset, columns []resultColumn,
) (string, error) {
	if len(t.Expect.Checks) == 0 {
		return "", nil
	}
	rows, err := r.storeResult(ctx, query, asset, columns)
	if err != nil {
		return "", err
	}
	for _, e := range t.Expect.Checks {
		c := r.check(t, e.Name)
		if c == nil {
			return "", &testcase.Problem{At: e.At, Message: fmt.Sprintf("%s has no check %s", t.Asset, e.Name)}
		}
		result, err := r.measure(ctx, t, c, rows)
		switch {
		case ctx.Err() != nil:
			return "", ctx.Err()
		case err != nil:
			return fmt.Sprintf("check %s is broken: %s", c.Name, plainError(err)), nil
		case result && !e.Passed:
			return fmt.Sprintf("check %s passed, but it should fail", c.Name), nil
		case !result && e.Passed:
			return fmt.Sprintf("check %s failed, but it should pass", c.Name), nil
		}
	}
	return "", nil
}

// storeResult stores the rows of a query, and creates two views that checks read. One has the columns of the query. The
// other has the name of the asset, and also the partition columns of the asset.
func (r *testRunner) storeResult(ctx context.Context, query *resolvedQuery, asset *plan.Asset, columns []resultColumn) (rows int64, err error) {
	result, _ := exact(query, columns, asset.Work.Checks)
	list, has := make([]string, len(columns)), map[string]bool{}
	for i, c := range columns {
		list[i] = "c" + strconv.Itoa(i) + " AS " + quoteName(c.name)
		has[strings.ToLower(c.name)] = true
	}
	s := result.within("CREATE OR REPLACE TABLE "+resultTable+" AS SELECT "+strings.Join(list, ", ")+" FROM (", "\n) AS result("+positions(len(columns))+")")
	var more strings.Builder
	for _, c := range asset.PartitionColumns() {
		if !has[strings.ToLower(c.Name)] {
			more.WriteString(", CAST(getvariable(" + quote(c.Name) + ") AS " + c.Type + ") AS " + quoteName(c.Name))
		}
	}
	for _, statement := range []string{
		s.text,
		"CREATE OR REPLACE VIEW " + storedResult + " AS SELECT * FROM " + resultTable,
		"CREATE SCHEMA IF NOT EXISTS " + quoteName(asset.Key.Namespace),
		"CREATE OR REPLACE VIEW " + viewName(asset.Key) + " AS SELECT *" + more.String() + " FROM " + resultTable,
	} {
		if _, err := r.d.exec(ctx, statement); err != nil {
			return 0, fmt.Errorf("store the rows of the query: %w", err)
		}
	}
	err = r.d.conn.QueryRowContext(ctx, "SELECT count(*) FROM "+resultTable).Scan(&rows)
	return rows, err
}

// measure executes a check, and reports whether it passes.
func (r *testRunner) measure(ctx context.Context, t *testcase.Test, c *quality.Check, rows int64) (bool, error) {
	compiled := c.Compile(quality.Target{Table: t.Asset, Previous: -1, Stored: storedResult})
	if query, sql := r.checks[checkName{t.Asset, c.Name}]; sql {
		if query.err != nil {
			return false, query.err
		}
		compiled.Failing = query.text
	}
	if compiled.Count == "" {
		compiled.Count = "SELECT count(*) FROM (\n" + compiled.Failing + "\n) AS failing"
	}
	m := quality.Measured{Rows: rows}
	if err := r.d.conn.QueryRowContext(ctx, compiled.Count).Scan(&m.Failing); err != nil {
		return false, sqlFailure(err)
	}
	return c.Judge(compiled, m).Passed, nil
}
