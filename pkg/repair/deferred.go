package repair

import (
	"cmp"
	"slices"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/state"
)

// deferred holds groups back when the order in which a ledger was folded is not known. The groups then arrive in the
// order of their ids, which depends on the clocks of machines and may differ from the order of folding.
//
// Triggers of runs that compete for a run key wait until an event shows which run won. The winner is the run whose
// trigger was folded first. All later events about these runs are about the winner. In the order of ids, they may come
// before or after the winner's trigger. After the winner is known, the triggers of the other runs are folded
// immediately, so that these runs lose. If a trigger were folded after the key expires, its run would get the key.
//
// A retry also waits for an event about its run: without such an event, the retry may have been rejected, because
// another run of the same chain of retries was live. Deployments wait until an event proves that one of them was
// folded: see [deployments]. Commands about a schedule or an alert rule wait until the schedule or rule exists: see
// [earlyCommands].
//
// Several automators may have planned the run of a request. The triggers of this run wait until a report of a task
// names the plan that was executed.
//
// A cancel waits for the facts that must have been folded before it: its run must exist, and if a task of the run has
// begun, the upstreams of that task must have ended. The cancel does not wait for other facts: they were folded after
// the cancel, too late to have an effect.
//
// Commands to forget assets never wait. They are folded even if a run seems to use one of the assets. The decision of a
// timer may have ended this run, but such decisions are folded last, and may then have a different effect.
//
// Decisions of timers wait for all facts, and are folded last. If a decision closed an attempt, later facts usually
// name the next attempt. The fold adopts this attempt from the facts, so the late decision changes nothing. If no fact
// names a next attempt, a report may originally have been folded before the decision, and the decision had no effect.
// So reports take precedence over decisions.
type deferred struct {
	groups      map[string][]fold.Group // waiting triggers, by run
	order       []string                // the runs in groups, in the order of arrival
	rivals      map[string][]string     // the runs in groups, by run key
	seen        map[string]bool         // runs of which an event was read before the trigger
	plans       map[string]string       // hashes of executed plans, by run of a request
	cancels     map[string]*cancel      // waiting cancels, by run
	cancelOrder []string                // the runs in cancels, in the order of arrival
	touched     []string                // the runs of the groups that the last call of next returned
	deployments deployments
	commands    earlyCommands
	timers      []state.Key2 // entry and group ids of timer decisions; they are read again at the end
}

// cancel is a waiting cancel of a run.
type cancel struct {
	run      string
	upstream string // the cancel is folded after the end of this task; "": the cancel waits until its run exists
	groups   []fold.Group
}

// maxDeferred is how long, in the ledger's time, a trigger waits for an event that shows which run won the key. The
// winner keeps the key for twice as long.
const maxDeferred = fold.RunKeyTTL / 2

func newDeferred() *deferred {
	return &deferred{
		groups: map[string][]fold.Group{}, rivals: map[string][]string{}, seen: map[string]bool{}, plans: map[string]string{},
		cancels: map[string]*cancel{},
	}
}

// next takes the next group in the order of ids, and returns the groups to fold now.
func (h *deferred) next(st *state.State, g fold.Group) (groups []fold.Group) {
	groups = h.dueCancels(st)
	if g.Reason == event.ReasonClockAhead {
		return append(groups, g) // the group has no effect, and its time is wrong
	}
	now := timeOf(st, g)
	groups = append(groups, h.commands.due(st, &h.deployments, now)...)
	groups = append(groups, h.lateTriggers(now)...)
	for _, e := range g.Events {
		groups = append(groups, h.deployments.provenBy(st, e.Payload)...)
	}
	defer func() {
		h.touched = h.touched[:0]
		for _, g := range groups {
			h.touched = append(h.touched, fold.Names(g)...)
		}
	}()
	key := state.Key2{A: g.Entry, B: g.ID}
	row := st.Entries.Get(key)
	if event.HasFiredTimer(g.Events) && (row == nil || row.Waits()) {
		h.timers = append(h.timers, key)
		return groups
	}
	if row == nil && forgets(g) {
		g.Proven = true
	}
	if p := deploymentIn(g); p != nil && row == nil {
		return append(groups, h.deployments.add(st, g, p)...)
	}
	if row == nil && h.isEarly(st, g, groups) {
		return groups
	}
	if p := h.competes(st, g); p != nil {
		h.wait(p, g)
		return groups
	}
	cancelled := ""
	for _, e := range g.Events {
		run := runSeenBy(e.Payload)
		if h.decides(run, e.Payload) {
			groups = append(groups, markProven(h.executed(run))...)
		}
		if run != "" && st.Runs.Get(run) == nil {
			h.seen[run] = true
		}
		if _, ok := e.Payload.(*event.RunCancelRequested); ok && row == nil {
			cancelled = run
		}
		if p, ok := e.Payload.(*event.RunTriggered); ok {
			g.Proven = g.Proven || h.seen[p.RunID]
		}
	}
	if cancelled != "" && h.deferCancel(st, cancelled, g) {
		return groups
	}
	return append(groups, g)
}

