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
// That a run is to be cancelled waits for what must have come before: the ends of
// upstreams of tasks that began. Whatever else comes later came too late to count.
//
// What timers decided waits for all facts. If it was decided, the facts say so:
// they are of the next attempt. If they are not, a report may have come first.
type held struct {
	groups  map[string][]fold.Group // triggers that wait, by run
	order   []string                // their runs
	seen    map[string]bool         // runs that the ledger spoke of before their triggers came
	cancels []cancel
	timers  []state.Key2 // entries and groups: they are read again when their turn comes
}

// cancel is what ends a run early, and waits.
type cancel struct {
	run      string
	upstream string // what is to end first, or "": the run is to appear
	group    fold.Group
}

func newHeld() *held {
	return &held{groups: map[string][]fold.Group{}, seen: map[string]bool{}}
}

// next gives what is to be folded when a group's turn comes.
func (h *held) next(st *state.State, g fold.Group) []fold.Group {
	groups := h.due(st)
	key := state.Key2{A: g.Entry, B: g.ID}
	row := st.Entries.Get(key)
	if event.Decides(g.Events) && (row == nil || row.Waits()) {
		h.timers = append(h.timers, key)
		return groups
	}
	if run := h.competes(g); run != "" {
		if h.groups[run] == nil {
			h.order = append(h.order, run)
		}
		h.groups[run] = append(h.groups[run], g)
		return groups
	}
	cancelled := ""
	for _, e := range g.Events {
		run := seenBy(e.Payload)
		groups = append(groups, h.release(run)...)
		if run != "" && st.Runs.Get(run) == nil {
			h.seen[run] = true
		}
		if _, ok := e.Payload.(*event.RunCancelRequested); ok && row == nil {
			cancelled = run
		}
	}
	if c := (cancel{run: cancelled, group: g}); cancelled != "" && c.waits(st) {
		h.cancels = append(h.cancels, c)
		return groups
	}
	return append(groups, g)
}

// due are cancels that wait no longer.
func (h *held) due(st *state.State) []fold.Group {
	var groups []fold.Group
	waiting := h.cancels[:0]
	for _, c := range h.cancels {
		if c.waits(st) {
			waiting = append(waiting, c)
		} else {
			groups = append(groups, c.group)
		}
	}
	h.cancels = waiting
	return groups
}

// waits reports whether the run is still to appear, or something in it began and what
// it depends on has not ended.
func (c *cancel) waits(st *state.State) bool {
	if st.Runs.Get(c.run) == nil {
		return true
	}
	running := func(key string) bool {
		t := st.Tasks.Get(state.Key2{A: c.run, B: key})
		return t != nil && !t.State.Terminal()
	}
	if c.upstream != "" && running(c.upstream) {
		return true
	}
	c.upstream = ""
	st.Deps.Ascend(state.Key3{A: c.run}, func(d *state.Dep) bool {
		if d.RunID != c.run {
			return false
		}
		if down := st.Tasks.Get(state.Key2{A: c.run, B: d.Downstream}); down.StartedAt != 0 && running(d.Upstream) {
			c.upstream = d.Upstream
		}
		return c.upstream == ""
	})
	return c.upstream != ""
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

// rest are the runs of which the ledger says nothing more, in the order of their
// ids, and then what ends runs early.
func (h *held) rest() []fold.Group {
	var groups []fold.Group
	for _, run := range h.order {
		groups = append(groups, h.release(run)...)
	}
	for _, c := range h.cancels {
		groups = append(groups, c.group)
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
