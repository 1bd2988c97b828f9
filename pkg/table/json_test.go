package table_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/servo-orchestration/servo/internal/tabletest"
	"github.com/servo-orchestration/servo/pkg/state"
	"github.com/servo-orchestration/servo/pkg/table"
)

func TestJSONRoundTrip(t *testing.T) {
	for _, d := range state.Declarations() {
		t.Run(d.Name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				data, err := d.Encode(table.JSON{}, tabletest.DrawList(t, d))
				require.NoError(t, err)
				read, err := d.Decode(table.JSON{}, data)
				require.NoError(t, err, "%s", data)
				again, err := d.Encode(table.JSON{}, read)
				require.NoError(t, err)
				require.Equal(t, string(data), string(again))
			})
		})
	}
}

func TestEncodeJSONOmitsZeroColumns(t *testing.T) {
	tab := table.Of[state.Dep]("dep_satisfaction")
	row := &state.Dep{RunID: "r", Upstream: "a", Downstream: "b", Meta: state.Meta{Tenant: "t", Seq: 7}}
	data, err := tab.Encode(table.JSON{}, []*state.Dep{row})
	require.NoError(t, err)
	require.Equal(t, `[{"run_id":"r","upstream_task_key":"a","downstream_task_key":"b","tenant_id":"t","row_seq":7}]`, string(data))
}

func TestDecodeJSONReadsRowsOfOtherBuilds(t *testing.T) {
	tab := table.Of[state.Dep]("dep_satisfaction")
	rows, err := tab.Decode(table.JSON{}, []byte(`[ {"row_seq": 3, "new": [{"x": 1}], "run_id":"r", "downstream_task_key":"b", "upstream_task_key":"a"} ]`))
	require.NoError(t, err)
	require.Equal(t, []*state.Dep{{RunID: "r", Upstream: "a", Downstream: "b", Meta: state.Meta{Seq: 3}}}, rows)
}

func TestDecodeJSONRejectsInvalidRows(t *testing.T) {
	tab := table.Of[state.Limit]("limits")
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
		_, err := tab.Decode(table.JSON{}, []byte(data))
		require.ErrorContains(t, err, want, "%s", data)
	}
	_, err := tab.Encode(table.JSON{}, []*state.Limit{{Scope: "\xff", Name: "b"}})
	require.ErrorContains(t, err, "not UTF-8")
}

// FuzzDecodeJSON requires that for any bytes, Decode returns an error, or rows that can be encoded and decoded again.
func FuzzDecodeJSON(f *testing.F) {
	tab := table.Of[state.Task]("tasks")
	for _, n := range []int{0, 1, 5} {
		data, err := tab.Encode(table.JSON{}, tabletest.SampleTasks(n))
		require.NoError(f, err)
		f.Add(data)
		f.Add(data[:len(data)/2])
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		rows, err := tab.Decode(table.JSON{}, data)
		if err != nil {
			return
		}
		again, err := tab.Encode(table.JSON{}, rows)
		require.NoError(t, err)
		read, err := tab.Decode(table.JSON{}, again)
		require.NoError(t, err)
		require.Empty(t, slices.Collect(tab.Diff(rows, read)))
	})
}
