package state_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/state"
)

func TestStatisticsKeepNewestSamples(t *testing.T) {
	var row state.AssetStatistics
	for i := range int64(40) {
		row.Add(state.Sample{DurationMS: i, Rows: 10 * i, Bytes: 100 * i, CPUMS: i%2 - 1, MemoryMS: 1})
	}
	samples, err := row.Samples()
	require.NoError(t, err)
	require.Len(t, samples, state.MaxSamples)
	require.Equal(t, state.Sample{DurationMS: 8, Rows: 80, Bytes: 800, CPUMS: -1, MemoryMS: 1, Partitions: 1}, samples[0])
	require.Equal(t, state.Sample{DurationMS: 39, Rows: 390, Bytes: 3900, CPUMS: 0, MemoryMS: 1, Partitions: 1}, samples[31])
	require.Empty(t, row.Partitions, "no attempt had a batch")
}

func TestStatisticsCountPartitionsOfBatches(t *testing.T) {
	var row state.AssetStatistics
	for _, n := range []int64{0, 1, 50, 1} {
		row.Add(state.Sample{Partitions: n})
	}
	require.Equal(t, "[1,1,50,1]", row.Partitions)
	for range state.MaxSamples - 1 {
		row.Add(state.Sample{Partitions: 1000})
	}
	samples, err := row.Samples()
	require.NoError(t, err)
	require.Len(t, samples, state.MaxSamples)
	require.Equal(t, int64(1), samples[0].Partitions)
	require.Equal(t, int64(1000), samples[1].Partitions)

	first := state.AssetStatistics{}
	first.Add(state.Sample{Partitions: 7})
	require.Equal(t, "[7]", first.Partitions)
}

func TestStatisticsReportDamagedLists(t *testing.T) {
	row := state.AssetStatistics{AssetKey: "a/b", DurationMS: "[1,2]", Rows: "[1]", Bytes: "[]", CPUMS: "[]", MemoryMS: "[]"}
	_, err := row.Samples()
	require.EqualError(t, err, "read the statistics of asset a/b: lists of 2 and 1 values")
	row = state.AssetStatistics{AssetKey: "a/b", DurationMS: "[1]", Rows: "[1]", Bytes: "[1]", CPUMS: "[1]", MemoryMS: "[1]", Partitions: "[1,2]"}
	_, err = row.Samples()
	require.EqualError(t, err, "read the statistics of asset a/b: lists of 1 and 2 values")
	row.Partitions = "[0]"
	_, err = row.Samples()
	require.EqualError(t, err, "read the statistics of asset a/b: an attempt with 0 partitions")
	row.Rows = "[1"
	_, err = row.Samples()
	require.ErrorContains(t, err, "read the statistics of asset a/b: unexpected end")
}

func TestRoundSampleKeepsThreeDigits(t *testing.T) {
	for v, want := range map[int64]int64{
		0: 0, 7: 7, 999: 999, 1004: 1000, 1005: 1010, 9996: 10000, 123456: 123000, 999999: 1000000, math.MaxInt64: 9220000000000000000,
	} {
		require.Equal(t, want, state.RoundSample(v), v)
	}
}
