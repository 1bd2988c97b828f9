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
	"github.com/servo-orchestration/servo/pkg/tiers"
)

// countL0 returns how many L0 deltas of the newest manifest are inline, and how many are in files.
func (f *fixture) countL0() [2]int {
	inline, files := manifest.SplitInline(f.manifest.L0)
	return [2]int{len(inline), len(files)}
}

func TestMergesKeepTheState(t *testing.T) {
	f := newFixture(t, tiers.Options{MaxDeltas: 2, MaxInline: 4000, MinBase: 100_000})
	defs := named(150)
	run := f.run(defs...)
	reader := snapshot.NewReader(foldtest.Domain, codec, f.manifests, now(f.now))
	var inline, l0, l1 int
	bases := map[string]bool{}
	for i := range defs {
		f.fold(f.Finished(run, defs[i].TaskKey, 1, event.Succeeded))
		bases[f.manifest.BaseSnapshot.ID] = true
		inline, l0, l1 = max(inline, f.countL0()[0]), max(l0, f.countL0()[1]), max(l1, len(f.manifest.L1))
		snap, err := reader.Current(t.Context()) // a reader that follows each revision
		require.NoError(t, err)
		require.Empty(t, state.Diff(f.State, snap.State, 5), "revision %d", f.manifest.Revision)
	}
	t.Logf("%d deltas in the manifest, %d in L0, %d in L1, %d bases at most", inline, l0, l1, len(bases)-1)
	require.Less(t, inline, 10, "inline rows are written to files")
	require.Less(t, l0, 5, "L0 merges into L1")
	require.Less(t, l1, 8, "L1 merges with itself")
	require.Greater(t, l1, 1)
	require.Greater(t, len(bases), 1)
	f.verify()
}

func TestLargeDeltaIsWrittenToFiles(t *testing.T) {
	f := newFixture(t, tiers.Options{})
	run := f.run(named(200)...)
	f.fold(f.Finished(run, "t000", 1, event.Succeeded))
	require.Equal(t, [2]int{1, 1}, f.countL0())
	f.verify()
}

// A merge into L1 must include all files, and not only those before the first inline delta.
func TestInlineDeltaDoesNotBlockMerge(t *testing.T) {
	f := newFixture(t, tiers.Options{MaxDeltas: 4})
	for i := range 40 {
		tasks := 200
		if i%8 == 0 {
			tasks = 1
		}
		f.run(named(tasks)...)
		require.LessOrEqual(t, len(f.manifest.L0), 7, "publish %d", i)
	}
	f.verify()
}

// If a delta cannot be read, a base must replace it, because its rows are still in memory. The test fails if no base
// is due when deltas cannot be merged.
func TestBaseReplacesLostDelta(t *testing.T) {
	f := newFixture(t, tiers.Options{MaxDeltas: 4, MaxInline: -1})
	f.run(foldtest.Task("a"))
	f.open() // loads the state into memory, with an empty row cache
	lost := f.manifest.L0[0].Files[0].Key
	require.NoError(t, f.blobs.Delete(t.Context(), lost))
	reads := f.counts(func(op faultblob.Op, key string) bool { return op == faultblob.Get && key == lost })
	for range 12 {
		f.run(foldtest.Task("a"))
	}
	require.EqualValues(t, 1, reads.Load(), "the merge is not retried")
	require.NotEmpty(t, f.manifest.BaseSnapshot.Files)
	f.verify()
}

// A manifest must not reach the maximum number of deltas, because then no delta could be added. The test fails if
// baseDue does not count the deltas.
func TestTooManyDeltasMakeABase(t *testing.T) {
	f := newFixture(t, tiers.Options{MaxInline: 1 << 30}) // with this limit, no other rule merges the deltas
	run := f.run(foldtest.Task("a"))
	for range 1031 {
		f.fold(f.Beat(run, "a", 1))
	}
	require.NotEmpty(t, f.manifest.BaseSnapshot.Files)
	require.Less(t, len(f.manifest.L0), 50)
}

