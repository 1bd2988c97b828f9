package compactor_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/blob/faultblob"
	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold/foldtest"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

func TestRowsRiseThroughTheTiersAndTheStateStaysTheSame(t *testing.T) {
	w := newWorld(t)
	w.options = compactor.Options{MaxDeltas: 2, MaxInline: 4000, MinBase: 100_000}
	c := w.open("one")
	const tasks = 150
	defs := make([]event.TaskDef, tasks)
	for i := range defs {
		defs[i] = foldtest.Task(fmt.Sprintf("t%03d", i))
	}
	run, entry := w.trigger(defs...)
	w.step(c, entry)
	reader := snapshot.NewReader(foldtest.Domain, codec, w.manifests(), w.clock)
	var inline, l0, l1, bases int
	var last *manifest.Manifest
	for i := range defs {
		w.step(c, w.append(w.Finished(run, defs[i].TaskKey, 1, event.Succeeded)))
		c.AwaitMerges()
		m, err := w.manifests().Load(t.Context())
		require.NoError(t, err)
		if last != nil && last.BaseSnapshot.ID != m.BaseSnapshot.ID {
			bases++
		}
		last = m
		inline, l0, l1 = max(inline, tiers(m)[0]), max(l0, tiers(m)[1]), max(l1, len(m.L1))
		snap, err := reader.Current(t.Context()) // who follows step by step has the same
		require.NoError(t, err)
		want, _ := c.Latest().Get()
		require.Empty(t, state.Diff(want.State, snap.State, 5), "revision %d", m.Revision)
	}
	t.Logf("%d deltas in the manifest, %d in L0, %d in L1, %d bases at most", inline, l0, l1, bases)
	require.Less(t, inline, 10, "what is in the manifest is written to files")
	require.Less(t, l0, 5, "L0 merges into L1")
	require.Less(t, l1, 8, "L1 merges with itself")
	require.Greater(t, l1, 1)
	require.Positive(t, bases)
	w.verify()
}

// tiers are how many deltas of L0 are in the manifest, and how many in files.
func tiers(m *manifest.Manifest) [2]int {
	inline, files := manifest.SplitInline(m.L0)
	return [2]int{len(inline), len(files)}
}

func TestALargeDeltaIsWrittenToFilesAtOnce(t *testing.T) {
	w := newWorld(t)
	c := w.open("one")
	defs := make([]event.TaskDef, 200)
	for i := range defs {
		defs[i] = foldtest.Task(fmt.Sprintf("t%03d", i))
	}
	run, entry := w.trigger(defs...)
	w.step(c, entry)
	w.step(c, w.append(w.Finished(run, "t000", 1, event.Succeeded)))
	m, err := w.manifests().Load(t.Context())
	require.NoError(t, err)
	require.Equal(t, [2]int{1, 1}, tiers(m))
	w.verify()
}

// What a short process has begun to merge the next one would begin anew. Seen to fail
// with merges that wait for somebody else's publish.
func TestAProcessThatEndsPublishesWhatItMerges(t *testing.T) {
	w := newWorld(t)
	w.options = compactor.Options{MaxInline: -1, MaxDeltas: 2, MinBase: 1 << 40}
	c := w.open("one")
	run, entry := w.trigger(foldtest.Task("a"), foldtest.Task("b", "a"))
	w.step(c, entry)
	w.step(c, w.append(w.Finished(run, "a", 1, event.Succeeded)))
	reader := snapshot.NewReader(foldtest.Domain, codec, w.manifests(), w.clock)
	_, err := reader.Current(t.Context())
	require.NoError(t, err)
	require.Empty(t, w.newest().L1)

	result, err := c.Step(t.Context(), compactor.Request{Settle: true})
	require.NoError(t, err)
	m := w.newest()
	require.Equal(t, m.Revision, result.Revision)
	require.Len(t, m.L1, 1)
	require.Empty(t, m.L0)
	snap, err := reader.Current(t.Context())
	require.NoError(t, err)
	want, _ := c.Latest().Get()
	require.Equal(t, m.Revision, snap.Revision)
	require.Empty(t, state.Diff(want.State, snap.State, 5))

	again, err := c.Step(t.Context(), compactor.Request{Settle: true})
	require.NoError(t, err)
	require.Equal(t, result.Revision, again.Revision, "there is nothing left to publish")
	w.step(c, w.append(w.Finished(run, "b", 1, event.Succeeded)))
	require.Equal(t, []string{"a=SUCCEEDED", "b=SUCCEEDED"}, w.states(w.open("two"), run))
	w.verify()
}

