package parquetfile_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/tabletest"
	"github.com/servo-orchestration/servo/pkg/state"
	"github.com/servo-orchestration/servo/pkg/table"
)

// FuzzDecode requires that for any bytes, Decode returns an error, or rows that can be encoded and decoded again.
func FuzzDecode(f *testing.F) {
	tab := table.Of[state.Task]("tasks")
	for _, n := range []int{0, 1, 50} {
		data, err := tab.Encode(format, tabletest.SampleTasks(n))
		require.NoError(f, err)
		f.Add(data)
		f.Add(data[:len(data)/2])
	}
	f.Add([]byte("PAR1PAR1"))
	f.Add([]byte("PAR1\x00\x00\x00\x00PAR1"))
	f.Fuzz(func(t *testing.T, data []byte) {
		rows, err := tab.Decode(format, data)
		if err != nil {
			return
		}
		again, err := tab.Encode(format, rows)
		require.NoError(t, err)
		read, err := tab.Decode(format, again)
		require.NoError(t, err)
		require.Empty(t, slices.Collect(tab.Diff(rows, read)))
	})
}
