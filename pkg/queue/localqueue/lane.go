package localqueue

import (
	"container/heap"
	"time"

	"github.com/servo-orchestration/servo/pkg/queue"
)

// lane contains the tasks of one queue. It is created for the queue's first task, and removed when it is empty.
type lane struct {
	name     string
	limit    int // the maximum number of concurrent deliveries
	tasks    map[string]*task
	waiting  schedule // not due yet
	turns    turns    // due
	inFlight int
}

// task is a task that is waiting or being delivered.
type task struct {
	queue.Task
	due        time.Time
	since      time.Time // the time from which the task's age is measured: Turn.Since, or when the task was first due
	arrival    uint64    // decides the order of tasks of the same age
	group      *group    // nil unless the task is due or being delivered
	index      int       // the task's position in group.due or lane.waiting; -1 while it is being delivered
	ended      bool
	attempts   int // failed attempts
	executions int // failed attempts whose answer had a status below 500
}

// Callers of the methods below must hold the queue's lock.

func (q *Queue) lane(name string) *lane {
	l, ok := q.lanes[name]
	if !ok {
		l = &lane{name: name, tasks: map[string]*task{}, turns: newTurns(), limit: DefaultConcurrency}
		if q.opts.Concurrency != nil {
			if limit := q.opts.Concurrency(name); limit > 0 {
				l.limit = limit
			}
		}
		q.lanes[name] = l
	}
	return l
}

// dispatch starts due tasks while the lane has free slots, and sets the alarm for the next
// task. If the lane has no free slot, a delivery that ends starts the next task.
func (q *Queue) dispatch(l *lane) {
	if q.phase != running || q.ctx.Err() != nil {
		return
	}
	q.promote(l)
	for l.inFlight < l.limit {
		t := l.turns.pop()
		if t == nil {
			break
		}
		l.inFlight++
		q.running.Go(func() { q.deliver(l, t) })
	}
	if l.inFlight < l.limit && l.waiting.Len() > 0 {
		q.wakeAt(l.waiting.positions[0].due)
	}
}

func (q *Queue) dispatchAll() {
	for _, l := range q.lanes {
		q.dispatch(l)
	}
}

// promote moves the tasks that are due now from l.waiting to l.turns.
func (q *Queue) promote(l *lane) {
	for now := q.opts.Clock.Now(); l.waiting.Len() > 0 && !l.waiting.positions[0].due.After(now); {
		t, _ := heap.Pop(&l.waiting).(*task)
		l.turns.push(t)
	}
}

// remove removes a task that is waiting. It does nothing if the task is being delivered.
func (l *lane) remove(t *task) {
	switch {
	case t.index < 0:
	case t.group != nil:
		l.turns.remove(t)
	default:
		heap.Remove(&l.waiting, t.index)
	}
}

// wakeAt makes Run dispatch tasks at the given time or earlier.
func (q *Queue) wakeAt(at time.Time) {
	if q.alarm.IsZero() || at.Before(q.alarm) {
		q.alarm = at
		if q.wake != nil {
			q.wake()
		}
	}
}

// end removes a task from the queue. Its name stays reserved until the deduplication window has passed.
func (q *Queue) end(l *lane, t *task) {
	t.ended = true
	delete(l.tasks, t.Name)
	q.tasks--
	q.names.add(taskName{l.name, t.Name}, q.opts.Clock.Now())
}

// drop removes the lane if it is empty.
func (q *Queue) drop(l *lane) {
	if len(l.tasks) == 0 && l.inFlight == 0 {
		delete(q.lanes, l.name)
	}
}

type taskName struct{ queue, name string }

// usedNames contains at most maxNames names of tasks that have ended within a time window.
type usedNames struct {
	window   time.Duration
	maxNames int
	used     map[taskName]struct{}
	ended    []endedName // the names in used, oldest first
}

type endedName struct {
	name taskName
	at   time.Time
}

func (m *usedNames) contains(name taskName, now time.Time) bool {
	for len(m.ended) > 0 && now.Sub(m.ended[0].at) >= m.window {
		m.forgetOldest()
	}
	_, ok := m.used[name]
	return ok
}

func (m *usedNames) add(name taskName, now time.Time) {
	for len(m.ended) >= m.maxNames {
		m.forgetOldest()
	}
	m.used[name] = struct{}{}
	m.ended = append(m.ended, endedName{name: name, at: now})
}

func (m *usedNames) forgetOldest() {
	delete(m.used, m.ended[0].name)
	m.ended[0] = endedName{}
	m.ended = m.ended[1:]
}
