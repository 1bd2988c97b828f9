package query_test

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/tabletest"
	"github.com/servo-orchestration/servo/pkg/query"
	"github.com/servo-orchestration/servo/pkg/state"
)

func TestInlineRowsEqualRowsOfFiles(t *testing.T) {
	t.Parallel()
	file, manifest := newRevision(t), newRevision(t)
	for _, d := range state.Declarations() {
		addBoth(t, file, manifest, d)
	}
	files, inline := file.open(t), manifest.open(t)
	for _, d := range state.Declarations() {
		want := all(t, files, "SELECT * FROM "+d.Name+" ORDER BY ALL")
		require.Len(t, want, 4, d.Name)
		require.Equal(t, want, all(t, inline, "SELECT * FROM "+d.Name+" ORDER BY ALL"), d.Name)
		require.Equal(t, all(t, files, "SELECT column_name, column_type FROM (DESCRIBE "+d.Name+")"),
			all(t, inline, "SELECT column_name, column_type FROM (DESCRIBE "+d.Name+")"))
	}
}

// addBoth adds the same rows to a file and to a manifest: a row of zeros, one of ordinary values, one of values that
// contain SQL, and one of times whose year has five digits.
func addBoth(t *testing.T, file, manifest *revision, d *state.Declaration) {
	t.Helper()
	rows := reflect.ValueOf(tabletest.Row(d))
	for _, row := range []struct {
		text string
		n    int64
	}{{"plain", 1_760_000_000_123_456}, {"'); DROP VIEW runs; -- \"\\ \x00\n é", -5}, {"after the year 9999", 253_402_300_800_000_001}} {
		next := reflect.ValueOf(tabletest.Row(d)).Index(0)
		fill(next.Elem(), row.text, row.n)
		rows = reflect.Append(rows, next)
	}
	addList(t, file, d, rows.Interface())
	inlineList(t, manifest, d, rows.Interface())
}

func fill(v reflect.Value, text string, n int64) {
	for i := range v.NumField() {
		switch field := v.Field(i); field.Kind() {
		case reflect.Struct:
			fill(field, text, n)
		case reflect.String:
			field.SetString(text)
		case reflect.Int32:
			field.SetInt(n % 1000)
		case reflect.Int64:
			field.SetInt(n)
		case reflect.Bool: // Deleted stays false: views omit deleted rows
			field.SetBool(n > 0 && v.Type().Field(i).Name != "Deleted")
		default:
			panic(field.Kind())
		}
	}
}

func TestViewCombinesFilesAndInlineRows(t *testing.T) {
	t.Parallel()
	r := newRevision(t)
	add(t, r, task(1, 1, state.TaskReady), task(2, 2, state.TaskReady), task(3, 3, state.TaskReady))
	deleted := task(2, 5, state.TaskReady)
	deleted.Meta = gone(5)
	inline(t, r, task(1, 4, state.TaskRunning), deleted)
	inline(t, r, task(1, 6, state.TaskSucceeded))
	require.Equal(t, [][]any{{"t00000001", "SUCCEEDED"}, {"t00000003", "READY"}}, all(t, r.open(t), "SELECT task_id, state FROM tasks ORDER BY 1"))
}

func TestInvalidInlineRowsAreReported(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{`:                       "table runs: inline rows of the manifest",
		`[{"row_seq":"1"}]`:       "column row_seq",
		`[{"run_id":1}]`:          "column run_id",
		`[{"deleted":"x"}]`:       "column deleted",
		`[{"created_at":"soon"}]`: "column created_at",
	} {
		_, err := query.Open(t.Context(), query.Source{Tables: map[string]query.Table{"runs": {Inline: [][]byte{[]byte(text)}}}}, query.Options{})
		require.ErrorContains(t, err, want, "%s", text)
	}
}
