package fold

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/state"
)

// The fold cannot compute the instants of a schedule. So an automator computes them with the calendar, and appends
// them in events. A schedule is *wanted* while the fold waits for such an event. The cursor of a schedule is the last
// instant that was decided. It moves only forward, so no instant is decided twice.

// Limits of schedules.
const (
	// OnTime is a delay. If the queue calls the wake timer at most OnTime late, the fold decides the due tick immediately.
	// If the call is later, an automator first lists the instants that have passed, and the catch-up policy decides which
	// of them get ticks.
	OnTime = time.Minute
	// LateTick is the maximum age of a missed instant for which a schedule without catch-up still creates a tick. It is
	// longer than the time within which a sweep finds a lost timer call.
	LateTick = 15 * time.Minute
	// MaxBuffered is the maximum number of buffered ticks of a schedule.
	MaxBuffered = 1000
	// MaxAtOnce is the maximum number of missed instants for which a schedule that catches up creates ticks, if its
	// overlap policy is allow_all. The runs of all these ticks may start together.
	MaxAtOnce = 100
	// RemovedKept is how long the row of a removed schedule is kept.
	RemovedKept = 30 * 24 * time.Hour
	// If an automator reports that it cannot compute the instants, the fold requests them again after a delay between
	// these bounds.
	minCalendarDelay = time.Minute
	maxCalendarDelay = time.Hour
)

// schedulesDefined replaces the schedules with those of the current release.
func (f *folder) schedulesDefined(p *event.SchedulesDefined) verdict {
	deployment := f.st.Deployment()
	if deployment == nil || deployment.DeployID != p.DeployID {
		return stale("another deployment is current")
	}
	complete := true
	for i := range p.Set {
		complete = f.define(&p.Set[i], deployment.DeployedAt) && complete
	}
	for _, name := range p.Remove {
		f.removeSchedule(name)
	}
	// In a rebuild without the recorded order, the state may lack schedules that the writer of the event saw. So the
	// flag SchedulesPending stays set, and an automator later compares the schedules with the release again.
	if p.Last && complete && deployment.SchedulesPending && !f.bare {
		row := *deployment
		row.SchedulesPending = false
		put(f, f.st.Deployments, &row)
		f.forgetSchedules()
	}
	if !f.changed {
		return noChange
	}
	return folded
}

// define creates or changes a schedule. The new definition applies from its deployment on (at). All earlier instants
// must first be decided under the old definition: if some are undecided, define requests a list of them and returns
// false.
func (f *folder) define(spec *event.Schedule, at event.Time) bool {
	row := state.Schedule{ScheduleID: spec.Name, Paused: spec.Paused}
	version := spec.DefinitionVersion()
	if old := f.st.Schedules.Get(spec.Name); old != nil {
		switch {
		case old.RemovedAt == 0 && old.Version == version:
			return true
		case old.Live() && old.WantedAt != 0:
			return false
		case old.Live() && old.Next != 0 && old.Next <= at:
			row = *old
			f.want(&row, max(at, old.NextAt)) // do not wait for the jitter of a delayed tick
			put(f, f.st.Schedules, &row)
			return false
		}
		row = *old
	}
	row.Version, row.Spec, row.DefinedAt = version, jsonOf(spec), at
	if !row.Paused || row.RemovedAt != 0 || row.Cursor == 0 { // the cursor of a paused schedule stays: a resume may request the instants of the pause
		row.Cursor = max(row.Cursor, at)
	}
	row.Error, row.Errors, row.RemovedAt = "", 0, 0
	row.Next, row.NextAt = 0, 0
	if row.Live() {
		f.want(&row, max(f.at(), at))
	}
	put(f, f.st.Schedules, &row)
	return true
}

// want makes a schedule wanted: an automator must list its instants after the cursor up to the given time, and the
// next instant after that.
func (f *folder) want(row *state.Schedule, until event.Time) {
	row.Next, row.NextAt, row.WantedAt = 0, 0, until
}

