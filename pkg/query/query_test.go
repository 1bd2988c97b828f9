package query_test

import (
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/duckdb/duckdb-go/v2"
	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/tabletest"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/filecheck"
	"github.com/servo-orchestration/servo/pkg/query"
	"github.com/servo-orchestration/servo/pkg/query/render"
	"github.com/servo-orchestration/servo/pkg/state"
	"github.com/servo-orchestration/servo/pkg/table"
)

func TestViewColumnsHaveDeclaredTypes(t *testing.T) {
	t.Parallel()
	full := newRevision(t)
	for _, d := range state.Declarations() {
		addList(t, full, d, tabletest.Row(d))
	}
	for name, db := range map[string]*query.DB{"empty": newRevision(t).open(t), "full": full.open(t)} {
		for _, d := range state.Declarations() {
			rows := all(t, db, "SELECT column_name, column_type FROM (DESCRIBE "+d.Name+")")
			require.Len(t, rows, len(d.Columns), "%s %s", name, d.Name)
			for i, c := range d.Columns {
				require.Equal(t, []any{c.Name, string(c.Type)}, rows[i], "%s %s", name, d.Name)
			}
		}
	}
	for _, d := range state.Declarations() { // read the files without the views, as another program would
		rows := all(t, full.open(t), "SELECT column_name, column_type FROM (DESCRIBE FROM read_parquet('"+full.source.Tables[d.Name].Files[0].Path+"'))")
		for i, c := range d.Columns {
			require.Equal(t, []any{c.Name, string(c.Type)}, rows[i], d.Name)
		}
	}
}

func TestQueryReturnsValuesAndNULL(t *testing.T) {
	t.Parallel()
	r := newRevision(t)
	at := event.At(time.Date(2025, 1, 15, 8, 30, 0, 123_456_000, time.UTC))
	add(t, r, &state.Dep{RunID: "r", Upstream: "a", Downstream: "b", Satisfied: true, Resolution: state.ResolvedSuccess, SatisfiedAt: at, SatisfyingAttempt: 2, Meta: meta(1)},
		&state.Dep{RunID: "r", Upstream: "a", Downstream: "c", Meta: meta(2)})
	require.Equal(t, [][]any{
		{"b", true, "SUCCESS", at.Time(), int32(2), "acme", int64(1), false},
		{"c", false, nil, nil, int32(0), "acme", int64(2), false},
	}, all(t, r.open(t), "SELECT downstream_task_key, satisfied, resolution, satisfied_at, satisfying_attempt, tenant_id, row_seq, deleted FROM dep_satisfaction ORDER BY 1"))
}

func TestViewReturnsNewestRowOfEachKey(t *testing.T) {
	t.Parallel()
	r := newRevision(t)
	base := []*state.Task{task(1, 1, state.TaskReady), task(2, 2, state.TaskReady), task(3, 3, state.TaskReady), task(4, 9, state.TaskSucceeded)}
	first := []*state.Task{task(1, 4, state.TaskRunning), task(2, 5, state.TaskRunning), task(4, 8, state.TaskRunning)}
	deleted := task(2, 7, state.TaskRunning)
	deleted.Meta = gone(7)
	second := []*state.Task{task(1, 6, state.TaskFailed), deleted}
	add(t, r, base...)
	add(t, r, first...)
	add(t, r, second...)
	want := [][]any{{"t00000001", "FAILED"}, {"t00000003", "READY"}, {"t00000004", "SUCCEEDED"}}
	files := r.source.Tables["tasks"].Files
	for range 4 {
		rand.Shuffle(len(files), func(i, j int) { files[i], files[j] = files[j], files[i] })
		require.Equal(t, want, all(t, r.open(t), "SELECT task_id, state FROM tasks ORDER BY 1"))
	}
	merged, err := table.Of[state.Task]("tasks").Merge(base, first, second)
	require.NoError(t, err)
	merged = slices.DeleteFunc(merged, func(row *state.Task) bool { return row.Deleted })
	require.Len(t, merged, len(want))
}

func TestViewOfOneFileOmitsDeletions(t *testing.T) {
	t.Parallel()
	r := newRevision(t)
	deleted := task(2, 2, state.TaskReady)
	deleted.Meta = gone(2)
	add(t, r, task(1, 1, state.TaskReady), deleted)
	require.Equal(t, [][]any{{int64(1)}}, all(t, r.open(t), "SELECT count(*) FROM tasks"))
}

