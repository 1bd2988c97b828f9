package worker_test

import (
	"database/sql"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/faultblob"
	"github.com/servo-orchestration/servo/internal/memblob"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/worker"
)

// rows reads an output with a DuckDB instance that has the default settings.
func (w *fixture) rows(end *contract.Finished, columns string) []string {
	w.t.Helper()
	local := filepath.Join(w.t.TempDir(), "x.parquet")
	require.NoError(w.t, os.WriteFile(local, []byte(w.read(end.Output.URI+"data.parquet")), 0o600))
	db, err := sql.Open("duckdb", "")
	require.NoError(w.t, err)
	defer db.Close()
	found, err := db.QueryContext(w.t.Context(), fmt.Sprintf("SELECT concat_ws('|', %s) FROM read_parquet('%s') ORDER BY ALL", columns, local))
	require.NoError(w.t, err)
	defer found.Close()
	var rows []string
	for found.Next() {
		var row string
		require.NoError(w.t, found.Scan(&row))
		rows = append(rows, row)
	}
	require.NoError(w.t, found.Err())
	return rows
}

func TestQueryReadsProjectAndInputs(t *testing.T) {
	for _, store := range []blob.Store{nil, memblob.New(memblob.Options{})} {
		const first, second = "raw/events", "mart/totals"
		w := newFixture(t, store, map[string]plan.Work{
			first:  query("SELECT * FROM read_csv('data/x.csv') -- a file of the project;"),
			second: query("SELECT k, sum(v)::BIGINT AS total FROM raw.events GROUP BY k;\n"),
		}, task(first, "", nil), task(second, "", map[string]plan.InputSet{first: from(first)}, first))
		w.file("data/x.csv", "k,v\na,1\na,2\nb,5\n")

		end := w.run(first)
		require.EqualValues(t, 3, end.Output.RowCount)
		require.Equal(t, "3 rows\n", w.log(first))

		end = w.run(second)
		require.Equal(t, []string{"a|3", "b|5"}, w.rows(end, "k, total"))
		require.EqualValues(t, 2, end.Output.RowCount)
		require.Len(t, end.Output.SchemaHash, 64)
		m := w.marker(second)
		require.Equal(t, m.Output(), end.Output)
		require.Equal(t, "data.parquet", m.Files[0].Name)
		require.EqualValues(t, len(w.read(m.URI+"data.parquet")), m.Files[0].Size)
		require.Equal(t, blob.CRC32C([]byte(w.read(m.URI+"data.parquet"))), m.Files[0].CRC32C)
		w.scratchIsEmpty()
	}
}

func TestPartitionValuesAreTypedVariables(t *testing.T) {
	const key = "raw/events[date=2012-02-29]"
	w := newFixture(t, nil, map[string]plan.Work{"raw/events": {
		SQL:        "SELECT getvariable('date') + 1 AS next, typeof(getvariable('date')) AS type",
		Dimensions: map[string]string{"date": "DATE"},
	}}, task(key, `{"date":"2012-02-29"}`, nil))
	require.Equal(t, []string{"2012-03-01|DATE"}, w.rows(w.run(key), "next, type"))
}

func TestInputPartitionsAreOneTable(t *testing.T) {
	const one, two, all = "raw/events[date=2012-01-01]", "raw/events[date=2012-01-02]", "mart/all"
	w := newFixture(t, nil, map[string]plan.Work{
		"raw/events": {
			SQL: "SELECT CAST(getvariable('date') AS VARCHAR) AS day, 1 AS n", Dimensions: map[string]string{"date": "DATE"},
		},
		all: query("SELECT count(*) AS n, min(day) AS first, max(day) AS last, " +
			"(SELECT count(*) FROM (DESCRIBE raw.events)) AS columns FROM raw.events"),
	}, task(one, `{"date":"2012-01-01"}`, nil), task(two, `{"date":"2012-01-02"}`, nil),
		task(all, "", map[string]plan.InputSet{"raw/events": {Group: "raw/events[*]"}}, one, two))
	w.plan.Groups = map[string][]plan.Input{"raw/events[*]": {{TaskKey: one}, {TaskKey: two}}}
	w.storePlan()
	w.run(one)
	w.run(two)
	// A folder with a name such as date=… adds no column.
	require.Equal(t, []string{"2|2012-01-01|2012-01-02|2"}, w.rows(w.run(all), "n, first, last, columns"))
}

