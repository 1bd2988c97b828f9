package api_test

import (
	"testing"

	"connectrpc.com/connect"
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

// TestProblemsNameFieldsOfRequest sends requests that cannot be planned.
func TestProblemsNameFieldsOfRequest(t *testing.T) {
	f := serve(t, daily(asset("raw/days", "echo day")), daily(asset("raw/next", "echo day")), asset("raw/one", "echo one"),
		asset("mart/total", "echo total", "raw/days"))
	c := f.connect(t)
	for want, r := range map[string]*servov1.TriggerRunRequest{
		`add "upstream": true`: {Assets: []string{"mart/total"}},
		`select partitions, for example "partitions": ["date=2025-01-01..2025-01-05"]`: {Assets: []string{"raw/days"}},
		`with partitions, for example "partitions": ["all"], or run what is stale or missing with "only": "stale"`: {
			Assets: []string{"raw/days", "raw/next"},
		},
		"remove partitions, or select a partitioned asset": {Assets: []string{"raw/one"}, Partitions: []string{"2025-01-01"}},
		`is partitioned by date, not by region: select "partitions": ["date=2025-01-01..2025-01-05"]`: {
			Assets: []string{"raw/days"}, Partitions: []string{"region=eu"},
		},
		"or the field partitions": {Assets: []string{"raw/days[date=2025-01-01]"}},
	} {
		_, err := c.execution.TriggerRun(t.Context(), r)
		requireFields(t, err, want)
	}
	_, err := c.backfills.CreateBackfill(t.Context(), &servov1.CreateBackfillRequest{
		Assets: []string{"raw/days"}, Partitions: []string{"all"}, Ordered: true, MaxParallel: 3,
	})
	requireFields(t, err, `remove max_parallel and "order": "newest", or ordered`)
}

// requireFields checks that the text of an error contains want, and names no flags of the command line.
func requireFields(t *testing.T, err error, want string) {
	t.Helper()
	require.Equal(t, connect.CodeInvalidArgument, connect.CodeOf(err))
	require.ErrorContains(t, err, want)
	require.NotContains(t, err.Error(), "--")
}
