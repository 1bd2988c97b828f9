package table_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/servo-orchestration/servo/pkg/state"
	"github.com/servo-orchestration/servo/pkg/table"
)

func TestJSONRoundTrip(t *testing.T) {
	t.Run("runs", jsonRoundTrip[state.Run])
	t.Run("tasks", jsonRoundTrip[state.Task])
	t.Run("deps", jsonRoundTrip[state.Dep])
	t.Run("timers", jsonRoundTrip[state.Timer])
	t.Run("outbox", jsonRoundTrip[state.Dispatch])
	t.Run("attempts", jsonRoundTrip[state.Attempt])
	t.Run("heartbeats", jsonRoundTrip[state.Heartbeat])
	t.Run("run keys", jsonRoundTrip[state.RunKey])
	t.Run("conflicts", jsonRoundTrip[state.RunKeyConflict])
	t.Run("limits", jsonRoundTrip[state.Limit])
	t.Run("partitions", jsonRoundTrip[state.Partition])
	t.Run("entries", jsonRoundTrip[state.Entry])
}

func jsonRoundTrip[R table.Row](t *testing.T) {
	tab := table.Of[R]()
	rapid.Check(t, func(t *rapid.T) {
		var rows []*R
		for range rapid.IntRange(0, 5).Draw(t, "rows") {
			rows = append(rows, drawRow[R](t, "row"))
		}
		rows = unique(tab, rows)
		data, err := tab.AppendJSON(nil, rows)
		require.NoError(t, err)
		read, err := tab.DecodeJSON(data)
		require.NoError(t, err, "%s", data)
		require.Empty(t, slices.Collect(tab.Diff(rows, read)), "%s", data)
	})
}

func TestAppendJSONOmitsZeroColumns(t *testing.T) {
	tab := table.Of[state.Dep]()
	row := &state.Dep{RunID: "r", Upstream: "a", Downstream: "b", Meta: state.Meta{Tenant: "t", Seq: 7}}
	data, err := tab.AppendJSON([]byte("x"), []*state.Dep{row})
	require.NoError(t, err)
	require.Equal(t, `x[{"run_id":"r","upstream_task_key":"a","downstream_task_key":"b","tenant_id":"t","row_seq":7}]`, string(data))
}

func TestDecodeJSONReadsRowsOfOtherBuilds(t *testing.T) {
	tab := table.Of[state.Dep]()
	rows, err := tab.DecodeJSON([]byte(`[ {"row_seq": 3, "new": [{"x": 1}], "run_id":"r", "downstream_task_key":"b", "upstream_task_key":"a"} ]`))
	require.NoError(t, err)
	require.Equal(t, []*state.Dep{{RunID: "r", Upstream: "a", Downstream: "b", Meta: state.Meta{Seq: 3}}}, rows)
}

func TestDecodeJSONRejectsInvalidRows(t *testing.T) {
	tab := table.Of[state.Limit]()
	for data, want := range map[string]string{
		``:                                      "decode limits",
		`{}`:                                    "expected [",
		`[1]`:                                   "row 0: expected {, got 1",
		`[] []`:                                 "unexpected data after the rows",
		`[{"scope":"a","name":"b","row_seq":1}`: "EOF",
		`[{"scope":"a","row_seq":1}]`:           "row_seq, is missing",
		`[{"scope":"a","name":"b"}]`:            "row_seq, is missing",
		`[{"scope":"a","scope":"b","row_seq":1}]`:                                     "duplicate",
		`[{"scope":1,"name":"b","row_seq":1}]`:                                        "column scope: must be VARCHAR, got 1",
		`[{"scope":"a","name":"b","row_seq":"1"}]`:                                    "column row_seq",
		`[{"scope":"a","name":"b","row_seq":1.5}]`:                                    "column row_seq",
		`[{"scope":"a","name":"b","row_seq":99999999999999999999}]`:                   "out of range",
		`[{"scope":"a","name":"b","row_seq":1,"deleted":"no"}]`:                       "true or false",
		`[{"scope":"a","name":"b","row_seq":1},{"scope":"a","name":"b","row_seq":2}]`: "not in ascending order",
	} {
		_, err := tab.DecodeJSON([]byte(data))
		require.ErrorContains(t, err, want, "%s", data)
	}
	_, err := tab.AppendJSON(nil, []*state.Limit{{Scope: "\xff", Name: "b"}})
	require.ErrorContains(t, err, "not UTF-8")
}

// FuzzDecodeJSON requires that DecodeJSON returns an error or rows that round-trip, for
// any bytes.
func FuzzDecodeJSON(f *testing.F) {
	tab := table.Of[state.Task]()
	for _, n := range []int{0, 1, 5} {
		data, err := tab.AppendJSON(nil, sampleTasks(n))
		require.NoError(f, err)
		f.Add(data)
		f.Add(data[:len(data)/2])
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		rows, err := tab.DecodeJSON(data)
		if err != nil {
			return
		}
		again, err := tab.AppendJSON(nil, rows)
		require.NoError(t, err)
		read, err := tab.DecodeJSON(again)
		require.NoError(t, err)
		require.Empty(t, slices.Collect(tab.Diff(rows, read)))
	})
}
