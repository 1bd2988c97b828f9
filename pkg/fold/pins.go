package fold

import (
	"fmt"
	"strconv"
	"time"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/state"
)

// endedPins is how long the row of an ended pin is kept.
const endedPins = 30 * 24 * time.Hour

// checkPin rejects a pin that would exceed the limit.
func (f *folder) checkPin(p *event.RevisionPinned, c *checked) verdict {
	pinned := f.st.PinnedAt(f.at())
	if pinned[p.Revision] != nil || p.Until <= f.at() {
		return verdict{}
	}
	if c.pinned++; len(pinned)+c.pinned > state.MaxPins {
		return verdict{outcome: state.Conflict, detail: PinLimit(len(pinned))}
	}
	return verdict{}
}

// PinLimit returns the error message for a pin that would exceed the limit. The parameter pinned is how many revisions
// are already pinned.
func PinLimit(pinned int) string {
	return fmt.Sprintf("%d revisions are pinned: at most %d are allowed: release one of them", pinned, state.MaxPins)
}

// revisionPinned pins a revision, or ends its pin. The command with the greatest id wins, regardless of the order of
// folding.
func (f *folder) revisionPinned(p *event.RevisionPinned) verdict {
	key := strconv.FormatInt(p.Revision, 10)
	old := f.st.Pins.Get(key)
	switch {
	case old != nil && old.CommandID == p.CommandID:
		return noChange
	case old != nil && old.CommandID > p.CommandID:
		return stale("a later command has pinned or released the revision")
	}
	for _, row := range f.st.Pins.Rows() {
		if row.Revision != key && f.at().Sub(row.Until) > endedPins {
			dead := *row
			remove(f, f.st.Pins, &dead)
		}
	}
	put(f, f.st.Pins, &state.Pin{
		Revision: key, CommandID: p.CommandID, Until: p.Until, PinnedAt: f.at(), PinnedBy: f.ev.Actor, Reason: p.Reason,
	})
	return folded
}
