package sim

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/state"
)

// Names of invariants about schedules.
const (
	oneTick      = "I-26 one tick"
	exactOverlap = "I-27 overlap is exact"
)

// replacedByTick is the reason for cancelling the run of an earlier tick.
const replacedByTick = "a later tick replaces it"

type instant struct {
	schedule string
	at       event.Time
}

// ofCalendar reports whether a tick belongs to an instant of the calendar. If not, a person has requested the tick.
func ofCalendar(t *state.Tick) bool {
	return t.Kind == state.TickOnTime || t.Kind == state.TickCaughtUp
}

// checkSchedules checks the changes of schedules, ticks and requests in a revision.
func (o *oracle) checkSchedules(f *followed, before, after *state.State, rebuilt bool) {
	if after.Schedules.Len()+after.Requests.Len()+after.Ticks.Len() == 0 {
		return
	}
	for is := range changed(f, after.Ticks) {
		if was := before.Ticks.Get(is.TickID); was != is {
			o.checkTick(f, was, is, rebuilt)
		}
	}
	for id := range f.index.openTicks {
		is := after.Ticks.Get(id)
		if r := after.Requests.Get(is.RequestID); !is.Outcome.Final() && (r == nil || r.State.Ended() || (r.State == state.RequestBuffered) != (is.Outcome == state.TickBuffered)) {
			o.violation(exactOverlap, "tick %s of schedule %s of %s is %s, but its request is %s", is.Logical, is.ScheduleID, f.domain, is.Outcome, stateOf(r))
		}
	}
	for run := range changed(f, after.Runs) {
		if run.TickID == "" || run.ParentRunID != "" || before.Runs.Get(run.RunID) != nil {
			continue
		}
		if other := f.runsOf[run.TickID]; other != "" && other != run.RunID && !f.unordered {
			o.violation(oneTick, "runs %s and %s both belong to tick %s of schedule %s of %s", other, run.RunID, run.TickID, run.ScheduleID, f.domain)
		}
		f.runsOf[run.TickID] = run.RunID
	}
	for is := range after.Schedules.All {
		was := before.Schedules.Get(is.ScheduleID)
		if was == is {
			continue
		}
		o.checkNextInstant(f, is)
		if was != nil && !rebuilt && !f.unordered { // a bare rebuild loses the ticks that started no run
			o.checkCovered(f, before, after, was, is)
		}
	}
	if !f.unordered {
		o.checkOverlaps(f, after)
	}
	o.checkWakeTimer(f, after)
}

// checkWakeTimer checks that the wake timer fires early enough for the first of these: the next instant of a schedule,
// a waiting request, and the verdict about a deadline or freshness. Since the timer fires at most once a second, it may
// be a little late.
func (o *oracle) checkWakeTimer(f *followed, s *state.State) {
	earliest, what := event.Time(0), ""
	note := func(at event.Time, name string) {
		if at != 0 && (earliest == 0 || at < earliest) {
			earliest, what = at, name
		}
	}
	for row := range s.Schedules.All {
		note(row.NextAt, "schedule "+row.ScheduleID)
	}
	for r := range s.Requests.All {
		if r.State == state.RequestWaiting {
			note(r.NextAt, "request "+r.RequestID)
		}
	}
	for p := range s.Promises.All {
		note(p.NextAt, "the deadline of "+p.AssetKey)
		note(p.LagAt, "the freshness of "+p.AssetKey)
	}
	if earliest == 0 {
		return
	}
	const margin = 2 * time.Second
	timer := s.Wake()
	if timer == nil || timer.State != state.TimerScheduled || timer.FireAt > max(earliest, timer.FiredAt).Add(margin) {
		o.violation(oneTick, "%s of %s is due at %s, but the wake timer is %+v", what, f.domain, earliest, timer)
	}
}

func stateOf(r *state.RunRequest) string {
	if r == nil {
		return "gone"
	}
	return string(r.State) + " " + r.RunID
}

