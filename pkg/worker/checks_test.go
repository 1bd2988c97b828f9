package worker_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/memblob"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/quality"
	"github.com/servo-orchestration/servo/pkg/worker"
)

func checked(w plan.Work, checks ...quality.Check) plan.Work {
	w.Checks, w.Samples = checks, 100
	return w
}

func number(text string) *quality.Literal {
	l, _ := quality.Num(text)
	return &l
}

// resultsOf returns the results of an attempt by name. Each result is "passed", "failed" or "broken", followed by the
// message.
func resultsOf(results []event.CheckResult) map[string]string {
	found := map[string]string{}
	for _, r := range results {
		verdict := map[bool]string{true: "passed", false: "failed"}[r.Passed]
		if r.Broken {
			verdict = "broken"
		}
		found[r.Name] = strings.TrimSuffix(verdict+": "+r.Message, ": ")
	}
	return found
}

// end executes the next attempt and returns its report, regardless of the outcome.
func (w *fixture) end(key string, attempt int32, change ...func(*contract.Envelope)) *contract.Finished {
	w.t.Helper()
	post(w.t, w.server.URL, w.envelope(key, attempt, change...))
	return w.control.last(w.t)
}

// commitUnchecked commits a task in the same way as a worker that runs no checks.
func (w *fixture) commitUnchecked(key string) {
	w.t.Helper()
	checked := w.plan
	unchecked := map[string]plan.Work{}
	for name, work := range checked.Assets {
		work.Checks, work.Samples = nil, 0
		unchecked[name] = work
	}
	w.setPlan(unchecked, checked.Tasks...)
	w.run(key)
	w.setPlan(checked.Assets, checked.Tasks...)
}

const people = `SELECT * FROM (VALUES
	(1, 'ann', 20, DATE '2026-11-22'), (2, 'bob', 200, DATE '2026-11-22'), (2, NULL, -1, DATE '2026-11-22')) AS t(id, name, age, seen)`