func TestScriptEqualsQueryInStockDuckDB(t *testing.T) {
	t.Parallel()
	r := newRevision(t)
	add(t, r, task(1, 1, state.TaskReady), task(2, 2, state.TaskReady))
	add(t, r, task(1, 3, state.TaskRunning))
	add(t, r, &state.Run{RunID: "r1", State: state.RunRunning, CreatedAt: 5, Meta: meta(3)})
	inline(t, r, task(2, 4, state.TaskRunning))
	connector, err := duckdb.NewConnector("", nil)
	require.NoError(t, err)
	defer connector.Close()
	conn, err := connector.Connect(t.Context())
	require.NoError(t, err)
	defer conn.Close()
	stock := conn.(*duckdb.Conn)
	script, err := query.Script(r.source.Tables)
	require.NoError(t, err)
	_, err = stock.ExecContext(t.Context(), script, nil)
	require.NoError(t, err)
	db := r.open(t)
	for _, d := range state.Declarations() {
		sql := "SELECT CAST(COLUMNS(*) AS VARCHAR) FROM " + d.Name + " ORDER BY ALL"
		rows, err := stock.QueryContext(t.Context(), sql, nil)
		require.NoError(t, err)
		var got [][]any
		values := make([]any, len(rows.Columns()))
		for dest := driverValues(len(values)); rows.Next(dest) == nil; {
			row := make([]any, len(dest))
			for i, v := range dest {
				row[i] = v
			}
			got = append(got, row)
		}
		require.NoError(t, rows.Close())
		require.Equal(t, all(t, db, sql), got, d.Name)
	}
}

func TestQueryReturnsRowsOfLastStatement(t *testing.T) {
	t.Parallel()
	db := newRevision(t).open(t)
	require.Equal(t, [][]any{{int32(42), "a;b"}}, all(t, db, `
		SET VARIABLE n = 40; -- a comment; with a semicolon
		CREATE TABLE "odd;name" AS SELECT 2 AS two /* ; /* ; */ */;
		SELECT CAST(getvariable('n') + two AS INTEGER), $$a;b$$ FROM "odd;name" WHERE 'it''s;' <> e'\';';
	`))
	require.Equal(t, [][]any{{int32(2)}}, all(t, db, `SELECT * FROM "odd;name"`), "the table still exists")
	require.Equal(t, [][]any{{"x", int64(3)}}, all(t, db, "SELECT CAST(? AS VARCHAR), CAST(? AS BIGINT)", "x", 3))
	require.Equal(t, []any{nil, int64(2)}[1:], all(t, db, "PIVOT (SELECT 'a' AS k, 2::BIGINT AS v) ON k USING max(v)")[0])
	_, err := db.Query(t.Context(), " ; -- nothing\n")
	require.EqualError(t, err, "query: the SQL contains no statement")
}

func TestQueryIsSandboxed(t *testing.T) {
	t.Parallel()
	r := newRevision(t)
	file := add(t, r, task(1, 1, state.TaskReady))
	before, err := os.ReadFile(file)
	require.NoError(t, err)
	secret := filepath.Join(t.TempDir(), "secret.csv")
	require.NoError(t, os.WriteFile(secret, []byte("a\n1\n"), 0o600))
	inside := filepath.Join(r.dir, "new")
	db := r.open(t)
	for _, sql := range []string{
		"COPY (SELECT 1) TO '" + file + "'",
		"COPY (SELECT 1) TO '" + file + "' (FORMAT parquet, USE_TMP_FILE false)",
		"COPY (SELECT 1) TO '" + inside + "'",
		"EXPLAIN ANALYZE COPY (SELECT 1) TO '" + file + "' (FORMAT parquet, USE_TMP_FILE false)",
		"PREPARE p AS COPY (SELECT 1) TO '" + file + "' (FORMAT parquet, USE_TMP_FILE false)",
		"SELECT 1; COPY (SELECT 1) TO '" + file + "' (FORMAT parquet, USE_TMP_FILE false)",
		"/* a /* b */ SELECT 1; */ COPY (SELECT 1) TO '" + file + "' (FORMAT parquet, USE_TMP_FILE false)",
		"PIVOT (SELECT 1 a) ON a; COPY (SELECT 1) TO '" + inside + "'",
		"EXPORT DATABASE '" + inside + "'",
		"ATTACH '" + inside + "'",
		"CALL enable_logging(storage = 'file', storage_path = '" + inside + "')",
		"SELECT * FROM enable_logging(storage = 'file', storage_path = '" + inside + "'); SELECT 1",
		"SELECT * FROM system.main.\"enable_logging\"(storage = 'file', storage_path = '" + inside + "')",
		"SELECT * FROM query('SELECT * FROM enable' || '_logging(storage = ''file'', storage_path = ''" + inside + "'')')",
		"SELECT * FROM enable_profiling(format = 'json', save_location = '" + inside + "')",
		"SELECT * FROM enable_peg_parser()",
		"SELECT * FROM \"query\" /* ( */ -- (\n ('SELECT 1')",
		"SELECT * FROM query--x\r('SELECT 1')",
		"SELECT * FROM query\u00a0('SELECT 1')",
		"SELECT * FROM query\u3000/* ' */ ('SELECT 1')",
		"SELECT * FROM json_execute_serialized_sql(json_serialize_sql('SELECT 1'))",
		"SELECT * FROM U&\"enable\\005flogging\"()",
		"SELECT * FROM read_csv('" + secret + "')",
		"SELECT * FROM '" + secret + "'",
		"SELECT * FROM glob('/etc/*')",
		"SELECT * FROM read_text('/etc/hostname')",
		"COPY tasks FROM '" + secret + "'",
		"INSTALL httpfs",
		"LOAD httpfs",
		"SET enable_external_access = true",
		"SET lock_configuration = false",
		"SET memory_limit = '100GB'",
		"PRAGMA enable_profiling = 'json'",
		"DROP VIEW tasks; COPY (SELECT 1) TO '" + file + "'",
	} {
		rows, err := db.Query(t.Context(), sql)
		if err == nil {
			var cells [][]any
			cells, err = rows.Collect(10)
			if err == nil && len(cells) == 0 {
				continue // the argument of glob matches no file
			}
		}
		require.Error(t, err, sql)
	}
	require.NoFileExists(t, inside)
	after, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, before, after)
	entries, err := os.ReadDir(filepath.Dir(file))
	require.NoError(t, err)
	require.Len(t, entries, 1)
}