// checkTick checks a new or changed tick.
func (o *oracle) checkTick(f *followed, was, is *state.Tick, rebuilt bool) {
	if was != nil && !rebuilt && was.Outcome.Final() && was.Outcome != is.Outcome {
		o.violation(oneTick, "tick %s of schedule %s of %s was %s, which is final, but is now %s", is.Logical, is.ScheduleID, f.domain, was.Outcome, is.Outcome)
	}
	if was == nil {
		o.w.fault("tick " + is.Kind + " " + string(is.Outcome))
	}
	if !ofCalendar(is) {
		return
	}
	at := instant{is.ScheduleID, is.Logical}
	if other := f.ticks[at]; other != "" && other != is.TickID {
		o.violation(oneTick, "instant %s of schedule %s of %s has ticks %s and %s", is.Logical, is.ScheduleID, f.domain, other, is.TickID)
	}
	f.ticks[at] = is.TickID
	for _, s := range o.w.load.definitions(f.domain, is.ScheduleID) {
		if isInstant(&s, is.Logical.Time()) {
			return
		}
	}
	o.violation(oneTick, "%s is no instant of schedule %s of %s, but has a tick", is.Logical, is.ScheduleID, f.domain)
}

// checkNextInstant checks that a schedule waits for the first instant after its cursor. A delay of this instant must be
// shorter than the schedule's jitter, and must end before the following instant.
func (o *oracle) checkNextInstant(f *followed, s *state.Schedule) {
	spec, ok := o.w.load.definitions(f.domain, s.ScheduleID)[s.Version]
	switch {
	case !ok:
		o.violation(oneTick, "no release defines version %s of schedule %s of %s", s.Version, s.ScheduleID, f.domain)
		return
	case !s.Live() && (s.Next != 0 || s.WantedAt != 0):
		o.violation(oneTick, "schedule %s of %s is paused or removed, but its next instant is %q, and it waits for the instants up to %q", s.ScheduleID, f.domain, s.Next, s.WantedAt)
	case s.Next == 0:
		if s.Error != "" {
			o.violation(oneTick, "the calendar cannot compute the instants of schedule %s of %s: %s", s.ScheduleID, f.domain, s.Error)
		}
		if s.Live() && s.WantedAt == 0 && firstAfter(&spec, s.Cursor) != 0 {
			o.violation(oneTick, "schedule %s of %s waits for no instant, but its next instant is %s", s.ScheduleID, f.domain, firstAfter(&spec, s.Cursor))
		}
		return
	}
	if want := firstAfter(&spec, s.Cursor); s.Next != want {
		o.violation(oneTick, "schedule %s of %s waits for %s, but its first instant after %s is %s", s.ScheduleID, f.domain, s.Next, s.Cursor, want)
	}
	jitter := s.NextAt.Sub(s.Next)
	if following := firstAfter(&spec, s.Next); jitter > 0 && (jitter >= time.Duration(spec.JitterSec)*time.Second || following != 0 && s.NextAt >= following) {
		o.violation(oneTick, "instant %s of schedule %s of %s is delayed by %s: want less than the jitter, %d s, and an end before the next instant, %s",
			s.Next, s.ScheduleID, f.domain, jitter, spec.JitterSec, following)
	}
}