// TestEveryKindOfCheckRuns executes each built-in kind of check in DuckDB: once with rows that pass, and once with
// rows that fail.
func TestEveryKindOfCheckRuns(t *testing.T) {
	const key = "clean/people"
	warn := func(name, kind string, columns []string, p quality.Params) quality.Check {
		return quality.Check{Name: name, Kind: kind, Columns: columns, Params: p, Severity: quality.Warning}
	}
	values := func(texts ...string) (found []quality.Literal) {
		for _, text := range texts {
			found = append(found, quality.Text(text))
		}
		return found
	}
	col := func(names ...string) []string { return names }
	types := []quality.ColumnType{{Name: "ID", Type: "INTEGER"}, {Name: "name", Type: "VARCHAR"}, {Name: "age", Type: "INT"}, {Name: "seen", Type: "DATE"}}
	checks := []quality.Check{
		warn("nn_good", quality.NotNull, col("id", "age"), quality.Params{}),
		warn("nn_bad", quality.NotNull, col("id", "name"), quality.Params{}),
		warn("un_good", quality.Unique, col("id", "name"), quality.Params{}),
		warn("un_bad", quality.Unique, col("id"), quality.Params{}),
		warn("rc_good", quality.RowCount, nil, quality.Params{Min: number("3"), Max: number("3")}),
		warn("rc_bad", quality.RowCount, nil, quality.Params{Min: number("4")}),
		warn("rc_previous", quality.RowCount, nil, quality.Params{MinOfPrevious: 500_000}),
		warn("av_good", quality.AcceptedValues, col("name"), quality.Params{Values: values("ann", "bob")}),
		warn("av_bad", quality.AcceptedValues, col("id"), quality.Params{Values: []quality.Literal{*number("1")}}),
		warn("rel_good", quality.Relationships, col("name"), quality.Params{To: "ref/names", Field: "name"}),
		warn("rel_bad", quality.Relationships, col("id"), quality.Params{To: "ref/names", Field: "id"}),
		warn("ra_good", quality.Range, col("age"), quality.Params{Min: number("-1"), Max: number("200")}),
		warn("ra_bad", quality.Range, col("age"), quality.Params{Min: number("0"), Max: number("150.5")}),
		warn("ra_date", quality.Range, col("seen"), quality.Params{Min: &quality.Literal{Text: "2026-11-22"}}),
		warn("re_good", quality.Regex, col("name"), quality.Params{Pattern: "^[a-z]+$"}),
		warn("re_bad", quality.Regex, col("name"), quality.Params{Pattern: "^a"}),
		warn("fr_good", quality.Freshness, col("seen"), quality.Params{MaxAgeSec: 172_800}),
		warn("fr_bad", quality.Freshness, col("seen"), quality.Params{MaxAgeSec: 1}),
		warn("sc_good", quality.Schema, nil, quality.Params{Types: types, ForbidExtra: true}),
		warn("sc_open", quality.Schema, nil, quality.Params{Types: types[:1]}),
		warn("sc_bad", quality.Schema, nil, quality.Params{Types: append([]quality.ColumnType{{Name: "age", Type: "BIGINT"}, {Name: "x", Type: "DATE"}}, types[:2]...), ForbidExtra: true}),
		{Name: "sql_good", Kind: quality.SQL, SQL: "SELECT * FROM clean.people WHERE id > 9;", Severity: quality.Warning},
		{Name: "sql_bad", Kind: quality.SQL, SQL: "SELECT p.* FROM clean.people p JOIN 'data/x.csv' x ON p.id = x.id -- two", Severity: quality.Warning},
		{Name: "sql_broken", Kind: quality.SQL, SQL: "SELECT nonsense FROM clean.people", Severity: quality.Warning},
		{Name: "sql_forbidden", Kind: quality.SQL, SQL: "SELECT 1 AS x FROM enable_logging(storage = 'file', storage_path = '/nonexistent/x')", Severity: quality.Warning},
		{Name: "allowed", Kind: quality.NotNull, Columns: col("name"), Allow: quality.Allowance{PPM: 400_000}},
	}
	w := newFixture(t, nil, map[string]plan.Work{
		"ref/names": query("SELECT * FROM (VALUES (1, 'ann'), (7, 'bob')) AS t(id, name)"),
		key:         checked(query(people), checks...),
	}, task("ref/names", "", nil), task(key, "", map[string]plan.InputSet{"ref/names": from("ref/names")}, "ref/names"))
	w.file("data/x.csv", "id\n2\n")
	w.run("ref/names")
	w.clock.mu.Lock()
	w.clock.now = time.Date(2026, 11, 23, 0, 0, 0, 0, time.UTC)
	w.clock.mu.Unlock()
	end := w.run(key)
	got := resultsOf(end.CheckResults)
	broken, forbidden := got["sql_broken"], got["sql_forbidden"]
	delete(got, "sql_broken")
	delete(got, "sql_forbidden")
	assert.Contains(t, forbidden, "broken: Parser Error: a query may not call enable_logging(): remove the call")
	assert.Contains(t, broken, `broken: Binder Error: Referenced column "nonsense" not found`)
	const row2, row3 = `{"id":2,"name":"bob","age":200,"seen":"2026-11-22"}`, `{"id":2,"name":null,"age":-1,"seen":"2026-11-22"}`
	require.Equal(t, map[string]string{
		"nn_good": "passed", "nn_bad": "failed: 1 of 3 rows failed; for example " + row3,
		"un_good": "passed", "un_bad": `failed: 1 of 3 rows failed: id is repeated; for example {"id":2,"rows":2}`,
		"rc_good": "passed", "rc_bad": "failed: row_count is 3; expected at least 4", "rc_previous": "passed",
		"av_good": "passed", "av_bad": "failed: 2 of 3 rows failed; for example " + row2,
		"rel_good": "passed", "rel_bad": "failed: 2 of 3 rows failed; for example " + row2,
		"ra_good": "passed", "ra_bad": "failed: 2 of 3 rows failed; for example " + row2, "ra_date": "passed",
		"re_good": "passed", "re_bad": "failed: 1 of 3 rows failed; for example " + row2,
		"fr_good": "passed", "fr_bad": "failed: the newest seen is 2026-11-22 00:00:00+00; expected not older than 2026-11-22 23:59:59+00, and not later than 2026-11-24 00:00:00+00",
		"sc_good": "passed", "sc_open": "passed",
		"sc_bad":   `failed: 3 columns differ; for example {"column":"age","problem":"another type","expected":"BIGINT","actual":"INTEGER"}`,
		"sql_good": "passed", "sql_bad": "failed: 2 failing rows; for example " + row2,
		"allowed": "passed: 1 of 3 rows failed, which `allow` tolerates; for example " + row3,
	}, got)
	require.Equal(t, end.CheckResults, w.marker(key).Checks)
	w.scratchIsEmpty()
}

