package dispatcher

import (
	"sync"

	"github.com/servo-orchestration/servo/pkg/control"
	"github.com/servo-orchestration/servo/pkg/event"
)

// inFlight remembers which actions this process is executing or has executed recently. So the
// process does not execute an action twice if two successive states show the action as pending.
// This only saves requests and acknowledgements: a repeated action finds its queue task.
type inFlight struct {
	mu    sync.Mutex
	taken map[string]event.Time // when an action was executed, or busy while it executes
	swept event.Time
}

// busy is recorded instead of a time while an action executes. Such an action does not expire, because it may wait in
// the fair queue for a long time.
const busy = event.Time(-1)

func newInFlight() *inFlight { return &inFlight{taken: map[string]event.Time{}} }

// begin reports whether the caller should execute an action, and records it. It returns false if
// the action is executing or was executed less than [control.PendingAge] ago.
func (f *inFlight) begin(name string, now event.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	// If a time is later than now, the clock was set back: the time counts as long ago.
	recent := func(at event.Time) bool { return at <= now && now.Sub(at) < control.PendingAge }
	if !recent(f.swept) {
		f.swept = now
		for name, at := range f.taken {
			if at != busy && !recent(at) {
				delete(f.taken, name)
			}
		}
	}
	if at, ok := f.taken[name]; ok && (at == busy || recent(at)) {
		return false
	}
	f.taken[name] = busy
	return true
}

// done records that an action was executed.
func (f *inFlight) done(name string, now event.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.taken[name] = now
}

// release forgets an action, so that it can be executed again immediately.
func (f *inFlight) release(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.taken, name)
}
