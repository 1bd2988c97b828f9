package worker_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/quality"
	"github.com/servo-orchestration/servo/pkg/worker"
)

// textAsset returns a fixture with an asset whose script writes text files that are converted to a table. The parameter
// columns contains the declared columns: "name TYPE, …".
func textAsset(t *testing.T, script, columns string, o plan.TextOutput) *fixture {
	t.Helper()
	work := shell(script)
	work.Text = &o
	if columns != "" {
		check := quality.Check{Name: quality.ContractCheck, Kind: quality.Schema, Severity: quality.Critical}
		for column := range strings.SplitSeq(columns, ", ") {
			name, kind, _ := strings.Cut(column, " ")
			check.Params.Types = append(check.Params.Types, quality.ColumnType{Name: name, Type: kind})
		}
		work.Checks = []quality.Check{check}
	}
	return newFixture(t, nil, map[string]plan.Work{"a/x": work}, task("a/x", "", nil))
}

func TestTextOutputKeepsValues(t *testing.T) {
	for _, c := range []struct{ script, columns, format, column, want string }{
		// Even a late row can decide the type, because all rows are read.
		{`(echo n; seq 30000; echo x) >$SERVO_OUTPUT/a.csv`, "", "csv", "n", "VARCHAR"},
		{`(echo n; seq 30000; echo 0.5) >$SERVO_OUTPUT/a.csv`, "", "csv", "n", "DOUBLE"},
		{`echo '{"n":123456789012345678901}' >$SERVO_OUTPUT/a.ndjson`, "", "ndjson", "n", "DECIMAL(38,0)"},
		{`echo '{"n":{"Key":[1]}}' >$SERVO_OUTPUT/a.ndjson`, "n STRUCT(Key INTEGER[])", "ndjson", "n", `STRUCT("Key" INTEGER[])`},
		// The name of a file must not be interpreted as a pattern or as SQL.
		{`(echo n; echo 1) >"$SERVO_OUTPUT/*';x.csv"; echo 2 >"$SERVO_OUTPUT/other.txt"; rm "$SERVO_OUTPUT/other.txt"`, "", "csv", "n", "BIGINT"},
	} {
		w := textAsset(t, c.script, c.columns, plan.TextOutput{Format: c.format})
		end := w.run("a/x")
		require.Equal(t, []string{"data.parquet"}, filesOf(w, end))
		require.Equal(t, c.want, w.rows(end, "typeof("+c.column+")")[0], c.script)
	}
}

func TestTextOutputRejectsDoubt(t *testing.T) {
	for script, want := range map[string]string{
		`echo x >$SERVO_OUTPUT/a.csv; cp $SERVO_OUTPUT/a.csv $SERVO_OUTPUT/b.parquet`: "is not a Parquet file",
		`touch $SERVO_OUTPUT/a.csv`:                                    "convert a.csv: the file is empty: write at least a header",
		`echo "not compressed at all" >$SERVO_OUTPUT/a.csv.gz`:         "convert a.csv.gz: gzip: invalid header",
		`(echo n; echo 1) | gzip | head -c 15 >$SERVO_OUTPUT/a.csv.gz`: "convert a.csv.gz: ",
		`echo x >$SERVO_OUTPUT/a.csv.zst`:                              "convert a.csv.zst: ",
		`:`:                                                            "the output has no csv files (.csv, .tsv)",
	} {
		w := textAsset(t, script, "", plan.TextOutput{Format: "csv"})
		failed := w.failed("a/x")
		require.Equal(t, "INVALID_OUTPUT", failed.Code, script)
		require.Contains(t, failed.Message, want)
	}
	w := textAsset(t, `echo '[]' >$SERVO_OUTPUT/a.json`, "", plan.TextOutput{Format: "json"})
	require.Equal(t, []string{"a.json"}, filesOf(w, w.run("a/x")), "no rows, so the columns are unknown")
}

