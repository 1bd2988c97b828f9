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
// before its trigger or after it. The others lost then, and are not to wait until the
// key is free again.
//
// That a run is to be cancelled waits for what must have come before: the ends of
// upstreams of tasks that began. Whatever else comes later came too late to count.
//
// What timers decided waits for all facts. If it was decided, the facts say so:
// they are of the next attempt. If they are not, a report may have come first.
type held struct {
	groups  map[string][]fold.Group // triggers that wait, by run
	order   []string                // their runs
	rivals  map[string][]string     // the same, by run key
	seen    map[string]bool         // runs that the ledger spoke of before their triggers came
	cancels map[string]*cancel      // by run
	waited  []string                // their runs
	heard   []string                // runs of what was given last
	timers  []state.Key2            // entries and groups: they are read again when their turn comes
}

// cancel is what ends a run early, and waits.
type cancel struct {
	run      string
	upstream string // what is to end first, or "": the run is to appear
	groups   []fold.Group
}

// maxHeld is how long, in the ledger's time, a trigger waits for a sign of who won
// the key: the key is taken for twice as long.
const maxHeld = fold.RunKeyTTL / 2

func newHeld() *held {
	return &held{
		groups: map[string][]fold.Group{}, rivals: map[string][]string{}, seen: map[string]bool{}, cancels: map[string]*cancel{},
	}
}

// next gives what is to be folded when a group's turn comes.
func (h *held) next(st *state.State, g fold.Group) (groups []fold.Group) {
	groups = h.due(st)
	if g.Reason == event.ReasonClockAhead {
		return append(groups, g) // it says nothing, least of all what time it is
	}
	groups = append(groups, h.late(st, g)...)
	defer func() {
		h.heard = h.heard[:0]
		for _, g := range groups {
			h.heard = append(h.heard, fold.Names(g)...)
		}
	}()
	key := state.Key2{A: g.Entry, B: g.ID}
	row := st.Entries.Get(key)
	if event.Decides(g.Events) && (row == nil || row.Waits()) {
		h.timers = append(h.timers, key)
		return groups
	}
	if p := h.competes(st, g); p != nil {
		if h.groups[p.RunID] == nil {
			h.order = append(h.order, p.RunID)
			h.rivals[p.RunKey] = append(h.rivals[p.RunKey], p.RunID)
		}
		h.groups[p.RunID] = append(h.groups[p.RunID], g)
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
	if cancelled != "" && h.hold(st, cancelled, g) {
		return groups
	}
	return append(groups, g)
}

// hold keeps a cancel, if it has to wait.
func (h *held) hold(st *state.State, run string, g fold.Group) bool {
	c := h.cancels[run]
	if c == nil {
		c = &cancel{run: run}
		if !c.waits(st) {
			return false
		}
		h.cancels[run] = c
		h.waited = append(h.waited, run)
	}
	c.groups = append(c.groups, g)
	return true
}

// due are cancels that wait no longer, now that what was given last is folded.
func (h *held) due(st *state.State) []fold.Group {
	var groups []fold.Group
	for _, run := range h.heard {
		if c := h.cancels[run]; c != nil && !c.waits(st) {
			groups = append(groups, c.groups...)
			delete(h.cancels, run)
		}
	}
	return groups
}

// late are triggers that will have waited for too long once another group is folded.
func (h *held) late(st *state.State, g fold.Group) []fold.Group {
	now := st.FoldTime
	for _, e := range g.Events {
		now = max(now, e.Time)
	}
	var groups []fold.Group
	for len(h.order) > 0 {
		waiting := h.groups[h.order[0]]
		if len(waiting) > 0 && now.Sub(waiting[0].Events[0].Time) < maxHeld {
			break
		}
		groups = append(groups, h.release(h.order[0])...)
		h.order = h.order[1:]
	}
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
		if began(st.Tasks.Get(state.Key2{A: c.run, B: d.Downstream})) && running(d.Upstream) {
			c.upstream = d.Upstream
		}
		return c.upstream == ""
	})
	return c.upstream != ""
}

// began reports whether somebody has executed a task.
func began(t *state.Task) bool {
	return t.StartedAt != 0 || t.State == state.TaskRunning || t.State == state.TaskSucceeded || t.State == state.TaskFailed
}

// competes is the trigger in a group, if its run wants a run key that nobody has and
// nothing says yet whether it got it, or nil.
func (h *held) competes(st *state.State, g fold.Group) *event.RunTriggered {
	for _, e := range g.Events {
		p, ok := e.Payload.(*event.RunTriggered)
		if !ok || p.RunKey == "" || h.seen[p.RunID] {
			continue
		}
		if holder := st.RunKeys.Get(p.RunKey); holder == nil || holder.ExpiresAt <= e.Time {
			return p
		}
	}
	return nil
}

// release gives the triggers of a run that wait no longer, and behind them those of
// its rivals.
func (h *held) release(run string) []fold.Group {
	groups := h.groups[run]
	delete(h.groups, run)
	if len(groups) == 0 {
		return nil
	}
	key := keyOf(groups[0])
	rivals := h.rivals[key]
	delete(h.rivals, key)
	for _, rival := range rivals {
		groups = append(groups, h.groups[rival]...)
		delete(h.groups, rival)
	}
	return groups
}

// keyOf is the run key that a trigger wants.
func keyOf(g fold.Group) string {
	for _, e := range g.Events {
		if p, ok := e.Payload.(*event.RunTriggered); ok {
			return p.RunKey
		}
	}
	return ""
}

// rest are the runs of which the ledger says nothing more, in the order of their
// ids, and then what ends runs early.
func (h *held) rest() []fold.Group {
	var groups []fold.Group
	for _, run := range h.order {
		groups = append(groups, h.release(run)...)
	}
	for _, run := range h.waited {
		if c := h.cancels[run]; c != nil {
			groups = append(groups, c.groups...)
			delete(h.cancels, run)
		}
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
