package e2e_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/state"
)

// maxPeakKiB is how much memory a process may use for a run of two thousand tasks.
const maxPeakKiB = 500 << 10

func TestLargeProjectRunsInLittleMemory(t *testing.T) {
	layers := 3
	if *full {
		layers = 20
	}
	dir := filepath.Join(t.TempDir(), "state")
	j := &job{Dir: dir, Root: t.TempDir(), Concurrency: 8, Layers: layers, Width: 100, Fan: 3, Command: []string{"true"}}
	began := clock.System{}.Now()
	last := startChild(t, j).end(t)
	took := clock.System{}.Now().Sub(began)
	require.Equal(t, state.RunSucceeded, last.State)
	require.Equal(t, int32(j.tasks()), last.Succeeded)
	require.Less(t, last.PeakKiB, maxPeakKiB)

	p := openParts(t, dir)
	snap, err := p.Reader().Current(t.Context())
	require.NoError(t, err)
	edges := 0
	for dep := range snap.State.Deps.All {
		up := snap.State.Tasks.Get(state.Key2{A: dep.RunID, B: dep.Upstream})
		down := snap.State.Tasks.Get(state.Key2{A: dep.RunID, B: dep.Downstream})
		require.Equal(t, state.TaskSucceeded, up.State)
		require.GreaterOrEqual(t, down.StartedAt, up.CompletedAt, "%s began before %s ended", down.TaskKey, up.TaskKey)
		edges++
	}
	require.Equal(t, (layers-1)*100*3, edges)
	report := requireVerified(t, p)
	t.Logf("%d tasks and %d edges in %s (%.1f tasks/s), peak memory %d MiB; %d ledger groups, %d revisions",
		j.tasks(), edges, took.Round(time.Millisecond), float64(j.tasks())/took.Seconds(), last.PeakKiB>>10, report.Groups, report.Revision)
}