// A manifest must not include a base whose files are below its orphan floor. The test fails if ready ignores the
// floor.
func TestRebaseBelowTheFloorIsRestarted(t *testing.T) {
	f := newFixture(t, tiers.Options{MaxDeltas: 4, MaxInline: 4000, MinBase: 50_000})
	written := f.counts(func(op faultblob.Op, key string) bool {
		return op == faultblob.Create && strings.Contains(key, "/"+manifest.TierBase+"/")
	})
	defs := named(150)
	run := f.run(defs...)
	next := 0
	publish := func() {
		require.Less(t, next, len(defs))
		f.fold(f.Finished(run, defs[next].TaskKey, 1, event.Succeeded))
		next++
	}
	for written.Load() == 0 {
		publish()
	}
	base := f.manifest.BaseSnapshot.ID
	f.floor = f.ids.New() // the floor is above the base that was written
	for f.manifest.BaseSnapshot.ID == base {
		publish()
	}
	require.Greater(t, f.manifest.BaseSnapshot.ID, f.floor)
	f.verify()
}

// inlineRows returns the number of inline rows of a table in the newest manifest.
func (f *fixture) inlineRows(table string) int {
	n := 0
	for _, d := range f.manifest.L0 {
		for _, rows := range d.Inline {
			if rows.Table == table {
				n += int(rows.Count)
			}
		}
	}
	return n
}

// A manifest must not keep outdated rows. If it did, it would contain the row of a run once for each change of the
// run's tasks.
func TestManifestContainsNewestRowsOnly(t *testing.T) {
	f := newFixture(t, tiers.Options{})
	defs := named(6)
	for i := range defs[1:] {
		defs[i+1].DependsOn = []string{defs[i].TaskKey}
	}
	run := f.run(defs...)
	for i, def := range defs {
		f.fold(f.Started(run, def.TaskKey, 1))
		f.fold(f.Finished(run, def.TaskKey, 1, event.Succeeded))
		require.Equal(t, 1, f.inlineRows("runs"))
		require.Equal(t, 6, f.inlineRows("tasks"))
		require.Equal(t, i+1, f.inlineRows("attempts")-min(1, 5-i), "the earlier attempts and the next one")
	}
	require.Len(t, f.manifest.L0, 13, "each records its revision")
	f.verify()
}

// A merge must read no delta whose rows are cached. Reading the files of a delta takes one request for each of its
// tables.
func TestMergeOfCachedDeltasReadsNothing(t *testing.T) {
	f := newFixture(t, tiers.Options{MaxDeltas: 4, MaxInline: 1000})
	reads := f.counts(func(op faultblob.Op, key string) bool {
		return op == faultblob.Get && strings.Contains(key, "/"+manifest.TierL0+"/")
	})
	for range 40 {
		run := f.run(foldtest.Task("a"), foldtest.Task("b", "a"), foldtest.Task("c", "b"))
		f.fold(f.Finished(run, "a", 1, event.Succeeded))
	}
	require.NotEmpty(t, f.manifest.L1)
	require.Zero(t, reads.Load())
	f.verify()
}

func TestOldestUnpublishedFile(t *testing.T) {
	f := newFixture(t, tiers.Options{MaxDeltas: 2, MaxInline: -1})
	f.run(foldtest.Task("a"))
	require.Equal(t, "Z", f.tiers.Oldest("Z"), "no merge")
	before := f.ids.New()
	f.Pass(time.Millisecond)
	f.run(foldtest.Task("a"))
	require.True(t, f.tiers.Ready())
	merge := f.tiers.Oldest("Z")
	require.Greater(t, merge, before)
	require.Equal(t, before, f.tiers.Oldest(before))
	f.tiers.Follow(f.manifest, false) // false means that the manifest may belong to another timeline
	require.False(t, f.tiers.Ready())
	require.Equal(t, "Z", f.tiers.Oldest("Z"))
}
