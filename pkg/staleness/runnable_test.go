package staleness_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/state"
)

// The assets are raw → clean → total → copy, and total also reads raw: see the function assets.
func TestRunnableLeavesOutReadersOfFailures(t *testing.T) {
	rows := map[ids.AssetKey][]*state.Partition{}
	for n := range days {
		for _, name := range []string{"raw", "clean"} {
			rows[key(name)] = append(rows[key(name)], &state.Partition{AssetKey: key(name).String(), PartitionKey: day(n), Status: state.Materialized, VersionSeq: int64(n + 1)})
		}
	}
	left := map[ids.AssetKey][]string{key("clean"): {day(0), day(1)}, key("total"): {""}, key("copy"): {""}}
	e := evaluation(t, assets(), rows, nil)
	got, err := e.Runnable(left, nil)
	require.NoError(t, err)
	require.Equal(t, left, got, "old outputs are inputs like any other")

	got, err = e.Runnable(left, map[ids.AssetKey][]string{key("raw"): {day(1)}})
	require.NoError(t, err)
	require.Equal(t, map[ids.AssetKey][]string{key("clean"): {day(0)}}, got, "day 1 read a failure, total reads it, and copy reads total")

	delete(rows, key("raw"))
	got, err = evaluation(t, assets(), rows, nil).Runnable(left, nil)
	require.NoError(t, err)
	require.Empty(t, got, "an input is missing")
}
