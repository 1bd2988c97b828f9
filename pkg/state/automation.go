package state

import (
	"cmp"
	"slices"
	"time"

	"github.com/servo-orchestration/servo/pkg/event"
)

// RequestState is the state of a request.
type RequestState string

// Request states. The last three are final. The rows of ended requests stay for [RequestKept], so that a redelivered
// command does not create a second request.
const (
	RequestWaiting   RequestState = "WAITING"   // waits until NextAt: the requested time, or that of a retry
	RequestBuffered  RequestState = "BUFFERED"  // waits until another run or request of its schedule ends
	RequestPending   RequestState = "PENDING"   // to be planned
	RequestStarted   RequestState = "STARTED"   // has become a run
	RequestRefused   RequestState = "REFUSED"   // cannot be planned
	RequestCancelled RequestState = "CANCELLED" // ended by a command or by another tick
)

// Ended reports whether a request in this state never changes again.
func (s RequestState) Ended() bool {
	return s == RequestStarted || s == RequestRefused || s == RequestCancelled
}

// Limits of requests.
const (
	// MaxPending is the maximum number of a domain's requests that wait to be planned.
	MaxPending = 20_000
	// RequestKept is how long the row of an ended request is kept.
	RequestKept = time.Hour
)

// RunRequest is a row of run_requests: a request to plan and start a run.
type RunRequest struct {
	RequestID string `col:"request_id,key"`
	// Actor is the principal who made the request; "": a schedule made it.
	Actor      string `col:"actor,null,dict"`
	ScheduleID string `col:"schedule_id,null,dict"`
	TickID     string `col:"tick_id,null"`
	// Logical is the instant of the tick. Selections such as "latest" refer to it. If it is 0, they refer to the time of
	// planning.
	Logical event.Time   `col:"logical,null"`
	Spec    string       `col:"spec"` // JSON: event.RunSpec
	State   RequestState `col:"state,dict"`
	// RunID is the id of the run that will be planned for the request: see ids.RequestedRunID. "": the request was never
	// PENDING.
	RunID string `col:"run_id,null"`
	// Generation is the number of the current try to plan the request, from 0. After a refused try, another one may
	// follow.
	Generation   int32      `col:"generation"`
	NextAt       event.Time `col:"next_at,null"` // when a WAITING request is planned
	ErrorCode    string     `col:"error_code,null,dict"`
	ErrorMessage string     `col:"error_message,null"`
	CreatedAt    event.Time `col:"created_at"`
	ReleasedAt   event.Time `col:"released_at,null"` // when the request last became PENDING
	EndedAt      event.Time `col:"ended_at,null"`
	Meta
}

// Key returns the primary key.
func (r *RunRequest) Key() string { return r.RequestID }

func (*RunRequest) newTable() store { return new(rowTable[string, RunRequest, *RunRequest]) }

// Schedule is a row of schedules.
type Schedule struct {
	ScheduleID string `col:"schedule_id,key"`
	// Version identifies the definition. Spec is the definition itself: an event.Schedule as JSON.
	Version   string     `col:"version"`
	Spec      string     `col:"spec"`
	DefinedAt event.Time `col:"defined_at"`            // when the deployment of this version took effect
	RemovedAt event.Time `col:"removed_at,null"`       // when a release without the schedule was deployed; 0: not removed
	Paused    bool       `col:"paused"`                // the schedule does not tick
	PausedAt  event.Time `col:"paused_at,null"`        //
	PausedBy  string     `col:"paused_by,null,dict"`   // a principal; "": Servo paused it after failures
	Reason    string     `col:"pause_reason,null"`     //
	CommandID string     `col:"pause_command_id,null"` // the last command that paused or resumed the schedule
	// Cursor is the last instant that the fold has decided. Next is the instant after Cursor, and NextAt is the time at
	// which the schedule ticks for Next. Both are 0 if no instant follows, or if the schedule is wanted: it waits until
	// an automator lists the instants after Cursor. Then WantedAt is the time up to which the automator must list them.
	Cursor   event.Time `col:"cursor,null"`
	Next     event.Time `col:"next,null"`
	NextAt   event.Time `col:"next_at,null"`
	WantedAt event.Time `col:"wanted_at,null"`
	Calendar string     `col:"calendar,null,dict"` // the version of the zone data that Next comes from
	// Error says why an automator could not list the next instants. At NextAt, the schedule becomes wanted again. Errors
	// counts the consecutive errors.
	Error  string `col:"error,null"`
	Errors int32  `col:"errors"`
	// Failures counts consecutive failed runs.
	Failures int32 `col:"failures"`
	// LastTick is the newest tick, and LastRun the newest run of the schedule. The totals count ticks by outcome.
	LastTick     string `col:"last_tick_id,null"`
	LastRun      string `col:"last_run_id,null"`
	TicksStarted int64  `col:"ticks_started"`
	TicksSkipped int64  `col:"ticks_skipped"`
	TicksDropped int64  `col:"ticks_dropped"`
	Meta
}

