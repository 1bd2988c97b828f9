package repair

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/memblob"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/domain"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

// A rebuild must not hold all closed rows in memory.
func TestSegmentsHoldFewRowsInMemory(t *testing.T) {
	d := ids.Domain{Tenant: "t", Workspace: "w"}
	now := clock.System{}.Now
	store := memblob.New(memblob.Options{Now: now})
	source := ids.NewSource(now, nil)
	cfg := Config{
		Handle: domain.Open(domain.Handle{Domain: d, Store: store, IDs: source}),
	}
	s := cfg.newSegments("")
	s.max = 100
	var want []string
	for i := range 1000 {
		run := &state.Run{RunID: ids.AtTime(time.Unix(int64(1000-i), 0)), State: state.RunSucceeded} // newest first
		run.Seq = int64(i + 1)
		want = append([]string{run.RunID}, want...)
		require.NoError(t, s.add(t.Context(), state.Set(&state.Rows{}, []*state.Run{run})))
		require.Less(t, s.buffered, 100)
	}
	require.NoError(t, s.flush(t.Context()))
	require.EqualValues(t, 1000, s.rows)
	require.Len(t, s.files["runs"], 10)

	floor := source.New() // greater than the names of all files so far
	require.NoError(t, s.refresh(t.Context(), floor))
	require.True(t, manifest.NamedFrom(floor, s.files["runs"]))
	indexes, err := s.indexes(t.Context())
	require.NoError(t, err)
	rows, err := snapshot.LoadHistory(t.Context(), cfg.Codec, cfg.Manifests, &manifest.Manifest{
		Tenant: d.Tenant, Workspace: d.Workspace, History: indexes,
	})
	require.NoError(t, err)
	var got []string
	for _, run := range state.List[state.Run](rows) {
		got = append(got, run.RunID)
	}
	require.Equal(t, want, got, fmt.Sprint(len(got)))
}
