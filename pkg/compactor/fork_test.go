package compactor_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/repair"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

// This test fails if reload applies the deltas of the newest revision without checking that this revision descends
// from the loaded one.
func TestDivergedWritersDoNotMixStates(t *testing.T) {
	for _, how := range []string{"a conflict", "a failure"} {
		t.Run(how, func(t *testing.T) {
			w := newWorld(t)
			run, entry := w.trigger(foldtest.Task("a"), foldtest.Task("b", "a"), foldtest.Task("c", "b"))
			behind, ahead := w.open("behind"), w.open("ahead")
			w.step(ahead, entry)
			w.step(behind, entry)
			a := w.append(w.Finished(run, "a", 1, event.Succeeded))
			b := w.append(w.Finished(run, "b", 1, event.Succeeded))
			w.step(ahead, a)
			remove(t, w, "manifests/")
			w.step(behind, b) // this publishes another revision 2
			w.step(ahead, b)  // this publishes revision 3, based on the first revision 2

			if how == "a conflict" {
				_, err := behind.Step(t.Context(), compactor.Request{Barrier: true})
				require.NoError(t, err)
			} else {
				require.NoError(t, behind.Reload(t.Context()))
			}
			w.step(behind, w.append(w.Finished(run, "c", 1, event.Succeeded)))
			require.Equal(t, []string{"a=SUCCEEDED", "b=SUCCEEDED", "c=SUCCEEDED"}, w.states(behind, run))
			w.verify()
		})
	}
}

// This test fails if a replay folds groups with the same sequence number in an arbitrary order instead of rejecting
// them.
func TestVerifyRejectsTwoGroupsWithOneSequence(t *testing.T) {
	w := newWorld(t)
	c := w.open("one")
	run, entry := w.trigger(foldtest.Task("a"), foldtest.Task("b", "a"))
	w.step(c, entry)
	w.step(c, w.append(w.Finished(run, "a", 1, event.Succeeded)))
	w.step(c, w.append(w.Finished(run, "b", 1, event.Succeeded)))

	m := w.newest()
	st, err := snapshot.Load(t.Context(), codec, w.manifests(), m)
	require.NoError(t, err)
	rows := st.All()
	last := state.List[state.Entry](rows)[len(state.List[state.Entry](rows))-1]
	last.FirstSeq--
	encoded, err := codec.Encode(rows)
	require.NoError(t, err)
	next := m.Successor("somebody")
	next.L0, next.L0Count, next.BaseSnapshot = nil, 0, manifest.BaseSnapshot{ID: w.ids.New(), Revision: m.Revision}
	for _, f := range encoded {
		key := manifest.StateKey(foldtest.Domain, f.Table, manifest.TierBase, w.ids.New())
		_, err := w.blobs.Create(t.Context(), key, f.Data)
		require.NoError(t, err)
		next.BaseSnapshot.Files = append(next.BaseSnapshot.Files, manifest.File{
			Table: f.Table, Key: key, Size: int64(len(f.Data)), Rows: f.Rows, CRC32C: blob.CRC32C(f.Data),
		})
	}
	require.NoError(t, w.manifests().Publish(t.Context(), next))

	report, err := repair.Verify(t.Context(), w.repair())
	require.NoError(t, err)
	require.Contains(t, report.Problems[0], "folded at the same sequence number")
	cfg := w.repair()
	_, err = repair.Rebuild(t.Context(), cfg)
	record := new(repair.RecordError)
	require.ErrorAs(t, err, &record)
	cfg.Bare = true
	result, err := repair.Rebuild(t.Context(), cfg)
	require.NoError(t, err)
	require.False(t, result.Recorded)
	require.Equal(t, []string{"a=SUCCEEDED", "b=SUCCEEDED"}, w.states(w.open("two"), run))
	w.verify()
}

// After two writers have diverged, one may have listed and folded entries that the other lacks. This test fails if a
// process keeps a watermark when it changes to another timeline.
func TestReloadOfOtherTimelineListsAgain(t *testing.T) {
	w := newWorld(t)
	run, entry := w.trigger(foldtest.Task("a"), foldtest.Task("b"), foldtest.Task("c"), foldtest.Task("d"))
	one := w.open("one")
	w.step(one, entry)
	two := w.open("two")
	w.append(w.Finished(run, "a", 1, event.Succeeded))
	w.clock.pass(10 * time.Minute)
	w.Now = w.clock.Now()
	later := w.append(w.Finished(run, "b", 1, event.Succeeded)) // the first compactor learns the store's time from this entry
	for range 2 {                                               // the second listing begins after the store's time is known
		w.clock.pass(time.Second)
		_, err := one.Step(t.Context(), compactor.Request{Barrier: true})
		require.NoError(t, err)
	}
	require.Equal(t, []string{"a=SUCCEEDED", "b=SUCCEEDED", "c=READY", "d=READY"}, w.states(one, run))

	remove(t, w, "manifests/")
	w.step(two, later)
	w.step(two, w.append(w.Finished(run, "c", 1, event.Succeeded)))
	w.step(one, w.append(w.Finished(run, "d", 1, event.Succeeded)))
	three := w.open("three")
	_, err := three.Step(t.Context(), compactor.Request{Barrier: true})
	require.NoError(t, err)
	require.Equal(t, []string{"a=SUCCEEDED", "b=SUCCEEDED", "c=SUCCEEDED", "d=SUCCEEDED"}, w.states(three, run))
	w.verify()
}