// Key returns the primary key.
func (r *Schedule) Key() string { return r.ScheduleID }

func (*Schedule) newTable() store { return new(rowTable[string, Schedule, *Schedule]) }

// Live reports whether the schedule is neither paused nor removed. A schedule whose end has passed is still live, but
// has no further ticks.
func (r *Schedule) Live() bool { return r != nil && !r.Paused && r.RemovedAt == 0 }

// Kinds of ticks.
const (
	TickOnTime   = "on_time"
	TickCaughtUp = "caught_up"
	TickManual   = "manual"
	TickBackfill = "backfill"
)

// TickOutcome is the result of a tick.
type TickOutcome string

// Tick outcomes. The first two are not final.
const (
	TickBuffered  TickOutcome = "BUFFERED"        // waits for the end of another run
	TickRequested TickOutcome = "REQUESTED"       // the run of the tick is being planned
	TickStarted   TickOutcome = "STARTED"         // has a run
	TickNothing   TickOutcome = "NOTHING_TO_DO"   // no partition had to be materialized
	TickSkipped   TickOutcome = "SKIPPED_OVERLAP" // another run was live
	TickDropped   TickOutcome = "DROPPED"         // too many ticks wait
	TickReplaced  TickOutcome = "REPLACED"        // a later tick replaced it
	TickRefused   TickOutcome = "REFUSED"         // the run of the tick could not be planned
	TickCancelled TickOutcome = "CANCELLED"       // ended by a command, or because the schedule was removed
)

// Final reports whether a tick with this outcome never changes again.
func (o TickOutcome) Final() bool { return o != TickBuffered && o != TickRequested }

// Tick is a row of ticks: one instant of a schedule, and its outcome.
type Tick struct {
	TickID     string      `col:"tick_id,key"` // see ids.TickID
	ScheduleID string      `col:"schedule_id,dict"`
	Logical    event.Time  `col:"logical"` // the instant
	Kind       string      `col:"kind,dict"`
	Outcome    TickOutcome `col:"outcome,dict"`
	RequestID  string      `col:"request_id,null"`
	RunID      string      `col:"run_id,null"`
	Detail     string      `col:"detail,null"` // the reason for the outcome
	Calendar   string      `col:"calendar,null,dict"`
	DecidedAt  event.Time  `col:"decided_at"`
	EndedAt    event.Time  `col:"ended_at,null"` // when the outcome became final
	Meta
}

// Key returns the primary key.
func (r *Tick) Key() string { return r.TickID }

func (*Tick) newTable() store { return new(rowTable[string, Tick, *Tick]) }

func (r *Tick) evictable(_ *State, c *cut) (closed, stop bool) {
	return r.Outcome.Final() && c.Time.Sub(r.EndedAt) >= ClosedAfter, false
}

// wakeItem identifies what waits for a time: a schedule, a request, a notification or a watch.
type wakeItem struct {
	at                              event.Time
	schedule, request, notification string
	watch                           Key3
}

func lessWake(a, b wakeItem) bool {
	return cmp.Or(
		cmp.Compare(a.at, b.at), cmp.Compare(a.schedule, b.schedule), cmp.Compare(a.request, b.request),
		cmp.Compare(a.notification, b.notification), compare3(a.watch, b.watch),
	) < 0
}

// timedItem orders rows by a time. In an index by schedule, the schedule comes before the time. Requests with the
// same time are ordered by instant, and then by key.
type timedItem struct {
	schedule string
	at       event.Time
	logical  event.Time
	id       string
}

func lessTimed(a, b timedItem) bool {
	return cmp.Or(
		cmp.Compare(a.schedule, b.schedule), cmp.Compare(a.at, b.at), cmp.Compare(a.logical, b.logical), cmp.Compare(a.id, b.id),
	) < 0
}

