package compactor_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/state"
)

// smallBatch is a maximum batch size that a few entries exceed.
const smallBatch = 3

// batched returns a fixture whose compactors fold at most smallBatch entries at once. It also returns n entries, each
// of which triggers a run.
func batched(t *testing.T, n int) (w *world, runs []string, entries []compactor.Entry) {
	t.Helper()
	w = newWorld(t)
	w.clock.stay = true
	w.options.MaxBatch = smallBatch
	for range n {
		run, entry := w.trigger(foldtest.Task("a"))
		runs, entries = append(runs, run), append(entries, entry)
	}
	return w, runs, entries
}

// requireFoldedInOrder checks that a snapshot contains the entries' runs, in the order of
// the entries.
func requireFoldedInOrder(t *testing.T, c *compactor.Compactor, runs []string, entries []compactor.Entry) {
	t.Helper()
	snap, _ := c.Latest().Get()
	last := int64(0)
	for i, entry := range entries {
		require.NotNil(t, snap.State.Runs.Get(runs[i]), "run of entry %d", i)
		for _, row := range rowsOf(snap.State, entry.ID) {
			require.Equal(t, state.Folded, row.Outcome)
			require.Greater(t, row.Seq, last, "entry %d was folded after entry %d", i, i-1)
			last = row.Seq
		}
	}
}

func TestBatchRemainderIsFoldedNext(t *testing.T) {
	for n, batches := range map[int]int{smallBatch: 1, smallBatch + 1: 2, 3*smallBatch + 1: 4} {
		for _, barrier := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d entries, barrier %v", n, barrier), func(t *testing.T) {
				w, runs, entries := batched(t, n)
				published := w.publishes()
				c := w.open("one")
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				defer cancel()
				stop := w.run(c)
				result, err := c.Compact(ctx, compactor.Request{Entries: entries, Barrier: barrier})
				stop()
				require.NoError(t, err)
				require.Equal(t, batches, *published)
				require.EqualValues(t, batches, result.Revision, "the answer waits for the remainder")
				requireFoldedInOrder(t, c, runs, entries)
				w.verify()
			})
		}
	}
}

func TestBarrierPublishesBatchesInOrder(t *testing.T) {
	w, runs, entries := batched(t, 3*smallBatch+1)
	published := w.publishes()
	c := w.open("one")
	result, err := c.Step(t.Context(), compactor.Request{Barrier: true})
	require.NoError(t, err)
	require.Equal(t, len(entries), result.Folded)
	require.Equal(t, 4, *published)
	requireFoldedInOrder(t, c, runs, entries)
	w.verify()
}

// A timer's entry is in the first batch, and the heartbeat that keeps the task alive is in
// the last one.
func TestTimerIsFoldedAfterTheLastBatch(t *testing.T) {
	w, runs, entries := batched(t, 1)
	c := w.open("one")
	w.step(c, entries...)
	w.step(c, w.append(w.Started(runs[0], "a", 1)))
	snap, _ := c.Latest().Get()
	timer := snap.State.Liveness()
	require.NotNil(t, timer)
	w.clock.pass(timer.FireAt.Time().Sub(w.clock.Now()))
	w.Now = w.clock.Now()
	fired := w.append(w.Fire(timer))
	for range 2 * smallBatch {
		w.append(&event.LimitSet{CommandID: w.ids.New(), Scope: event.ScopeWorkspace, Slots: 9})
	}
	w.append(w.Beat(runs[0], "a", 1))
	published := w.publishes()
	_, err := c.Step(t.Context(), compactor.Request{Barrier: true, Entries: []compactor.Entry{fired}})
	require.NoError(t, err)
	require.Equal(t, 3, *published)
	require.Equal(t, []string{"a=RUNNING"}, w.states(c, runs[0]))
	w.verify()
}
