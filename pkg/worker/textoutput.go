package worker

import (
	"compress/gzip"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/duckdb/duckdb-go/v2"
	"github.com/klauspost/compress/zstd"

	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/quality"
	"github.com/servo-orchestration/servo/pkg/sqltext"
	"github.com/servo-orchestration/servo/pkg/textrows"
)

// The text files of a command are converted to one Parquet file before the checks run. The worker reads the text files
// twice. First it finds the columns and their types, then it fills a table of texts. DuckDB casts the columns of this
// table to their types. The types depend on all rows, so that no late row is lost or changed.

// textTable is the table of texts. Its name cannot be the name of an asset.
const textTable = "text_rows"

// textColumn is a column of text files.
type textColumn struct {
	name  string
	found textrows.Type
	row   int // the last row that has the column

	declared string // the declared type, as the asset writes it; "": none
	kind     sqltext.Type
	nested   *nestedType // not nil: the column is declared as a list, a struct or a map
}

// textReader reads the text files of an output.
type textReader struct {
	format  plan.TextOutput
	files   []outputFile
	columns []textColumn
	at      map[string]int // the position of each column, by its name in lower case
	rows    int
}

// convertText converts the text files of an output to one Parquet file. If the asset declares a format, the Parquet
// file replaces the text files. Without a declared format, convertText keeps the text files, because other commands
// may read them.
func (a *attempt) convertText(ctx context.Context, t *work, made []outputFile) ([]outputFile, error) {
	switch {
	case t.Text == nil:
		return a.detectText(ctx, t, made)
	case t.Text.Format == plan.TextNone:
		return made, nil
	}
	r := &textReader{format: *t.Text, at: map[string]int{}}
	var others []outputFile
	for _, f := range made {
		switch {
		case isParquet(f.name):
			return nil, permanent(CodeInvalidOutput, "the output has the Parquet file %.200q, but output.format is %s: write %[2]s files instead, or remove output.format", f.name, r.format.Format)
		case textrows.FormatOf(f.name) == r.format.Format:
			r.files = append(r.files, f)
		default:
			others = append(others, f)
		}
	}
	if len(r.files) == 0 {
		return nil, permanent(CodeInvalidOutput, "the output has no %s files (%s): write at least one to SERVO_OUTPUT, or remove output.format",
			r.format.Format, strings.Join(textrows.Endings(r.format.Format), ", "))
	}
	file, err := a.tableOf(ctx, t, r)
	if err != nil || file == nil {
		return made, err
	}
	return append(others, *file), nil
}

// detectText converts the text files of an output if the output has no Parquet files, and all text files have the same
// format. It adds the resulting Parquet file to the output.
func (a *attempt) detectText(ctx context.Context, t *work, made []outputFile) ([]outputFile, error) {
	r := &textReader{at: map[string]int{}}
	for _, f := range made {
		format := textrows.FormatOf(f.name)
		switch {
		case isParquet(f.name):
			return made, nil
		case format == "":
			continue
		case r.format.Format != "" && r.format.Format != format:
			a.output.printf("the output has %s and %s files, but a table is read from files of one format: declare output: {format: %s} or {format: %s}\n",
				r.format.Format, format, r.format.Format, format)
			return made, nil
		}
		r.format.Format = format
		r.files = append(r.files, f)
	}
	if len(r.files) == 0 {
		return made, nil
	}
	file, err := a.tableOf(ctx, t, r)
	if f, ok := errors.AsType[*failure](err); ok && f.code == CodeInvalidOutput {
		return nil, permanent(CodeInvalidOutput, "%w; if the files are not a table, declare output: files", err)
	}
	if err != nil || file == nil {
		return made, err
	}
	if len(made) == contract.MaxFiles {
		return nil, permanent(CodeInvalidOutput, "the output has %d files, so the table of its %s files would be one file too many: write fewer files, or declare output: files",
			len(made), r.format.Format)
	}
	return append(made, *file), nil
}