func TestInputOfEarlierRunIsReadByURI(t *testing.T) {
	w := newFixture(t, nil, map[string]plan.Work{"raw/a": query("SELECT 42 AS x"), "mart/b": query("SELECT x FROM raw.a")},
		task("raw/a", "", nil))
	end := w.run("raw/a")
	w.setPlan(w.plan.Assets, task("mart/b", "", map[string]plan.InputSet{"raw/a": {
		Items: []plan.Input{{MaterializationID: end.MaterializationID, URI: end.Output.URI}},
	}}))
	require.Equal(t, []string{"42"}, w.rows(w.run("mart/b"), "x"))
}

func TestMarkerListsColumns(t *testing.T) {
	w := newFixture(t, nil, map[string]plan.Work{
		"a/b": query("SELECT 1 AS n, 'x' AS text, DATE '2025-01-01' AS day, 1.5::DECIMAL(9,2) AS price, {'k': 2::BIGINT} AS s, " +
			"TIMESTAMP '2025-01-01' AS at, TIMESTAMPTZ '2025-01-01 00:00:00Z' AS utc, 1::UTINYINT AS u, 'x'::BLOB AS b, true AS t, " +
			"uuid() AS id, [1] AS l, '{}'::JSON AS j"),
	}, task("a/b", "", nil))
	w.run("a/b")
	require.Equal(t, []contract.CommitMarkerColumn{
		{Name: "n", Type: "INTEGER"},
		{Name: "text", Type: "VARCHAR"},
		{Name: "day", Type: "DATE"},
		{Name: "price", Type: "DECIMAL(9,2)"},
		{Name: "s.k", Type: "BIGINT"},
		{Name: "at", Type: "TIMESTAMP"},
		{Name: "utc", Type: "TIMESTAMP WITH TIME ZONE"},
		{Name: "u", Type: "UTINYINT"},
		{Name: "b", Type: "BLOB"},
		{Name: "t", Type: "BOOLEAN"},
		{Name: "id", Type: "UUID"},
		{Name: "l.list.element", Type: "INTEGER"},
		{Name: "j", Type: "JSON"},
	}, w.marker("a/b").Columns)
}

func TestEmptyResultIsCommitted(t *testing.T) {
	w := newFixture(t, nil, map[string]plan.Work{"a/b": query("SELECT 1 AS x, 'y' AS y WHERE false")}, task("a/b", "", nil))
	end := w.run("a/b")
	require.Zero(t, end.Output.RowCount)
	require.NotEmpty(t, end.Output.SchemaHash)
	require.Empty(t, w.rows(end, "x"))
}

func TestQueryFailuresAreReported(t *testing.T) {
	for name, c := range map[string]struct {
		query     string
		code      string
		message   string
		retryable bool
	}{
		"syntax":          {"SELEC 1", worker.CodeSQL, "LINE 1: SELEC 1", false},
		"column":          {"SELECT nosuch FROM range(3)", worker.CodeSQL, `Referenced column "nosuch" not found`, false},
		"table":           {"SELECT * FROM raw.nosuch", worker.CodeSQL, "nosuch", false},
		"data":            {"SELECT CAST('x' AS INT)", worker.CodeSQL, "Could not convert string 'x' to INT32", true},
		"no file":         {"SELECT * FROM 'data/missing.csv'", worker.CodeSQL, "data/missing.csv", true},
		"memory":          {"SELECT list(range) FROM range(1000000000)", worker.CodeOutOfMemory, "Out of Memory", true},
		"several":         {"SELECT 1; SELECT 2", worker.CodeSQL, "2 statements", false},
		"none":            {"-- nothing", worker.CodeSQL, "0 statements", false},
		"no select":       {"CREATE TABLE x (a INT)", worker.CodeSQL, "CREATE", false},
		"breaks out":      {"SELECT 1) TO '/tmp/servo-escape.csv'; COPY (SELECT 1", worker.CodeSQL, "", false},
		"outside":         {"SELECT * FROM read_csv('/etc/passwd')", worker.CodeSQL, "Permission Error", false},
		"outside, up":     {"SELECT * FROM read_csv('../x.csv')", worker.CodeSQL, "Permission Error", false},
		"outside, built":  {"SELECT * FROM read_csv('/etc/' || 'passwd')", worker.CodeSQL, "Permission Error", false},
		"outside, listed": {"SELECT * FROM glob('/etc/*')", worker.CodeSQL, "Permission Error", false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t, nil, map[string]plan.Work{"a/b": query(c.query)}, task("a/b", "", nil))
			got := w.failed("a/b")
			require.Equal(t, c.code, got.Code, got.Message)
			require.Contains(t, got.Message, c.message)
			require.Equal(t, c.retryable, got.Retryable, got.Message)
			require.Empty(t, w.keysBelow("assets/"))
			w.scratchIsEmpty()
		})
	}
}