// removeSchedule ends a schedule that the release does not have. Its runs continue.
func (f *folder) removeSchedule(name string) {
	old := f.st.Schedules.Get(name)
	if old == nil || old.RemovedAt != 0 {
		return
	}
	row := *old
	row.RemovedAt = f.at()
	f.want(&row, 0)
	put(f, f.st.Schedules, &row)
	for first, _ := f.st.BufferedOf(name); first != nil; first, _ = f.st.BufferedOf(name) {
		f.endRequest(first, state.RequestCancelled, state.TickCancelled, "the schedule was removed")
	}
	f.dropAlerts(subjectSchedule + name)
}

// forgetSchedules deletes the rows of schedules that were removed long ago.
func (f *folder) forgetSchedules() {
	var gone []*state.Schedule
	for row := range f.st.Schedules.All {
		if row.RemovedAt != 0 && f.at().Sub(row.RemovedAt) >= RemovedKept {
			gone = append(gone, row)
		}
	}
	for _, old := range gone {
		if runs, requests := f.st.ActiveOf(old.ScheduleID); len(runs)+len(requests) == 0 {
			row := *old
			remove(f, f.st.Schedules, &row)
		}
	}
}

// due handles a schedule whose next tick is due. If the call is on time, due decides the tick. Whether the call is on
// time or late, due requests a list of the instants that have passed.
func (f *folder) due(old *state.Schedule, now event.Time) {
	row := *old
	next, onTime := row.Next, now.Sub(row.NextAt) <= OnTime
	f.want(&row, now)
	if next != 0 && onTime {
		row.Cursor = next
		f.tick(&row, specOf(&row), next, state.TickOnTime)
	}
	put(f, f.st.Schedules, &row)
}

// calendarAdvanced decides about the instants that have passed, and sets the next ticks.
func (f *folder) calendarAdvanced(p *event.CalendarAdvanced) verdict {
	for i := range p.Items {
		f.advance(&p.Items[i])
	}
	if !f.changed {
		return stale("the schedules have advanced already, were changed, or are paused")
	}
	return folded
}

func (f *folder) advance(item *event.CalendarItem) {
	old := f.st.Schedules.Get(item.Schedule)
	if !old.Live() || old.Version != item.Version || item.After < old.Cursor {
		return
	}
	// An item whose field After is later than the cursor is applied even if the schedule is not wanted. Such items occur
	// in a rebuild without the recorded order: the tick that moved the cursor to After may not have been folded yet.
	if old.WantedAt == 0 && item.After == old.Cursor && (item.Calendar <= old.Calendar || item.Error != "" || item.Through > item.After) {
		return
	}
	bound := max(old.WantedAt, f.at())
	if item.Through > bound {
		return
	}
	row := *old
	if item.Error != "" {
		f.want(&row, 0)
		row.Error, row.NextAt = item.Error, f.at().Add(min(minCalendarDelay<<min(row.Errors, maxDoublings), maxCalendarDelay))
		row.Errors++
		put(f, f.st.Schedules, &row)
		f.reportBlocked(row.ScheduleID, itemCalendar, "CALENDAR_ERROR", item.Error)
		return
	}
	spec := specOf(&row)
	row.Calendar, row.Error, row.Errors = item.Calendar, "", 0
	f.recovered(subjectSchedule+row.ScheduleID, "", []string{event.CauseScheduleBlocked}, itemCalendar)
	take := Taken(spec, item.Missed, orDefault(row.WantedAt, bound))
	row.TicksDropped += item.Dropped + int64(len(item.Missed)-len(take))
	for _, instant := range take {
		f.tick(&row, spec, instant, state.TickCaughtUp)
	}
	row.Cursor = max(item.After, item.Through)
	row.Next, row.NextAt, row.WantedAt = item.Next, item.NextAt, 0
	put(f, f.st.Schedules, &row)
}