// TestChecksRoundNoValues: a check never casts a value to a type that cannot represent it exactly.
func TestChecksRoundNoValues(t *testing.T) {
	const key = "clean/mixed"
	var checks []quality.Check
	add := func(name, kind, column string, p quality.Params, allow int64) {
		checks = append(checks, quality.Check{
			Name: name, Kind: kind, Columns: []string{column}, Params: p, Severity: quality.Warning, Allow: quality.Allowance{Rows: allow},
		})
	}
	reference := func(field string) quality.Params { return quality.Params{To: "ref/ids", Field: field} }
	most := func(text string) quality.Params { return quality.Params{Max: &quality.Literal{Text: text}} }
	one := quality.Params{Values: []quality.Literal{*number("1")}}
	add("rel_text", quality.Relationships, "label", reference("id"), 0)
	add("rel_float", quality.Relationships, "float", reference("id"), 0)
	add("rel_decimal", quality.Relationships, "price", reference("id"), 0)
	add("rel_same", quality.Relationships, "n", reference("id"), 0)
	add("max_number", quality.Range, "n", quality.Params{Max: number("9.5")}, 0)
	add("max_quoted", quality.Range, "n", most("9.5"), 0)
	add("max_label", quality.Range, "label", most("9.5"), 0)
	add("max_noon", quality.Range, "day", quality.Params{Min: &quality.Literal{Text: "2026-11-22 12:00:00"}}, 0)
	add("max_zone", quality.Range, "at", most("2026-11-22 12:00:00+02:00"), 0)
	add("av_text", quality.AcceptedValues, "label", one, 0)
	add("un_one", quality.Unique, "same", quality.Params{}, 1)
	add("un_three", quality.Unique, "same", quality.Params{}, 3)
	add("fr_future", quality.Freshness, "late", quality.Params{MaxAgeSec: 86_400}, 0)
	w := newFixture(t, nil, map[string]plan.Work{
		"ref/ids": query("SELECT i AS id FROM range(20) AS t(i)"),
		key: checked(query(`SELECT '1.2' AS label, 1::DOUBLE AS float, 1.5 AS price, 10 AS n, DATE '2026-11-22' AS day, 7 AS same,
	TIMESTAMP '2026-11-22 11:00:00' AS at, DATE '2098-01-01' AS late FROM range(4)`), checks...),
	}, task("ref/ids", "", nil), task(key, "", map[string]plan.InputSet{"ref/ids": from("ref/ids")}, "ref/ids"))
	w.run("ref/ids")
	w.clock.mu.Lock()
	w.clock.now = time.Date(2026, 11, 23, 0, 0, 0, 0, time.UTC)
	w.clock.mu.Unlock()
	got := resultsOf(w.run(key).CheckResults)
	for name, want := range map[string]string{
		"rel_text":    "column label is VARCHAR, and id of ref/ids is BIGINT: cast one of them",
		"rel_float":   "column float is DOUBLE, and id of ref/ids is BIGINT: cast one of them",
		"rel_decimal": "failed: 4 of 4 rows",
		"rel_same":    "passed",
		"max_number":  "failed: 4 of 4 rows",
		"max_quoted":  "column n is INTEGER, and the bound is '9.5'",
		"max_label":   "passed",
		"max_noon":    "failed: 4 of 4 rows",
		"max_zone":    "column at is TIMESTAMP, and the bound is '2026-11-22 12:00:00+02:00'",
		"av_text":     "failed: 4 of 4 rows",
		"un_one":      "failed: 3 of 4 rows failed: same is repeated",
		"un_three":    "passed: 3 of 4 rows",
		"fr_future":   "failed: the newest late is 2098-01-01",
	} {
		assert.Contains(t, got[name], want, name)
	}
}

