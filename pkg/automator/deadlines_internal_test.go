package automator

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/internal/memblob"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

// In an earlier build, a partition counted as missing again if its output was made after a missed deadline, and its row
// had moved to history.
func TestMissedDeadlineReadsOutputsInHistory(t *testing.T) {
	const asset, since = "a/b", event.Time(100)
	source := ids.NewSource(clock.System{}.Now, nil)
	row := func(partition string, at event.Time, seq int64) *state.Partition {
		return &state.Partition{
			AssetKey: asset, PartitionKey: partition, MaterializedAt: at,
			Meta: state.Meta{Tenant: foldtest.Domain.Tenant, Workspace: foldtest.Domain.Workspace, Version: source.New(), Seq: seq},
		}
	}
	store, codec := memblob.New(memblob.Options{}), snapshot.NewCodec()
	files, err := codec.Encode(state.Set(&state.Rows{}, []*state.Partition{row("1", since+1, 1), row("2", since-1, 2)}))
	require.NoError(t, err)
	require.Len(t, files, 1)
	page := files[0].Named(foldtest.Domain, manifest.TierHistory, source.New())
	page.Run = source.New()
	_, err = store.Create(t.Context(), page.Key, files[0].Data)
	require.NoError(t, err)
	data, index, err := manifest.EncodeIndex(manifest.IndexKey(foldtest.Domain, page.Table, source.New()), page.Table, []manifest.File{page})
	require.NoError(t, err)
	_, err = store.Create(t.Context(), index.Key, data)
	require.NoError(t, err)
	m := manifest.First(foldtest.Domain, source.New(), "test")
	m.History = map[string]manifest.File{page.Table: index}
	manifests := manifest.New(manifest.Config{Domain: foldtest.Domain, Store: store, IDs: source, Clock: clock.System{}})
	snap := &snapshot.Snapshot{State: state.New(foldtest.Domain), History: snapshot.HistoryOf(codec, manifests, m)}
	snap.State.Partitions.Put(row("3", since+1, 3))
	snap.State.Partitions.Put(row("4", since-1, 4))

	late, err := notMadeSince(t.Context(), snap, asset, []string{"1", "2", "3", "4", "5"}, since)
	require.NoError(t, err)
	require.Equal(t, []string{"2", "4", "5"}, late)
}
