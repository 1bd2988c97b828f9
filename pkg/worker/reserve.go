package worker

import (
	"context"
	"slices"
	"sync"
	"time"
)

// overtaking is how long a task may wait for memory while later, smaller tasks start before it.
const overtaking = 60 * time.Second

// reservation is the memory for a task that runs or waits.
type reservation struct {
	bytes int64
	// declared means that the asset declares its memory. A task without declared memory gets an equal share of the
	// memory, as if MaxConcurrent tasks were running. It waits only while tasks with declared memory run.
	declared bool
	since    time.Time
	granted  chan struct{} // closed when the task may start
}

// memory admits tasks as long as the memory of all running tasks fits into the limit. It is safe for concurrent use.
type memory struct {
	capacity int64

	mu       sync.Mutex
	used     int64
	running  int
	declared int            // how many running tasks declare their memory
	waiting  []*reservation // in the order of arrival
}

// reserve waits until a task may start. If it returns nil, the caller must release the reservation.
func (m *memory) reserve(ctx context.Context, r *reservation, now func() time.Time) error {
	r.granted = make(chan struct{})
	m.mu.Lock()
	r.since = now()
	m.waiting = append(m.waiting, r)
	m.admit(r.since)
	m.mu.Unlock()
	select {
	case <-r.granted:
		return nil
	case <-ctx.Done():
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	select {
	case <-r.granted:
		m.free(r)
	default:
		m.waiting = slices.DeleteFunc(m.waiting, func(other *reservation) bool { return other == r })
	}
	m.admit(now())
	return context.Cause(ctx)
}

// release frees the memory of a task that has ended, and starts waiting tasks.
func (m *memory) release(r *reservation, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.free(r)
	m.admit(now)
}

func (m *memory) free(r *reservation) {
	m.used -= r.bytes
	m.running--
	if r.declared {
		m.declared--
	}
}

// admit starts all waiting tasks that may start. If a task has waited for at least the duration overtaking, no later
// task may start before it.
func (m *memory) admit(now time.Time) {
	blocked := false
	m.waiting = slices.DeleteFunc(m.waiting, func(r *reservation) bool {
		if blocked || !m.fits(r) {
			blocked = blocked || now.Sub(r.since) >= overtaking
			return false
		}
		m.used += r.bytes
		m.running++
		if r.declared {
			m.declared++
		}
		close(r.granted)
		return true
	})
}

// fits reports whether a task may start in addition to the running tasks. If no task runs, it may always start.
func (m *memory) fits(r *reservation) bool {
	return m.running == 0 || !r.declared && m.declared == 0 || r.bytes <= m.capacity-m.used
}
