package compactor

import (
	"fmt"
	"time"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/ids"
)

// RefuseAhead makes dead letters, CLOCK_AHEAD, of the groups of an entry whose name,
// ids or timestamps are more than [ids.MaxAhead] ahead of the time at which the store
// took the entry. It runs before the fold: a group that is refused moves neither the
// fold time nor a watermark.
//
// The verdict depends on the entry and on that time alone, and both are durable. So
// every compactor and every rebuild arrives at the same verdict, whatever their clocks
// say and however late they read the entry.
func RefuseAhead(groups []fold.Group, stored time.Time) {
	limit := stored.Add(ids.MaxAhead)
	for i := range groups {
		if at, _ := event.Latest(groups[i].Entry, groups[i].Events); at.After(limit) {
			markAhead(&groups[i])
		}
	}
}

// markAhead makes a group the dead letter that RefuseAhead makes of it. The detail
// names the latest time in the group, which does not depend on the store's time.
func markAhead(g *fold.Group) {
	at, where := event.Latest(g.Entry, g.Events)
	g.Reason = event.ReasonClockAhead
	g.Detail = fmt.Sprintf("%s: %s is more than %s ahead of the store's clock; set the clock of the machine that wrote it",
		where, event.At(at), ids.MaxAhead)
}
