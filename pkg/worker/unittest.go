package worker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/quality"
	"github.com/servo-orchestration/servo/pkg/testcase"
)

// A unit test executes an asset's query on given rows in the same way as a task, with the same paths, sandbox,
// variables and stored types. It reads and writes no state. The given rows are tables of a DuckDB instance that
// executes one test after the other.

// UnitTests holds the arguments of [RunUnitTests].
type UnitTests struct {
	// Root is the absolute path of the folder with the project's files. Data are the project's data folders.
	Root string
	Data []string
	// Scratch is an empty folder for working files. State is the state folder, which queries cannot read.
	Scratch, State string
	// MemoryLimit is the memory limit of each DuckDB instance, for example "512MB"; "": the default.
	MemoryLimit string
	// Parallel is how many tests are executed at once.
	Parallel int
	// Assets are all assets of the project.
	Assets []plan.Asset
	Tests  []testcase.Test
}

// RunUnitTests executes unit tests and returns their results in the same order.
func RunUnitTests(ctx context.Context, u UnitTests) (_ []testcase.Result, err error) {
	prepared, err := u.prepare(ctx)
	if err != nil {
		return nil, fmt.Errorf("prepare the unit tests: %w", err)
	}
	results := make([]testcase.Result, len(u.Tests))
	var next atomic.Int64
	group, ctx := errgroup.WithContext(ctx)
	for worker := range min(max(u.Parallel, 1), len(u.Tests)) {
		group.Go(func() (err error) {
			r, err := prepared.open(ctx, filepath.Join(u.Scratch, strconv.Itoa(worker)))
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, r.close()) }()
			for i := next.Add(1) - 1; i < int64(len(u.Tests)); i = next.Add(1) - 1 {
				if results[i], err = r.run(ctx, &u.Tests[i]); err != nil {
					return fmt.Errorf("%s: %w", u.Tests[i].At, err)
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return results, nil
}

// preparedTests holds the data that all tests share.
type preparedTests struct {
	UnitTests
	assets map[ids.AssetKey]*plan.Asset
	// queries are the queries of the tested assets. The field given contains the queries that return given rows. If a
	// query is invalid, parsedQuery.err is its error.
	queries map[ids.AssetKey]parsedQuery
	given   map[*testcase.Given]parsedQuery
	// checks are the SQL checks that the tests expect, by asset and name.
	checks map[checkName]parsedQuery
	// columns are the known columns of the given assets.
	columns  map[ids.AssetKey][]resultColumn
	readable sandbox
}

type checkName struct {
	asset ids.AssetKey
	name  string
}

type parsedQuery struct {
	*resolvedQuery
	err error
}

// prepare parses the queries and finds the columns of the assets with given rows.
func (u UnitTests) prepare(ctx context.Context) (_ *preparedTests, err error) {
	p := &preparedTests{
		UnitTests: u, assets: map[ids.AssetKey]*plan.Asset{}, queries: map[ids.AssetKey]parsedQuery{},
		given: map[*testcase.Given]parsedQuery{}, checks: map[checkName]parsedQuery{}, columns: map[ids.AssetKey][]resultColumn{},
	}
	for i := range u.Assets {
		p.assets[u.Assets[i].Key] = &u.Assets[i]
	}
	var given []ids.AssetKey
	for i := range u.Tests {
		for j := range u.Tests[i].Given {
			given = append(given, u.Tests[i].Given[j].Asset)
		}
	}
	slices.SortFunc(given, plan.CompareKeys)
	given = slices.Compact(given)
	scratch := filepath.Join(u.Scratch, "bind")
	if err := os.Mkdir(scratch, 0o700); err != nil {
		return nil, err
	}
	b, err := bindAll(ctx, Binding{Root: u.Root, Data: u.Data, Scratch: scratch, State: u.State, Assets: p.upstream(given)}, given)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	for _, key := range given {
		if b.known[key.SQL()] == nil {
			continue
		}
		if p.columns[key], err = b.users.describe(ctx, statement{text: "DESCRIBE " + quoteName(key.Namespace) + "." + quoteName(key.Name)}); err != nil {
			return nil, err
		}
	}
	return p, p.parse(ctx, b.own)
}

// upstream returns the given assets, and all assets on which they depend.
func (p *preparedTests) upstream(keys []ids.AssetKey) []plan.Asset {
	seen := map[ids.AssetKey]bool{}
	var found []plan.Asset
	for queue := slices.Clone(keys); len(queue) > 0; queue = queue[1:] {
		asset := p.assets[queue[0]]
		if seen[queue[0]] || asset == nil {
			continue
		}
		seen[asset.Key] = true
		found = append(found, *asset)
		queue = append(queue, asset.Deps...)
	}
	slices.SortFunc(found, func(a, b plan.Asset) int { return plan.CompareKeys(a.Key, b.Key) })
	return found
}

// parse parses the queries of the tests, and finds the files that these queries may read.
func (p *preparedTests) parse(ctx context.Context, d *database) error {
	var paths []string
	reads := false
	resolve := func(text string, source plan.Source) parsedQuery {
		query, err := d.resolvePaths(ctx, strings.TrimRight(text, "; \t\r\n"), p.Root, source)
		if err == nil {
			paths, reads = append(paths, query.paths...), reads || query.reads
		}
		return parsedQuery{query, err}
	}
	for i := range p.Tests {
		t := &p.Tests[i]
		if _, done := p.queries[t.Asset]; !done {
			asset := p.assets[t.Asset]
			if asset == nil {
				return fmt.Errorf("%s: asset %s does not exist", t.At, t.Asset)
			}
			p.queries[t.Asset] = resolve(asset.Work.SQL, asset.Query)
		}
		for _, e := range t.Expect.Checks {
			if c := p.check(t, e.Name); c != nil && c.Kind == quality.SQL {
				p.checks[checkName{t.Asset, c.Name}] = resolve(c.Compile(quality.Target{}).Failing, plan.Source{})
			}
		}
		for j := range t.Given {
			if g := &t.Given[j]; g.SQL != "" {
				p.given[g] = resolve(g.SQL, plan.Source{})
			}
		}
	}
	if !reads {
		return ctx.Err()
	}
	state, _ := os.Stat(p.State) // nil if there is no state folder yet
	var err error
	p.readable, err = dataFiles(p.Root, &plan.Plan{Data: p.Data}, state, paths)
	return errors.Join(err, ctx.Err())
}

// testRunner executes tests, one after the other.
type testRunner struct {
	*preparedTests
	d *database
}

// open opens a DuckDB instance whose working files are in a new folder.
func (p *preparedTests) open(ctx context.Context, dir string) (*testRunner, error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, fmt.Errorf("open DuckDB: %w", err)
	}
	limit := p.MemoryLimit
	if limit == "" {
		limit = bindMemory
	}
	d, err := openDatabase(ctx, dir, limit, 1)
	if err != nil {
		return nil, err
	}
	readable := sandbox{directories: append(slices.Clone(p.readable.directories), dir), files: p.readable.files}
	_, err = d.exec(ctx, "SET VARIABLE servo_root = "+quote(p.Root)+"; CREATE SCHEMA "+givenSchema)
	if err == nil {
		err = d.lock(ctx, readable)
	}
	if err != nil {
		return nil, errors.Join(err, d.close())
	}
	return &testRunner{p, d}, nil
}

func (r *testRunner) close() error { return r.d.close() }

// run executes a test. An error means that the test could not be executed.
func (r *testRunner) run(ctx context.Context, t *testcase.Test) (testcase.Result, error) {
	result, err := r.judge(ctx, t)
	if ctx.Err() != nil {
		return result, context.Cause(ctx)
	}
	result.Test = t
	if problem, ok := errors.AsType[*testcase.Problem](err); ok {
		result.Status, result.At, result.Message, result.Suggestion = testcase.Invalid, problem.At, problem.Message, problem.Suggestion
		err = nil
	}
	if result.At == (testcase.Place{}) {
		result.At = t.At
	}
	return result, errors.Join(err, r.clear(ctx, t))
}

// judge executes the query of a test, and compares the result with the expected one.
func (r *testRunner) judge(ctx context.Context, t *testcase.Test) (testcase.Result, error) {
	asset, query := r.assets[t.Asset], r.queries[t.Asset]
	if err := r.checkGiven(t, query); err != nil {
		return testcase.Result{}, err
	}
	if err := r.set(ctx, t); err != nil {
		return testcase.Result{}, err
	}
	tables := make([]givenTable, len(t.Given))
	for i := range t.Given {
		var err error
		if tables[i], err = r.table(ctx, &t.Given[i], i); err != nil {
			return testcase.Result{}, err
		}
	}
	var columns []resultColumn
	err := query.err
	if err == nil {
		columns, err = r.describe(ctx, query.resolvedQuery, asset, tables)
	}
	var rows [][]testcase.Field
	var picked []testcase.Column
	if err == nil {
		var at []int
		if at, picked, err = pick(t, asset, columns); err != nil {
			return testcase.Result{}, err
		}
		rows, err = r.rows(ctx, query.resolvedQuery, asset, columns, at)
	}
	if err != nil || t.Expect.Rows == nil && len(t.Expect.Checks) == 0 {
		return judgeError(t, len(rows), err), nil
	}
	if message, err := r.judgeChecks(ctx, t, query.resolvedQuery, asset, columns); err != nil || message != "" {
		return testcase.Result{Status: testcase.Failed, Message: message}, err
	}
	if t.Expect.Rows == nil {
		return testcase.Result{Status: testcase.Passed}, nil
	}
	expected, err := r.expected(ctx, t, picked)
	if err != nil {
		return testcase.Result{}, err
	}
	if diff := testcase.Compare(picked, expected, rows, t.Expect.Ordered); diff != nil {
		actual := testcase.Arrange(picked, expected, rows, t.Expect.Ordered)
		return testcase.Result{Status: testcase.Failed, Message: diff.Summary(), Diff: diff, Actual: actual}, nil
	}
	return testcase.Result{Status: testcase.Passed}, nil
}

// judgeError compares the error of a query with the expected error. err is nil if the query succeeded.
func judgeError(t *testcase.Test, rows int, err error) testcase.Result {
	failed := func(format string, args ...any) testcase.Result {
		return testcase.Result{Status: testcase.Failed, Message: fmt.Sprintf(format, args...)}
	}
	want := t.Expect.Error
	switch {
	case t.Expect.Rows != nil, len(t.Expect.Checks) > 0:
		return failed("the query failed: %v", err)
	case err == nil:
		return failed("expected an error with %q, but the query returned %s", want, rowCount(int64(rows)))
	case !strings.Contains(err.Error(), want):
		return failed("expected an error with %q, but the query failed with another error: %v", want, err)
	}
	return testcase.Result{Status: testcase.Passed}
}

// checkGiven returns an error unless the test defines rows for exactly the assets that the query reads.
func (r *testRunner) checkGiven(t *testcase.Test, query parsedQuery) error {
	if used := r.assets[t.Asset].Work.External; len(used) > 0 {
		return &testcase.Problem{
			At: t.At, Message: fmt.Sprintf("%s uses %s, and a unit test has no external data", t.Asset, used[0].Extension),
			Suggestion: "read the external data in an asset of its own, and test the asset that selects from it",
		}
	}
	if query.resolvedQuery == nil {
		return nil
	}
	var reads []string
	given := map[ids.AssetKey]bool{}
	for i := range t.Given {
		given[t.Given[i].Asset] = true
	}
	tables := slices.Concat(query.tables, r.readByChecks(t))
	for _, dep := range r.assets[t.Asset].Deps {
		if len(query.tables) > 0 && !slices.Contains(tables, dep.SQL()) {
			continue // the asset only waits for this dependency, and its query does not read it
		}
		reads = append(reads, dep.SQL())
		if !given[dep] {
			return &testcase.Problem{
				At: t.At, Message: "the query reads " + dep.SQL() + ", but the test does not list it under given",
				Suggestion: "add " + dep.SQL() + ": [] for a table without rows",
			}
		}
	}
	for i := range t.Given {
		if g := &t.Given[i]; !slices.Contains(reads, g.Asset.SQL()) {
			suggestion := "it reads " + strings.Join(reads, ", ")
			if len(reads) == 0 {
				suggestion = "it reads no assets"
			}
			return &testcase.Problem{At: g.At, Message: fmt.Sprintf("the query of %s does not read %s", t.Asset, g.Asset.SQL()), Suggestion: suggestion}
		}
	}
	return nil
}

// set sets the variables of the partition and of the project.
func (r *testRunner) set(ctx context.Context, t *testcase.Test) error {
	statements := setVars(t.Vars)
	asset := &r.assets[t.Asset].Work
	types := asset.Dimensions
	for _, dimension := range t.Partition.Dimensions() {
		statement, err := setPartitions(asset, dimension, t.Partition)
		if err != nil {
			return err
		}
		statements = append(statements, statement)
		if t.Period != nil && types[dimension] != "VARCHAR" {
			statements = append(statements, setInstant(dimension+"_start", t.Period.Start), setInstant(dimension+"_end", t.Period.End))
		}
	}
	for _, statement := range statements {
		if _, err := r.d.exec(ctx, statement); err != nil {
			return fmt.Errorf("set the variables of the query: %w", err)
		}
	}
	return nil
}

// clear removes the rows and the variables of a test.
func (r *testRunner) clear(ctx context.Context, t *testcase.Test) error {
	var statements []string
	for _, dimension := range t.Partition.Dimensions() {
		statements = append(statements, "RESET VARIABLE "+quoteName(partitionVariable(&r.assets[t.Asset].Work, dimension)))
		if t.Period != nil && r.assets[t.Asset].Work.Dimensions[dimension] != "VARCHAR" {
			statements = append(statements, "RESET VARIABLE "+quoteName(dimension+"_start"), "RESET VARIABLE "+quoteName(dimension+"_end"))
		}
	}
	for name := range t.Vars {
		statements = append(statements, "RESET VARIABLE "+quoteName(plan.VarPrefix+name))
	}
	for i := range t.Given {
		statements = append(statements, "DROP VIEW IF EXISTS "+viewName(t.Given[i].Asset), "DROP TABLE IF EXISTS "+tableName(i))
	}
	if len(t.Expect.Checks) > 0 {
		statements = append(statements, "DROP VIEW IF EXISTS "+viewName(t.Asset), "DROP VIEW IF EXISTS "+storedResult, "DROP TABLE IF EXISTS "+resultTable)
	}
	for _, statement := range statements {
		if _, err := r.d.exec(ctx, statement); err != nil {
			return fmt.Errorf("remove the rows of a test: %w", err)
		}
	}
	return nil
}
