package fold

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/state"
)

// Limits and codes of requests that cannot be planned.
const (
	// NothingToDo is the code of a request that was refused because no partition needs to be materialized. This is not a
	// failure.
	NothingToDo = "NOTHING_TO_DO"
	// MaxRequestTries is the maximum number of times that a request is planned again after temporary refusals.
	MaxRequestTries = 12
	// The delay before a request is planned again is minRequestDelay at first. It doubles with each refusal, up to
	// maxRequestDelay.
	minRequestDelay = 10 * time.Second
	maxRequestDelay = 10 * time.Minute
	// maxExpired is the maximum number of rows of ended requests that one event removes.
	maxExpired = 4
)

// runRequested creates a request that waits until the time at which it is to be planned.
func (f *folder) runRequested(p *event.RunRequested) verdict {
	id := "at:" + p.CommandID
	if f.st.Requests.Get(id) != nil {
		return noChange
	}
	f.expireRequests(maxExpired)
	put(f, f.st.Requests, &state.RunRequest{
		RequestID: id, Actor: f.ev.Actor, Spec: jsonOf(p.Run), State: state.RequestWaiting, NextAt: p.At, CreatedAt: f.at(),
	})
	return folded
}

// expireRequests removes rows of requests that ended long ago.
func (f *folder) expireRequests(limit int) {
	for _, old := range f.st.EndedRequests(f.st.FoldTime.Add(-state.RequestKept), limit) {
		row := *old
		remove(f, f.st.Requests, &row)
	}
}

// pend makes a request PENDING. The id of its run contains the time at which the request may be planned. That time is
// not before the time of the entry that releases the request. So runs that later entries trigger have greater ids, with
// one exception: the id of a run may be up to [MaxRunAge] older than the entry that triggers the run. Requests that
// become PENDING together get ids in their order.
func (f *folder) pend(r *state.RunRequest) {
	at := max(f.st.FoldTime, event.At(ids.Time(f.entry)), f.st.LastReleased()+millisecond)
	r.ReleasedAt = (at + millisecond - 1) / millisecond * millisecond
	r.State, r.NextAt = state.RequestPending, 0
	r.RunID = ids.RequestedRunID(f.domain(), r.RequestID, r.ReleasedAt.Time())
	put(f, f.st.Requests, r)
	f.setTick(r, state.TickRequested, "")
}

const millisecond = event.Time(1000)

// endRequest puts a request into a final state. The schedule may then start its next request.
func (f *folder) endRequest(old *state.RunRequest, s state.RequestState, outcome state.TickOutcome, detail string) {
	row := *old
	row.State, row.EndedAt, row.NextAt = s, f.at(), 0
	put(f, f.st.Requests, &row)
	f.setTick(&row, outcome, detail)
}

// checkRequest rejects a run if its request is not pending, or if the request has another run id.
//
// In a rebuild without the recorded order, a run may be folded before the event that decides about its request. The
// run then proves that the request was planned, and is accepted. If the request was refused or cancelled, its run is
// rejected, unless a report proves that the run was executed: then the refusal or the cancellation came too late. A
// request that is planned again after a refusal has a new run with a greater id, so of several runs, the one with the
// greatest id is accepted.
func (f *folder) checkRequest(p *event.RunTriggered, c *checked, proven bool) verdict {
	if p.RequestID == "" || c.runs[p.RunID] || f.st.Runs.Get(p.RunID) != nil {
		return verdict{}
	}
	row := f.st.Requests.Get(p.RequestID)
	switch {
	case f.bare && (row == nil || proven && row.State != state.RequestStarted):
		return verdict{}
	case row == nil:
		return stale("request " + p.RequestID + " does not exist: it ended long ago")
	case f.bare && row.State == state.RequestStarted && p.RunID > row.RunID:
		return verdict{} // the original fold accepted this later run
	case row.State == state.RequestStarted:
		return stale("request " + p.RequestID + " has become run " + row.RunID)
	case row.State.Ended():
		return stale("request " + p.RequestID + " is " + string(row.State))
	case f.bare:
		return verdict{}
	case row.State != state.RequestPending || row.RunID != p.RunID:
		return stale(fmt.Sprintf("request %s is %s, with the run id %s", p.RequestID, row.State, orDefault(row.RunID, "none")))
	}
	return verdict{}
}