func TestBlockedOutputHasNoMarker(t *testing.T) {
	const key = "clean/people"
	for _, store := range []blob.Store{nil, memblob.New(memblob.Options{})} {
		w := newFixture(t, store, map[string]plan.Work{key: checked(query(people),
			quality.Check{Name: "names", Kind: quality.NotNull, Columns: []string{"name"}},
			quality.Check{Name: "ages", Kind: quality.Range, Columns: []string{"age"}, Params: quality.Params{Max: number("150")}},
		)}, task(key, "", nil))
		end := w.end(key, 1)
		require.Equal(t, event.Failed, end.Outcome)
		require.Equal(t, worker.CodeCheckFailed, end.Error.Code)
		require.False(t, end.Error.Retryable)
		require.Equal(t, "check names: 1 of 3 rows failed; for example {\"id\":2,\"name\":null,\"age\":-1,\"seen\":\"2026-11-22\"}; and 1 more check failed", end.Error.Message)
		require.Nil(t, end.Output)
		require.Len(t, end.CheckResults, 2)
		// The samples are the only stored objects.
		keys := w.keysBelow("assets/")
		require.Len(t, keys, 2)
		for _, r := range end.CheckResults {
			require.Contains(t, keys, r.Sample)
			require.Contains(t, r.Sample, "/_checks/"+r.Name+".parquet")
		}
		require.Contains(t, w.log(key), "check names failed: 1 of 3 rows failed")
	}
}

func TestSeverityDecidesTheEffect(t *testing.T) {
	const key = "clean/people"
	for severity, outcome := range map[quality.Severity]event.Outcome{
		"": event.Failed, quality.Critical: event.Failed, quality.Error: event.Succeeded, quality.Warning: event.Succeeded, quality.Info: event.Succeeded,
	} {
		w := newFixture(t, nil, map[string]plan.Work{key: checked(query("SELECT 1 AS x"),
			quality.Check{Name: "few", Kind: quality.RowCount, Params: quality.Params{Min: number("2")}, Severity: severity})}, task(key, "", nil))
		end := w.end(key, 1)
		require.Equal(t, outcome, end.Outcome, severity)
		require.False(t, end.CheckResults[0].Passed)
	}
}

func TestPreCheckFailsBeforeTheWork(t *testing.T) {
	const in, key = "raw/in", "a/b"
	work := shell("echo ran >> ran; cp $SERVO_INPUT_RAW_IN/*.parquet $SERVO_OUTPUT/")
	w := newFixture(t, nil, map[string]plan.Work{
		in:  query("SELECT 1 AS x"),
		key: checked(work, quality.Check{Name: "feed", Phase: quality.Pre, Kind: quality.SQL, SQL: "SELECT * FROM raw.in WHERE x = 1"}),
	}, task(in, "", nil), task(key, "", map[string]plan.InputSet{in: from(in)}, in))
	w.run(in)
	end := w.end(key, 1)
	require.Equal(t, worker.CodeCheckFailed, end.Error.Code)
	require.Equal(t, "PRE", end.CheckResults[0].Phase)
	require.NoFileExists(t, w.root+"/ran")
}

// TestPreCheckThatChangesAnInputFails: a check that changes the inputs must fail, because otherwise the task would
// read the changed inputs.
func TestPreCheckThatChangesAnInputFails(t *testing.T) {
	const in, key = "raw/in", "a/b"
	for format, script := range map[string]string{
		plan.FormatCSV: "sed -i 2d $SERVO_INPUT_RAW_IN/data.csv",
		"":             "rm $SERVO_INPUT_RAW_IN/*",
		"parquet":      "echo more > $SERVO_INPUT_RAW_IN/more.csv",
	} {
		work := shell("echo ran >> ran")
		if format == plan.FormatCSV {
			work.InputFormat = format
		}
		w := newFixture(t, memblob.New(memblob.Options{}), map[string]plan.Work{
			in: query("SELECT 1 AS x"),
			key: checked(work, quality.Check{Name: "good", Phase: quality.Pre, Kind: quality.Command, Command: []string{"sh", "-c", "ls $SERVO_INPUT_RAW_IN"}},
				quality.Check{Name: "evil", Phase: quality.Pre, Severity: quality.Info, Kind: quality.Command, Command: []string{"sh", "-c", script}}),
		}, task(in, "", nil), task(key, "", map[string]plan.InputSet{in: from(in)}, in))
		w.run(in)
		end := w.end(key, 1)
		require.Equal(t, worker.CodeInvalidInput, end.Error.Code, script)
		require.Contains(t, end.Error.Message, "check evil has changed the folder of an input")
		require.NoFileExists(t, w.root+"/ran")
	}
}

