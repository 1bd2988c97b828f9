package gc_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/gc"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/state"
)

// batch adds a run that has materialized some partitions together, and returns the directory of its output.
func (f *fixture) batch(partitions ...string) (uri string) {
	f.t.Helper()
	runID, key := f.ids.New(), asset.String()
	m := ids.MaterializationID(acme, runID, key)
	uri = contract.BatchPrefix(acme, asset, partitions[0], m, runID, "n")
	marker := contract.CommitMarker{MaterializationID: m, AttemptID: runID, Nonce: "n", PartitionKey: partitions[0], URI: uri, Files: []contract.CommitMarkerFile{}}
	task := &state.Task{
		RunID: runID, TaskKey: key, AssetKey: key, PartitionKey: partitions[0], State: state.TaskSucceeded, Kind: event.KindTask,
		MaterializationID: m, OutputURI: uri, CompletedAt: event.At(f.clock.now), Meta: f.meta(),
	}
	shown := map[string]*state.Partition{}
	for _, row := range state.List[state.Partition](&f.rows) {
		shown[row.PartitionKey] = row
	}
	for _, p := range partitions {
		f.put(contract.CellURI(uri, p)+"data.parquet", []byte("rows"))
		marker.Files = append(marker.Files, contract.CommitMarkerFile{Name: ids.PartitionSegment(p) + "/data.parquet", Size: 4})
		marker.Cells = append(marker.Cells, contract.CommitMarkerCell{PartitionKey: p, Files: 1})
		shown[p] = &state.Partition{
			AssetKey: key, PartitionKey: p, Status: state.Materialized, MaterializationID: m, MaterializedAt: event.At(f.clock.now), RunID: runID,
			TaskKey: key, OutputURI: contract.CellURI(uri, p), Meta: f.meta(),
		}
	}
	data, err := json.Marshal(marker)
	require.NoError(f.t, err)
	f.put(contract.CommitMarkerKeyOf(uri), data)
	keys, err := json.Marshal(partitions)
	require.NoError(f.t, err)
	var rows []*state.Partition
	for _, row := range shown {
		rows = append(rows, row)
	}
	state.Set(&f.rows, rows)
	state.Set(&f.rows, append(state.List[state.Batch](&f.rows), &state.Batch{RunID: runID, TaskKey: key, Partitions: string(keys), Meta: f.meta()}))
	state.Set(&f.rows, append(state.List[state.Run](&f.rows), &state.Run{RunID: runID, State: state.RunSucceeded, CreatedAt: event.At(f.clock.now), Meta: f.meta()}))
	state.Set(&f.rows, append(state.List[state.Task](&f.rows), task))
	return uri
}

// One marker names the files of all partitions of a batch. So a batch is deleted only when all of its partitions have
// later outputs, and the retention rule no longer protects it.
func TestCollectBatchWhenAllPartitionsAreSuperseded(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	keep := gc.Keep{Versions: 1}
	f.cfg.Keep = func(string) (gc.Keep, bool) { return keep, true }
	one, two, three := `{"date":"2025-01-01"}`, `{"date":"2025-01-02"}`, `{"date":"2025-01-03"}`
	old := f.batch(one, two, three)
	f.clock.now = f.clock.now.Add(day)
	f.batch(one, two)
	f.publish()
	f.clock.now = f.clock.now.Add(day)
	f.publish() // after a day, the settled revision shows the later outputs
	require.Zero(t, f.collect(gc.Options{}).Files, "the third partition still shows the batch")

	f.clock.now = f.clock.now.Add(day)
	newest := f.batch(two, three)
	f.publish()
	f.clock.now = f.clock.now.Add(day)
	f.publish()
	dry := f.collect(gc.Options{DryRun: true})
	require.Equal(t, 4, dry.Files, "its marker and three files")
	require.Len(t, dry.Items, 1)
	require.Equal(t, 4, f.collect(gc.Options{}).Files)
	left := f.left()
	require.NotContains(t, left, contract.CommitMarkerKeyOf(old))
	require.Contains(t, left, contract.CommitMarkerKeyOf(newest))
	require.Contains(t, left, contract.CellURI(newest, three)+"data.parquet")
	require.Zero(t, f.collect(gc.Options{}).Files)
}

// A batch is kept as a whole if one of its partitions is visible, or if a live run reads one.
func TestDecideBatchKeepsWhatOnePartitionKeeps(t *testing.T) {
	t.Parallel()
	old, visible := version(1, 100*day), version(2, 50*day)
	superseded := gc.Rows{Visible: visible, Successes: []gc.Success{old, visible}, Live: none, Failed: none, Settled: 9}
	shown := gc.Rows{Visible: old, Successes: []gc.Success{old}, Live: none, Failed: none, Settled: 9}
	read := superseded
	read.Live = func(m string) bool { return m == "m001" }
	keep := gc.Keep{Versions: 1}.WithDefaults()
	m := stored("m001", 100*day)
	require.Len(t, gc.DecideBatch(keep, now, []gc.Rows{superseded, superseded}, m), 1)
	require.Empty(t, gc.DecideBatch(keep, now, []gc.Rows{superseded, shown}, m))
	require.Empty(t, gc.DecideBatch(keep, now, []gc.Rows{shown, superseded}, m))
	require.Empty(t, gc.DecideBatch(keep, now, []gc.Rows{superseded, read}, m))
	lost := m
	lost.Winner, lost.Files = "p/m001/x/", append(lost.Files, gc.Object{Key: "p/m001/y/data.parquet", Updated: now.Add(-50 * day)})
	require.Equal(t, gc.Lost, gc.DecideBatch(keep, now, []gc.Rows{superseded, shown}, lost)[0].Reason)
}
