package api

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/servov1"
	"github.com/servo-orchestration/servo/pkg/state"
)

func TestWatchedRows(t *testing.T) {
	run, other := &state.Run{RunID: "A"}, &state.Run{RunID: "B"}
	task, group := &state.Task{RunID: "A"}, &state.Task{RunID: "A", Kind: event.KindGroup}
	moved := &state.Run{RunID: "A", Meta: state.Meta{Deleted: true}}
	all := watched(&servov1.WatchRequest{})
	require.True(t, all(run) && all(other) && all(task) && all(&state.Schedule{}) && all(&state.Mark{}) && all(&state.Deployment{}))
	require.False(t, all(group) || all(moved) || all(&state.Timer{}))
	one := watched(&servov1.WatchRequest{Tables: []string{"runs"}, RunIds: []string{"A"}})
	require.True(t, one(run))
	require.False(t, one(other) || one(task) || one(&state.Backfill{}) || one(&state.Deployment{}))
}

func TestChangedPartitionsAreListedOnce(t *testing.T) {
	m := changesOf(&engine.Changes{Position: engine.Position{Timeline: "T", Revision: 8}, Rows: []state.Record{
		&state.Partition{AssetKey: "b"}, &state.Partition{AssetKey: "a", PartitionKey: "p"}, &state.Mark{AssetKey: "a", PartitionKey: "p"},
	}})
	require.Len(t, m.GetPartitions(), 2)
	require.Equal(t, "a", m.GetPartitions()[0].GetAssetKey())
}

// A deployment changes which assets exist and which partitions are stale, so the stream reports it.
func TestOtherChangesAreReported(t *testing.T) {
	m := changesOf(&engine.Changes{Position: engine.Position{Timeline: "T", Revision: 8}, Rows: []state.Record{&state.Deployment{}}})
	require.True(t, m.GetOthers())
	require.False(t, changesOf(&engine.Changes{Rows: []state.Record{&state.Schedule{ScheduleID: "nightly"}}}).GetOthers())
}
