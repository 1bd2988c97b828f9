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

// INV-5. A publish that fails must not change the deltas of the current manifest, because only these deltas contain
// the rows that the failed publish would have dropped.
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
			if i%2 == 0 { // another writer publishes first
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

// INV-5. The publish after a failed one may change other rows. It must keep the rows that the failed publish would
// have dropped. In an earlier version, encoded deltas were distinguished only by their size, and this test failed.
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