// maxDoublings is the maximum number of times that a delay is doubled.
const maxDoublings = 10

// MostMissed returns the maximum number of missed instants for which the catch-up policy creates ticks. The runs of
// ticks that are created together would overlap. If the overlap policy would skip most of these ticks, only the newest
// instant gets a tick, unless the catch-up policy is [event.CatchUpAll].
func MostMissed(spec *event.Schedule) int {
	skips := spec.Overlap == "" || spec.Overlap == event.OverlapSkip || spec.Overlap == event.OverlapBufferOne
	switch {
	case spec.CatchUp == event.CatchUpLatest, spec.CatchUp != event.CatchUpAll && skips:
		return 1
	case spec.Overlap == event.OverlapAllowAll:
		return MaxAtOnce
	}
	return MaxBuffered
}

// Taken returns the missed instants for which the catch-up policy creates ticks. The parameter wanted is the end of the
// list of missed instants, as the fold requested it.
func Taken(spec *event.Schedule, missed []event.Time, wanted event.Time) []event.Time {
	jitter := time.Duration(spec.JitterSec) * time.Second
	oldest := wanted.Add(-LateTick - jitter)
	if spec.CatchUp == event.CatchUpLatest || spec.CatchUp == event.CatchUpAll {
		oldest = 0
		if spec.WindowSec > 0 {
			oldest = wanted.Add(-time.Duration(spec.WindowSec)*time.Second - jitter)
		}
	}
	first, _ := slices.BinarySearch(missed, oldest)
	missed = missed[first:]
	return missed[max(0, len(missed)-MostMissed(spec)):]
}

// tick decides about one instant of a schedule. The caller must write the row.
func (f *folder) tick(s *state.Schedule, spec *event.Schedule, instant event.Time, kind string) {
	f.decide(s, spec, spec.Overlap, &state.RunRequest{
		RequestID: tickRequest + s.ScheduleID + ":" + strconv.FormatInt(int64(instant), 10), Logical: instant,
		TickID: ids.TickID(f.domain(), s.ScheduleID, instant.Time(), "", instant.Time()),
	}, kind)
}

// decide applies an overlap policy to a new request of a schedule, and records its tick.
func (f *folder) decide(s *state.Schedule, spec *event.Schedule, overlap string, r *state.RunRequest, kind string) {
	if f.st.Ticks.Get(r.TickID) != nil || f.st.Requests.Get(r.RequestID) != nil {
		return
	}
	f.flushRuns() // the indexes of live runs must be current
	f.expireRequests(maxExpired)
	r.ScheduleID, r.Spec, r.CreatedAt = s.ScheduleID, jsonOf(spec.Run), f.at()
	tick := &state.Tick{
		TickID: r.TickID, ScheduleID: s.ScheduleID, Logical: r.Logical, Kind: kind, Outcome: state.TickRequested, RequestID: r.RequestID,
		Calendar: s.Calendar, DecidedAt: f.at(),
	}
	s.LastTick = tick.TickID
	outcome, detail := f.overlap(r, spec.Overlap, overlap)
	if outcome == state.TickRequested && f.tooManyPending() {
		outcome, detail = state.TickDropped, tooManyPending
	}
	tick.Outcome, tick.Detail = outcome, detail
	switch outcome {
	case state.TickRequested:
		put(f, f.st.Ticks, tick)
		f.pend(r)
		return
	case state.TickBuffered:
		r.State = state.RequestBuffered
		put(f, f.st.Requests, r)
	case state.TickDropped:
		s.TicksDropped++
		tick.EndedAt = f.at()
		f.reportBlocked(s.ScheduleID, itemOverlap, string(outcome), detail)
	default:
		s.TicksSkipped++
		tick.EndedAt = f.at()
		f.reportBlocked(s.ScheduleID, itemOverlap, string(outcome), detail)
	}
	put(f, f.st.Ticks, tick)
}

