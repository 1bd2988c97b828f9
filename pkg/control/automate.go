package control

import (
	"time"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/state"
)

// AutomationAge is the age of unhandled work, such as a request or a schedule, at which a sweep calls an automator or
// a notifier for it. An automator may need this long if many requests arrive at once. If a sweep called a second
// automator earlier, both would do the same work.
const AutomationAge = 2 * time.Minute

// Automation is the work that a state has for automators. Doing it twice has no further effect, because every event
// names the state that its writer saw.
type Automation struct {
	// Define is the deployment whose schedules have to be defined, or nil.
	Define *state.Deployment
	// Wanted are schedules that wait for their next instants.
	Wanted []*state.Schedule
	// Deadlines are the deadlines that wait for a verdict, longest wait first.
	Deadlines []*state.Promise
	// Misses are missed deadlines whose further missing partitions have to be listed.
	Misses []*state.DeadlineMiss
	// Pending are requests to be planned, longest wait first.
	Pending []*state.RunRequest
}

// Empty reports whether there is no work.
func (a Automation) Empty() bool {
	return a.Define == nil && len(a.Wanted) == 0 && len(a.Deadlines)+len(a.Misses) == 0 && len(a.Pending) == 0
}

// Automate returns the work of a state: at most n rows of each kind (schedules, deadlines, missed deadlines and
// requests). It reads only indexes.
func Automate(s *state.State, n int) Automation {
	a := Automation{Define: s.SchedulesPending()}
	if s.WantedCount() > 0 {
		s.WantedSchedules(func(row *state.Schedule) bool {
			a.Wanted = append(a.Wanted, row)
			return len(a.Wanted) < n
		})
	}
	s.WantedDeadlines(func(row *state.Promise) bool {
		a.Deadlines = append(a.Deadlines, row)
		return len(a.Deadlines) < n
	})
	s.UnnamedMisses(func(row *state.DeadlineMiss) bool {
		a.Misses = append(a.Misses, row)
		return len(a.Misses) < n
	})
	if s.PendingCount() > 0 {
		s.PendingRequests(func(row *state.RunRequest) bool {
			a.Pending = append(a.Pending, row)
			return len(a.Pending) < n
		})
	}
	return a
}

// Notifications returns at most n notifications that have to be sent, longest wait first.
func Notifications(s *state.State, n int) (rows []*state.Notification) {
	s.PendingNotifications(func(row *state.Notification) bool {
		rows = append(rows, row)
		return len(rows) < n
	})
	return rows
}

// Unattended reports whether work for automators or notifiers is so old that a sweep should call an automator or a
// notifier.
func Unattended(s *state.State, now event.Time) bool {
	at, ok := automationDue(s)
	return ok && at <= now
}

// automationDue returns when a sweep should call an automator or a notifier for the oldest unhandled work.
func automationDue(s *state.State) (at event.Time, ok bool) {
	by := func(since event.Time) {
		if t := since.Add(AutomationAge); !ok || t < at {
			at, ok = t, true
		}
	}
	if d := s.SchedulesPending(); d != nil {
		by(d.DeployedAt)
	}
	s.WantedSchedules(func(row *state.Schedule) bool {
		by(row.WantedAt)
		return false
	})
	s.PendingRequests(func(row *state.RunRequest) bool {
		by(row.ReleasedAt)
		return false
	})
	s.PendingNotifications(func(row *state.Notification) bool {
		by(row.PendingAt)
		return false
	})
	s.WantedDeadlines(func(row *state.Promise) bool {
		by(row.WantedAt)
		return false
	})
	s.UnnamedMisses(func(row *state.DeadlineMiss) bool {
		by(event.At(ids.Time(row.Version))) // when the last partition that the row lists was materialized
		return false
	})
	return at, ok
}

// missingTimers returns requests for timers that are missing in a state. Every fold restores missing timers, so such
// a request only has to cause a fold.
func missingTimers(s *state.State) []Action {
	var actions []Action
	restore := func(timerType string, timer *state.Timer, at event.Time, ok bool) {
		if ok && (timer == nil || timer.State != state.TimerScheduled) {
			actions = append(actions, Retime{Request: &event.TimerRequested{
				TimerID: ids.TimerID(timerType, "", "", 0, at.Time().Unix()), TimerType: timerType, FireAt: at,
			}})
		}
	}
	next, ok := s.NextDeadline()
	restore(event.TimerLiveness, s.Liveness(), next.At, ok)
	if wake, ok := s.NextWake(); ok {
		restore(event.TimerWake, s.Wake(), wake, ok)
	}
	return actions
}
