package compactor

import (
	"fmt"
	"time"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/ids"
)

// RefuseAhead turns groups of an entry into CLOCK_AHEAD dead letters if the entry's name, or an id
// or a timestamp in the group, is more than [ids.MaxAhead] ahead of the time at which the store
// created the entry. It runs before the fold, so a refused group advances neither the fold time nor a watermark.
//
// The result depends only on the entry and on the time at which the store created it, and both are durable. So every
// compactor and every rebuild refuses the same groups, regardless of its clock and of when it reads the entry.
func RefuseAhead(groups []fold.Group, stored time.Time) {
	limit := stored.Add(ids.MaxAhead)
	for i := range groups {
		if at, _ := event.Latest(groups[i].Entry, groups[i].Events); at.After(limit) {
			markAhead(&groups[i])
		}
	}
}

// markAhead turns a group into a CLOCK_AHEAD dead letter. The detail of the dead letter contains only the latest time
// in the group, so it does not depend on the store's time.
func markAhead(g *fold.Group) {
	at, where := event.Latest(g.Entry, g.Events)
	g.Reason = event.ReasonClockAhead
	g.Detail = fmt.Sprintf("%s: %s is more than %s ahead of the store's clock; set the clock of the machine that wrote the entry",
		where, event.At(at), ids.MaxAhead)
}
