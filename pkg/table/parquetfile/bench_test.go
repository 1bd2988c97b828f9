package parquetfile_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/tabletest"
	"github.com/servo-orchestration/servo/pkg/state"
	"github.com/servo-orchestration/servo/pkg/table"
)

func BenchmarkEncode50Rows(b *testing.B)  { benchmarkEncode(b, 50) }
func BenchmarkEncode10kRows(b *testing.B) { benchmarkEncode(b, 10_000) }
func BenchmarkDecode50Rows(b *testing.B)  { benchmarkDecode(b, 50) }
func BenchmarkDecode10kRows(b *testing.B) { benchmarkDecode(b, 10_000) }

func BenchmarkEncode10RowsAsJSON(b *testing.B) {
	tab, rows := table.Of[state.Task]("tasks"), tabletest.SampleTasks(10)
	var data []byte
	for b.Loop() {
		var err error
		data, err = tab.Encode(table.JSON{}, rows)
		require.NoError(b, err)
	}
	b.ReportMetric(float64(len(data)), "bytes/file")
}

func BenchmarkDecode10RowsAsJSON(b *testing.B) {
	tab := table.Of[state.Task]("tasks")
	data, err := tab.Encode(table.JSON{}, tabletest.SampleTasks(10))
	require.NoError(b, err)
	for b.Loop() {
		_, err := tab.Decode(table.JSON{}, data)
		require.NoError(b, err)
	}
}

func BenchmarkEncode10Rows(b *testing.B) { benchmarkEncode(b, 10) }
func BenchmarkDecode10Rows(b *testing.B) { benchmarkDecode(b, 10) }

func benchmarkEncode(b *testing.B, n int) {
	b.Helper()
	tab, rows := table.Of[state.Task]("tasks"), tabletest.SampleTasks(n)
	size := 0
	for b.Loop() {
		data, err := tab.Encode(format, rows)
		require.NoError(b, err)
		size = len(data)
	}
	b.ReportMetric(float64(size), "bytes/file")
}

func benchmarkDecode(b *testing.B, n int) {
	b.Helper()
	tab := table.Of[state.Task]("tasks")
	data, err := tab.Encode(format, tabletest.SampleTasks(n))
	require.NoError(b, err)
	for b.Loop() {
		rows, err := tab.Decode(format, data)
		require.NoError(b, err)
		require.Len(b, rows, n)
	}
}

// BenchmarkMergeBaseAnd64Deltas merges a base of 100,000 rows with 64 deltas of 50 rows.
func BenchmarkMergeBaseAnd64Deltas(b *testing.B) {
	tab := table.Of[state.Task]("tasks")
	base := tabletest.SampleTasks(100_000)
	files := [][]*state.Task{base}
	for i := range 64 {
		var delta []*state.Task
		for j := range 50 {
			row := *base[(i*1000+j*17)%len(base)]
			row.Seq += int64(i+1) * 1_000_000
			delta = append(delta, &row)
		}
		files = append(files, delta)
	}
	for b.Loop() {
		_, err := tab.Merge(files...)
		require.NoError(b, err)
	}
}

func BenchmarkOf(b *testing.B) {
	for b.Loop() {
		table.Of[state.Task]("tasks")
	}
}
