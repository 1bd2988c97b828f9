package corpus_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/corpus"
	"github.com/servo-orchestration/servo/pkg/blob/fileblob"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/domain"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

func TestCorpusHasItsSize(t *testing.T) {
	c := corpus.New(ids.Domain{Tenant: "bench", Workspace: "main"}, corpus.Small, 1, time.Date(2026, 1, 15, 12, 0, 0, 0, time.UTC))
	require.Len(t, c.Assets, corpus.Small.Assets)
	dir := t.TempDir()
	require.NoError(t, c.Write(t.Context(), dir))
	store, err := fileblob.Open(dir, fileblob.Options{NoSync: true})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	h := domain.Open(domain.Handle{Domain: c.Domain, Store: store, Clock: clock.System{}})
	snap, err := snapshot.NewReader(c.Domain, h.Codec, h.Manifests, h.Clock).Current(t.Context())
	require.NoError(t, err)
	page, err := snap.FindRuns(t.Context(), snapshot.RunQuery{Limit: 2 * corpus.Small.Runs})
	require.NoError(t, err)
	require.Len(t, page.Runs, corpus.Small.Runs+1+20, "the closed runs, the large one and the live ones")
	tasks, err := snap.FindTasks(t.Context(), snapshot.TaskQuery{RunID: c.LargeRun(), Limit: 2 * corpus.Small.Tasks})
	require.NoError(t, err)
	require.Len(t, tasks.Tasks, corpus.Small.Tasks)
	stored, large := 0, 0
	for row, err := range snap.AllPartitions(t.Context()) {
		require.NoError(t, err)
		require.Equal(t, state.Materialized, row.Status)
		if stored++; row.AssetKey == c.LargeAsset().String() {
			large++
		}
	}
	require.InDelta(t, corpus.Small.Partitions, stored, float64(corpus.Small.Partitions)/20)
	require.InDelta(t, corpus.Small.Partitions/10, large, float64(corpus.Small.Partitions)/100)
}
