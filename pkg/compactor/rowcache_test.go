package compactor_test

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/faultblob"
	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/manifest"
)

// chain returns the tasks of a chain.
func chain(n int) []event.TaskDef {
	defs := []event.TaskDef{foldtest.Task("a")}
	for i := range n - 1 {
		defs = append(defs, foldtest.Task(key(i+1), key(i)))
	}
	return defs
}

func key(i int) string { return string(rune('a' + i)) }

// inlineRows returns the number of inline rows of a table in the newest manifest.
func (w *world) inlineRows(table string) int {
	w.t.Helper()
	n := 0
	for _, d := range w.newest().L0 {
		for _, rows := range d.Inline {
			if rows.Table == table {
				n += int(rows.Count)
			}
		}
	}
	return n
}

// Otherwise, a manifest would contain the row of a run once for each change of its tasks.
func TestManifestContainsNewestRowsOnly(t *testing.T) {
	w := newWorld(t)
	c := w.open("c")
	run, entry := w.trigger(chain(6)...)
	w.step(c, entry)
	for i := range 6 {
		w.step(c, w.append(w.Started(run, key(i), 1)))
		w.step(c, w.append(w.Finished(run, key(i), 1, event.Succeeded)))
		require.Equal(t, 1, w.inlineRows("runs"))
		require.Equal(t, 6, w.inlineRows("tasks"))
		require.Equal(t, i+1, w.inlineRows("attempts")-min(1, 5-i), "the earlier attempts and the next one")
	}
	require.Len(t, w.newest().L0, 13, "each records its revision")
	w.verify()
}

// INV-5. A publish that fails does not change the deltas of the current manifest: no other file
// contains the rows that it would have dropped.
func TestINV5FailedPublishDropsNoRows(t *testing.T) {
	w := newWorld(t)
	c, other := w.open("c"), w.open("other")
	run, entry := w.trigger(chain(6)...)
	w.step(c, entry)
	for i := range 6 {
		finished := w.append(w.Finished(run, key(i), 1, event.Succeeded))
		tried := false
		w.faults(func(op faultblob.Op, name string) faultblob.Fault {
			if op != faultblob.Create || tried || !strings.HasPrefix(name, manifest.Prefix(foldtest.Domain)) {
				return faultblob.None
			}
			tried = true
			if i%2 == 0 { // another writer is faster
				w.faults(nil)
				w.step(other, finished)
				return faultblob.None
			}
			return faultblob.FailBefore
		})
		w.step(c, finished)
		require.True(t, tried)
	}
	w.verify()
	require.Equal(t, []string{"a=SUCCEEDED", "b=SUCCEEDED", "c=SUCCEEDED", "d=SUCCEEDED", "e=SUCCEEDED", "f=SUCCEEDED"}, w.states(c, run))
}

// INV-5. The next publish may change other rows, and must keep those that the failed one would have
// dropped. This test failed while encoded deltas were distinguished by their size.
func TestINV5RowsOfFailedPublishAreInTheNext(t *testing.T) {
	w := newWorld(t)
	c := w.open("c")
	run, entry := w.trigger(foldtest.Task("a"), foldtest.Task("b"), foldtest.Task("c"))
	w.step(c, entry)
	first := w.append(w.Finished(run, "a", 1, event.Succeeded))
	second := w.append(w.Finished(run, "b", 1, event.Succeeded))
	ctx, die := context.WithCancel(t.Context())
	w.faults(func(op faultblob.Op, key string) faultblob.Fault {
		if op == faultblob.Create && strings.HasPrefix(key, manifest.Prefix(foldtest.Domain)) {
			die()
			return faultblob.FailBefore
		}
		return faultblob.None
	})
	_, err := c.Step(ctx, compactor.Request{Entries: []compactor.Entry{first}})
	require.ErrorIs(t, err, context.Canceled)
	w.faults(nil)
	w.step(c, second)
	require.Equal(t, []string{"a=READY", "b=SUCCEEDED", "c=READY"}, w.states(w.open("other"), run))
	w.step(c, first)
	w.verify()
}

// A delta in files would cost a read for each of its tables.
func TestMergeOfCachedDeltasReadsNothing(t *testing.T) {
	w := newWorld(t)
	w.options = compactor.Options{MaxDeltas: 4, MaxInline: 1000}
	c := w.open("c")
	reads := w.counts(func(op faultblob.Op, key string) bool {
		return op == faultblob.Get && strings.Contains(key, "/"+manifest.TierL0+"/")
	})
	for range 40 {
		run, entry := w.trigger(chain(3)...)
		w.step(c, entry)
		w.step(c, w.append(w.Finished(run, "a", 1, event.Succeeded)))
		c.AwaitMerges()
	}
	require.NotEmpty(t, w.newest().L1)
	require.Zero(t, reads.Load())
	w.verify()
}
