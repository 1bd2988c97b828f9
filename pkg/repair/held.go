package repair

import (
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/state"
)

// held is what has to wait when the order in which a ledger was folded is not
// known: that of the ids, which machines' clocks decide, need not be it.
//
// Triggers of runs that compete for a run key wait as long as nothing says who
// won. The first one folded did; so a run of which something was dispatched has.
//
// What timers decided waits for all facts. If it was decided, the facts say so:
// they are of the next attempt. If they are not, a report may have come first.
type held struct {
	groups map[string]fold.Group // by run
	order  []string
	timers []state.Key2 // entries and groups: they are read again when their turn comes
}

// next gives what is to be folded when a group's turn comes.
func (h *held) next(st *state.State, g fold.Group) []fold.Group {
	key := state.Key2{A: g.Entry, B: g.ID}
	if row := st.Entries.Get(key); event.Decides(g.Events) && (row == nil || row.Waits()) {
		h.timers = append(h.timers, key)
		return nil
	}
	for _, e := range g.Events {
		if p, ok := e.Payload.(*event.RunTriggered); ok && p.RunKey != "" && len(st.Waiting(p.RunID)) == 0 {
			h.groups[p.RunID] = g
			h.order = append(h.order, p.RunID)
			return nil
		}
	}
	var groups []fold.Group
	for _, e := range g.Events {
		if won, ok := h.groups[dispatched(e.Payload)]; ok {
			groups = append(groups, won)
			delete(h.groups, dispatched(e.Payload))
		}
	}
	return append(groups, g)
}

// rest are the runs of which nothing was dispatched, in the order of their ids.
func (h *held) rest() []fold.Group {
	var groups []fold.Group
	for _, run := range h.order {
		if g, ok := h.groups[run]; ok {
			groups = append(groups, g)
			delete(h.groups, run)
		}
	}
	return groups
}

// dispatched is the run that an event proves to have begun, or "".
func dispatched(p event.Payload) string {
	switch p := p.(type) {
	case *event.DispatchEnqueued:
		return p.RunID
	case *event.DispatchFailed:
		return p.RunID
	case *event.DispatchRequested:
		return p.RunID
	case *event.TaskStarted:
		return p.RunID
	case *event.TaskHeartbeat:
		return p.RunID
	case *event.TaskFinished:
		return p.RunID
	case *event.RunTriggered, *event.PlanCreated, *event.RunCancelRequested, *event.TimerEnqueued, *event.TimerFired,
		*event.TimerRequested, *event.LimitSet:
	}
	return ""
}