var tooManyPending = fmt.Sprintf("%d requests of the domain wait to be planned", state.MaxPending)

// tooManyPending reports whether the domain has reached the limit of PENDING requests.
func (f *folder) tooManyPending() bool { return f.st.PendingCount() >= state.MaxPending }

// overlap applies an overlap policy to a new request of a schedule. The parameter policy is the policy to apply, and
// own is that of the schedule itself, which may differ. overlap returns whether the request is to be planned, buffered,
// skipped or dropped, and why. The policy may end other runs and requests of the schedule.
func (f *folder) overlap(r *state.RunRequest, own, policy string) (state.TickOutcome, string) {
	runs, requests := f.st.ActiveOf(r.ScheduleID)
	if policy == event.OverlapBufferOne || policy == event.OverlapBufferAll {
		runs, requests = f.blockers(r, own)
	}
	_, buffered := f.st.BufferedOf(r.ScheduleID)
	busy := len(runs)+len(requests) > 0
	switch policy {
	case event.OverlapAllowAll:
		return state.TickRequested, ""
	case event.OverlapCancelOther, event.OverlapTerminateOther:
		if f.tooManyPending() { // the policy must not end a run for a tick that is then dropped
			return state.TickDropped, tooManyPending
		}
		return f.replace(r, own, policy == event.OverlapTerminateOther, runs, requests)
	case event.OverlapBufferOne:
		switch {
		case buffered > 0:
			return state.TickSkipped, "another tick already waits for the end of " + blocking(runs, requests)
		case busy:
			return state.TickBuffered, "waits for the end of " + blocking(runs, requests)
		}
	case event.OverlapBufferAll:
		switch {
		case buffered >= MaxBuffered:
			return state.TickDropped, fmt.Sprintf("%d ticks wait already", MaxBuffered)
		case busy || buffered > 0:
			return state.TickBuffered, "waits for the end of " + blocking(runs, requests)
		}
	default:
		if busy {
			return state.TickSkipped, blocking(runs, requests) + " had not ended"
		}
	}
	return state.TickRequested, ""
}

// blockers returns the live runs and the requests that block a buffered tick of a schedule. These are all live runs and
// requests of the schedule, unless the schedule's own policy is allow_all. Under allow_all, runs of later ticks may
// always be live, and a tick that waited for them would never start. So it waits only for earlier ticks and for all
// ticks of backfills. Ticks of backfills count even if their ids are later: these ids depend on the clocks of the
// commands.
func (f *folder) blockers(r *state.RunRequest, own string) (runs, requests []string) {
	runs, requests = f.st.ActiveOf(r.ScheduleID)
	if own != event.OverlapAllowAll {
		return runs, requests
	}
	later := func(tick, request string) bool { return tick > r.TickID && KindOf(request) != state.TickBackfill }
	runs = slices.DeleteFunc(runs, func(id string) bool { run := f.st.Runs.Get(id); return later(run.TickID, run.RequestID) })
	requests = slices.DeleteFunc(requests, func(id string) bool { return later(f.st.Requests.Get(id).TickID, id) })
	return runs, requests
}

// replace ends the runs and requests of a schedule. It returns whether the new request can be planned now, or must
// wait for the end of a run.
func (f *folder) replace(r *state.RunRequest, own string, force bool, runs, requests []string) (state.TickOutcome, string) {
	const reason = "a later tick replaces it"
	for first, _ := f.st.BufferedOf(r.ScheduleID); first != nil; first, _ = f.st.BufferedOf(r.ScheduleID) {
		f.endRequest(first, state.RequestCancelled, state.TickReplaced, reason)
	}
	for _, id := range requests {
		f.endRequest(f.st.Requests.Get(id), state.RequestCancelled, state.TickReplaced, reason)
	}
	for _, id := range runs {
		if run := f.run(id); force || run.State != state.RunCancelling {
			f.cancelRun(run, reason, force)
		}
	}
	f.flushRuns()
	if left, _ := f.blockers(r, own); len(left) > 0 {
		return state.TickBuffered, "waits for the end of " + blocking(left, nil)
	}
	return state.TickRequested, ""
}