func TestCommandChecksReportAVerdict(t *testing.T) {
	const key = "a/b"
	command := func(name, script string) quality.Check {
		return quality.Check{Name: name, Kind: quality.Command, Command: []string{"sh", "-c", script}, Severity: quality.Warning}
	}
	for name, work := range map[string]plan.Work{"query": query("SELECT 1 AS x"), "command": shell("echo x > $SERVO_OUTPUT/data.parquet.txt")} {
		file := map[string]string{"query": "data.parquet", "command": "data.parquet.txt"}[name]
		w := newFixture(t, nil, map[string]plan.Work{key: checked(work,
			command("good", "test -s $SERVO_OUTPUT/"+file),
			command("bad", `echo '{"passed": false, "failing": 3, "message": "three are bad"}' > $SERVO_VERDICT`),
			command("exits", "echo reason >&2; exit 3"),
			command("nonsense", "echo nonsense > $SERVO_VERDICT"),
			command("missing", "true"),
			command("twice", `echo '{"passed": false, "failing": 3, "Passed": true}' > $SERVO_VERDICT`),
			command("unknown", `echo '{"passed": true, "fails": 3}' > $SERVO_VERDICT`),
			command("named", "test $SERVO_CHECK = named"),
		)}, task(key, "", nil))
		end := w.run(key)
		got := resultsOf(end.CheckResults)
		assert.Equal(t, "passed", got["good"], name)
		assert.Equal(t, "failed: three are bad", got["bad"])
		assert.Equal(t, int64(3), end.CheckResults[1].Failing)
		assert.Equal(t, "broken: sh exited with status 3:\nreason", got["exits"])
		assert.Contains(t, got["nonsense"], "broken: read the verdict in SERVO_VERDICT: invalid character")
		assert.Equal(t, "passed", got["missing"])
		assert.Contains(t, got["twice"], `broken: read the verdict in SERVO_VERDICT: unknown field "Passed"`)
		assert.Contains(t, got["unknown"], `broken: read the verdict in SERVO_VERDICT: unknown field "fails"`)
		assert.Equal(t, "passed", got["named"])
		w.scratchIsEmpty()
	}
}

// TestCheckThatChangesTheOutputIsRejected: a check that changes the output fails the task at any severity, because the
// changed output must not be published.
func TestCheckThatChangesTheOutputIsRejected(t *testing.T) {
	const key = "a/b"
	for _, severity := range []quality.Severity{quality.Critical, quality.Warning} {
		w := newFixture(t, nil, map[string]plan.Work{key: checked(query("SELECT 1 AS x"), quality.Check{
			Name: "evil", Kind: quality.Command, Command: []string{"sh", "-c", "chmod +w $SERVO_OUTPUT/*; echo more >> $SERVO_OUTPUT/data.parquet"}, Severity: severity,
		})}, task(key, "", nil))
		e := w.failed(key)
		require.Equal(t, worker.CodeInvalidOutput, e.Code)
		require.Contains(t, e.Message, "check evil has changed the output file data.parquet")
		require.Empty(t, w.keysBelow("assets/"))
	}
}

// A check may change a file before its timeout ends. The task must fail nevertheless.
func TestCheckThatChangesFilesAndTimesOutIsRejected(t *testing.T) {
	const in, key = "raw/in", "a/b"
	for code, c := range map[string]quality.Check{
		worker.CodeInvalidOutput: {Phase: quality.Post, Command: []string{"$SERVO_OUTPUT"}},
		worker.CodeInvalidInput:  {Phase: quality.Pre, Command: []string{"$SERVO_INPUT_RAW_IN"}},
	} {
		p := newProcesses(t, "")
		c.Command = []string{"sh", "-c", "chmod u+w " + c.Command[0] + "/*; for f in " + c.Command[0] + "/*; do echo more >> $f; done; " + p.script}
		c.Name, c.Kind, c.Severity, c.TimeoutSec = "evil", quality.Command, quality.Warning, int32(taskTimeout/time.Second)
		w := newFixture(t, nil, map[string]plan.Work{in: query("SELECT 1 AS x"), key: checked(query("SELECT 2 AS x"), c)},
			task(in, "", nil), task(key, "", map[string]plan.InputSet{in: from(in)}, in))
		w.run(in)
		answer := w.deliverLater(key)
		pid := p.started(t)
		w.clock.fire(t, taskTimeout)
		<-answer
		p.dead(t, pid)
		end := w.control.last(t)
		require.Equal(t, event.Failed, end.Outcome, code)
		require.Equal(t, code, end.Error.Code)
	}
}