// startRequest ends the request of a new run.
func (f *folder) startRequest(run *state.Run, p *event.RunTriggered) {
	run.RequestID, run.ScheduleID, run.TickID = p.RequestID, p.Trigger.ScheduleID, p.Trigger.TickID
	f.expireRequests(maxExpired)
	row := state.RunRequest{
		RequestID: p.RequestID, ScheduleID: run.ScheduleID, TickID: run.TickID, Spec: "{}", CreatedAt: f.at(), Logical: instantOf(p.RequestID),
	}
	old := f.st.Requests.Get(p.RequestID)
	if old != nil {
		row = *old
		run.ScheduleID, run.TickID = row.ScheduleID, row.TickID
		if old.State == state.RequestStarted && f.st.Runs.Get(old.RunID) != nil {
			f.cancelRun(f.run(old.RunID), "its request was planned again", true)
		}
	}
	row.RunID = p.RunID
	f.endRequest(&row, state.RequestStarted, state.TickStarted, "")
	f.startChunk(run, p)
	s := f.st.Schedules.Get(run.ScheduleID)
	if s == nil {
		return
	}
	next := *s
	next.LastRun = run.RunID
	if old == nil || old.State != state.RequestStarted { // otherwise, another run of the tick was counted
		next.TicksStarted++
	}
	if sla := specOf(s).SLASec; sla > 0 {
		run.SLAAt = run.CreatedAt.Add(time.Duration(sla) * time.Second)
	}
	// The run was folded before the event that decides its instant. That event must not create a second tick for this
	// instant, so the cursor moves to it now.
	if old == nil && strings.HasPrefix(p.RequestID, tickRequest) && row.Logical > next.Cursor {
		next.Cursor = row.Logical
		if next.Live() {
			f.want(&next, max(next.WantedAt, row.Logical))
		}
	}
	put(f, f.st.Schedules, &next)
}

// tickRequest is the prefix of the ids of requests for instants of the calendar.
const tickRequest = "tick:"

// Prefixes of the ids of requests for ticks that commands create.
const (
	manualRequest   = "manual:"
	backfillRequest = "backfill:"
)

// KindOf returns the kind of a tick from the id of its request. It does not need the row of the tick, which a rebuild
// from the bare ledger may not have created yet.
func KindOf(request string) string {
	switch {
	case strings.HasPrefix(request, manualRequest):
		return state.TickManual
	case strings.HasPrefix(request, backfillRequest):
		return state.TickBackfill
	}
	return state.TickOnTime
}

// instantOf returns the instant in the id of a request for a tick, or 0.
func instantOf(request string) event.Time {
	if !strings.HasPrefix(request, tickRequest) && !strings.HasPrefix(request, backfillRequest) {
		return 0
	}
	at, err := strconv.ParseInt(request[strings.LastIndexByte(request, ':')+1:], 10, 64)
	if err != nil {
		return 0
	}
	return event.Time(at)
}

// requestRefused handles a request that could not be planned. The request ends, or will be planned again later.
func (f *folder) requestRefused(p *event.RequestRefused) verdict {
	old := f.st.Requests.Get(p.RequestID)
	switch {
	case old == nil:
		return stale("the request does not exist")
	case old.State != state.RequestPending:
		return stale("the request is " + string(old.State))
	case old.Generation != p.Generation:
		return stale("the refusal is not about the current try to plan the request")
	}
	row := *old
	row.ErrorCode, row.ErrorMessage = p.Error.Code, p.Error.Message
	// The next try may succeed if the error is retryable, or if another release has been deployed since this try.
	if passes := p.Error.Retryable || p.Release != f.st.Release(); passes && row.Generation < MaxRequestTries {
		delay := min(minRequestDelay<<row.Generation, maxRequestDelay)
		row.State, row.NextAt = state.RequestWaiting, f.at().Add(delay)
		row.Generation++
		put(f, f.st.Requests, &row)
		return folded
	}
	outcome := state.TickRefused
	if p.Error.Code == NothingToDo {
		outcome = state.TickNothing
	}
	f.endRequest(&row, state.RequestRefused, outcome, p.Error.Message)
	if outcome == state.TickRefused {
		f.reportRefused(&row)
		f.countFailure(row.ScheduleID, "the last request was refused: "+p.Error.Message)
	}
	f.releaseNext(row.ScheduleID)
	f.refuseChunk(p.RequestID, p)
	return folded
}

