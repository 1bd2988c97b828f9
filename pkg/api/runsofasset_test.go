package api_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/servov1"
)

// The row of a run names only the first 20 requested assets.
func TestRunsOfAssetIncludeRunsOfManyAssets(t *testing.T) {
	var assets []plan.Asset
	var keys []string
	for i := range 22 {
		keys = append(keys, fmt.Sprintf("raw/a%02d", i))
		assets = append(assets, asset(keys[i], "echo x"))
	}
	f := serve(t, assets...)
	c := f.connect(t)
	var runs []string
	for _, selected := range [][]string{keys[:21], keys[:1], append(slices.Clone(keys[:20]), keys[21]), keys} {
		started, err := c.execution.TriggerRun(t.Context(), &servov1.TriggerRunRequest{Assets: selected})
		require.NoError(t, err)
		f.await(t, started.GetRunId())
		runs = append(runs, started.GetRunId())
	}
	for key, want := range map[string][]string{
		keys[0]:   {runs[3], runs[2], runs[1], runs[0]},
		keys[20]:  {runs[3], runs[0]},
		keys[21]:  {runs[3], runs[2]},
		"raw/a22": nil,
	} {
		for _, size := range []int32{1, 2, 50} {
			var got []string
			r := &servov1.ListRunsRequest{Asset: key, PageSize: size}
			for {
				found, err := c.execution.ListRuns(t.Context(), r)
				require.NoError(t, err)
				require.LessOrEqual(t, len(found.GetRuns()), int(size))
				for _, run := range found.GetRuns() {
					got = append(got, run.GetRunId())
				}
				if r.PageToken = found.GetNextPageToken(); r.PageToken == "" {
					break
				}
			}
			require.Equal(t, want, got, "%s, pages of %d", key, size)
		}
	}
}
