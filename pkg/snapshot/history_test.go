package snapshot_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

// write stores rows as files of a tier, one per table.
func (fx *fixture) write(tier string, rows *state.Rows) []manifest.File {
	fx.t.Helper()
	encoded, err := codec.Encode(rows)
	require.NoError(fx.t, err)
	var files []manifest.File
	for _, f := range encoded {
		key := manifest.StateKey(acme, f.Table, tier, fx.ids.New())
		_, err := fx.blobs.Create(fx.t.Context(), key, f.Data)
		require.NoError(fx.t, err)
		files = append(files, manifest.File{
			Table: f.Table, Key: key, Size: int64(len(f.Data)), Rows: f.Rows, CRC32C: blob.CRC32C(f.Data), MinRun: f.MinRun, MaxRun: f.MaxRun,
		})
	}
	return files
}

// If a merge of deltas began before a new base was published, its result can contain rows that the base moved to
// history. Load and Advance must evict these rows. This test fails if Load does not call Evict, or if Advance does
// not compare the least sequence number of the loaded rows with the cutoff.
func TestAdvanceEvictsRowsThatAreInHistory(t *testing.T) {
	fx := newFixture(t)
	closed := fx.Run(foldtest.Task("a"), foldtest.Task("b", "a"))
	fx.MustFold(fx.Finished(closed, "a", 1, event.Failed))
	fx.Pass(2 * state.ClosedAfter)
	fx.Run(foldtest.Task("a"))
	all := fx.State.All()
	live := fx.State.Copy()
	cutoff := state.Cutoff{Seq: fx.State.FoldSeq, Time: fx.State.FoldTime}
	gone := live.Evict(cutoff)
	require.Len(t, state.List[state.Run](gone), 1)
	require.Len(t, state.List[state.Task](gone), 2)
	require.Len(t, state.List[state.Dep](gone), 1)
	require.Len(t, state.List[state.Attempt](gone), 1)
	require.Len(t, live.Runs.Rows(), 1)

	first := &manifest.Manifest{Tenant: acme.Tenant, Workspace: acme.Workspace, Timeline: fx.ids.New(), Revision: 1, FoldSeq: cutoff.Seq, FoldTime: cutoff.Time}
	first.L0 = []manifest.Delta{{ID: fx.ids.New(), Revision: 1, Files: fx.write(manifest.TierL0, all)}}
	second := *first
	second.Revision, second.L0 = 2, nil
	second.BaseSnapshot = manifest.BaseSnapshot{
		ID: fx.ids.New(), Revision: 1, FoldSeq: cutoff.Seq, FoldTime: cutoff.Time, Files: fx.write(manifest.TierBase, live.All()),
	}
	third := second
	third.Revision = 3
	some := state.Set(&state.Rows{}, state.List[state.Task](all))
	state.Set(some, state.List[state.Attempt](gone))
	third.L1 = []manifest.Delta{{ID: fx.ids.New(), Revision: 3, Files: fx.write(manifest.TierL1, some)}}

	store := fx.manifests()
	own, err := snapshot.Load(t.Context(), codec, store, first)
	require.NoError(t, err)
	require.Empty(t, state.Diff(fx.State, own, 5))
	from := first
	for _, m := range []*manifest.Manifest{&second, &third} {
		loaded, err := snapshot.Load(t.Context(), codec, store, m)
		require.NoError(t, err)
		require.Empty(t, state.Diff(live, loaded, 5), "revision %d, loaded", m.Revision)
		own, err = snapshot.Advance(t.Context(), codec, store, from, own, m)
		require.NoError(t, err)
		require.Empty(t, state.Diff(live, own, 5), "revision %d, advanced", m.Revision)
		from = m
	}
}

func TestAbsorbedSelectsSegmentsOfSimilarSize(t *testing.T) {
	segments := func(rows ...int64) []manifest.File {
		var files []manifest.File
		for _, n := range rows {
			files = append(files, manifest.File{Rows: n})
		}
		return files
	}
	for _, row := range []struct {
		stored []manifest.File
		added  int64
		want   int
	}{
		{nil, 10, 0},
		{segments(10), 10, 1},
		{segments(100, 10), 10, 1},
		{segments(30, 10), 10, 2},
		{segments(100), 10, 0},
		{segments(1 << 18), 1 << 17, 0},
		{segments(120_000, 100_000), 70_000, 1},
	} {
		require.Len(t, snapshot.Absorbed(row.stored, row.added), row.want, "%v and %d", row.stored, row.added)
	}
	// The number of segments stays small, regardless of the sizes of new segments.
	var files []manifest.File
	written, total := int64(0), int64(0)
	for i := range 1000 {
		added := int64(100 + i%7*10)
		total += added
		small := snapshot.Absorbed(files, added)
		files = files[:len(files)-len(small)]
		for _, f := range small {
			added += f.Rows
		}
		written += added
		files = append(files, manifest.File{Rows: added})
	}
	require.Less(t, len(files), 12)
	require.Less(t, written, 12*total, "a row is rewritten a logarithmic number of times")
}