func TestQueryReadsAllowedFolders(t *testing.T) {
	t.Parallel()
	r := newRevision(t)
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "a.csv"), []byte("a\n7\n"), 0o600))
	r.source.AllowedDirs = []string{dir}
	require.Equal(t, [][]any{{int64(7)}}, all(t, r.open(t), "SELECT a FROM read_csv('"+dir+"/a.csv')"))
}

func TestQueryEndsWithContext(t *testing.T) {
	t.Parallel()
	db := newRevision(t).open(t)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := db.Query(ctx, "SELECT sum(a.range * b.range) FROM range(10_000_000) a, range(10_000_000) b")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Equal(t, [][]any{{int32(1)}}, all(t, db, "SELECT 1"), "the session still works")
}

func TestRowsEndWithContext(t *testing.T) {
	t.Parallel()
	db := newRevision(t).open(t)
	ctx, cancel := context.WithCancel(t.Context())
	rows, err := db.Query(ctx, "SELECT * FROM range(10_000)")
	require.NoError(t, err)
	defer rows.Close()
	cancel()
	for _, err := range rows.All() {
		require.ErrorIs(t, err, context.Canceled)
	}
}

func TestOpenNamesMissingFile(t *testing.T) {
	t.Parallel()
	r := newRevision(t)
	path := filepath.Join(r.dir, "lost.parquet")
	r.source.Tables["runs"] = query.Table{Files: []filecheck.File{{Path: path}}}
	_, err := query.Open(t.Context(), r.source, query.Options{})
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, "table runs")
	require.ErrorContains(t, err, path)
}

func TestOpenNamesCorruptFile(t *testing.T) {
	t.Parallel()
	torn, bent := newRevision(t), newRevision(t)
	path := add(t, torn, task(1, 1, state.TaskReady))
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, data[:len(data)/2], 0o600))
	_, err = query.Open(t.Context(), torn.source, query.Options{})
	require.ErrorContains(t, err, path)

	var tasks []*state.Task
	for i := range 5000 {
		tasks = append(tasks, task(i, int64(i+1), state.TaskReady))
	}
	path = add(t, bent, tasks...)
	data, err = os.ReadFile(path)
	require.NoError(t, err)
	for i := 100; i < 4000; i++ {
		data[i] ^= 0x5a
	}
	require.NoError(t, os.WriteFile(path, data, 0o600))
	_, err = query.Open(t.Context(), bent.source, query.Options{})
	require.ErrorContains(t, err, path)
	require.ErrorContains(t, err, "is damaged: its CRC-32C is")
}