func TestQueryPathsAreRelativeToProject(t *testing.T) {
	w := newFixture(t, nil, map[string]plan.Work{"a/b": {
		SQL: `WITH é AS (SELECT 'data/x.csv' AS unchanged)
			SELECT a.v AS a, b.v AS b, c.v AS c, d.v AS d, e.v AS e, f.v AS f, g.v AS g, h.v AS h, unchanged
			FROM é, read_csv(['data/x.csv']) a, 'data/x.csv' b, "data/x.csv" c, read_csv('data/' || getvariable('name') || '.csv') d,
				read_csv(format('data/{}.csv', 'x')) e, (FROM read_csv('data/*.csv')) f,
				read_csv(getvariable('servo_root') || '/data/x.csv') g, read_csv('data/it''s/x.csv') h
			WHERE a.v IN (SELECT v FROM read_csv('./data/x.csv', header = true))`,
		Dimensions: map[string]string{"name": "VARCHAR"},
	}}, task("a/b", `{"name":"x"}`, nil))
	w.config.DuckDB.MemoryLimit = "1GB" // enough for nine CSV readers
	w.worker, w.server = w.open(w.config)
	w.file("data/x.csv", "v\n7\n")
	w.file("data/it's/x.csv", "v\n8\n")
	require.Equal(t, []string{"7|7|7|7|7|7|7|8|data/x.csv"}, w.rows(w.run("a/b"), "a,b,c,d,e,f,g,h,unchanged"))
}

func TestPivotIsExecuted(t *testing.T) {
	w := newFixture(t, nil, map[string]plan.Work{
		"a/b": query("FROM (PIVOT (FROM (VALUES ('x', 1), ('y', 2)) t(k, v)) ON k IN ('x', 'y') USING sum(v))"),
	}, task("a/b", "", nil))
	require.Equal(t, []string{"1|2"}, w.rows(w.run("a/b"), "x::INT, y::INT"))
}

func TestUncommittedInputIsMissing(t *testing.T) {
	w := newFixture(t, nil, map[string]plan.Work{"raw/a": query("SELECT 1"), "mart/b": query("SELECT * FROM raw.a")},
		task("raw/a", "", nil), task("mart/b", "", map[string]plan.InputSet{"raw/a": from("raw/a")}, "raw/a"))
	got := w.failed("mart/b")
	require.Equal(t, worker.CodeMissingInput, got.Code)
	require.True(t, got.Retryable)
	require.Contains(t, got.Message, "input raw/a was never committed, ")
	require.Contains(t, got.Message, ": start a new run: ")
}

func TestInputWithoutParquetIsRejected(t *testing.T) {
	w := newFixture(t, nil, map[string]plan.Work{"raw/a": shell("echo 1 > $SERVO_OUTPUT/x.txt"), "mart/b": query("SELECT * FROM raw.a")},
		task("raw/a", "", nil), task("mart/b", "", map[string]plan.InputSet{"raw/a": from("raw/a")}, "raw/a"))
	w.run("raw/a")
	got := w.failed("mart/b")
	require.Equal(t, worker.CodeInvalidInput, got.Code)
	require.Contains(t, got.Message, "x.txt")
}