// tableOf writes the rows of text files to a Parquet file. If there are no rows and no declared columns, the columns
// are unknown, and tableOf returns nil.
func (a *attempt) tableOf(ctx context.Context, t *work, r *textReader) (*outputFile, error) {
	if err := r.scan(ctx); err != nil {
		return nil, err
	}
	if len(r.columns) == 0 {
		for _, c := range quality.DeclaredColumns(t.Checks) {
			r.column(c.Name)
		}
	}
	if len(r.columns) == 0 {
		a.output.printf("%s has no rows, so its columns are unknown and the output has no table: declare columns\n", r.files[0].name)
		return nil, nil
	}
	folder, err := a.folder("converted")
	if err != nil {
		return nil, err
	}
	file := &outputFile{name: outputName, path: filepath.Join(folder, outputName)}
	file.open = func() (*os.File, error) { return os.Open(file.path) }
	if err := a.writeText(ctx, t, r, file.path); err != nil {
		return nil, a.explainMemory(err)
	}
	return file, file.describe()
}

// hasTextRows reports whether a text file has a row. It returns true for a file that cannot be read, because the file
// may have a row.
func hasTextRows(path, name string) bool {
	errFound := errors.New("found a row")
	f := &outputFile{name: name, open: func() (*os.File, error) { return os.Open(path) }}
	r := &textReader{format: plan.TextOutput{Format: textrows.FormatOf(name)}}
	return r.read(context.Background(), f, func([]string) {}, func(*textrows.Row) error { return errFound }) != nil
}