// Two compactors merge the same deltas, each in its own way, and take up what the
// other has left to take up.
func TestTwoCompactorsMergeWhatTheyFold(t *testing.T) {
	w := newWorld(t)
	w.options = small
	one, two := w.open("one"), w.open("two")
	defs := make([]event.TaskDef, 150)
	for i := range defs {
		defs[i] = foldtest.Task(fmt.Sprintf("t%03d", i))
	}
	run, entry := w.trigger(defs...)
	w.step(one, entry)
	for i := range defs {
		c := []*compactor.Compactor{one, two}[i/3%2]
		w.step(c, w.append(w.Finished(run, defs[i].TaskKey, 1, event.Succeeded)))
		if i%2 == 0 {
			c.AwaitMerges()
		}
	}
	one.AwaitMerges()
	two.AwaitMerges()
	m, err := w.manifests().Load(t.Context())
	require.NoError(t, err)
	require.NotEmpty(t, m.BaseSnapshot.Files)
	require.Less(t, len(m.L0)+len(m.L1), 40)
	w.verify()
}

// newest is the newest manifest.
func (w *world) newest() *manifest.Manifest {
	w.t.Helper()
	m, err := w.manifests().Load(w.t.Context())
	require.NoError(w.t, err)
	return m
}

// Seen to fail with L1 taking only the files before the first delta in the manifest.
func TestADeltaInTheManifestHoldsUpNoMerge(t *testing.T) {
	w := newWorld(t)
	w.options = compactor.Options{MaxDeltas: 4}
	c := w.open("one")
	for i := range 40 {
		tasks := 200
		if i%8 == 0 {
			tasks = 1
		}
		defs := make([]event.TaskDef, tasks)
		for j := range defs {
			defs[j] = foldtest.Task(fmt.Sprintf("t%03d", j))
		}
		_, entry := w.trigger(defs...)
		w.step(c, entry)
		c.AwaitMerges()
		require.LessOrEqual(t, len(w.newest().L0), 7, "publish %d", i)
	}
	w.verify()
}

// What cannot be read is in memory still. Seen to fail without baseDue asking for
// what could not be merged.
func TestALostFileIsMadeGoodByABase(t *testing.T) {
	w := newWorld(t)
	w.options = compactor.Options{MaxDeltas: 4, MaxInline: -1}
	_, entry := w.trigger(foldtest.Task("a"))
	w.step(w.open("one"), entry)
	c := w.open("two") // which has the state in memory, and not what brought each delta
	lost := w.newest().L0[0].Files[0].Key
	require.NoError(t, w.blobs.Delete(t.Context(), lost))
	reads := w.counts(func(op faultblob.Op, key string) bool { return op == faultblob.Get && key == lost })
	for range 12 {
		_, entry := w.trigger(foldtest.Task("a"))
		w.step(c, entry)
		c.AwaitMerges()
	}
	require.EqualValues(t, 1, reads.Load(), "it is not tried again and again")
	require.NotEmpty(t, w.newest().BaseSnapshot.Files)
	w.open("three")
	w.verify()
}

// A run key of the last days of the year 9999 expires after them.
func TestTimesThatRFC3339HasNoTextForAreKept(t *testing.T) {
	w := newWorld(t)
	w.clock.now = time.Date(9999, 12, 31, 23, 0, 0, 0, time.UTC)
	c := w.open("one")
	w.Now = w.clock.Now()
	w.step(c, w.append(w.Triggered(&event.RunTriggered{RunID: w.ids.New(), RunKey: "k"}, foldtest.Task("a"))...))
	w.open("two")
	w.verify()
}

// A manifest must not come to have so many deltas that none can be added. Seen to
// fail with baseDue not counting them.
func TestSoManyDeltasMakeABase(t *testing.T) {
	w := newWorld(t)
	w.options = compactor.Options{MaxInline: 1 << 30} // nothing else merges them
	c := w.open("one")
	run, entry := w.trigger(foldtest.Task("a"))
	w.step(c, entry)
	for range 1030 {
		w.step(c, w.append(w.Beat(run, "a", 1)))
	}
	c.AwaitMerges()
	w.step(c, w.append(w.Beat(run, "a", 1)))
	m := w.newest()
	require.NotEmpty(t, m.BaseSnapshot.Files)
	require.Less(t, len(m.L0), 50)
}