func TestBrokenCheckIsRetriedAtItsSeverity(t *testing.T) {
	const key = "a/b"
	broken := func(severity quality.Severity, retryable bool) quality.Check {
		c := quality.Check{Name: "broken", Kind: quality.Command, Command: []string{"sh", "-c", "exit 1"}, Severity: severity}
		if !retryable {
			c.Kind, c.SQL, c.Command = quality.SQL, "SELECT nonsense FROM a.b", nil
		}
		return c
	}
	for _, c := range []struct {
		check     quality.Check
		attempt   int32 // the number of the attempt; there are at most 3
		outcome   event.Outcome
		retryable bool
	}{
		{broken(quality.Critical, true), 1, event.Failed, true},
		{broken(quality.Critical, true), 3, event.Failed, true},
		{broken(quality.Critical, false), 1, event.Failed, false},
		{broken(quality.Error, true), 1, event.Failed, true},
		{broken(quality.Error, true), 3, event.Succeeded, false},
		{broken(quality.Error, false), 1, event.Succeeded, false},
		{broken(quality.Warning, true), 1, event.Succeeded, false},
	} {
		w := newFixture(t, nil, map[string]plan.Work{key: checked(query("SELECT 1 AS x"), c.check)}, task(key, "", nil))
		end := w.end(key, c.attempt)
		require.Equal(t, c.outcome, end.Outcome, c)
		if c.outcome == event.Failed {
			require.Equal(t, worker.CodeCheckError, end.Error.Code)
			require.Equal(t, c.retryable, end.Error.Retryable, c)
			require.Empty(t, w.keysBelow("assets/"))
		}
		require.True(t, end.CheckResults[0].Broken)
	}
}

func TestSlowCheckTimesOut(t *testing.T) {
	const key = "a/b"
	w := newFixture(t, nil, map[string]plan.Work{key: checked(query("SELECT 1 AS x"), quality.Check{
		Name: "slow", Kind: quality.Command, Command: []string{"sleep", "1000"}, TimeoutSec: 1, Severity: quality.Warning,
	})}, task(key, "", nil))
	end := w.run(key)
	require.Equal(t, "timed out after 1s", end.CheckResults[0].Message)
}

// TestI23AdoptedMarkerReportsItsResults: if a marker exists, a second attempt repeats neither the task nor its
// checks.
func TestI23AdoptedMarkerReportsItsResults(t *testing.T) {
	const key = "a/b"
	w := newFixture(t, nil, map[string]plan.Work{key: checked(query("SELECT 1 AS x"), quality.Check{
		Name: "once", Kind: quality.Command, Command: []string{"sh", "-c", "echo ran >> ran"},
	})}, task(key, "", nil))
	first := w.end(key, 1)
	second := w.end(key, 2)
	require.Equal(t, first.CheckResults, second.CheckResults)
	require.Equal(t, first.Output, second.Output)
	ran, err := os.ReadFile(w.root + "/ran")
	require.NoError(t, err)
	require.Equal(t, "ran\n", string(ran))
}

// TestI23UnauditedMarkerIsChecked: if a marker was written by a worker that runs no checks, the next attempt runs the
// checks.
func TestI23UnauditedMarkerIsChecked(t *testing.T) {
	const key = "a/b"
	for _, store := range []blob.Store{nil, memblob.New(memblob.Options{})} {
		for want, least := range map[event.Outcome]string{event.Succeeded: "1", event.Failed: "2"} {
			w := newFixture(t, store, map[string]plan.Work{key: checked(query("SELECT 1 AS x"), quality.Check{
				Name: "rows", Kind: quality.RowCount, Params: quality.Params{Min: number(least)},
			})}, task(key, "", nil))
			w.commitUnchecked(key)
			end := w.end(key, 2)
			require.Equal(t, want, end.Outcome)
			require.Len(t, end.CheckResults, 1)
			if want == event.Failed {
				require.Equal(t, worker.CodeCheckFailed, end.Error.Code)
			}
		}
	}
}

// without sets the field Without of an envelope: the upstreams that did not succeed.
func without(w contract.Without) func(*contract.Envelope) {
	return func(env *contract.Envelope) { env.Without = w }
}

