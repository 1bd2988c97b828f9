package worker

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/duckdb/duckdb-go/v2"

	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/partcolumn"
	"github.com/servo-orchestration/servo/pkg/plan"
)

// outputName is the file name of a query's result.
const outputName = "data.parquet"

// database is a DuckDB instance of one execution. Executions do not share an instance, because settings and sandbox
// apply to a whole instance.
type database struct {
	db   *sql.DB
	conn *sql.Conn
}

// openDuckDB opens an empty in-memory database that spills to the attempt's folder.
func (a *attempt) openDuckDB(ctx context.Context) (*database, error) {
	limit, _, _ := a.memoryLimit()
	return openDatabase(ctx, a.dir, limit, a.threads())
}

func openDatabase(ctx context.Context, dir, memoryLimit string, threads int) (*database, error) {
	connector, err := duckdb.NewConnector("", nil)
	if err != nil {
		return nil, fmt.Errorf("open DuckDB: %w", err)
	}
	d := &database{db: sql.OpenDB(connector)}
	if d.conn, err = d.db.Conn(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("open DuckDB: %w", err), d.db.Close())
	}
	settings := []string{
		"SET temp_directory = " + quote(filepath.Join(dir, "spill")),
		"SET autoinstall_known_extensions = false",
		"SET autoload_known_extensions = false",
		"SET TimeZone = 'UTC'",
		"SET errors_as_json = true",
		"SET parquet_metadata_cache = true", // so that describe and copyTo do not both read the footers
		profiling,
	}
	settings = append(settings, "SET memory_limit = "+quote(memoryLimit), "SET threads = "+strconv.Itoa(threads))
	if _, err := d.exec(ctx, strings.Join(settings, "; ")); err != nil {
		return nil, errors.Join(fmt.Errorf("configure DuckDB: %w", err), d.close())
	}
	return d, nil
}

