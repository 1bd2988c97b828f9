package api_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/servov1"
)

// TestTriggerRunWarnsAboutIncompleteInputs runs an asset that reads all days, although most days are missing.
func TestTriggerRunWarnsAboutIncompleteInputs(t *testing.T) {
	f := serve(t, daily(asset("raw/days", "echo day")), asset("mart/total", "echo total", "raw/days"))
	c := f.connect(t)
	started, err := c.execution.TriggerRun(t.Context(), &servov1.TriggerRunRequest{All: true, Partitions: []string{"date=2025-01-01"}, AllowIncomplete: true})
	require.NoError(t, err)
	require.Len(t, started.GetWarnings(), 1)
	require.Regexp(t, `^mart/total reads 1 of \d+ partitions of raw/days; missing 2025-01-02`, started.GetWarnings()[0])
	f.await(t, started.GetRunId())
}
