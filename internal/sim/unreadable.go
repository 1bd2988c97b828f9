package sim

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ledger"
	"github.com/servo-orchestration/servo/pkg/state"
)

var errUnreadable = errors.New("403 the key that the object is encrypted with is disabled")

// maxUnreadable bounds how long an object is unreadable, unless it stays unreadable forever.
const maxUnreadable = 10 * time.Minute

// seal may make a new object unreadable for a while. It may make a ledger entry unreadable forever: an operator skips
// such an entry.
func (w *world) seal(key string) {
	if !w.faults.chance(w.faults.Unreadable, "object unreadable") {
		return
	}
	until := w.now().Add(w.faults.between(time.Second, maxUnreadable))
	w.sealed[key] = until
	w.delayedUntil = latest(w.delayedUntil, until)
	d, entry, err := ledger.ParseKey(key)
	if err != nil || w.faults.rng.IntN(4) != 0 || !w.dispensable(key) {
		w.note("%s is unreadable until %s", key, until)
		return
	}
	w.sealed[key] = until.Add(1000 * time.Hour)
	w.note("%s is unreadable forever", key)
	w.callAfter(until.Sub(w.now()), nil, func() {
		if f := w.oracle.domains[d]; lastSeq(f.state, entry) >= 0 {
			return // the entry is already folded, from the bytes that its writer handed over
		}
		w.fault("entry skipped")
		w.note("an operator skips %s", entry)
		w.skipped[entry] = true
		w.oracle.domains[d].noteSkipped(w.blobs, key)
		skip := ledger.Skip{Entry: entry, By: "operator", At: event.At(w.now()), Reason: "its key is destroyed"}
		if err := ledger.WriteSkip(context.Background(), w.blobs, d, skip); err != nil {
			panic(fmt.Sprintf("sim: %v", err)) // cannot happen: the store is in memory
		}
	})
}

// noteSkipped remembers the successes that an entry contains when an operator skips the entry. A compactor may still
// fold these successes from the bytes that the writer handed over, but a later rebuild from the bare ledger loses
// them.
func (f *followed) noteSkipped(blobs blob.Store, key string) {
	data, _, err := blobs.Get(context.Background(), key)
	if err != nil {
		panic(fmt.Sprintf("sim: %v", err)) // cannot happen: the store is in memory
	}
	for _, group := range event.Groups(event.DecodeEntry(data)) {
		for _, e := range group.Events {
			if p, ok := e.Payload.(*event.TaskFinished); ok && p.Outcome == event.Succeeded {
				f.forgotten[state.Key2{A: p.RunID, B: p.TaskKey}] = true
			}
		}
	}
}

// forgets reports whether a rebuild has lost the success of a task's upstream, because an operator had skipped the
// entry with this success. In this case, the task may have succeeded although, in the rebuilt state, its upstream has
// not.
func (f *followed) forgets(t *state.Task) bool {
	for d := range f.state.Deps.All {
		if d.RunID == t.RunID && d.Downstream == t.TaskKey && f.unordered && f.forgotten[state.Key2{A: d.RunID, B: d.Upstream}] {
			return true
		}
	}
	return false
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// dispensable reports whether an entry may be lost without harm. This is so if it contains no request of a user,
// because the system appends all other events again.
func (w *world) dispensable(key string) bool {
	data, _, err := w.blobs.Get(context.Background(), key)
	for _, p := range []event.Payload{(*event.RunTriggered)(nil), (*event.PlanCreated)(nil), (*event.RunCancelRequested)(nil), (*event.LimitSet)(nil)} {
		if err != nil || bytes.Contains(data, []byte(p.Type())) {
			return false
		}
	}
	return true
}

// unreadable returns the error of reading a sealed object, or nil.
func (w *world) unreadable(key string) error {
	if until, ok := w.sealed[key]; ok && w.now().Before(until) {
		return fmt.Errorf("get %s: %w", key, errUnreadable)
	}
	return nil
}

// sealable reports whether the object of a key may become unreadable.
func sealable(key string) bool {
	return strings.HasPrefix(key, "ledger/") || strings.HasPrefix(key, "plans/")
}