// cancelRequest ends a request before it becomes a run. In a rebuild without the recorded order, the request may not
// exist yet. cancelRequest then creates a cancelled request, so that a trigger of its run that is folded later is
// rejected.
func (f *folder) cancelRequest(p *event.AutomationCommand) verdict {
	old := f.st.Requests.Get(p.Name)
	key, _, ofChunk := state.ParseChunkRequest(p.Name)
	switch {
	case ofChunk:
		return stale("the request is for a chunk of backfill " + key.BackfillID + ": pause or cancel the backfill")
	case old == nil && f.bare:
		old = &state.RunRequest{RequestID: p.Name, Spec: "{}", CreatedAt: f.at()}
	case old == nil:
		return stale("the request does not exist")
	case old.State.Ended():
		return stale("the request is " + string(old.State))
	}
	f.endRequest(old, state.RequestCancelled, state.TickCancelled, orDefault(p.Reason, "cancelled on request"))
	f.releaseNext(old.ScheduleID)
	return folded
}

// wake handles the schedules, requests, notifications and watches that are due.
func (f *folder) wake(now event.Time) {
	f.expireRequests(MaxWoken)
	f.forgetQuiet(MaxWoken)
	schedules, requests, notifications, watches := f.st.DueToWake(now, MaxWoken)
	for _, id := range requests {
		row := *f.st.Requests.Get(id)
		f.pend(&row)
	}
	for _, id := range schedules {
		f.due(f.st.Schedules.Get(id), now)
	}
	for _, id := range notifications {
		f.wakeNotification(id)
	}
	for _, w := range watches {
		f.watch(w, now)
	}
}

// MaxWoken is the maximum number of schedules, requests, notifications and watches, in total, that one call of the wake
// timer handles.
const MaxWoken = 10_000

// keepWake schedules the domain's only wake timer at the earliest time for which a schedule, a request, a notification
// or a watch waits. If the current timer fires earlier, keepWake leaves the timer unchanged: when the timer fires, the
// fold schedules it again.
func (f *folder) keepWake() {
	next, ok := f.st.NextWake()
	if !ok {
		return
	}
	fireAt, generation, fired := roundUp(next, time.Second), int32(0), event.Time(0)
	if timer := f.st.Wake(); timer != nil {
		if fired = timer.FiredAt; fired != 0 { // when the wake timer was last called
			fireAt = max(fireAt, roundUp(fired+1, time.Second)) // at most one call per second
		}
		if timer.State == state.TimerScheduled && timer.FireAt <= fireAt {
			return
		}
		generation = timer.Generation + 1
		f.deleteTimer(timer, state.TimerCancelled)
	}
	f.putTimer(&state.Timer{
		TimerID:   ids.TimerID(event.TimerWake, "", "", 0, fireAt.Time().Unix()),
		TimerType: event.TimerWake, Generation: generation, State: state.TimerScheduled, FireAt: fireAt, CreatedAt: f.at(),
		FiredAt: fired,
	})
}

// specOf decodes the definition in the row of a schedule.
func specOf(s *state.Schedule) *event.Schedule {
	spec := new(event.Schedule)
	if err := json.Unmarshal([]byte(s.Spec), spec); err != nil {
		panic("fold: definition of schedule " + s.ScheduleID + ": " + err.Error()) // jsonOf writes only valid JSON
	}
	return spec
}