func TestQueryRejectsReplacedStateFile(t *testing.T) {
	t.Parallel()
	r, other := newRevision(t), newRevision(t)
	rows := make([]*state.Task, 300)
	for i := range rows {
		rows[i] = task(i, int64(i+1), state.TaskReady)
	}
	path := add(t, r, rows...)
	replacement := add(t, other, rows[:50]...)
	r.source.Checked = filecheck.Open(filepath.Join(r.dir, "checked"))
	db := r.open(t)
	require.Equal(t, [][]any{{int64(300)}}, all(t, db, "SELECT count(*) FROM tasks"))
	require.NoError(t, r.source.Checked.Save())

	data, err := os.ReadFile(replacement)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, data, 0o600))
	_, err = db.Query(t.Context(), "SELECT count(*) FROM tasks")
	require.ErrorContains(t, err, "table tasks: file "+path+" is damaged")
	r.source.Checked = filecheck.Open(filepath.Join(r.dir, "checked"))
	_, err = query.Open(t.Context(), r.source, query.Options{})
	require.ErrorContains(t, err, "table tasks: file "+path+" is damaged", "the cached check was for another file")
}

func TestOpenRejectsInvalidSource(t *testing.T) {
	t.Parallel()
	_, err := query.Open(t.Context(), query.Source{Tables: map[string]query.Table{"users": {}}}, query.Options{})
	require.ErrorContains(t, err, `unknown table "users"`)
	_, err = query.Open(t.Context(), query.Source{Tables: map[string]query.Table{"runs": {Files: []filecheck.File{{Path: "a.parquet"}}}}}, query.Options{})
	require.ErrorContains(t, err, "is not absolute")
	_, err = query.Open(t.Context(), query.Source{Outputs: "here"}, query.Options{})
	require.ErrorContains(t, err, "is not an absolute path")
}

func TestQueryRejectsClosedSession(t *testing.T) {
	t.Parallel()
	db, err := query.Open(t.Context(), newRevision(t).source, query.Options{})
	require.NoError(t, err)
	require.NoError(t, db.Close())
	require.NoError(t, db.Close())
	_, err = db.Query(t.Context(), "SELECT 1")
	require.EqualError(t, err, "query: the session is closed")
}

func TestCloseEndsOpenRowsWithError(t *testing.T) {
	t.Parallel()
	db, err := query.Open(t.Context(), newRevision(t).source, query.Options{})
	require.NoError(t, err)
	rows, err := db.Query(t.Context(), "SELECT * FROM range(10_000)")
	require.NoError(t, err)
	require.NoError(t, db.Close())
	_, err = rows.Collect(100_000)
	require.EqualError(t, err, "read the result: the result is closed")
	require.NoError(t, rows.Close())
}

func TestQueryConvertsDuckDBTypes(t *testing.T) {
	t.Parallel()
	rows, err := newRevision(t).open(t).Query(t.Context(), `SELECT [DATE '2025-01-31'] AS dates,
		{'b': 1.50::DECIMAL(9,2), 'a': [TIMESTAMP '2025-01-01 02:03:04']} AS s, MAP {'k': DATE '2025-01-01'} AS m,
		'4ac7a9e9-607c-4c8a-84f3-843f0191e3fd'::UUID AS id, INTERVAL '14 months 2 days -3.5 seconds' AS i,
		TIMESTAMPTZ '2025-01-01 00:00:00+02' AS tz, TIME '12:00:00' AS t, '\x01'::BLOB AS b,
		170141183460469231731687303715884105727 AS h, -0.05::DECIMAL(4,2) AS d, [[1], NULL] AS n, union_value(k := 2) AS u,
		NULL AS none, [1, 2]::INTEGER[2] AS arr, 1.5::FLOAT AS f, {'x"y, z': 1} AS odd`)
	require.NoError(t, err)
	var out strings.Builder
	require.NoError(t, render.Write(&out, rows.Result(), render.Options{Format: render.JSON}))
	require.NoError(t, rows.Close())
	require.Equal(t, `[
  {"dates":["2025-01-31"],"s":{"b":1.50,"a":["2025-01-01T02:03:04"]},"m":{"k":"2025-01-01"},"id":"4ac7a9e9-607c-4c8a-84f3-843f0191e3fd",`+
		`"i":"1 year 2 months 2 days -00:00:03.5","tz":"2024-12-31T22:00:00Z","t":"12:00:00","b":"\\x01",`+
		`"h":170141183460469231731687303715884105727,"d":-0.05,"n":[[1],null],"u":2,"none":null,"arr":[1,2],"f":1.5,"odd":{"x\"y, z":1}}
]
`, out.String())
}

func TestCollectRejectsTooManyRows(t *testing.T) {
	t.Parallel()
	rows, err := newRevision(t).open(t).Query(t.Context(), "SELECT * FROM range(11)")
	require.NoError(t, err)
	_, err = rows.Collect(10)
	require.ErrorContains(t, err, "more than 10 rows")
}
