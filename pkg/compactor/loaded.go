package compactor

import (
	"cmp"
	"slices"
	"strings"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/state"
)

// loaded is the state with which a step begins, with facts about this state that the process knows.
type loaded struct {
	state    *state.State       // the state as of manifest
	manifest *manifest.Manifest // nil: none is published
	caughtUp event.Time         // never decreases within a timeline; the time in the manifest may be older
	complete string             // never decreases within a timeline: every entry with a lower ULID is folded
	// unannounced is set if a sweep has found unannounced entries, and no revision records this fact yet.
	unannounced bool
	// tried contains the entries with dead letters that this process has already tried to fold again. Another try would
	// have the same result.
	tried map[string]bool
}

// unpublished is an empty manifest, for a domain that has not published one. It is never changed.
var unpublished = &manifest.Manifest{}

// current returns the current manifest, or an empty one if none is published.
func (l *loaded) current() *manifest.Manifest { return cmp.Or(l.manifest, unpublished) }

// recorded reports whether an entry was folded or refused. Entries in history are recognized by their names. An
// unknown entry with a name below the history cutoff appeared so late that no listing could find it, and its writer
// has abandoned it.
func (l *loaded) recorded(entry string) bool {
	return l.state.HasEntry(entry) || entry < l.current().BaseSnapshot.EntriesFrom
}

// inHistory reports whether the row of a group is in history. Such a group must not be folded again. It can be read
// again if another group of its entry is a dead letter: a retry of the dead letter reads the whole entry.
func (l *loaded) inHistory(work *state.State, g fold.Group) bool {
	return g.Entry < l.current().BaseSnapshot.EntriesFrom && work.Entries.Get(state.Key2{A: g.Entry, B: g.ID}) == nil
}

// unrecorded returns the entries that are not recorded yet, each once, oldest first. If an entry occurs twice,
// unrecorded keeps the occurrence that has the content in memory.
func (l *loaded) unrecorded(entries []Entry) []Entry {
	entries = slices.Clone(entries) // do not change the entries of the request, which may be tried again
	slices.SortStableFunc(entries, func(a, b Entry) int {
		if order := strings.Compare(a.ID, b.ID); order != 0 {
			return order
		}
		return cmp.Or(len(b.Data)-len(a.Data), cmp.Compare(b.size, a.size))
	})
	for i := range entries[min(1, len(entries)):] { // the first duplicate is kept; its Stored may come from another duplicate
		if a, b := &entries[i], &entries[i+1]; a.ID == b.ID && b.Stored.IsZero() {
			b.Stored = a.Stored
		} else if a.ID == b.ID && a.Stored.IsZero() {
			a.Stored = b.Stored
		}
	}
	entries = slices.CompactFunc(entries, func(a, b Entry) bool { return a.ID == b.ID })
	return slices.DeleteFunc(entries, func(e Entry) bool { return l.recorded(e.ID) })
}

// newlySupported returns the entries of dead letters that may be folded now: events that an older build did not know,
// and events whose run has appeared in the meantime. Normally, an event that waits for a run is folded when the run
// appears. It remains a dead letter if its entry could not be read at that time. Only a barrier tries dead letters. If
// an entry could be read, this process does not try it again, even if its event is still a dead letter. If the entry
// could not be read, the next barrier tries it again.
func (l *loaded) newlySupported(barrier bool) []Entry {
	if !barrier {
		return nil
	}
	var entries []Entry
	for _, key := range l.state.Redrivable() {
		if n := len(entries); n > 0 && entries[n-1].ID == key.A || l.tried[key.A] {
			continue
		}
		entries = append(entries, Entry{ID: key.A, refused: true})
	}
	return entries
}