func TestDamagedInputIsRejected(t *testing.T) {
	store := memblob.New(memblob.Options{})
	w := newFixture(t, store, map[string]plan.Work{"raw/a": query("SELECT 1 AS x"), "mart/b": query("SELECT * FROM raw.a")},
		task("raw/a", "", nil), task("mart/b", "", map[string]plan.InputSet{"raw/a": from("raw/a")}, "raw/a"))
	key := w.run("raw/a").Output.URI + "data.parquet"
	_, err := store.Put(t.Context(), key, []byte(strings.Repeat("x", len(w.read(key)))))
	require.NoError(t, err)
	got := w.failed("mart/b")
	require.Equal(t, worker.CodeInvalidInput, got.Code)
	require.False(t, got.Retryable)
}

// flip changes one bit of an object in a local store, without changing its modification time.
func (w *fixture) flip(key string, at int) {
	w.t.Helper()
	local, ok := w.store.(blob.Local)
	require.True(w.t, ok)
	path := local.Path(key)
	info, err := os.Stat(path)
	require.NoError(w.t, err)
	data, err := os.ReadFile(path)
	require.NoError(w.t, err)
	data[at] ^= 1
	require.NoError(w.t, os.WriteFile(path, data, 0o600))
	require.NoError(w.t, os.Chtimes(path, info.ModTime(), info.ModTime()))
}

func TestFlippedBitOfInputIsRefused(t *testing.T) {
	inputs := map[string]plan.InputSet{"raw/a": from("raw/a")}
	w := newFixture(t, nil, map[string]plan.Work{
		"raw/a": query("SELECT range AS x FROM range(1000)"), "mart/b": query("SELECT sum(x) AS s FROM raw.a"),
		"mart/c": query("SELECT sum(x) AS s FROM raw.a"), "mart/d": shell("cat $SERVO_INPUT_RAW_A/*"),
	}, task("raw/a", "", nil), task("mart/b", "", inputs, "raw/a"), task("mart/c", "", inputs, "raw/a"), task("mart/d", "", inputs, "raw/a"))
	key := w.run("raw/a").Output.URI + "data.parquet"
	w.run("mart/b")
	w.flip(key, 200)
	for _, consumer := range []string{"mart/c", "mart/d"} {
		got := w.failed(consumer)
		require.Equal(t, worker.CodeInvalidInput, got.Code, consumer)
		require.False(t, got.Retryable, consumer)
		require.Contains(t, got.Message, "input file "+key+" is damaged", consumer)
	}
}

func TestStockDuckDBReadsOutputAsWritten(t *testing.T) {
	const key = "raw/events[date=2012-02-29]"
	w := newFixture(t, nil, map[string]plan.Work{"raw/events": {
		SQL:        "SELECT 'noon' AS date, 7 AS v",
		Dimensions: map[string]string{"date": "DATE"},
	}}, task(key, `{"date":"2012-02-29"}`, nil))
	uri := w.run(key).Output.URI
	require.NotContains(t, uri, "=")
	local, ok := w.store.(blob.Local)
	require.True(t, ok)
	db, err := sql.Open("duckdb", "")
	require.NoError(t, err)
	defer db.Close()
	var columns, date string
	require.NoError(t, db.QueryRowContext(t.Context(), "SELECT string_agg(column_name, ',') FROM (DESCRIBE FROM read_parquet($1))",
		local.Path(uri+"data.parquet")).Scan(&columns))
	require.Equal(t, "date,v", columns, "folders add no columns")
	require.NoError(t, db.QueryRowContext(t.Context(), "SELECT date FROM read_parquet($1)", local.Path("assets/acme/main/raw/events/**/*.parquet")).Scan(&date))
	require.Equal(t, "noon", date, "the asset's own column")
}

