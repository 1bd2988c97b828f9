package staleness_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/space"
	"github.com/servo-orchestration/servo/pkg/state"
)

// ledger returns an asset that reads itself: a partition reads all accounts of the previous day.
func ledger() plan.Asset {
	return plan.Asset{
		Key: key("ledger"), Deps: []ids.AssetKey{key("ledger")},
		Partitions: &space.Space{Dimensions: []space.Dimension{
			{Name: "account", Kind: space.Static, Values: []string{"x", "y"}}, {Name: "date", Kind: space.Daily, Start: "2025-01-01", End: "2025-01-04"},
		}},
		Reads: []plan.Dep{{Asset: key("ledger"), Map: space.Map{Dimensions: []space.DimensionMap{
			{Dimension: "account", Op: space.All}, {Dimension: "date", Op: space.Window, From: -1, To: -1},
		}}}},
	}
}

func entry(account string, n int) string {
	return ids.Partition{"account": account, "date": fmt.Sprintf("2025-01-%02d", n+1)}.Key()
}

// ledgerRow returns the row of a partition with the given version. The parameter inputs is the sequence number of the
// state on which its run was planned.
func ledgerRow(account string, n int, run string, version, inputs int64) *state.Partition {
	return &state.Partition{
		AssetKey: "a/ledger", PartitionKey: entry(account, n), RunID: run, VersionSeq: version, InputsSeq: inputs,
		MaterializedAt: event.At(time.Date(2025, 1, 20, 0, 0, 0, 0, time.UTC)),
	}
}

// TestAssetThatReadsItselfRunsInOrderOfTime makes one day again, and checks that all later partitions that depend on
// it are chosen. The evaluation must go through the days in order of time, although all keys of account x sort before
// those of account y.
func TestAssetThatReadsItselfRunsInOrderOfTime(t *testing.T) {
	first, second := ids.AtTime(time.Date(2025, 1, 20, 0, 0, 0, 0, time.UTC)), ids.AtTime(time.Date(2025, 1, 21, 0, 0, 0, 0, time.UTC))
	rows := []*state.Partition{}
	for _, account := range []string{"x", "y"} {
		for n := range days {
			rows = append(rows, ledgerRow(account, n, first, int64(10+2*n), 5))
		}
	}
	choose := func() []string {
		e := evaluation(t, []plan.Asset{ledger()}, map[ids.AssetKey][]*state.Partition{key("ledger"): rows}, nil)
		chosen, blocked, err := e.ToRun(map[ids.AssetKey]bool{key("ledger"): true})
		require.NoError(t, err)
		require.Empty(t, blocked)
		require.True(t, slices.IsSorted(chosen[key("ledger")]))
		return chosen[key("ledger")]
	}
	require.Empty(t, choose(), "one run made all of them, in order")

	// Another run makes the second day of account y again, so both accounts must be made again for the days after it.
	rows[5] = ledgerRow("y", 1, second, 100, 50)
	require.Equal(t, []string{entry("x", 2), entry("x", 3), entry("y", 2), entry("y", 3)}, choose())

	// If nothing is materialized, all partitions can run: the first days have nothing to read, and later days read
	// earlier ones.
	rows = nil
	require.Len(t, choose(), 2*days)
}