// Without a declared format, the names of the files determine the format, and the text files are kept.
func TestTextOutputIsDetected(t *testing.T) {
	both := func(names ...string) []string { return append(names, "data.parquet") }
	for script, want := range map[string][]string{
		`(echo n; echo 1) >$SERVO_OUTPUT/a.csv`:                                            both("a.csv"),
		`(echo n; echo 1) | gzip >$SERVO_OUTPUT/a.tsv.gz; echo x >$SERVO_OUTPUT/notes.txt`: append(both("a.tsv.gz"), "notes.txt"),
		`echo '{"n":1}' >$SERVO_OUTPUT/a.jsonl`:                                            both("a.jsonl"),
		`echo '[]' >$SERVO_OUTPUT/a.json`:                                                  {"a.json"},
		`echo '{"n":1}' >$SERVO_OUTPUT/a.json; (echo n; echo 1) >$SERVO_OUTPUT/b.csv`:      {"a.json", "b.csv"},
		`echo x >$SERVO_OUTPUT/notes.txt`:                                                  {"notes.txt"},
	} {
		w := newFixture(t, nil, map[string]plan.Work{"a/x": shell(script)}, task("a/x", "", nil))
		require.ElementsMatch(t, want, filesOf(w, w.run("a/x")), script)
	}
	w := textAsset(t, `(echo n; echo 1,2) >$SERVO_OUTPUT/a.csv`, "", plan.TextOutput{Format: plan.TextNone})
	require.Equal(t, []string{"a.csv"}, filesOf(w, w.run("a/x")))
	w = newFixture(t, nil, map[string]plan.Work{"a/x": shell(`(echo n; echo 1,2) >$SERVO_OUTPUT/a.csv`)}, task("a/x", "", nil))
	require.Contains(t, w.failed("a/x").Message, "convert a.csv: line 2: ")
}

// DuckDB would round or truncate these values.
func TestTextOutputRoundsNothing(t *testing.T) {
	for _, c := range [][3]string{
		{"BIGINT", "1.5", "is not BIGINT"},
		{"integer", "3000000000", "is not integer"},
		{"DECIMAL(5,2)", "1.239", "is not DECIMAL(5,2)"},
		{"DECIMAL(5,2)", "-1.2300", ""},
		{"numeric(4,1)", "12345", "is not numeric(4,1)"},
		{"DATE", "2025-01-15 10:00:00", "is not DATE"},
		{"DATE", "2025-01-15", ""},
		{"UTINYINT", "-1", "is not UTINYINT"},
		{"BIGINT", "+7", ""},
		{"BIGINT", "7.0", ""},
	} {
		w := textAsset(t, `(echo n; echo "`+c[1]+`") >$SERVO_OUTPUT/a.csv`, "n "+c[0], plan.TextOutput{Format: "csv"})
		// The check fails, because it expects types as DuckDB spells them. As a warning, it does not fail the task.
		w.plan.Assets["a/x"].Checks[0].Severity = quality.Warning
		w.storePlan()
		if c[2] == "" {
			w.run("a/x")
			continue
		}
		require.Contains(t, w.failed("a/x").Message, `convert a.csv: line 2: "`+c[1]+`" in column n `+c[2], c[0])
	}
}