// checkCovered checks the instants that the cursor of a schedule has passed in a revision: each of them must have a
// tick, or be counted as dropped.
func (o *oracle) checkCovered(f *followed, before, after *state.State, was, is *state.Schedule) {
	if is.Cursor < was.Cursor {
		o.violation(oneTick, "the cursor of schedule %s of %s moved back from %s to %s", is.ScheduleID, f.domain, was.Cursor, is.Cursor)
	}
	// If a schedule was paused and resumed, the instants during the pause need no decision. The same holds if a schedule
	// was removed, and a release declares it again.
	if was.CommandID != is.CommandID || !was.Live() {
		return
	}
	through := is.Cursor
	if was.Version != is.Version {
		if after.Deployments.Len() != before.Deployments.Len() {
			return // a third version may have applied between the two versions
		}
		through = min(through, is.DefinedAt) // the old definition applies up to the deployment
	}
	spec, ok := o.w.load.definitions(f.domain, was.ScheduleID)[was.Version]
	if !ok {
		return
	}
	instants := instantsOf(&spec, was.Cursor, through)
	dropped := is.TicksDropped - was.TicksDropped
	ticks := 0
	for t := range after.Ticks.All {
		if t.ScheduleID != is.ScheduleID {
			continue
		}
		if ofCalendar(t) && slices.Contains(instants, t.Logical) {
			ticks++
		}
		if t.Outcome == state.TickDropped && before.Ticks.Get(t.TickID) == nil {
			dropped-- // TicksDropped also counts this tick, although it has a row
		}
	}
	if was.Version != is.Version && is.Cursor > is.DefinedAt {
		// After the deployment, the new version may have dropped instants of its own. TicksDropped counts these, too.
		if int64(ticks) > int64(len(instants)) || int64(ticks)+dropped < int64(len(instants)) {
			o.violation(oneTick, "schedule %s of %s had %d instants after %s up to %s, but has %d ticks and dropped %d",
				is.ScheduleID, f.domain, len(instants), was.Cursor, through, ticks, dropped)
		}
		return
	}
	if int64(ticks)+dropped != int64(len(instants)) {
		o.violation(oneTick, "schedule %s of %s had %d instants after %s up to %s, but has %d ticks and dropped %d",
			is.ScheduleID, f.domain, len(instants), was.Cursor, through, ticks, dropped)
	}
	newest := func() bool { _, ok := f.ticks[instant{is.ScheduleID, instants[len(instants)-1]}]; return ok }
	if len(instants) > 0 && was.Version == is.Version && spec.CatchUp == event.CatchUpLatest && spec.WindowSec == 0 && !newest() {
		o.violation(oneTick, "schedule %s of %s catches up with the latest instant, but %s has no tick", is.ScheduleID, f.domain, instants[len(instants)-1])
	}
}

// activeTick is a live run of a schedule, or a request of a schedule that an automator will plan.
type activeTick struct{ name, request, tick string }

func (a activeTick) String() string { return a.name }

// ofBackfill reports whether a backfill of the schedule created the tick.
func (a activeTick) ofBackfill() bool { return strings.HasPrefix(a.request, "backfill:") }

// checkOverlaps checks that each schedule has at most one live or requested run, and that a request is buffered only if
// it waits for such a run. Under the policy allow_all, only the runs of backfills are limited to one, and a buffered
// request waits only for a backfill's run or an earlier tick.
func (o *oracle) checkOverlaps(f *followed, s *state.State) {
	active, slots, buffered := map[string][]activeTick{}, map[string]map[string]bool{}, map[string][]*state.RunRequest{}
	for _, id := range slices.Sorted(maps.Keys(f.index.liveRuns)) {
		if run := s.Runs.Get(id); run.ScheduleID != "" {
			active[run.ScheduleID] = append(active[run.ScheduleID], activeTick{"run " + run.RunID, run.RequestID, run.TickID})
		}
	}
	for r := range s.Requests.All {
		switch {
		case r.ScheduleID == "":
		case r.State == state.RequestPending, r.State == state.RequestWaiting:
			active[r.ScheduleID] = append(active[r.ScheduleID], activeTick{"request " + r.RequestID, r.RequestID, r.TickID})
		case r.State == state.RequestBuffered:
			buffered[r.ScheduleID] = append(buffered[r.ScheduleID], r)
		}
	}
	for id := range f.index.slots.run {
		if run := s.Runs.Get(id); run != nil && run.ScheduleID != "" {
			if slots[run.ScheduleID] == nil {
				slots[run.ScheduleID] = map[string]bool{}
			}
			slots[run.ScheduleID][id] = true
		}
	}
	for row := range s.Schedules.All {
		name := row.ScheduleID
		policy := o.w.load.policyOfSchedule(f.domain, name)
		exclusive := active[name]
		if policy == event.OverlapAllowAll {
			exclusive = slices.DeleteFunc(slices.Clone(exclusive), func(a activeTick) bool { return !a.ofBackfill() })
		}
		if waiting := buffered[name]; len(waiting) > 0 && !row.Paused && !waits(policy, waiting, active[name]) {
			o.violation(exactOverlap, "under policy %s, request %s of %s is buffered, but need not wait for %v", policy, waiting[0].RequestID, f.domain, active[name])
		}
		if len(exclusive) > 1 || policy != event.OverlapAllowAll && len(slots[name]) > 1 {
			o.violation(exactOverlap, "under policy %s, schedule %s of %s has several runs or requests at once: %v; %d runs hold slots", policy, name, f.domain, exclusive, len(slots[name]))
		}
	}
}