// A worker that runs no checks commits the output of an upstream, so the commit marker has no results of checks. The
// next attempt adopts the output and runs the checks. They pass, so the upstream succeeds. A task that tolerates
// failures must read this output.
func TestI21AllDoneReadsAdoptedOutput(t *testing.T) {
	const up, down = "a/b", "c/d"
	reader := task(down, "", map[string]plan.InputSet{up: from(up)}, up)
	reader.TriggerRule = event.RuleAllDone
	w := newFixture(t, nil, map[string]plan.Work{
		up:   checked(query("SELECT 1 AS x"), quality.Check{Name: "rows", Kind: quality.RowCount, Params: quality.Params{Min: number("1")}}),
		down: shell("ls $SERVO_INPUT_A_B > $SERVO_OUTPUT/found"),
	}, task(up, "", nil), reader)
	w.commitUnchecked(up)
	require.Equal(t, event.Succeeded, w.end(up, 2).Outcome)
	end := w.end(down, 1, without(contract.UnknownWithout))
	require.Equal(t, event.Failed, end.Outcome, "the dispatcher does not say whether the upstream succeeded")
	require.True(t, end.Error.Retryable)
	require.Contains(t, end.Error.Message, "does not show whether that task has succeeded")
	end = w.end(down, 2)
	require.Equal(t, event.Succeeded, end.Outcome)
	require.NotEmpty(t, w.read(end.Output.URI+"found"))
}

// A task that tolerates failures must not ignore the lost marker of an upstream that succeeded.
func TestAllDoneFailsWithoutMarkerOfSucceededUpstream(t *testing.T) {
	const up, down = "a/b", "c/d"
	reader := task(down, "", map[string]plan.InputSet{up: from(up)}, up)
	reader.TriggerRule = event.RuleAllDone
	w := newFixture(t, nil, map[string]plan.Work{up: query("SELECT 1 AS x"), down: shell("ls $SERVO_INPUT_A_B > $SERVO_OUTPUT/found")}, task(up, "", nil), reader)
	end := w.end(down, 1)
	require.Equal(t, event.Failed, end.Outcome)
	require.Equal(t, worker.CodeMissingInput, end.Error.Code)
	for attempt, w1 := range []contract.Without{contract.WithoutTasks([]string{up}), contract.UnknownWithout} {
		end = w.end(down, int32(attempt)+2, without(w1)) //nolint:gosec // two attempts
		require.Equal(t, event.Succeeded, end.Outcome)
	}
}

// TestI23AllDoneReadsNoUnauditedOutput: a task that tolerates failures of its upstreams does not read an upstream
// output that a check blocks.
func TestI23AllDoneReadsNoUnauditedOutput(t *testing.T) {
	const up, down = "a/b", "c/d"
	reader := task(down, "", map[string]plan.InputSet{up: from(up)}, up)
	reader.TriggerRule = event.RuleAllDone
	w := newFixture(t, nil, map[string]plan.Work{
		up:   checked(query("SELECT 1 AS x"), quality.Check{Name: "rows", Kind: quality.RowCount, Params: quality.Params{Min: number("2")}}),
		down: shell("ls $SERVO_INPUT_A_B > $SERVO_OUTPUT/found"),
	}, task(up, "", nil), reader)
	w.commitUnchecked(up)
	w.end(up, 2)
	end := w.end(down, 1, without(contract.WithoutTasks([]string{up})))
	require.Equal(t, event.Succeeded, end.Outcome)
	require.Empty(t, w.read(end.Output.URI+"found"))
}

// TestI23DeathBeforeTheMarkerPublishesNothing ends an execution at each of its storage operations, and then executes
// the task again. No reader ever finds a marker without passed checks.
func TestI23DeathBeforeTheMarkerPublishesNothing(t *testing.T) {
	const key = "a/b"
	for fail := range 6 {
		store := &dyingStore{Store: memblob.New(memblob.Options{}), left: fail}
		w := newFixture(t, store, map[string]plan.Work{key: checked(query(people), quality.Check{
			Name: "names", Kind: quality.NotNull, Columns: []string{"name"},
		})}, task(key, "", nil))
		store.armed = true
		w.end(key, 1)
		store.armed = false
		require.NotContains(t, strings.Join(w.keysBelow("assets/"), " "), "_commit.json", fail)
		end := w.end(key, 2)
		require.Equal(t, worker.CodeCheckFailed, end.Error.Code)
		require.NotContains(t, strings.Join(w.keysBelow("assets/"), " "), "_commit.json", fail)
	}
}

// dyingStore fails all writes after the first few.
type dyingStore struct {
	blob.Store
	armed bool
	left  int
}

var errDied = errors.New("the process died")

func (s *dyingStore) Create(ctx context.Context, key string, data []byte) (blob.Object, error) {
	if s.armed && s.left == 0 {
		return blob.Object{}, errDied
	}
	s.left--
	return s.Store.Create(ctx, key, data)
}

