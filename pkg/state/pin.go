package state

import (
	"strconv"

	"github.com/servo-orchestration/servo/pkg/event"
)

// MaxPins limits the pins of a domain that have not ended, because each may keep a whole copy of the outputs.
const MaxPins = 10

// Pin is a row of revision_pins: a revision that a person keeps, with the outputs that it shows.
type Pin struct {
	Revision string `col:"revision,key"` // the number of the revision, in decimal
	// CommandID is the id of the newest command about the revision. Commands with smaller ids are ignored.
	CommandID string     `col:"command_id"`
	Until     event.Time `col:"until"`
	PinnedAt  event.Time `col:"pinned_at"`
	PinnedBy  string     `col:"pinned_by,null,dict"`
	Reason    string     `col:"reason,null"`
	Meta
}

// Key returns the primary key.
func (r *Pin) Key() string { return r.Revision }

func (*Pin) newTable() store { return new(rowTable[string, Pin, *Pin]) }

// Number returns the number of the revision.
func (r *Pin) Number() int64 {
	n, _ := strconv.ParseInt(r.Revision, 10, 64) // the fold writes only valid numbers
	return n
}

// PinnedAt returns the pins that have not ended at the given time. The keys of the map are revisions.
func (s *State) PinnedAt(now event.Time) map[int64]*Pin {
	pinned := map[int64]*Pin{}
	for row := range s.Pins.All {
		if row.Until > now {
			pinned[row.Number()] = row
		}
	}
	return pinned
}