func TestQueryGetsItsShareOfTheMachine(t *testing.T) {
	w := newFixture(t, nil, map[string]plan.Work{
		"a/alone": query("SELECT current_setting('threads') AS threads, current_setting('memory_limit') AS memory"),
		"a/big":   query("SELECT list(range ORDER BY hash(range)) AS l FROM range(2_000_000)"),
	}, task("a/alone", "", nil), task("a/big", "", nil))
	w.config.DuckDB = worker.DuckDB{}
	w.config.MaxConcurrent = 1_000_000 // with so many slots, the share of a task is leastMemory
	w.worker, w.server = w.open(w.config)
	require.Equal(t, []string{"1|64.0 MiB"}, w.rows(w.run("a/alone"), "threads, memory"))
	got := w.failed("a/big")
	require.Equal(t, worker.CodeOutOfMemory, got.Code)
	require.Contains(t, got.Message, "out of memory at 67MB (the default share: 50 % of ")
	require.Contains(t, got.Message, "raise workers.memory_limit")
}

func TestTaskGetsItsDeclaredResources(t *testing.T) {
	limits := query("SELECT current_setting('threads') AS threads, current_setting('memory_limit') AS memory")
	limits.Resources = &plan.Resources{MemoryBytes: 128 << 20, Threads: 3}
	big := query("SELECT list(range ORDER BY hash(range)) AS l FROM range(4_000_000)")
	big.Resources = &plan.Resources{MemoryBytes: 64 << 20}
	huge := query("SELECT 1 AS x")
	huge.Resources = &plan.Resources{MemoryBytes: 1 << 50}
	command := shell(`echo "$SERVO_MEMORY_BYTES $SERVO_THREADS"`)
	command.Resources, command.Output = limits.Resources, plan.OutputNone
	w := newFixture(t, nil, map[string]plan.Work{"a/limits": limits, "a/big": big, "a/huge": huge, "a/command": command},
		task("a/limits", "", nil), task("a/big", "", nil), task("a/huge", "", nil), task("a/command", "", nil))
	require.Equal(t, []string{"3|128.0 MiB"}, w.rows(w.run("a/limits"), "threads, memory"))
	got := w.failed("a/big")
	require.Equal(t, worker.CodeOutOfMemory, got.Code)
	require.Contains(t, got.Message, "out of memory at 67MB (resources.memory of a/big): raise it: ")
	got = w.failed("a/huge")
	require.Equal(t, worker.CodeResourcesExceeded, got.Code)
	require.False(t, got.Retryable)
	require.Contains(t, got.Message, "a/huge needs 1125899906MB of memory, but the worker has only ")
	require.Contains(t, got.Message, "lower resources.memory, or use a queue with larger workers")
	w.run("a/command")
	require.Contains(t, w.log("a/command"), "134217728 3\n")
}

// A task must get its declared limits even if its plan cannot be read when the task reserves memory.
func TestDeclaredResourcesSurviveAnOutage(t *testing.T) {
	limits := query("SELECT current_setting('threads') AS threads")
	limits.Resources = &plan.Resources{Threads: 3}
	const outage = 4 // the worker tries to read an object this many times
	var reads atomic.Int32
	w := newFixture(t, faultblob.New(memblob.New(memblob.Options{}), func(op faultblob.Op, key string) faultblob.Fault {
		if (op == faultblob.Open || op == faultblob.Get) && strings.Contains(key, "plans/") && reads.Add(1) <= outage {
			return faultblob.FailBefore
		}
		return faultblob.None
	}), map[string]plan.Work{"a/limits": limits}, task("a/limits", "", nil))
	require.Equal(t, []string{"3"}, w.rows(w.run("a/limits"), "threads"))
	require.Greater(t, reads.Load(), int32(outage))
}

