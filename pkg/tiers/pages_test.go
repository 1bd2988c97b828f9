package tiers_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/faultblob"
	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

// materialize adds a run that materializes the assets test/NAME.
func (f *fixture) materialize(names ...string) string {
	f.t.Helper()
	var defs []event.TaskDef
	for _, name := range names {
		defs = append(defs, foldtest.Task(name))
	}
	run := f.run(defs...)
	for _, name := range names {
		f.fold(f.Finished(run, name, 1, event.Succeeded))
	}
	return run
}

// age makes all runs and partitions so old that bases move them to history.
func (f *fixture) age() {
	f.t.Helper()
	f.Pass(eager.KeepEntries + 2*state.MaxRunAge)
	f.rebase()
}

// live returns the live row of an asset.
func (f *fixture) live(name string) *state.Partition {
	return f.State.Partitions.Get(state.Key2{A: "test/" + name})
}

// runs maps each asset to the run of its output. The rows may be live or in history.
func (f *fixture) runs() map[string]string {
	f.t.Helper()
	snap, found := f.load(), map[string]string{}
	last := ""
	for row, err := range snap.AllPartitions(f.t.Context()) {
		require.NoError(f.t, err)
		require.Greater(f.t, row.AssetKey, last)
		last = row.AssetKey
		one, err := snap.Partition(f.t.Context(), row.AssetKey, "")
		require.NoError(f.t, err)
		require.Equal(f.t, row, one)
		for only, err := range snap.Partitions(f.t.Context(), row.AssetKey, "") {
			require.NoError(f.t, err)
			require.Equal(f.t, row, only)
		}
		found[strings.TrimPrefix(row.AssetKey, "test/")] = row.RunID
	}
	delete(found, "a") // rebase materializes asset a
	return found
}

func TestI20OldPartitionsAreInHistoryOnly(t *testing.T) {
	f := newFixture(t, eager)
	first := f.materialize("x", "y", "z")
	f.age()
	require.Nil(t, f.live("x"))
	require.Equal(t, map[string]string{"x": first, "y": first, "z": first}, f.runs())
	f.verify()
	second := f.materialize("y")
	want := map[string]string{"x": first, "y": second, "z": first}
	require.Equal(t, want, f.runs(), "the live row is newer")
	f.age()
	require.Nil(t, f.live("y"))
	require.Equal(t, want, f.runs(), "the newer version wins in history")
	f.verify()
	for range 5 {
		f.age()
	}
	require.LessOrEqual(t, f.manifest.History["partition_status"].Rows, int64(8), "superseded versions are merged away")
}

// Each file has at most MaxSegment rows, and a look-up opens at most one file of each sorted run.
func TestPartitionsInSeveralFiles(t *testing.T) {
	options := eager
	options.MaxSegment = 2
	f := newFixture(t, options)
	want := map[string]string{}
	for _, names := range [][]string{{"b", "c", "d", "e", "f"}, {"c", "g"}, {"b", "h", "i"}} {
		run := f.materialize(names...)
		for _, name := range names {
			want[name] = run
		}
		f.age()
	}
	require.Equal(t, want, f.runs())
	files, err := f.manifests.Segments(t.Context(), f.manifest.History["partition_status"])
	require.NoError(t, err)
	require.Greater(t, len(files), 3)
	for _, run := range snapshot.SortedRuns(files) {
		for i := range run {
			require.LessOrEqual(t, run[i].Rows, int64(2))
			require.True(t, i == 0 || run[i-1].Max.Compare(run[i].Min) < 0)
		}
	}
	snap := f.load()
	reads := f.counts(func(op faultblob.Op, key string) bool {
		return op == faultblob.Get && strings.Contains(key, "/partition_status/")
	})
	_, err = snap.Partition(t.Context(), "test/h", "")
	require.NoError(t, err)
	require.LessOrEqual(t, reads.Load(), int64(1+len(snapshot.SortedRuns(files))))
	f.verify()
}

// A partition's row must stay in the live state as long as an earlier run may still report an output of the
// partition. If the row moved to history, the fold could not compare the row with the late report, and the older
// output would replace it.
func TestI20PartitionStaysWhileEarlierTaskRuns(t *testing.T) {
	f := newFixture(t, eager)
	early := f.run(foldtest.Task("x"))
	f.Pass(time.Minute)
	later := f.materialize("x", "y")
	f.age()
	require.NotNil(t, f.live("x"))
	require.Nil(t, f.live("y"), "no earlier task writes it")
	f.verify()
	f.fold(f.Finished(early, "x", 1, event.Succeeded))
	f.verify() // the newest base does not have this change
	require.Equal(t, later, f.runs()["x"])
	f.age()
	require.Nil(t, f.live("x"))
	require.Equal(t, later, f.runs()["x"])
	f.verify()
}

func TestI20PartitionStaysWhileEarlierRunHasNoPlan(t *testing.T) {
	f := newFixture(t, eager)
	var p event.RunTriggered
	group := f.Triggered(&p, foldtest.Task("x"))
	f.fold(group[0])
	f.Pass(time.Minute)
	later := f.materialize("x")
	f.age()
	require.NotNil(t, f.live("x"))
	f.fold(group[1])
	f.fold(f.Finished(p.RunID, "x", 1, event.Succeeded))
	require.Equal(t, later, f.runs()["x"])
	f.verify()
}

func TestDamagedPageIsAnError(t *testing.T) {
	f := newFixture(t, eager)
	f.materialize("x")
	f.age()
	files, err := f.manifests.Segments(t.Context(), f.manifest.History["partition_status"])
	require.NoError(t, err)
	for _, file := range files {
		require.NoError(t, f.blobs.Delete(t.Context(), file.Key))
	}
	codec := snapshot.NewCodec() // a new codec has no cached pages
	snap, err := snapshot.NewReader(foldtest.Domain, codec, f.manifests, now(f.now)).Current(t.Context())
	require.NoError(t, err)
	_, err = snap.Partition(t.Context(), "test/x", "")
	require.True(t, manifest.Damaged(err), "%v", err)
	for _, err = range snap.AllPartitions(t.Context()) {
		continue
	}
	require.True(t, manifest.Damaged(err), "%v", err)
	second := f.materialize("y")
	f.age()
	require.Nil(t, f.live("y"), "other rows still leave")
	row, err := f.load().Partition(t.Context(), "test/y", "")
	if err == nil {
		require.Equal(t, second, row.RunID)
	}
}
