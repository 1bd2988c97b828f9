package control

import (
	"cmp"
	"time"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/state"
)

// UnsupportedEvery is how often somebody looks whether a newer build folds by now what
// an older one could not.
const UnsupportedEvery = time.Hour

// Attention is from when on somebody should look after a domain, though nothing more
// is folded; false: nobody needs to, for nothing in it can get stuck. Before that time
// [Sweep] finds nothing to do.
//
// Where tasks hold slots it is now: that a worker or a queue has one of them may
// change at any time, and what is reported of it may be in the ledger, and nobody told.
// Else all that lives waits for timers, and it is a while after the first of them.
// Runs that wait for neither wait for people.
//
// It costs nothing while tasks hold slots, and else a look at every timer.
func Attention(s *state.State, now event.Time) (at event.Time, ok bool) {
	if s.Outbox.Len() > 0 || s.Held() > 0 {
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
	if s.Unsupported() {
		by(now.Add(UnsupportedEvery))
	}
	return at, ok
}
