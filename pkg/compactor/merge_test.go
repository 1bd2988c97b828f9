package compactor_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
	"github.com/servo-orchestration/servo/pkg/tiers"
)

// A short-lived process must publish its merges before it ends: otherwise the next process starts them again. This
// test fails if merges wait for the next publish.
func TestFlushPublishesMerges(t *testing.T) {
	w := newWorld(t)
	w.options = compactor.Options{Tiers: tiers.Options{MaxInline: -1, MaxDeltas: 2, MinBase: 1 << 40}}
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

// A run key from the last hours of the year 9999 expires in the year 10000, which RFC 3339 cannot express.
func TestTimesBeyondRFC3339AreKept(t *testing.T) {
	w := newWorld(t)
	w.clock.now = time.Date(9999, 12, 31, 23, 0, 0, 0, time.UTC)
	c := w.open("one")
	w.Now = w.clock.Now()
	w.step(c, w.append(w.Triggered(&event.RunTriggered{RunID: w.ids.New(), RunKey: "k"}, foldtest.Task("a"))...))
	w.open("two")
	w.verify()
}