// automation contains the indexes of schedules and requests.
type automation struct {
	wake     sorted[wakeItem]  // rows that wait for a time
	pending  sorted[timedItem] // PENDING requests, by ReleasedAt
	ended    sorted[timedItem] // ended requests, by their end
	wanted   sorted[timedItem] // schedules that wait for an automator, by WantedAt
	active   sorted[Key2]      // PENDING and WAITING requests of schedules
	buffered sorted[timedItem] // BUFFERED requests, by schedule
	runs     sorted[Key2]      // live runs, by schedule
	// count is the number of buffered requests of each schedule.
	count byText[int32]
}

func newAutomation() automation {
	less := func(a, b Key2) bool { return compare2(a, b) < 0 }
	return automation{
		wake: newSorted(lessWake), pending: newSorted(lessTimed), ended: newSorted(lessTimed), wanted: newSorted(lessTimed),
		active: newSorted(less), buffered: newSorted(lessTimed), runs: newSorted(less), count: newByText[int32](),
	}
}

func (a automation) copy() automation {
	return automation{
		wake: a.wake.copy(), pending: a.pending.copy(), ended: a.ended.copy(), wanted: a.wanted.copy(),
		active: a.active.copy(), buffered: a.buffered.copy(), runs: a.runs.copy(), count: a.count.copy(),
	}
}

func (r *Schedule) reindex(s *State, old *Schedule) {
	a := &s.index.automation
	if old != nil {
		a.wake.Delete(wakeItem{at: old.NextAt, schedule: old.ScheduleID})
		a.wanted.Delete(timedItem{at: old.WantedAt, id: old.ScheduleID})
	}
	if r.Deleted {
		return
	}
	if r.NextAt != 0 {
		a.wake.Set(wakeItem{at: r.NextAt, schedule: r.ScheduleID})
	}
	if r.WantedAt != 0 {
		a.wanted.Set(timedItem{at: r.WantedAt, id: r.ScheduleID})
	}
}

func (r *RunRequest) reindex(s *State, old *RunRequest) {
	a := &s.index.automation
	if old != nil {
		a.remove(old)
	}
	if !r.Deleted {
		a.insert(r)
	}
}

func (a *automation) remove(r *RunRequest) {
	switch r.State {
	case RequestWaiting:
		a.wake.Delete(wakeItem{at: r.NextAt, request: r.RequestID})
	case RequestPending:
		a.pending.Delete(timedItem{at: r.ReleasedAt, id: r.RequestID})
	case RequestBuffered:
		a.buffered.Delete(r.place())
		add(a.count, r.ScheduleID, -1)
	case RequestStarted, RequestRefused, RequestCancelled:
		a.ended.Delete(timedItem{at: r.EndedAt, id: r.RequestID})
	}
	if r.blocks() {
		a.active.Delete(Key2{r.ScheduleID, r.RequestID})
	}
}

func (a *automation) insert(r *RunRequest) {
	switch r.State {
	case RequestWaiting:
		a.wake.Set(wakeItem{at: r.NextAt, request: r.RequestID})
	case RequestPending:
		a.pending.Set(timedItem{at: r.ReleasedAt, id: r.RequestID})
	case RequestBuffered:
		a.buffered.Set(r.place())
		add(a.count, r.ScheduleID, 1)
	case RequestStarted, RequestRefused, RequestCancelled:
		a.ended.Set(timedItem{at: r.EndedAt, id: r.RequestID})
	}
	if r.blocks() {
		a.active.Set(Key2{r.ScheduleID, r.RequestID})
	}
}

// blocks reports whether the request blocks later ticks of its schedule, as a live run does.
func (r *RunRequest) blocks() bool {
	return r.ScheduleID != "" && (r.State == RequestPending || r.State == RequestWaiting)
}

// place returns the sort key of a buffered request among the buffered requests of its schedule.
func (r *RunRequest) place() timedItem {
	return timedItem{schedule: r.ScheduleID, at: r.CreatedAt, logical: r.Logical, id: r.RequestID}
}

// NextWake returns the earliest time for which a schedule, a request, a notification or a watch waits.
func (s *State) NextWake() (event.Time, bool) {
	item, ok := s.index.automation.wake.Min()
	return item.at, ok
}

