package compactor_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/faultblob"
	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/repair"
	"github.com/servo-orchestration/servo/pkg/state"
)

// entries lists the names of the entries in the ledger.
func (w *world) entries() (names []string) {
	w.t.Helper()
	for object, err := range w.blobs.List(w.t.Context(), blob.ListOptions{Prefix: ledger.Prefix(foldtest.Domain)}) {
		require.NoError(w.t, err)
		_, name, err := ledger.ParseKey(object.Key)
		require.NoError(w.t, err)
		names = append(names, name)
	}
	return names
}

// A rebuild renames entries, and this test stops it at each of its writes and deletions in turn. After a stopped
// rebuild, compactors find entries under both names. The state stays the same, and the next rebuild leaves only the
// new names. In an earlier version, rebuilds did not delete the old names, and this test failed.
func TestRenamedEntriesAreFoldedOnce(t *testing.T) {
	const last = 2*8 + 1 // a write for each entry, the publish, and a deletion for each entry
	for n := range last + 1 {
		w := newWorld(t)
		c := w.open("one")
		runs := w.poison(c)
		for i, slots := range []int32{3, 5} {
			limit := w.write(twoYears, twoYears, 0, &event.LimitSet{
				CommandID: ids.AtTime(w.clock.Now().Add(time.Duration(i) * time.Second)), Scope: event.ScopePool, Name: "p", Slots: slots,
			})
			limit.Stored = limit.Stored.Add(twoYears)
			w.step(c, limit)
			w.clock.pass(time.Second)
		}
		require.Len(t, w.entries(), 8)
		require.EqualValues(t, 5, latest(c).State.Limits.Get(state.Key2{A: event.ScopePool, B: "p"}).Slots)
		ctx, die := context.WithCancel(t.Context())
		at := 0
		w.faults(func(op faultblob.Op, key string) faultblob.Fault {
			if reads(op) || !strings.HasPrefix(key, manifest.Prefix(foldtest.Domain)) && !strings.HasPrefix(key, ledger.Prefix(foldtest.Domain)) {
				return faultblob.None
			}
			if at++; at <= n {
				return faultblob.None
			}
			die()
			return faultblob.FailBefore
		})
		_, err := repair.Rebuild(ctx, w.rebuildConfig())
		w.faults(nil)
		require.Equal(t, n < last, err != nil, "at %d: %v", n, err)
		if n < last {
			w.verify()
			w.foldAll(w.open("two"))
			w.verify()
			_, err := repair.Rebuild(t.Context(), w.repair())
			require.NoError(t, err)
		}
		w.verify()
		c = w.open("three")
		w.foldAll(c)
		for _, name := range w.entries() {
			require.LessOrEqual(t, name, ids.AtTime(w.clock.Now().Add(time.Minute)), "at %d: no entry is named ahead", n)
		}
		for _, run := range runs {
			require.Equal(t, []string{"a=SUCCEEDED"}, w.states(c, run))
		}
		require.EqualValues(t, 5, latest(c).State.Limits.Get(state.Key2{A: event.ScopePool, B: "p"}).Slots, "at %d", n)
		w.verify()
		die()
	}
}

// foldAll folds all entries of the ledger: it announces each of them, and lists the ledger.
func (w *world) foldAll(c *compactor.Compactor) {
	w.t.Helper()
	request := compactor.Request{Barrier: true}
	for _, name := range w.entries() {
		request.Entries = append(request.Entries, compactor.Entry{ID: name})
	}
	_, err := c.Step(w.t.Context(), request)
	require.NoError(w.t, err)
}
