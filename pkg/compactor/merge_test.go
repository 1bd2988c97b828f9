package compactor_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/faultblob"
	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

func TestMergesKeepTheState(t *testing.T) {
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
		snap, err := reader.Current(t.Context()) // a reader that follows each revision
		require.NoError(t, err)
		want, _ := c.Latest().Get()
		require.Empty(t, state.Diff(want.State, snap.State, 5), "revision %d", m.Revision)
	}
	t.Logf("%d deltas in the manifest, %d in L0, %d in L1, %d bases at most", inline, l0, l1, bases)
	require.Less(t, inline, 10, "inline rows are written to files")
	require.Less(t, l0, 5, "L0 merges into L1")
	require.Less(t, l1, 8, "L1 merges with itself")
	require.Greater(t, l1, 1)
	require.Positive(t, bases)
	w.verify()
}

// tiers returns how many L0 deltas are inline, and how many are in files.
func tiers(m *manifest.Manifest) [2]int {
	inline, files := manifest.SplitInline(m.L0)
	return [2]int{len(inline), len(files)}
}

func TestLargeDeltaIsWrittenToFiles(t *testing.T) {
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

// Otherwise the next short-lived process would start the same merge again. This test fails if
// merges wait for the next publish.
func TestSettlePublishesMerges(t *testing.T) {
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

	result, err := c.Step(t.Context(), compactor.Request{Flush: true})
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

	again, err := c.Step(t.Context(), compactor.Request{Flush: true})
	require.NoError(t, err)
	require.Equal(t, result.Revision, again.Revision, "nothing is left to publish")
	w.step(c, w.append(w.Finished(run, "b", 1, event.Succeeded)))
	require.Equal(t, []string{"a=SUCCEEDED", "b=SUCCEEDED"}, w.states(w.open("two"), run))
	w.verify()
}

// Two compactors merge the same deltas, each in its own way, and publish the results that are still
// usable.
func TestConcurrentCompactorsMerge(t *testing.T) {
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

// newest loads the newest manifest.
func (w *world) newest() *manifest.Manifest {
	w.t.Helper()
	m, err := w.manifests().Load(w.t.Context())
	require.NoError(w.t, err)
	return m
}

// This test fails if L1 takes only the files before the first inline delta.
func TestInlineDeltaDoesNotBlockMerge(t *testing.T) {
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

// The rows of an unreadable delta are still in memory. This test fails if baseDue ignores
// unmergeable.
func TestBaseReplacesLostDelta(t *testing.T) {
	w := newWorld(t)
	w.options = compactor.Options{MaxDeltas: 4, MaxInline: -1}
	_, entry := w.trigger(foldtest.Task("a"))
	w.step(w.open("one"), entry)
	c := w.open("two") // has the state in memory, but not the rows of each delta
	lost := w.newest().L0[0].Files[0].Key
	require.NoError(t, w.blobs.Delete(t.Context(), lost))
	reads := w.counts(func(op faultblob.Op, key string) bool { return op == faultblob.Get && key == lost })
	for range 12 {
		_, entry := w.trigger(foldtest.Task("a"))
		w.step(c, entry)
		c.AwaitMerges()
	}
	require.EqualValues(t, 1, reads.Load(), "the merge is not retried")
	require.NotEmpty(t, w.newest().BaseSnapshot.Files)
	w.open("three")
	w.verify()
}

// A run key of the last days of the year 9999 expires after them.
func TestTimesBeyondRFC3339AreKept(t *testing.T) {
	w := newWorld(t)
	w.clock.now = time.Date(9999, 12, 31, 23, 0, 0, 0, time.UTC)
	c := w.open("one")
	w.Now = w.clock.Now()
	w.step(c, w.append(w.Triggered(&event.RunTriggered{RunID: w.ids.New(), RunKey: "k"}, foldtest.Task("a"))...))
	w.open("two")
	w.verify()
}

// A manifest must not reach the number of deltas at which none can be added. This test fails if
// baseDue does not count them.
func TestTooManyDeltasMakeABase(t *testing.T) {
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
