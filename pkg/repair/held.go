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
// won. The first one folded did, and only of that one the ledger has more to say,
// before its trigger or after it.
//
// What timers decided waits for all facts. If it was decided, the facts say so:
// they are of the next attempt. If they are not, a report may have come first.
type held struct {
	groups map[string][]fold.Group // triggers that wait, by run
	order  []string                // their runs
	seen   map[string]bool         // runs that the ledger spoke of before their triggers came
	timers []state.Key2            // entries and groups: they are read again when their turn comes
}

func newHeld() *held {
	return &held{groups: map[string][]fold.Group{}, seen: map[string]bool{}}
}

// next gives what is to be folded when a group's turn comes.
func (h *held) next(st *state.State, g fold.Group) []fold.Group {
	key := state.Key2{A: g.Entry, B: g.ID}
	if row := st.Entries.Get(key); event.Decides(g.Events) && (row == nil || row.Waits()) {
		h.timers = append(h.timers, key)
		return nil
	}
	if run := h.competes(g); run != "" {
		if h.groups[run] == nil {
			h.order = append(h.order, run)
		}
		h.groups[run] = append(h.groups[run], g)
		return nil
	}
	var groups []fold.Group
	for _, e := range g.Events {
		run := seenBy(e.Payload)
		groups = append(groups, h.release(run)...)
		if run != "" && st.Runs.Get(run) == nil {
			h.seen[run] = true
		}
	}
	return append(groups, g)
}

// competes is the run that a group triggers, if it wants a run key and nothing
// says yet whether it got it, or "".
func (h *held) competes(g fold.Group) string {
	for _, e := range g.Events {
		p, ok := e.Payload.(*event.RunTriggered)
		if ok && p.RunKey != "" && !h.seen[p.RunID] {
			return p.RunID
		}
	}
	return ""
}

// release gives the triggers of a run that wait no longer.
func (h *held) release(run string) []fold.Group {
	groups := h.groups[run]
	delete(h.groups, run)
	return groups
}

// rest are the runs of which the ledger says nothing more, in the order of their ids.
func (h *held) rest() []fold.Group {
	var groups []fold.Group
	for _, run := range h.order {
		groups = append(groups, h.release(run)...)
	}
	return groups
}

// seenBy is the run that whoever said an event had seen in the state, or "".
func seenBy(p event.Payload) string {
	switch p := p.(type) {
	case *event.RunCancelRequested:
		return p.RunID
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
	case *event.RunTriggered, *event.PlanCreated, *event.TimerEnqueued, *event.TimerFired, *event.TimerRequested, *event.LimitSet:
	}
	return ""
}