// forgets reports whether a group has a command to forget assets.
func forgets(g fold.Group) bool {
	return slices.ContainsFunc(g.Events, func(e *event.Envelope) bool {
		_, ok := e.Payload.(*event.AssetsForgotten)
		return ok
	})
}

// wait holds back the trigger of a run.
func (h *deferred) wait(p *event.RunTriggered, g fold.Group) {
	if h.groups[p.RunID] == nil {
		h.order = append(h.order, p.RunID)
		if p.RunKey != "" {
			h.rivals[p.RunKey] = append(h.rivals[p.RunKey], p.RunID)
		}
	}
	h.groups[p.RunID] = append(h.groups[p.RunID], g)
}

// markProven sets Proven in triggers whose run has appeared in the ledger, and in the triggers of the other runs with
// the same run key. The fold still rejects the other runs, because the first run owns the key.
func markProven(groups []fold.Group) []fold.Group {
	for i := range groups {
		groups[i].Proven = true
	}
	return groups
}

// deferCancel holds back a cancel if it must wait, and reports whether it did.
func (h *deferred) deferCancel(st *state.State, run string, g fold.Group) bool {
	c := h.cancels[run]
	if c == nil {
		c = &cancel{run: run}
		if !c.waits(st) {
			return false
		}
		h.cancels[run] = c
		h.cancelOrder = append(h.cancelOrder, run)
	}
	c.groups = append(c.groups, g)
	return true
}

// dueCancels removes and returns the cancels that no longer have to wait. The caller must first fold all groups that
// the last call of next has returned.
func (h *deferred) dueCancels(st *state.State) []fold.Group {
	var groups []fold.Group
	for _, run := range h.touched {
		if c := h.cancels[run]; c != nil && !c.waits(st) {
			groups = append(groups, c.groups...)
			delete(h.cancels, run)
		}
	}
	return groups
}

// timeOf returns the ledger's time after g is folded.
func timeOf(st *state.State, g fold.Group) event.Time {
	now := st.FoldTime
	for _, e := range g.Events {
		now = max(now, e.Time)
	}
	return now
}

// isEarly reports whether a group must wait because its events name a deployment, schedule or alert rule that does
// not exist yet. It returns false if one of the groups in the parameter "before" deploys a release, because this
// deployment may create the schedule or rule.
func (h *deferred) isEarly(st *state.State, g fold.Group, before []fold.Group) bool {
	if slices.ContainsFunc(before, func(b fold.Group) bool { return deploymentIn(b) != nil }) {
		return false
	}
	return h.deployments.wait(st, g) || h.commands.wait(st, g)
}

// lateTriggers returns the triggers that have waited for maxDeferred or longer at the given time.
func (h *deferred) lateTriggers(now event.Time) []fold.Group {
	var groups []fold.Group
	for len(h.order) > 0 {
		waiting := h.groups[h.order[0]]
		if len(waiting) > 0 && now.Sub(waiting[0].Events[0].Time) < maxDeferred {
			break
		}
		groups = append(groups, h.takeTriggers(h.order[0])...)
		h.order = h.order[1:]
	}
	return groups
}

// waits reports whether the cancel must still wait: its run has not appeared, or a task of the run has begun although
// an upstream of that task has not ended yet.
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

// began reports whether a task has been executed.
func began(t *state.Task) bool {
	return t.StartedAt != 0 || t.State == state.TaskRunning || t.State == state.TaskSucceeded || t.State == state.TaskFailed
}