// scan finds the columns and their types.
func (r *textReader) scan(ctx context.Context) error {
	for i := range r.files {
		err := r.read(ctx, &r.files[i], func(names []string) {
			for _, name := range names {
				r.column(name)
			}
		}, func(row *textrows.Row) error {
			r.rows++
			for j, name := range row.Names {
				c := &r.columns[r.column(name)]
				if c.row == r.rows {
					return fmt.Errorf("%s: two fields are called %q", row.At, name)
				}
				c.row = r.rows
				c.found.Add(row.Values[j])
			}
			if len(r.columns) > contract.MaxColumns {
				return fmt.Errorf("%s: the output has more than %d columns", row.At, contract.MaxColumns)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// column returns the position of a column, and adds it if it is new.
func (r *textReader) column(name string) int {
	lower := strings.ToLower(name)
	at, known := r.at[lower]
	if !known {
		at = len(r.columns)
		r.at[strings.Clone(lower)] = at
		r.columns = append(r.columns, textColumn{name: strings.Clone(name)})
	}
	return at
}

// read reads one file. Its errors name the file.
func (r *textReader) read(ctx context.Context, f *outputFile, header func([]string), emit func(*textrows.Row) error) error {
	file, err := f.open()
	if err != nil {
		return fail(CodeWorker, CategoryInfrastructure, fmt.Errorf("read output: %w", err))
	}
	defer file.Close()
	o := textrows.Options{Format: r.format.Format, NoHeader: r.format.NoHeader, Nulls: r.format.Nulls}
	for _, delimiter := range r.format.Delimiter {
		o.Delimiter = delimiter
	}
	plain := strings.TrimSuffix(strings.TrimSuffix(f.name, ".gz"), ".zst")
	if o.Delimiter == 0 && strings.HasSuffix(plain, ".tsv") {
		o.Delimiter = '\t'
	}
	var from io.Reader = file
	switch {
	case strings.HasSuffix(f.name, ".gz"):
		unzip, err := gzip.NewReader(file)
		if err != nil {
			return permanent(CodeInvalidOutput, "convert %.200s: %w", f.name, err)
		}
		from = unzip
	case strings.HasSuffix(f.name, ".zst"):
		unzip, err := zstd.NewReader(file, zstd.WithDecoderConcurrency(1))
		if err != nil {
			return permanent(CodeInvalidOutput, "convert %.200s: %w", f.name, err)
		}
		defer unzip.Close()
		from = unzip
	}
	err = textrows.Read(from, o, header, func(row *textrows.Row) error {
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		return emit(row)
	})
	switch {
	case err == nil:
		return nil
	case context.Cause(ctx) != nil:
		return context.Cause(ctx)
	}
	if _, known := errors.AsType[*failure](err); known {
		return err
	}
	return permanent(CodeInvalidOutput, "convert %.200s: %w", f.name, err)
}

// writeText writes the rows of text files to a Parquet file.
func (a *attempt) writeText(ctx context.Context, t *work, r *textReader, target string) (err error) {
	d, err := a.openDuckDB(ctx)
	if err != nil {
		return sqlFailure(err)
	}
	defer func() {
		if closeErr := d.close(); closeErr != nil && err == nil {
			err = sqlFailure(closeErr)
		}
	}()
	definitions := make([]string, len(r.columns))
	for i := range r.columns {
		definitions[i] = ", c" + strconv.Itoa(i) + " VARCHAR"
	}
	if _, err := d.exec(ctx, "CREATE TABLE "+textTable+"(file INTEGER, place VARCHAR"+strings.Join(definitions, "")+")"); err != nil {
		return sqlFailure(err)
	}
	if err := d.lock(ctx, sandbox{directories: []string{a.dir}}); err != nil {
		return err
	}
	declared := quality.DeclaredTypes(t.Checks)
	list := make([]string, len(r.columns))
	for i := range r.columns {
		c := &r.columns[i]
		c.declared = declared[strings.ToLower(c.name)]
		list[i] = r.cast(i, "CAST") + " AS " + quoteName(c.name)
	}
	query := "SELECT " + strings.Join(list, ", ") + " FROM " + textTable
	columns, err := d.describe(ctx, statement{text: "DESCRIBE " + query})
	if err != nil {
		return sqlFailure(err)
	}
	if err := refuseUnstorable(columns); err != nil {
		return err
	}
	for i, c := range columns {
		if r.columns[i].declared != "" {
			r.columns[i].kind, r.columns[i].nested = sqltext.ParseType(c.kind), nested(c.kind)
		}
	}
	if err := r.fill(ctx, d); err != nil {
		return err
	}
	if err := r.badValue(ctx, d); err != nil {
		return err
	}
	for i, c := range columns {
		if kind, changed := exactType(c.kind); changed {
			list[i] = "CAST(" + r.cast(i, "CAST") + " AS " + kind + ") AS " + quoteName(c.name)
		}
	}
	query = "SELECT " + strings.Join(list, ", ") + " FROM " + textTable
	if _, err := d.exec(ctx, "COPY ("+query+") TO "+quote(target)+" (FORMAT parquet, COMPRESSION zstd)"); err != nil {
		return sqlFailure(err)
	}
	return nil
}

// fill appends the rows of all files to the table.
func (r *textReader) fill(ctx context.Context, d *database) error {
	return d.conn.Raw(func(raw any) (err error) {
		conn, ok := raw.(driver.Conn)
		if !ok {
			return fmt.Errorf("the connection is a %T", raw)
		}
		appender, err := duckdb.NewAppenderFromConn(conn, "", textTable)
		if err != nil {
			return sqlFailure(err)
		}
		defer func() {
			if closeErr := appender.Close(); err == nil && closeErr != nil {
				err = sqlFailure(closeErr)
			}
		}()
		const before = 2 // the first two values are the file of a row and its place in the file
		values := make([]driver.Value, before+len(r.columns))
		for i := range r.files {
			values[0] = int32(i) //nolint:gosec // there are at most contract.MaxFiles files
			if err := r.read(ctx, &r.files[i], func([]string) {}, func(row *textrows.Row) error {
				clear(values[1:])
				values[1] = row.At
				for j, name := range row.Names {
					at := before + r.column(name)
					if at >= len(values) {
						return errors.New("the file has changed while it was read: a process that the command started is still writing to it: let the command wait for this process")
					}
					text, err := r.textOf(at-before, &row.Values[j])
					if err != nil {
						return r.unfit(i, row.At, row.Values[j].Text, at-before)
					}
					if row.Values[j].Kind != textrows.Null {
						values[at] = text
					}
				}
				if err := appender.AppendRow(values...); err != nil {
					return sqlFailure(err)
				}
				return nil
			}); err != nil {
				return err
			}
		}
		return nil
	})
}

// textOf returns a value of a column as text. DuckDB casts this text to the type of the column.
func (r *textReader) textOf(column int, v *textrows.Value) (string, error) {
	if n := r.columns[column].nested; n != nil && v.Kind == textrows.Nested {
		return n.hold(v.Text)
	}
	return v.Text, nil
}

// cast returns the SQL that casts a column to its declared type. For a column without a declared type, it casts to
// the type that can represent all of the column's values.
func (r *textReader) cast(i int, cast string) string {
	column, kind := "c"+strconv.Itoa(i), r.columns[i].declared
	declared := kind != ""
	if !declared {
		kind = r.columns[i].found.Name()
	}
	switch upper := strings.ToUpper(kind); {
	case declared && upper == "DATE" && r.format.DateFormat != "":
		try := map[string]string{"CAST": "", "TRY_CAST": "try_"}[cast]
		return "CAST(" + try + "strptime(" + column + ", " + quote(r.format.DateFormat) + ") AS DATE)"
	case declared && r.format.Format != textrows.CSV && strings.ContainsAny(kind, "[("):
		if strings.HasPrefix(upper, "STRUCT") || strings.HasPrefix(upper, "MAP") || strings.HasSuffix(upper, "]") {
			return cast + "(CAST(" + column + " AS JSON) AS " + kind + ")"
		}
	}
	return cast + "(" + column + " AS " + kind + ")"
}

// badValue returns a failure that names the first value that does not fit the declared type of its column.
func (r *textReader) badValue(ctx context.Context, d *database) error {
	for i := range r.columns {
		c := &r.columns[i]
		if c.declared == "" {
			continue
		}
		column := "c" + strconv.Itoa(i)
		bad := r.cast(i, "TRY_CAST") + " IS NULL"
		if pattern := exactly(&c.kind); pattern != "" && (c.kind.Name != "DATE" || r.format.DateFormat == "") {
			bad = "(" + bad + " OR NOT regexp_full_match(" + column + ", " + quote(pattern) + "))"
		}
		var file int
		var at, value string
		err := d.conn.QueryRowContext(ctx, "SELECT file, place, left("+column+", 100) FROM "+textTable+" WHERE "+column+" IS NOT NULL AND "+
			bad+" LIMIT 1").Scan(&file, &at, &value)
		switch {
		case err == nil:
			return r.unfit(file, at, value, i)
		case !errors.Is(err, sql.ErrNoRows):
			return sqlFailure(err)
		}
		if c.nested != nil && r.format.Format == textrows.CSV {
			if err := r.badNested(ctx, d, i); err != nil {
				return err
			}
		}
	}
	return nil
}

// badNested does the work of badValue for the lists, structs and maps in CSV, which are in DuckDB's notation.
func (r *textReader) badNested(ctx context.Context, d *database, i int) (err error) {
	column, n := "c"+strconv.Itoa(i), r.columns[i].nested
	rows, err := d.conn.QueryContext(ctx, "SELECT file, place, left("+column+", 100), CAST(to_json(CAST("+column+" AS "+textKind(n.Type)+")) AS VARCHAR) "+
		"FROM "+textTable+" WHERE "+column+" IS NOT NULL")
	if err != nil {
		return sqlFailure(err)
	}
	defer func() {
		if closeErr := rows.Close(); err == nil && closeErr != nil {
			err = sqlFailure(closeErr)
		}
	}()
	for rows.Next() {
		var file int
		var at, value, parts string
		if err := rows.Scan(&file, &at, &value, &parts); err != nil {
			return sqlFailure(err)
		}
		if _, err := n.hold(parts); err != nil {
			return r.unfit(file, at, value, i)
		}
	}
	if err := rows.Err(); err != nil {
		return sqlFailure(err)
	}
	return nil
}

// unfit returns the failure for a value that does not fit the declared type of a column.
func (r *textReader) unfit(file int, at, value string, column int) error {
	c := &r.columns[column]
	advice := "declare columns: {" + c.name + ": VARCHAR}"
	if r.format.Format == textrows.CSV {
		advice = "add it to output.nulls, or " + advice
	}
	return permanent(CodeInvalidOutput, "convert %.200s: %s: %.100q in column %s is not %s: %s", r.files[file].name, at, value, c.name, c.declared, advice)
}