func TestContractDecidesTheStoredInteger(t *testing.T) {
	const key = "a/b"
	declared := quality.Check{Name: quality.ContractCheck, Kind: quality.Schema, Params: quality.Params{
		Types: []quality.ColumnType{{Name: "n", Type: "BIGINT"}}, ForbidExtra: true,
	}}
	w := newFixture(t, nil, map[string]plan.Work{key: checked(query("SELECT sum(x) AS n FROM (VALUES (1), (2)) AS t(x)"), declared)}, task(key, "", nil))
	w.run(key)
	require.Equal(t, "BIGINT", w.marker(key).Columns[0].Type)
	w = newFixture(t, nil, map[string]plan.Work{key: checked(query("SELECT sum(x) AS n FROM (VALUES (9223372036854775807), (2)) AS t(x)"), declared)}, task(key, "", nil))
	end := w.end(key, 1)
	require.Equal(t, worker.CodeSQL, end.Error.Code)
	require.Contains(t, end.Error.Message, "Column n: a value does not fit the type that `columns` declares")
}

// If the database of the checks cannot be prepared, no check may use it: it is not confined to the sandbox yet.
func TestChecksCannotUseUnconfinedDatabase(t *testing.T) {
	const key = "a/b"
	sqlCheck := func(name, text string) quality.Check {
		return quality.Check{Name: name, Kind: quality.SQL, SQL: text, Severity: quality.Warning}
	}
	w := newFixture(t, nil, map[string]plan.Work{key: checked(query("SELECT 1 AS x"),
		sqlCheck("first", "FROM read_text('/etc/hostname')"), sqlCheck("second", "FROM read_text('/etc/hostname')"))}, task(key, "", nil))
	w.plan.Data = []string{filepath.Dir(w.root)} // a folder that contains the project is rejected
	w.storePlan()
	for name, result := range resultsOf(w.run(key).CheckResults) {
		require.Contains(t, result, "broken: the folder "+filepath.Dir(w.root)+" of sources.paths contains the project", name)
	}
}

// A check must not pass because a partition of an input has its rows in a text file, which no query reads.
func TestCheckOfInputWithTextOnlyPartitionIsBroken(t *testing.T) {
	const in, key = "raw/in", "a/b"
	for _, rows := range []string{"SELECT 1 AS x", "SELECT 1 AS x WHERE false"} {
		w := newFixture(t, nil, map[string]plan.Work{"q/rows": query(rows)}, task("q/rows", "", nil))
		w.file("1.parquet", w.read(w.run("q/rows").Output.URI+"data.parquet"))
		w.file("2.csv", "x\n2\n")
		raw := shell("cp $SERVO_PARTITION_N.* $SERVO_OUTPUT")
		raw.Text = &plan.TextOutput{Format: plan.TextNone}
		reader := checked(query("SELECT 1 AS x"), quality.Check{Name: "all", Kind: quality.SQL, SQL: "SELECT x FROM raw.in EXCEPT SELECT x FROM a.b", Severity: quality.Warning},
			quality.Check{Name: "count", Kind: quality.SQL, SQL: "SELECT 1 AS x FROM (SELECT count(*) AS n FROM raw.in) WHERE n > 5", Severity: quality.Warning},
			quality.Check{Name: "filter", Kind: quality.SQL, SQL: "SELECT x FROM raw.in WHERE x > 5", Severity: quality.Warning},
			quality.Check{Name: "other", Kind: quality.NotNull, Columns: []string{"x"}})
		reader.SQL, reader.Command = "", shell("cp 1.parquet $SERVO_OUTPUT").Command
		one, two := ids.Partition{"n": "1"}.Key(), ids.Partition{"n": "2"}.Key()
		w.setPlan(map[string]plan.Work{in: raw, key: reader}, task(in+"[n=1]", one, nil), task(in+"[n=2]", two, nil),
			task(key, "", map[string]plan.InputSet{in: {Items: []plan.Input{{TaskKey: in + "[n=1]", PartitionKey: one}, {TaskKey: in + "[n=2]", PartitionKey: two}}}}, in+"[n=1]", in+"[n=2]"))
		w.run(in + "[n=1]")
		w.run(in + "[n=2]")
		got := resultsOf(w.run(key).CheckResults)
		require.Equal(t, "passed", got["other"])
		for _, name := range []string{"all", "count", "filter"} {
			require.Contains(t, got[name], "input raw/in[n=2] has no Parquet files, only 2.csv", name)
		}
	}
}
