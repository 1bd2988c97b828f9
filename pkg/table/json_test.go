package table_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/servo-orchestration/servo/pkg/state"
	"github.com/servo-orchestration/servo/pkg/table"
)

func TestRowsAsJSONAreTheRows(t *testing.T) {
	t.Run("runs", jsonKeepsRows[state.Run])
	t.Run("tasks", jsonKeepsRows[state.Task])
	t.Run("deps", jsonKeepsRows[state.Dep])
	t.Run("timers", jsonKeepsRows[state.Timer])
	t.Run("outbox", jsonKeepsRows[state.Dispatch])
	t.Run("attempts", jsonKeepsRows[state.Attempt])
	t.Run("heartbeats", jsonKeepsRows[state.Heartbeat])
	t.Run("run keys", jsonKeepsRows[state.RunKey])
	t.Run("conflicts", jsonKeepsRows[state.RunKeyConflict])
	t.Run("limits", jsonKeepsRows[state.Limit])
	t.Run("partitions", jsonKeepsRows[state.Partition])
	t.Run("entries", jsonKeepsRows[state.Entry])
}

func jsonKeepsRows[R table.Row](t *testing.T) {
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

func TestRowsAsJSONLeaveOutWhatIsZero(t *testing.T) {
	tab := table.Of[state.Dep]()
	row := &state.Dep{RunID: "r", Upstream: "a", Downstream: "b", Meta: state.Meta{Tenant: "t", Seq: 7}}
	data, err := tab.AppendJSON([]byte("x"), []*state.Dep{row})
	require.NoError(t, err)
	require.Equal(t, `x[{"run_id":"r","upstream_task_key":"a","downstream_task_key":"b","tenant_id":"t","row_seq":7}]`, string(data))
}

func TestRowsAsJSONOfAnotherBuildRead(t *testing.T) {
	tab := table.Of[state.Dep]()
	rows, err := tab.DecodeJSON([]byte(`[ {"row_seq": 3, "new": [{"x": 1}], "run_id":"r", "downstream_task_key":"b", "upstream_task_key":"a"} ]`))
	require.NoError(t, err)
	require.Equal(t, []*state.Dep{{RunID: "r", Upstream: "a", Downstream: "b", Meta: state.Meta{Seq: 3}}}, rows)
}

func TestWhatIsWrongWithRowsAsJSONIsSaid(t *testing.T) {
	tab := table.Of[state.Limit]()
	for data, want := range map[string]string{
		``:                                      "decode limits",
		`{}`:                                    "where [ was expected",
		`[1]`:                                   "row 0: there is 1 where { was expected",
		`[] []`:                                 "something follows",
		`[{"scope":"a","name":"b","row_seq":1}`: "EOF",
		`[{"scope":"a","row_seq":1}]`:           "lacks a column",
		`[{"scope":"a","name":"b"}]`:            "lacks a column",
		`[{"scope":"a","scope":"b","row_seq":1}]`:                                     "duplicate",
		`[{"scope":1,"name":"b","row_seq":1}]`:                                        "column scope: it is 1",
		`[{"scope":"a","name":"b","row_seq":"1"}]`:                                    "column row_seq",
		`[{"scope":"a","name":"b","row_seq":1.5}]`:                                    "column row_seq",
		`[{"scope":"a","name":"b","row_seq":99999999999999999999}]`:                   "out of range",
		`[{"scope":"a","name":"b","row_seq":1,"deleted":"no"}]`:                       "true or false",
		`[{"scope":"a","name":"b","row_seq":1},{"scope":"a","name":"b","row_seq":2}]`: "not after the row before it",
	} {
		_, err := tab.DecodeJSON([]byte(data))
		require.ErrorContains(t, err, want, "%s", data)
	}
	_, err := tab.AppendJSON(nil, []*state.Limit{{Scope: "\xff", Name: "b"}})
	require.ErrorContains(t, err, "not UTF-8")
}

// FuzzDecodeJSON: whatever the bytes, DecodeJSON gives rows or an error; and rows
// that it gives can be written and read again.
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
