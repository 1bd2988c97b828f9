package worker

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/duckdb/duckdb-go/v2"

	"github.com/servo-orchestration/servo/pkg/ids"
)

// outputName is the file that a query's result becomes.
const outputName = "data.parquet"

// database is a DuckDB instance of one execution: an instance's settings hold
// for all that run in it, and so does its sandbox.
type database struct {
	db   *sql.DB
	conn *sql.Conn
}

// openDuckDB opens an empty database in memory that spills below dir.
func (w *Worker) openDuckDB(ctx context.Context, dir string) (*database, error) {
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
		"SET parquet_metadata_cache = true", // a query is bound twice
	}
	limit, _ := w.memoryLimit()
	settings = append(settings, "SET memory_limit = "+quote(limit), "SET threads = "+strconv.Itoa(w.threadsNow()))
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

// executeSQL runs the task's query over its inputs.
func (a *attempt) executeSQL(ctx context.Context, t *work, inputs []input) (made []outputFile, err error) {
	if err := a.fetch(ctx, inputs); err != nil {
		return nil, err
	}
	d, err := a.w.openDuckDB(ctx, a.dir)
	if err != nil {
		return nil, sqlFailure(err)
	}
	defer func() {
		if closeErr := d.close(); closeErr != nil && err == nil {
			err = sqlFailure(closeErr)
		}
	}()
	query, err := d.resolvePaths(ctx, strings.TrimRight(t.SQL, "; \t\r\n"), t.root, t.plan.Sources[t.task.AssetKey])
	if err != nil {
		a.output.printf("%v\n", err)
		return nil, err
	}
	if err := a.prepare(ctx, d, t, inputs, query); err != nil {
		return nil, err
	}
	target := filepath.Join(a.dir, outputName)
	rows, err := d.copyTo(ctx, t, query, target)
	if err != nil {
		err = a.w.explainMemory(a.brokenInput(ctx, inputs, err))
		a.output.printf("%v\n", err)
		return nil, err
	}
	a.output.printf("%d rows\n", rows)
	file := outputFile{name: outputName, open: func() (*os.File, error) { return os.Open(target) }}
	if err := file.describe(); err != nil {
		return nil, err
	}
	return []outputFile{file}, nil
}

// copyTo writes the result of the task's query to a Parquet file. Its errors say where in
// the user's file they come from.
func (d *database) copyTo(ctx context.Context, t *work, query *resolvedQuery, target string) (rows int64, err error) {
	source := t.plan.Sources[t.task.AssetKey]
	description := query.within("DESCRIBE ", "")
	columns, err := d.describe(ctx, description)
	if err != nil {
		return 0, sqlFailure(description.explain(err, source))
	}
	result, cast := exact(query, columns)
	result = result.within("COPY (", "\n) TO "+quote(target)+" (FORMAT parquet, COMPRESSION zstd)")
	if rows, err = d.exec(ctx, result.text); err == nil {
		return rows, nil
	}
	err = result.explain(err, source)
	if e, ok := err.(*queryError); ok && e.kind == kindConversion && len(cast) > 0 && strings.Contains(e.message, exactInteger) { //nolint:errorlint // explain does not wrap
		e.message += fmt.Sprintf("\n\nColumn %s: integers beyond 64 bits are stored as %s, which has 38 digits. Cast them to DOUBLE or VARCHAR.",
			strings.Join(cast, ", "), exactInteger)
	}
	return 0, sqlFailure(err)
}

// prepare makes the inputs and the partition's values known to the query, and then
// confines it: it reads its inputs, the project's data folders, and its own scratch folder.
func (a *attempt) prepare(ctx context.Context, d *database, t *work, inputs []input, query *resolvedQuery) error {
	statements, err := variables(t)
	if err != nil {
		return err
	}
	readable, err := a.projectFiles(t, query)
	if err != nil {
		return err
	}
	folders := []string{a.dir, t.root}
	for i := range inputs {
		files, err := inputs[i].rows()
		if err != nil {
			return err
		}
		schema := quoteName(inputs[i].asset.Namespace)
		statements = append(statements,
			"CREATE SCHEMA IF NOT EXISTS "+schema,
			"CREATE VIEW "+schema+"."+quoteName(inputs[i].asset.Name)+" AS SELECT * FROM "+readParquet(files))
		for _, file := range files {
			folders = append(folders, filepath.Dir(file))
		}
		readable.files = append(readable.files, files...)
	}
	for _, folder := range folders {
		if strings.ContainsAny(folder, "*?[") {
			return refuse(CodeInvalidInput, "the folder %s has one of * ? [ in its name, which DuckDB takes for a pattern: rename it", folder)
		}
	}
	for _, statement := range statements {
		if _, err := d.exec(ctx, statement); err != nil {
			return sqlFailure(fmt.Errorf("prepare the query: %w", err))
		}
	}
	readable.directories = append(readable.directories, a.dir)
	return d.lock(ctx, readable)
}

// variables are the statements that set the partition's values, and the
// project's folder, for getvariable.
func variables(t *work) ([]string, error) {
	partition, err := ids.ParsePartition(t.task.PartitionKey)
	if err != nil {
		return nil, refuse(CodePlanUnreadable, "task %s: %w", t.task.TaskKey, err)
	}
	statements := []string{"SET VARIABLE servo_root = " + quote(t.root)}
	for _, dimension := range partition.Dimensions() {
		kind := t.Dimensions[dimension]
		if kind == "" {
			kind = "VARCHAR"
		}
		if strings.ContainsFunc(kind, isNotTypeName) {
			return nil, refuse(CodePlanUnreadable, "dimension %s has the type %q, which is none of SQL", dimension, kind)
		}
		statements = append(statements,
			"SET VARIABLE "+quoteName(dimension)+" = CAST("+quote(partition[dimension])+" AS "+kind+")")
	}
	return statements, nil
}

func isNotTypeName(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("_ (),", r)
}

// readParquet reads files as one table. Folders named like "date=2025-01-15"
// are no columns: the data has what it has.
func readParquet(files []string) string {
	return "read_parquet(" + quoteList(files) + ", union_by_name = true, hive_partitioning = false)"
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

// sqlFailure is an error of DuckDB as it is reported.
func sqlFailure(err error) error {
	if known, ok := errors.AsType[*failure](err); ok {
		return known
	}
	e, ok := asQueryError(err, "")
	if !ok {
		return &failure{CodeSQL, CategoryUser, true, err}
	}
	text := readable(err, e)
	switch {
	case strings.Contains(e.message, "No space left on device"):
		return &failure{CodeDiskFull, CategoryResource, true, text}
	case e.kind == kindMemory:
		return &failure{CodeOutOfMemory, CategoryResource, true, text}
	case e.kind == kindPermission:
		text = fmt.Errorf("%w\n\nA query reads its inputs, and files in the project's data folders: \"data\", or those that servo.yaml lists "+
			"under `data`. Names that begin with a dot are hidden from it. Name files relative to the project: a path that is put "+
			"together begins with a literal, as in 'data/' || getvariable('date') || '.csv'", text)
	}
	return &failure{CodeSQL, CategoryUser, !e.final(), text}
}

// readable is an error with DuckDB's part of it as text.
func readable(err error, e *queryError) error {
	of, ok := errors.AsType[*duckdb.Error](err)
	if !ok {
		return err
	}
	return errors.New(strings.Replace(err.Error(), of.Msg, e.Error(), 1))
}