// waits reports whether one of the buffered requests of a schedule has a reason to wait. The other buffered requests
// wait for that request.
func waits(policy string, buffered []*state.RunRequest, active []activeTick) bool {
	for _, a := range active {
		earlier := func(r *state.RunRequest) bool { return a.tick < r.TickID }
		if policy != event.OverlapAllowAll || a.ofBackfill() || slices.ContainsFunc(buffered, earlier) {
			return true
		}
	}
	return false
}

// unfinished returns the unfinished work that a state at rest must not have: requests that have not ended, schedules
// that still have instants to decide, and schedules of the release that are not defined. Buffered requests of a
// paused schedule do not count.
func (o *oracle) unfinished(s *state.State) (left []string) {
	left = append(leftBackfills(s), o.unreported(s)...)
	for r := range s.Requests.All {
		row := s.Schedules.Get(r.ScheduleID)
		if paused := row != nil && row.Paused; !r.State.Ended() && (r.State != state.RequestBuffered || !paused) {
			left = append(left, fmt.Sprintf("request %s is %s: %s", r.RequestID, r.State, r.ErrorMessage))
		}
	}
	for row := range s.Schedules.All {
		if row.WantedAt != 0 || row.NextAt != 0 && row.ScheduleID != farSchedule {
			left = append(left, fmt.Sprintf("schedule %s has more ticks: its next tick is at %[3]q; it waits for the instants up to %[2]q", row.ScheduleID, row.WantedAt, row.NextAt))
		}
	}
	if d := s.SchedulesPending(); d != nil {
		left = append(left, fmt.Sprintf("the schedules of deployment %s are not defined", d.DeployID))
	}
	return left
}

// checkEndedSchedules checks the schedules of a world at rest.
func (o *oracle) checkEndedSchedules(f *followed) {
	for row := range f.state.Schedules.All {
		spec, ok := o.w.load.definitions(f.domain, row.ScheduleID)[row.Version]
		if ok && row.Live() && row.ScheduleID != farSchedule {
			if at := firstAfter(&spec, row.Cursor); at != 0 {
				o.violation(oneTick, "schedule %s of %s ends with the cursor %s, before its instant %s", row.ScheduleID, f.domain, row.Cursor, at)
			}
		}
	}
	for t := range f.state.Ticks.All {
		if run := f.state.Runs.Get(t.RunID); t.Outcome == state.TickStarted && (run == nil || run.TickID != t.TickID) {
			o.violation(oneTick, "tick %s of schedule %s of %s started run %s, which does not exist or belongs to another tick", t.Logical, t.ScheduleID, f.domain, t.RunID)
		}
		if t.Outcome != state.TickStarted && t.RunID != "" {
			o.violation(oneTick, "tick %s of schedule %s of %s is %s, but names run %s", t.Logical, t.ScheduleID, f.domain, t.Outcome, t.RunID)
		}
	}
}