// DueToWake returns the schedules, requests, notifications and watches that are due at the time now, the earliest
// first. The parameter limit is their maximum number in total.
func (s *State) DueToWake(now event.Time, limit int) (schedules, requests, notifications []string, watches []Watch) {
	n := 0
	s.index.automation.wake.Scan(func(item wakeItem) bool {
		if n++; item.at > now || n > limit {
			return false
		}
		switch {
		case item.schedule != "":
			schedules = append(schedules, item.schedule)
		case item.request != "":
			requests = append(requests, item.request)
		case item.notification != "":
			notifications = append(notifications, item.notification)
		default:
			watches = append(watches, watchOf(item.watch))
		}
		return true
	})
	return schedules, requests, notifications, watches
}

// PendingRequests yields the requests that wait to be planned, the longest wait first.
func (s *State) PendingRequests(yield func(*RunRequest) bool) {
	s.index.automation.pending.Scan(func(item timedItem) bool { return yield(s.Requests.Get(item.id)) })
}

// PendingCount returns the number of requests that wait to be planned.
func (s *State) PendingCount() int { return s.index.automation.pending.Len() }

// LastReleased returns the time at which the newest PENDING request became PENDING, or 0 if there is none.
func (s *State) LastReleased() event.Time {
	item, _ := s.index.automation.pending.Max()
	return item.at
}

// EndedRequests returns requests that ended at or before a time, oldest first. The parameter limit is their maximum
// number.
func (s *State) EndedRequests(until event.Time, limit int) (ended []*RunRequest) {
	s.index.automation.ended.Scan(func(item timedItem) bool {
		if item.at > until || len(ended) == limit {
			return false
		}
		ended = append(ended, s.Requests.Get(item.id))
		return true
	})
	return ended
}

// WantedSchedules yields the schedules that wait for their next instants, in the order of their WantedAt.
func (s *State) WantedSchedules(yield func(*Schedule) bool) {
	s.index.automation.wanted.Scan(func(item timedItem) bool { return yield(s.Schedules.Get(item.id)) })
}

// WantedCount returns the number of schedules that wait for their next instants.
func (s *State) WantedCount() int { return s.index.automation.wanted.Len() }

// ActiveOf returns the live runs of a schedule, and its requests that are PENDING or WAITING.
func (s *State) ActiveOf(schedule string) (runs, requests []string) {
	of := func(index sorted[Key2]) (found []string) {
		index.Ascend(Key2{A: schedule}, func(k Key2) bool {
			if k.A != schedule {
				return false
			}
			found = append(found, k.B)
			return true
		})
		return found
	}
	return of(s.index.automation.runs), of(s.index.automation.active)
}

// BufferedOf returns the first buffered request of a schedule, or nil, and the number of its buffered requests.
func (s *State) BufferedOf(schedule string) (first *RunRequest, total int) {
	n, _ := s.index.automation.count.Get(schedule)
	if n == 0 {
		return nil, 0
	}
	s.index.automation.buffered.Ascend(timedItem{schedule: schedule}, func(item timedItem) bool {
		if item.schedule == schedule {
			first = s.Requests.Get(item.id)
		}
		return false
	})
	return first, int(n)
}

// SchedulesPending returns the current deployment if the rows of schedules do not match its release yet.
// Otherwise it returns nil.
func (s *State) SchedulesPending() *Deployment {
	if d := s.Deployment(); d != nil && d.SchedulesPending {
		return d
	}
	return nil
}

// TicksOf calls yield for the ticks of a schedule that are in the live state, newest instant first.
func (s *State) TicksOf(schedule string, yield func(*Tick) bool) {
	for _, row := range slices.Backward(s.Ticks.Rows()) {
		if row.ScheduleID == schedule && !yield(row) {
			return
		}
	}
}

// Wake returns the domain's latest wake timer in any state, or nil.
func (s *State) Wake() *Timer { return s.singleton("timer:wake:", event.TimerWake) }

// same compares the indexes with those of the parameter want, and returns an error if they differ.
func (a *automation) same(want *automation) error {
	for _, err := range []error{
		same("times of schedules and requests", a.wake.Items(), want.wake.Items()),
		same("pending requests", a.pending.Items(), want.pending.Items()),
		same("ended requests", a.ended.Items(), want.ended.Items()),
		same("wanted schedules", a.wanted.Items(), want.wanted.Items()),
		same("active requests", a.active.Items(), want.active.Items()),
		same("buffered requests", a.buffered.Items(), want.buffered.Items()),
		same("schedules with buffered requests", a.count.Keys(), want.count.Keys()),
		same("counts of buffered requests", a.count.Values(), want.count.Values()),
		same("live runs of schedules", a.runs.Items(), want.runs.Items()),
	} {
		if err != nil {
			return err
		}
	}
	return nil
}
