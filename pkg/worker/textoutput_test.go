package worker_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/quality"
)

// textAsset returns a fixture with an asset whose script writes text files that are converted to a table. columns are
// the declared columns: "name TYPE, …".
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
		w.plan.Assets["a/x"].Checks[0].Severity = quality.Warning // this must be a warning, because the check fails: it expects types as DuckDB spells them
		w.storePlan()
		if c[2] == "" {
			w.run("a/x")
			continue
		}
		require.Contains(t, w.failed("a/x").Message, `convert a.csv: line 2: "`+c[1]+`" in column n `+c[2], c[0])
	}
}

func filesOf(w *fixture, end *contract.Finished) (names []string) {
	w.t.Helper()
	for _, key := range w.keysBelow(end.Output.URI) {
		names = append(names, strings.TrimPrefix(key, end.Output.URI))
	}
	return names
}
