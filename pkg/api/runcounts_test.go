package api_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/servov1"
	"github.com/servo-orchestration/servo/pkg/tiers"
)

func TestRunsAreCountedByHourAndState(t *testing.T) {
	small := tiers.Options{MaxDeltas: 2, MaxInline: 1000, MinBase: 1000}
	f := serveTiers(t, t.TempDir(), nil, small, asset("raw/a", "exit 0"), asset("raw/bad", "exit 3", "raw/a"))
	f.run(t)
	f.run(t)
	f.project.Assets = f.project.Assets[:1]
	f.run(t)
	c := f.connect(t)
	counted, err := c.state.CountRuns(t.Context(), &servov1.CountRunsRequest{})
	require.NoError(t, err)
	require.Len(t, counted.GetHours(), 24)
	runs := map[string]int32{}
	for i, hour := range counted.GetHours() {
		for state, n := range hour.GetRuns() { // the hour may have ended during the runs
			runs[state] += n
		}
		require.Equal(t, counted.GetHours()[0].GetFrom().AsTime().Add(-time.Duration(i)*time.Hour), hour.GetFrom().AsTime())
	}
	require.Equal(t, map[string]int32{"FAILED": 2, "SUCCEEDED": 1}, runs)
	require.Equal(t, counted.GetHours()[23].GetFrom().AsTime(), counted.GetCountedFrom().AsTime())
	require.Positive(t, counted.GetRevision())

	past, err := c.state.CountRuns(t.Context(), &servov1.CountRunsRequest{Hours: 3, AsOf: "1"})
	require.NoError(t, err)
	require.Len(t, past.GetHours(), 3)
	require.EqualValues(t, 1, past.GetRevision())
}
