package state_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/state"
)

func TestARunOfAnEarlierBuildReadsAsThisOneWouldHaveWrittenIt(t *testing.T) {
	var assets []string
	for i := range 30 {
		assets = append(assets, fmt.Sprintf("raw/a%02d", i))
	}
	want := &state.Run{}
	want.Asked(assets, []string{`date=<"2012">`})
	require.EqualValues(t, 30, want.RootAssetsTotal)
	require.EqualValues(t, 1, want.PartitionsTotal)

	old := &state.Run{RootAssets: `["raw/a00"`, Partitions: want.Partitions}
	for _, key := range assets[1:] {
		old.RootAssets += fmt.Sprintf(",%q", key)
	}
	old.RootAssets += "]"
	old.Upgrade()
	require.Equal(t, want, old)
	old.Upgrade()
	require.Equal(t, want, old, "it is done once")

	for _, run := range []state.Run{{}, {RootAssets: "no JSON"}, {RootAssets: `["a"]`, Partitions: "{}"}} {
		as := run
		as.Upgrade()
		require.Equal(t, run, as, "what cannot be read stays as it is")
	}
}