func (d *database) exec(ctx context.Context, statement string) (rows int64, err error) {
	result, err := d.conn.ExecContext(ctx, statement)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

func (d *database) close() error { return errors.Join(d.conn.Close(), d.db.Close()) }

// executeSQL executes the task's query and returns its result as a Parquet file. If a query that reads merged files
// fails, executeSQL executes it again without them, so that the outcome never depends on merged files.
func (a *attempt) executeSQL(ctx context.Context, t *work, inputs []input) ([]outputFile, error) {
	made, used, err := a.executeOnce(ctx, t, inputs, a.useMerged)
	if used && err != nil && ctx.Err() == nil {
		a.log.WarnContext(ctx, "a query with merged files failed; executing it without them", "error", a.masked(err))
		made, _, err = a.executeOnce(ctx, t, inputs, nil)
	}
	if err != nil {
		a.staged.unmerged = nil
	}
	return made, err
}

// executeOnce executes the task's query. choose replaces some parts of the inputs with merged files. If choose is nil,
// the query reads all parts one by one. The result used reports whether the query has read merged files.
func (a *attempt) executeOnce(
	ctx context.Context, t *work, inputs []input, choose func(context.Context, *database, *work, []input) []input,
) (made []outputFile, used bool, err error) {
	d, err := a.openDuckDB(ctx)
	if err != nil {
		return nil, false, sqlFailure(err)
	}
	defer func() {
		if closeErr := d.close(); closeErr != nil && err == nil {
			err = sqlFailure(closeErr)
		}
	}()
	if choose != nil {
		inputs = choose(ctx, d, t, inputs)
		used = slices.ContainsFunc(inputs, func(in input) bool { return len(in.merged) > 0 })
	}
	made, err = a.executeWith(ctx, d, t, inputs, used)
	return made, used, err
}

// executeWith fetches the inputs and executes the task's query. The parameter retried means that a failed query will be
// executed again, so its error is not written to the log.
func (a *attempt) executeWith(ctx context.Context, d *database, t *work, inputs []input, retried bool) ([]outputFile, error) {
	query, err := d.resolvePaths(ctx, strings.TrimRight(t.SQL, "; \t\r\n"), t.root, t.plan.Sources[t.task.AssetKey])
	if err != nil {
		if !retried {
			a.output.printf("%v\n", err)
		}
		return nil, err
	}
	// Open external data before the inputs are fetched: if an extension or a secret is missing, all other work is wasted.
	external, err := a.openExternal(ctx, d, t, query)
	if err != nil {
		if !retried {
			a.output.printf("%v\n", err)
		}
		return nil, err
	}
	if err := a.fetch(ctx, inputs); err != nil {
		return nil, err
	}
	if err := a.prepare(ctx, d, t, inputs, query, external); err != nil {
		return nil, err
	}
	made, rows, err := a.copyResult(ctx, d, t, query)
	if cpu, ok := d.cpuTime(); ok {
		a.addCPU(cpu)
	}
	if err != nil {
		if !retried {
			err = explainExternal(a.explainMemory(a.brokenInput(ctx, inputs, err)), &t.Work)
			a.output.printf("%v\n", err)
		}
		return nil, err
	}
	a.output.printf("%s\n", rowCount(rows))
	return made, nil
}

// copyResult executes the query and writes its result to one file or, for a batch, to one file for each partition.
func (a *attempt) copyResult(ctx context.Context, d *database, t *work, query *resolvedQuery) (made []outputFile, rows int64, err error) {
	if t.Batch {
		return a.copyBatch(ctx, d, t, query)
	}
	target := filepath.Join(a.dir, outputName)
	if rows, err = d.copyTo(ctx, t, query, target); err != nil {
		return nil, 0, err
	}
	file := outputFile{name: outputName, path: target, open: func() (*os.File, error) { return os.Open(target) }}
	if err := file.describe(); err != nil {
		return nil, 0, err
	}
	return []outputFile{file}, rows, nil
}

// copyTo writes the result of the task's query to a Parquet file.
func (d *database) copyTo(ctx context.Context, t *work, query *resolvedQuery, target string) (rows int64, err error) {
	return d.storeResult(ctx, t, query, storing{before: "COPY (", after: "\n) TO " + quote(target) + " (FORMAT parquet, COMPRESSION zstd)"})
}

// storing describes a statement that stores the result of a query: the text before the query, and the text after it.
// If check is set, it can reject the columns of the result.
type storing struct {
	before, after string
	check         func([]resultColumn) error
}

// storeResult executes the task's query within a statement that stores its result. Its errors contain the position in
// the asset's file.
func (d *database) storeResult(ctx context.Context, t *work, query *resolvedQuery, to storing) (rows int64, err error) {
	source := t.plan.Sources[t.task.AssetKey]
	description := query.description()
	columns, err := d.describe(ctx, description)
	if err != nil {
		return 0, sqlFailure(description.explain(err, source))
	}
	if err := refuseUnstorable(columns); err != nil {
		return 0, err
	}
	if to.check != nil {
		if err := to.check(columns); err != nil {
			return 0, err
		}
	}
	result, cast := exact(query, columns, t.Checks)
	result = result.within(to.before, to.after)
	if rows, err = d.exec(ctx, result.text); err == nil {
		return rows, nil
	}
	err = result.explain(err, source)
	if e, ok := err.(*queryError); ok && e.kind == kindConversion && len(cast) > 0 { //nolint:errorlint // explain does not wrap the error
		cast = failedCast(e.message, columns, cast)
		switch {
		case strings.Contains(e.message, exactInteger):
			e.message += fmt.Sprintf("\n\n%s: integers beyond 64 bits are stored as %s, which has 38 digits. Cast them to DOUBLE or VARCHAR.",
				columnsText(cast), exactInteger)
		case strings.Contains(e.message, "INT128"):
			e.message += fmt.Sprintf("\n\n%s: a value does not fit the type that `columns` declares.", columnsText(cast))
		}
	}
	return 0, sqlFailure(err)
}

// prepare creates views of the inputs, sets the variables of the partition, and then locks the sandbox. After that, the
// query may read only its inputs, the project's data folders, external data, and its scratch folder.
func (a *attempt) prepare(ctx context.Context, d *database, t *work, inputs []input, query *resolvedQuery, external sandbox) error {
	statements, err := variables(t, t.cellKeys()...)
	if err != nil {
		return err
	}
	readable, err := a.projectFiles(t, query)
	if err != nil {
		return err
	}
	folders := []string{a.dir, t.root}
	for i := range inputs {
		if inputs[i].asset == a.asset && len(inputs[i].parts) == 0 {
			statements = append(statements, createView(a.asset, a.noRows(t))...)
			continue
		}
		stored, err := inputs[i].rows()
		if err != nil {
			return err
		}
		for _, file := range stored {
			folders = append(folders, filepath.Dir(file))
		}
		rows, files, err := a.inputView(ctx, d, t, &inputs[i])
		if err != nil {
			return err
		}
		statements = append(statements, createView(inputs[i].asset, rows)...)
		readable.files = append(readable.files, files...)
	}
	for _, folder := range folders {
		if strings.ContainsAny(folder, "*?[") {
			return permanent(CodeInvalidInput, "folder %s has one of * ? [ in its name, which DuckDB treats as a pattern: rename the folder", folder)
		}
	}
	for _, statement := range statements {
		if _, err := d.exec(ctx, statement); err != nil {
			return sqlFailure(fmt.Errorf("prepare the query: %w", err))
		}
	}
	readable.add(external)
	readable.directories = append(readable.directories, a.dir)
	return d.lock(ctx, readable)
}

// variables returns the statements that set the variables for getvariable: the values of the partition, the folder of
// the project, and the variables of the project.
func variables(t *work, keys ...string) ([]string, error) {
	cells, err := parseCells(keys)
	if err != nil {
		return nil, permanent(CodePlanUnreadable, "task %s: %w", t.task.TaskKey, err)
	}
	statements := []string{"SET VARIABLE servo_root = " + quote(t.root)}
	for _, dimension := range cells[0].Dimensions() {
		statement, err := setPartitions(&t.Work, dimension, cells...)
		if err != nil {
			return nil, err
		}
		statements = append(statements, statement)
	}
	if p := t.task.Period; p != nil && len(keys) == len(t.cellKeys()) { // the period covers the whole task, so a check of one partition of a batch does not get it
		for _, dimension := range periodDimensions(t, cells[0]) {
			statements = append(statements, setInstant(dimension+"_start", p.Start), setInstant(dimension+"_end", p.End))
		}
	}
	return append(statements, setVars(t.Vars)...), nil
}

// periodDimensions returns the time dimensions of a task. A task has at most one.
func periodDimensions(t *work, partition ids.Partition) []string {
	return slices.DeleteFunc(partition.Dimensions(), func(dimension string) bool { return t.Dimensions[dimension] == "VARCHAR" })
}

// setInstant returns the statement that sets a variable to an instant.
func setInstant(name string, at time.Time) string {
	return "SET VARIABLE " + quoteName(name) + " = CAST(" + quote(at.UTC().Format("2006-01-02 15:04:05+00")) + " AS TIMESTAMPTZ)"
}

// setVars returns the statements that set the project's variables.
func setVars(vars map[string]plan.Var) []string {
	var statements []string
	for _, name := range slices.Sorted(maps.Keys(vars)) {
		v := vars[name]
		statements = append(statements,
			"SET VARIABLE "+quoteName(plan.VarPrefix+name)+" = CAST("+quote(v.Value)+" AS "+v.SQLType()+")")
	}
	return statements
}

// setDimension returns the statement that sets the variable of a dimension to the value of a partition.
func setDimension(kinds map[string]string, dimension, value string) (string, error) {
	kind, err := dimensionType(kinds, dimension)
	if err != nil {
		return "", err
	}
	return "SET VARIABLE " + quoteName(dimension) + " = CAST(" + quote(plan.SQLLiteral(kind, value)) + " AS " + kind + ")", nil
}

// dimensionType returns the SQL type of a dimension.
func dimensionType(kinds map[string]string, dimension string) (string, error) {
	kind := cmp.Or(kinds[dimension], "VARCHAR")
	if strings.ContainsFunc(kind, isNotTypeName) {
		return "", permanent(CodePlanUnreadable, "dimension %s has type %q, which is not a SQL type", dimension, kind)
	}
	return kind, nil
}

func isNotTypeName(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("_ (),", r)
}

// readParquet returns the SQL that reads files as one table. Hive partitioning is off, so a folder called
// "date=2025-01-15" adds no column.
func readParquet(files []string) string { return partcolumn.ReadParquet(files) }

func rowCount(n int64) string {
	if n == 1 {
		return "1 row"
	}
	return strconv.FormatInt(n, 10) + " rows"
}

func quote(s string) string     { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
func quoteName(s string) string { return `"` + strings.ReplaceAll(s, `"`, `""`) + `"` }

func quoteList(texts []string) string {
	var b strings.Builder
	b.WriteByte('[')
	for i, s := range texts {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(quote(s))
	}
	b.WriteByte(']')
	return b.String()
}

// sqlFailure converts an error of DuckDB to a failure.
func sqlFailure(err error) error {
	if known, ok := errors.AsType[*failure](err); ok {
		return known
	}
	e, ok := asQueryError(err, "")
	if !ok {
		return &failure{CodeSQL, CategoryUser, true, err}
	}
	text := readable(err, e)
	if folder := folderRead(e.message); folder != "" {
		return permanent(CodeInvalidInput, "%s is a folder, not a file: read the files in it with a pattern such as '%s/*', or replace it with a file\n\n%w",
			folder, folder, text)
	}
	switch {
	case strings.Contains(e.message, "No space left on device"):
		return &failure{CodeDiskFull, CategoryResource, true, text}
	case e.kind == kindMemory:
		return &failure{CodeOutOfMemory, CategoryResource, true, text}
	case e.kind == kindPermission && remoteFile(e.message):
		text = fmt.Errorf("%w\n\nA query has no network access: %s", text, loadWithCommand)
	case e.kind == kindPermission:
		text = fmt.Errorf("%w\n\nA query may read its inputs and files in the project's data folders: \"data\", or the folders listed under "+
			"`data` in servo.yaml. It cannot read files or folders whose names begin with a dot, and a "+
			"pattern must not match such names. Write paths relative to the project. "+
			"A computed path must begin with a literal, as in 'data/' || getvariable('date') || '.csv'", text)
	}
	return &failure{CodeSQL, CategoryUser, !e.final(), text}
}

// folderRead returns the folder that a query has tried to read as a file, or "". DuckDB returns the same error for a
// folder as for a missing file: no file matches this name.
func folderRead(message string) string {
	_, rest, _ := strings.Cut(message, "No files found that match the pattern \"")
	name, _, quoted := strings.Cut(rest, "\"")
	if info, err := os.Stat(name); !quoted || err != nil || !info.IsDir() {
		return ""
	}
	return name
}

// readable replaces DuckDB's JSON in an error with text.
func readable(err error, e *queryError) error {
	of, ok := errors.AsType[*duckdb.Error](err)
	if !ok {
		return err
	}
	return errors.New(strings.Replace(err.Error(), of.Msg, e.Error(), 1))
}