// blocking describes what blocks a tick: a run, a request, or earlier ticks.
func blocking(runs, requests []string) string {
	switch {
	case len(runs) > 0:
		return "run " + runs[0]
	case len(requests) > 0:
		return "request " + requests[0]
	}
	return "earlier ticks"
}

// setTick updates the tick of a request. The tick names a run only if the run exists. A request has a run id before
// its run exists, and the run of a refused or cancelled request is never created.
func (f *folder) setTick(r *state.RunRequest, outcome state.TickOutcome, detail string) {
	if r.TickID == "" {
		return
	}
	row := state.Tick{TickID: r.TickID, ScheduleID: r.ScheduleID, Logical: r.Logical, RequestID: r.RequestID, Kind: KindOf(r.RequestID), DecidedAt: f.at()}
	if old := f.st.Ticks.Get(r.TickID); old != nil {
		row = *old
	} else if !f.bare {
		return
	}
	row.Outcome, row.RunID, row.Detail = outcome, "", detail
	if outcome == state.TickStarted {
		row.RunID = r.RunID
	}
	if outcome.Final() {
		row.EndedAt = f.at()
	}
	put(f, f.st.Ticks, &row)
}

// afterRuns handles the consequences of ended runs for schedules and backfills.
func (f *folder) afterRuns() {
	for len(f.ended) > 0 {
		run := f.ended[0]
		f.ended = f.ended[1:]
		if f.chunkEnded(run) || run.ScheduleID == "" {
			continue
		}
		switch run.State {
		case state.RunFailed, state.RunTimedOut:
			f.countFailure(run.ScheduleID, "run "+run.RunID+" has failed")
		case state.RunSucceeded:
			f.countSuccess(run.ScheduleID)
		case state.RunPending, state.RunRunning, state.RunPaused, state.RunCancelling, state.RunCancelled:
		}
		f.releaseNext(run.ScheduleID)
	}
}

// releaseNext makes the buffered requests of a schedule PENDING, in their order, up to the first one that must still
// wait. See blockers for what a request waits for.
func (f *folder) releaseNext(schedule string) {
	if schedule == "" {
		return
	}
	s := f.st.Schedules.Get(schedule)
	if s != nil && !s.Live() {
		return
	}
	for first, _ := f.st.BufferedOf(schedule); first != nil; first, _ = f.st.BufferedOf(schedule) {
		own := ""
		if s != nil {
			own = specOf(s).Overlap
		}
		if runs, requests := f.blockers(first, own); len(runs)+len(requests) > 0 {
			return
		}
		row := *first
		f.pend(&row)
	}
}

// countFailure counts a failure of a schedule, and pauses the schedule after too many consecutive
// failures.
func (f *folder) countFailure(schedule, what string) {
	old := f.st.Schedules.Get(schedule)
	if old == nil {
		return
	}
	row := *old
	row.Failures++
	if most := specOf(&row).PauseAfterFailures; most > 0 && row.Failures >= most && row.Live() {
		f.pauseSchedule(&row, "", fmt.Sprintf("%d failures in a row: %s", row.Failures, what))
		f.alert(transition{
			subject: subjectSchedule + schedule, causes: []string{event.CauseSchedulePaused}, item: itemPaused, code: "PAUSED", message: row.Reason,
		})
	}
	put(f, f.st.Schedules, &row)
}

func (f *folder) countSuccess(schedule string) {
	if old := f.st.Schedules.Get(schedule); old != nil && old.Failures > 0 {
		row := *old
		row.Failures = 0
		put(f, f.st.Schedules, &row)
	}
}

