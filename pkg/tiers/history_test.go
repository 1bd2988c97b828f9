package tiers_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/state"
	"github.com/servo-orchestration/servo/pkg/tiers"
)

// eager makes every publish start a base, so that runs move to history as early as possible.
var eager = tiers.Options{MaxDeltas: 4, MaxInline: -1, MinBase: 1, KeepEntries: time.Hour}

// The closed rows of one base become several segments.
func TestHistoryInSeveralSegmentsKeepsAllRows(t *testing.T) {
	options := eager
	options.MaxSegment = 3
	f := newFixture(t, options)
	runs := map[string]*state.State{}
	for range 3 { // each base adds segments to those of the previous base
		for range 10 {
			run := f.endedRun()
			runs[run] = state.New(foldtest.Domain)
			runs[run].Load(f.State.All().OfRun(run))
		}
		f.Pass(time.Hour)
		f.rebase()
	}
	require.GreaterOrEqual(t, f.manifest.History["runs"].Rows, int64(len(runs)))
	snap := f.load()
	for run, want := range runs {
		require.Nil(t, snap.State.Runs.Get(run), "the run is in history")
		closed, err := snap.WithRun(t.Context(), run)
		require.NoError(t, err)
		require.Empty(t, state.Diff(want, closed, 5))
	}
	f.verify()
}

// Manifests stay small, because they do not contain the index of history, and because segments of similar size are
// merged.
func TestHistoryGrowthKeepsManifestsSmall(t *testing.T) {
	f := newFixture(t, eager)
	for i := range 60 {
		f.endedRun()
		if i%3 == 0 {
			f.Pass(state.ClosedAfter)
		}
	}
	m := f.manifest
	segments, err := f.manifests.HistoryFiles(t.Context(), m)
	require.NoError(t, err)
	byTable := map[string]int{}
	for _, segment := range segments {
		byTable[segment.Table]++
	}
	require.Greater(t, m.History["runs"].Rows, int64(30))
	require.LessOrEqual(t, byTable["runs"], 7, "%v", byTable)
	require.LessOrEqual(t, len(m.History), 6)
	size, err := manifest.Encode(m)
	require.NoError(t, err)
	require.Less(t, len(size), 12_000, fmt.Sprint(m.History))
	f.verify()
}

func TestExpiredTableHasNoHistoryIndex(t *testing.T) {
	options := eager
	options.KeepRuns = 24 * time.Hour
	f := newFixture(t, options)
	f.endedRun()
	f.Pass(time.Hour)
	f.rebase()
	require.Contains(t, f.manifest.History, "runs")
	f.Pass(48 * time.Hour)
	f.rebase()
	require.NotContains(t, f.manifest.History, "runs")
	f.verify()
}

// Even if an index of history is missing, new bases must be published.
func TestLostIndexDoesNotBlockBases(t *testing.T) {
	f := newFixture(t, eager)
	f.endedRun()
	f.Pass(2 * state.ClosedAfter)
	f.rebase()
	f.Pass(2 * state.ClosedAfter)
	f.endedRun()
	base := f.manifest.BaseSnapshot.ID
	require.NoError(t, f.blobs.Delete(t.Context(), f.manifest.History["runs"].Key))
	f.open() // the live state can be loaded without the index
	for range 10 {
		f.endedRun()
		f.Pass(state.ClosedAfter)
	}
	require.NotEqual(t, base, f.manifest.BaseSnapshot.ID)
}