// competes returns the trigger in a group if the trigger must wait until an event shows whether it created its run.
// Three kinds of triggers wait: triggers of retries, triggers of runs of requests, and triggers whose run key is free,
// because no run owns it or its owner has expired. For any other group, the result is nil.
func (h *deferred) competes(st *state.State, g fold.Group) *event.RunTriggered {
	for _, e := range g.Events {
		p, ok := e.Payload.(*event.RunTriggered)
		if ok && p.RequestID != "" {
			if plan := h.plans[p.RunID]; plan == "" || plan != planIn(g) {
				return p
			}
			continue
		}
		if !ok || p.RunKey == "" && p.RootRun == "" || h.seen[p.RunID] {
			continue
		}
		if p.RunKey == "" {
			return p
		}
		if owner := st.RunKeys.Get(p.RunKey); owner == nil || owner.ExpiresAt <= e.Time {
			return p
		}
	}
	return nil
}

// decides reports whether an event of a run shows which of the run's waiting triggers was folded. It also records the
// executed plan in h.plans if the event names this plan.
func (h *deferred) decides(run string, p event.Payload) bool {
	plan := ""
	if p, ok := p.(*event.TaskStarted); ok {
		plan = p.Plan
	}
	if p, ok := p.(*event.TaskFinished); ok {
		plan = p.Plan
	}
	if plan != "" {
		h.plans[run] = plan
		return true
	}
	waiting := h.groups[run]
	return len(waiting) == 0 || !requested(waiting[0])
}

// executed calls takeTriggers, and returns the groups with the executed plan first.
func (h *deferred) executed(run string) []fold.Group {
	groups, plan := h.takeTriggers(run), h.plans[run]
	slices.SortStableFunc(groups, func(a, b fold.Group) int {
		return cmp.Compare(btoi(planIn(a) != plan), btoi(planIn(b) != plan))
	})
	return groups
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// requested reports whether a group triggers the run of a request.
func requested(g fold.Group) bool {
	return slices.ContainsFunc(g.Events, func(e *event.Envelope) bool {
		p, ok := e.Payload.(*event.RunTriggered)
		return ok && p.RequestID != ""
	})
}

// planIn returns the hash of the plan in a group, or "".
func planIn(g fold.Group) string {
	for _, e := range g.Events {
		if p, ok := e.Payload.(*event.PlanCreated); ok {
			return event.PlanHash(p.PlanRef)
		}
	}
	return ""
}

// takeTriggers removes and returns the waiting triggers of a run, followed by the triggers of the other runs with the
// same run key.
func (h *deferred) takeTriggers(run string) []fold.Group {
	groups := h.groups[run]
	delete(h.groups, run)
	if len(groups) == 0 {
		return nil
	}
	key := keyOf(groups[0])
	if key == "" {
		return groups
	}
	rivals := h.rivals[key]
	delete(h.rivals, key)
	for _, rival := range rivals {
		groups = append(groups, h.groups[rival]...)
		delete(h.groups, rival)
	}
	return groups
}

// keyOf returns the run key of the trigger in a group, or "".
func keyOf(g fold.Group) string {
	for _, e := range g.Events {
		if p, ok := e.Payload.(*event.RunTriggered); ok {
			return p.RunKey
		}
	}
	return ""
}

// rest returns the remaining deployments, commands about schedules and alerts, triggers and cancels, each in the
// order of their ids.
func (h *deferred) rest() []fold.Group {
	groups := h.deployments.rest()
	groups = append(groups, h.commands...)
	h.commands = nil
	for _, run := range h.order {
		groups = append(groups, h.takeTriggers(run)...)
	}
	for _, run := range h.cancelOrder {
		if c := h.cancels[run]; c != nil {
			groups = append(groups, c.groups...)
			delete(h.cancels, run)
		}
	}
	return groups
}

// runSeenBy returns the run that the author of an event must have seen in the state, or "".
func runSeenBy(p event.Payload) string {
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
	case *event.RunTriggered, *event.PlanCreated, *event.TimerEnqueued, *event.TimerFired, *event.TimerRequested, *event.LimitSet,
		*event.ProjectDeployed, *event.QuarantineResolved, *event.PartitionsChanged, *event.PartitionsMarked,
		*event.RunRequested, *event.RequestRefused, *event.SchedulesDefined, *event.CalendarAdvanced, *event.AutomationCommand, *event.RevisionPinned, *event.AssetsForgotten, *event.BackfillCreated, *event.NotificationEnded, *event.DeadlineJudged:
	}
	return ""
}
