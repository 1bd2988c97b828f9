package control

import (
	"cmp"
	"time"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/state"
)

// UnsupportedEvery is how often a sweep checks whether a newer version can fold events that
// an older one could not.
const UnsupportedEvery = time.Hour

// Attention returns the time at which the domain needs a sweep even if nothing more is folded. ok is false if the
// domain needs no such sweep. Before the returned time, [Sweep] returns no actions.
//
// While tasks hold slots, the result is the current time: a worker or queue may lose a task at any time, and the report
// of a task may be in an entry of which the compactor was not notified. Otherwise the result is shortly after the first
// timer. It is earlier if work for automators or notifiers becomes too old before then. Runs that wait for neither a task
// nor a timer wait for people, and need no sweep.
//
// Attention reads every timer, except while tasks hold slots.
func Attention(s *state.State, now event.Time) (at event.Time, ok bool) {
	if s.Outbox.Len() > 0 || s.SlotsInUse() > 0 {
		return now, true
	}
	by := func(t event.Time) {
		if !ok || t < at {
			at, ok = t, true
		}
	}
	for row := range s.Timers.All {
		switch {
		case row.State != state.TimerScheduled:
		case row.EnqueuedAt == 0:
			by(row.CreatedAt.Add(PendingAge))
		default:
			by(cmp.Or(row.HopAt, row.FireAt).Add(TimerGrace))
		}
	}
	if _, due := s.NextDeadline(); due {
		if timer := s.Liveness(); timer == nil || timer.State != state.TimerScheduled {
			by(now)
		}
	}
	if _, due := s.NextWake(); due {
		if timer := s.Wake(); timer == nil || timer.State != state.TimerScheduled {
			by(now)
		}
	}
	if due, ok := automationDue(s); ok {
		by(due)
	}
	if s.Unsupported() {
		by(now.Add(UnsupportedEvery))
	}
	return at, ok
}