func TestUnreadableInputFileIsNamed(t *testing.T) {
	for _, store := range []blob.Store{nil, memblob.New(memblob.Options{})} {
		w := newFixture(t, store, map[string]plan.Work{
			"raw/good": query("SELECT 1 AS x"),
			"raw/a":    shell("cp data/bad.parquet $SERVO_OUTPUT/bad.parquet"),
			"mart/b":   query("SELECT sum(a.x) AS s FROM raw.a, raw.good"),
		}, task("raw/a", "", nil), task("raw/good", "", nil),
			task("mart/b", "", map[string]plan.InputSet{"raw/a": from("raw/a"), "raw/good": from("raw/good")}, "raw/a", "raw/good"))
		good := w.run("raw/good").Output.URI + "data.parquet"
		made := filepath.Join(t.TempDir(), "x.parquet")
		db, err := sql.Open("duckdb", "")
		require.NoError(t, err)
		_, err = db.ExecContext(t.Context(), "COPY (SELECT range * range AS x FROM range(100_000)) TO '"+made+"' (FORMAT parquet, COMPRESSION zstd)")
		require.NoError(t, err)
		require.NoError(t, db.Close())
		data, err := os.ReadFile(made)
		require.NoError(t, err)
		for i := 60; i < len(data)/2; i++ { // damage the pages, not the footer
			data[i] = 0xaa
		}
		w.file("data/bad.parquet", string(data))

		bad := w.run("raw/a").Output.URI + "bad.parquet"
		got := w.failed("mart/b")
		require.Contains(t, got.Message, "input file "+bad+" of raw/a cannot be read")
		require.NotContains(t, got.Message, good)
		require.False(t, got.Retryable)
	}
}

func TestMissingProjectFolderIsReported(t *testing.T) {
	w := newFixture(t, nil, map[string]plan.Work{"a/b": query("SELECT 1")}, task("a/b", "", nil))
	w.plan.Root = "/no/such/project"
	w.storePlan()
	require.Equal(t, worker.CodeProjectMissing, w.failed("a/b").Code)
}

// TestTasksOfAnotherProjectFolderFail executes a task in a copy of a project, under its own name and under another one.
func TestTasksOfAnotherProjectFolderFail(t *testing.T) {
	w := newFixture(t, nil, map[string]plan.Work{"a/b": query("SELECT 1"), "a/c": query("SELECT 1")}, task("a/b", "", nil), task("a/c", "", nil))
	link := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(w.root, link))
	w.config.Home = link
	w.worker, w.server = w.open(w.config)
	require.Equal(t, int64(1), w.run("a/b").Output.RowCount)

	w.config.Home = t.TempDir()
	w.worker, w.server = w.open(w.config)
	got := w.failed("a/c")
	require.Equal(t, worker.CodeProjectMissing, got.Code)
	require.Contains(t, got.Message, "was planned in the project folder "+w.root+", but this state belongs to the project in "+w.config.Home)
	require.False(t, got.Retryable)
}

func TestProjectFolderWithPatternCharactersIsRejected(t *testing.T) {
	w := newFixture(t, nil, map[string]plan.Work{"a/b": query("SELECT 1")}, task("a/b", "", nil))
	w.plan.Root = filepath.Join(w.root, "a*b")
	require.NoError(t, os.Mkdir(w.plan.Root, 0o700))
	w.storePlan()
	require.Contains(t, w.failed("a/b").Message, "rename the folder")
}

func TestUnreadablePlanFailsTask(t *testing.T) {
	w := newFixture(t, nil, map[string]plan.Work{"a/b": query("SELECT 1")}, task("a/b", "", nil))
	right := w.ref
	w.ref = "plans/" + domain.Path() + "/missing.json"
	require.Equal(t, worker.CodePlanMissing, w.failed("a/b").Code)
	w.ref = right
	_, err := w.store.Put(t.Context(), right, []byte(`{"schema_version":1}`))
	require.NoError(t, err)
	require.Equal(t, worker.CodePlanUnreadable, w.failed("a/b").Code)
}

func TestCancelStopsRunningQuery(t *testing.T) {
	w := newFixture(t, nil, map[string]plan.Work{
		"a/b": query("SELECT count(*) AS n FROM range(1000000000) a, range(1000000) b WHERE (a.range * b.range) % 7 = 3"),
	}, task("a/b", "", nil))
	w.control.answer = func(verb string, _ int) (int, any) {
		if verb == contract.VerbHeartbeat {
			return http.StatusOK, contract.HeartbeatResponse{ShouldCancel: true, Reason: "no longer needed"}
		}
		return 0, nil
	}
	answer := w.deliverLater("a/b")
	w.clock.fire(t, w.config.HeartbeatEvery)
	require.Equal(t, http.StatusOK, <-answer)
	end := w.control.end(t)
	require.Equal(t, event.Cancelled, end.Outcome)
	require.Contains(t, end.Error.Message, "no longer needed")
	w.scratchIsEmpty()
}
