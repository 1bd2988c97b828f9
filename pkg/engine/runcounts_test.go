package engine_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/corpus"
	"github.com/servo-orchestration/servo/pkg/blob/fileblob"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/domain"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

// The counts include all runs, live and closed. If the number of examined runs is limited, the counts are complete
// from counted_from on.
func TestCountRunsEqualsCountOfAllRows(t *testing.T) {
	c := corpus.New(ids.Domain{Tenant: "acme", Workspace: "prod"}, corpus.Size{Assets: 10, Runs: 20_000, Partitions: 200, Tasks: 20}, 1, time.Date(2026, 1, 15, 12, 0, 0, 0, time.UTC))
	dir := t.TempDir()
	require.NoError(t, c.Write(t.Context(), dir))
	store, err := fileblob.Open(dir, fileblob.Options{NoSync: true})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	h := domain.Open(domain.Handle{Domain: c.Domain, Store: store, Clock: clock.System{}})
	m, err := h.Manifests.Load(t.Context())
	require.NoError(t, err)
	snap, err := snapshot.NewReader(c.Domain, h.Codec, h.Manifests, h.Clock).Current(t.Context())
	require.NoError(t, err)
	closed, err := snapshot.LoadHistory(t.Context(), h.Codec, h.Manifests, m)
	require.NoError(t, err)
	all, err := state.Merge([]*state.Rows{closed, snap.State.All()})
	require.NoError(t, err)
	require.Positive(t, snap.State.Runs.Len(), "there are live runs")

	const hours = 31 * 24
	for _, to := range []time.Time{c.Now, c.Now.Add(-1000*time.Hour + 17*time.Minute), c.Now.Add(24 * time.Hour)} {
		want := make([]map[string]int32, hours)
		for i := range want {
			want[i] = map[string]int32{}
		}
		total := 0
		for _, r := range state.List[state.Run](all) {
			at := ids.Time(r.RunID)
			if i := int(to.Sub(at)-1) / int(time.Hour); at.Before(to) && i < hours {
				want[i][string(r.State)]++
				total++
			}
		}
		require.Greater(t, total, 500)
		got, err := engine.CountRuns(t.Context(), snap, to, hours, 0)
		require.NoError(t, err)
		require.Equal(t, to.Add(-hours*time.Hour), got.CountedFrom.Time())
		for i, hour := range got.Hours {
			require.Equal(t, want[i], hour.Runs, "hour %d", i)
			require.Equal(t, to.Add(-time.Duration(i+1)*time.Hour), hour.From.Time())
		}

		got, err = engine.CountRuns(t.Context(), snap, to, hours, 1)
		require.NoError(t, err)
		for i, hour := range got.Hours {
			if hour.From >= got.CountedFrom {
				require.Equal(t, want[i], hour.Runs, "hour %d of a limited count", i)
			}
		}
	}
	limited, err := engine.CountRuns(t.Context(), snap, c.Now, 100*365*24, 1)
	require.NoError(t, err)
	require.Greater(t, limited.CountedFrom.Time(), c.Now.AddDate(-99, 0, 0), "the count was limited")
}