// A task fails if the declared type of a column cannot represent a text exactly: here, a time, or a value in a list,
// a struct or a map.
func TestTextOutputHoldsTimesAndNestedValuesExactly(t *testing.T) {
	const refused = "refused"
	for _, c := range [][4]string{
		{"csv", "TIMESTAMP", "n\n2003-07-08 16:49:50+02:00", refused}, // DuckDB drops the offset
		{"csv", "TIMESTAMP", "n\n2003-07-08 16:49:50-0030", refused},
		{"csv", "TIMESTAMP", "n\n2003-07-08 16:49:50.123456789", refused},
		{"csv", "TIMESTAMP", "n\n2003-07-08T16:49:50.1234560Z", "2003-07-08 16:49:50.123456"},
		{"csv", "TIMESTAMP", "n\n2003-07-08 16:49:50+00", "2003-07-08 16:49:50"},
		{"csv", "TIMESTAMP", "n\n2003/7/8 1:02", "2003-07-08 01:02:00"},
		{"csv", "TIMESTAMP", "n\n2003-07-08", "2003-07-08 00:00:00"},
		{"csv", "TIMESTAMP", "n\ninfinity", "infinity"},
		{"csv", "TIMESTAMP_S", "n\n2003-07-08 16:49:50.7", refused},
		{"csv", "TIMESTAMP_MS", "n\n2003-07-08 16:49:50.7001", refused},
		{"csv", "TIMESTAMP_MS", "n\n2003-07-08 16:49:50.700", "2003-07-08 16:49:50.7"},
		{"csv", "TIMESTAMP_NS", "n\n2003-07-08 16:49:50.1234567891", refused},
		{"csv", "TIMESTAMP_NS", "n\n2003-07-08 16:49:50.123456789", "2003-07-08 16:49:50.123456789"},
		{"csv", "TIMESTAMPTZ", "n\n2003-07-08 16:49:50.1234561+02", refused},
		{"csv", "TIMESTAMPTZ", "n\n2003-07-08T16:49:50+02:00", "2003-07-08 14:49:50+00"},
		{"csv", "TIMESTAMPTZ", "n\n2003-07-08 16:49:50 Europe/Paris", "2003-07-08 14:49:50+00"},
		{"csv", "TIME", "n\n2003-07-08 16:49:50", refused},
		{"csv", "TIME", "n\n16:49:50+02", refused},
		{"csv", "TIME", "n\n16:49:50.1234567", refused},
		{"csv", "TIME", "n\n16:49:50.5", "16:49:50.5"},
		{"csv", "BIGINT[]", "n\n\"[1, 2.5]\"", refused},
		{"csv", "BIGINT[]", "n\n\"[1, NULL, 2]\"", "[1, NULL, 2]"},
		{"csv", "STRUCT(a DATE, b VARCHAR)", "n\n\"{'a': 2025-01-15 10:00:00, 'b': x}\"", refused},
		{"csv", "STRUCT(a DATE, b VARCHAR)", "n\n\"{'a': 2025-01-15, 'b': 1.50}\"", "{'a': 2025-01-15, 'b': 1.50}"},
		{"ndjson", "BIGINT[]", `{"n":[1.5]}`, refused},
		{"ndjson", "BIGINT[]", `{"n":[true]}`, refused},
		{"ndjson", "BIGINT[]", `{"n":[1,null,2.0,"3.0"]}`, "[1, NULL, 2, 3]"},
		{"ndjson", "HUGEINT[]", `{"n":[12345678901234567890123]}`, "[12345678901234567890123]"},
		{"ndjson", "DECIMAL(5,2)[]", `{"n":[1.239]}`, refused},
		{"ndjson", "DECIMAL(38,20)[]", `{"n":[0.12345678901234567890]}`, "[0.12345678901234567890]"}, // a DOUBLE would change it
		{"ndjson", "MAP(VARCHAR,BIGINT)", `{"n":{"a":1.5}}`, refused},
		{"ndjson", "MAP(BIGINT,VARCHAR)", `{"n":{"1.5":"a"}}`, refused},
		{"ndjson", "MAP(VARCHAR,BIGINT)", `{"n":{"b":1,"a":2}}`, "{b=1, a=2}"},
		{"ndjson", "DATE[]", `{"n":["2025-01-15 10:00:00"]}`, refused},
		{"ndjson", "STRUCT(\"a b\" STRUCT(c TIMESTAMP[]), d JSON)", `{"n":{"a b":{"c":["2025-01-15T10:00:00+02:00"]},"d":1.50}}`, refused},
		{"ndjson", "STRUCT(\"a b\" STRUCT(c TIMESTAMP[]), d JSON)", `{"n":{"a b":{"c":["2025-01-15T10:00:00Z"]},"d":{"x":[1]}}}`, `{'a b': {'c': ['2025-01-15 10:00:00']}, 'd': '{"x":[1]}'}`},
		{"ndjson", "VARCHAR[]", `{"n":["é",1.50,1e2,true,{"a":1}]}`, `[é, 1.50, 1e2, true, '{"a":1}']`},
		{"ndjson", "DOUBLE[]", `{"n":[0.1,1e3,2]}`, "[0.1, 1000.0, 2.0]"},
		{"ndjson", "BOOLEAN[]", `{"n":[true,false]}`, "[true, false]"},
	} {
		t.Run(c[1]+" "+c[2], func(t *testing.T) {
			w := textAsset(t, "cat >$SERVO_OUTPUT/a."+c[0]+" <<'X'\n"+c[2]+"\nX", "n "+c[1], plan.TextOutput{Format: c[0]})
			w.plan.Assets["a/x"].Checks[0].Params.Types = []quality.ColumnType{{Name: "n", Type: c[1]}}
			w.plan.Assets["a/x"].Checks[0].Severity = quality.Warning
			w.storePlan()
			w.deliver("a/x")
			end := w.control.last(t)
			if c[3] != refused {
				require.Nil(t, end.Error)
				require.Equal(t, []string{c[3]}, w.rows(end, "CAST(n AS VARCHAR)"))
				return
			}
			require.NotNil(t, end.Error)
			require.Equal(t, worker.CodeInvalidOutput, end.Error.Code)
			require.Contains(t, end.Error.Message, "in column n is not "+c[1]+": ")
		})
	}
}

// Python's logging writes times like this one. No time type of DuckDB holds the text.
func TestTextOutputKeepsTimesWithCommas(t *testing.T) {
	w := textAsset(t, `echo '{"t":"2003-07-08 16:49:45,896"}' >$SERVO_OUTPUT/a.ndjson`, "", plan.TextOutput{Format: "ndjson"})
	require.Equal(t, []string{"2003-07-08 16:49:45,896|VARCHAR"}, w.rows(w.run("a/x"), "t, typeof(t)"))
}

func filesOf(w *fixture, end *contract.Finished) (names []string) {
	w.t.Helper()
	for _, key := range w.keysBelow(end.Output.URI) {
		names = append(names, strings.TrimPrefix(key, end.Output.URI))
	}
	return names
}