// pauseSchedule stops the ticks of a schedule.
func (f *folder) pauseSchedule(row *state.Schedule, by, reason string) {
	row.Paused, row.PausedAt, row.PausedBy, row.Reason = true, f.at(), by, reason
	f.want(row, 0)
}

// automationCommand applies a command about a schedule, a request, a backfill or alerts.
func (f *folder) automationCommand(p *event.AutomationCommand) verdict {
	switch p.Target {
	case event.TargetRequest:
		return f.cancelRequest(p)
	case event.TargetBackfill:
		return f.commandBackfill(p)
	case event.TargetAlert:
		return f.alertCommand(p)
	}
	old := f.st.Schedules.Get(p.Name)
	if old == nil || old.RemovedAt != 0 {
		return stale("the schedule does not exist")
	}
	row := *old
	v := folded
	switch p.Verb {
	case event.VerbPause, event.VerbResume:
		v = f.pauseOrResume(&row, p)
	case event.VerbTrigger:
		v = f.trigger(&row, p)
	case event.VerbBackfill:
		v = f.backfillSchedule(&row, p)
	}
	if v != folded {
		return v
	}
	put(f, f.st.Schedules, &row)
	if p.Verb == event.VerbResume {
		f.releaseNext(p.Name)
	}
	return folded
}

// pauseOrResume pauses or resumes a schedule, unless a command with a greater id has already done so.
func (f *folder) pauseOrResume(row *state.Schedule, p *event.AutomationCommand) verdict {
	switch {
	case p.CommandID == row.CommandID:
		return noChange
	case p.CommandID < row.CommandID:
		return stale("a later command has paused or resumed the schedule")
	}
	row.CommandID = p.CommandID
	if p.Verb == event.VerbPause {
		f.pauseSchedule(row, f.ev.Actor, p.Reason)
		return folded
	}
	if !row.Paused {
		return folded // the schedule is not paused: only record the id of the command
	}
	row.Paused, row.PausedAt, row.PausedBy, row.Reason, row.Failures = false, 0, "", "", 0
	f.recovered(subjectSchedule+row.ScheduleID, "", []string{event.CauseSchedulePaused}, itemPaused)
	if !p.CatchUp {
		row.Cursor = max(row.Cursor, f.at())
	}
	f.want(row, max(f.at(), row.Cursor))
	return folded
}

// trigger creates a tick for a command. The tick belongs to no instant of the schedule.
func (f *folder) trigger(row *state.Schedule, p *event.AutomationCommand) verdict {
	id := manualRequest + p.CommandID
	if f.st.Requests.Get(id) != nil || f.st.Ticks.Get(p.CommandID) != nil {
		return noChange
	}
	spec := specOf(row)
	f.decide(row, spec, orDefault(p.Overlap, spec.Overlap), &state.RunRequest{
		RequestID: id, Actor: f.ev.Actor, Logical: f.at(), TickID: p.CommandID,
	}, state.TickManual)
	return folded
}

// backfillSchedule creates ticks for past instants. The runs of these ticks are executed one after the other.
func (f *folder) backfillSchedule(row *state.Schedule, p *event.AutomationCommand) verdict {
	spec, made := specOf(row), ids.Time(p.CommandID)
	decided := row.LastTick
	for i, instant := range p.Instants {
		if instant > row.Cursor {
			break
		}
		f.decide(row, spec, event.OverlapBufferAll, &state.RunRequest{
			RequestID: fmt.Sprintf(backfillRequest+"%s:%d", p.CommandID, int64(instant)), Actor: f.ev.Actor, Logical: instant,
			TickID: ids.TickID(f.domain(), row.ScheduleID, instant.Time(), p.CommandID, made.Add(time.Duration(i)*time.Millisecond)),
		}, state.TickBackfill)
	}
	if row.LastTick == decided {
		return noChange
	}
	return folded
}
