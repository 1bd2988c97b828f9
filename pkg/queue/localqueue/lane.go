package localqueue

import (
	"container/heap"
	"time"

	"github.com/servo-orchestration/servo/pkg/queue"
)

// lane contains the tasks of one queue. It exists from the first task until it is empty.
type lane struct {
	name     string
	limit    int // concurrent deliveries
	tasks    map[string]*task
	waiting  schedule
	inFlight int
}

// task is a task that is waiting or being delivered.
type task struct {
	queue.Task
	due        time.Time
	arrival    uint64
	index      int // position in the heap waiting; -1 while the task is being delivered
	ended      bool
	attempts   int // failed attempts
	executions int // failed attempts that the target answered with a status below 500
}

// The methods below are called with the queue's lock held.

func (q *Queue) lane(name string) *lane {
	l, ok := q.lanes[name]
	if !ok {
		l = &lane{name: name, tasks: map[string]*task{}, limit: DefaultConcurrency}
		if q.opts.Concurrency != nil {
			if limit := q.opts.Concurrency(name); limit > 0 {
				l.limit = limit
			}
		}
		q.lanes[name] = l
	}
	return l
}

// enqueue adds a task to the tasks that are not due yet.
func (q *Queue) enqueue(l *lane, t *task) {
	q.arrivals++
	t.arrival = q.arrivals
	heap.Push(&l.waiting, t)
}

// dispatch starts due tasks while the lane has free slots, and sets the alarm for the next
// task. A lane without a free slot is dispatched when a delivery ends.
func (q *Queue) dispatch(l *lane) {
	if q.phase != running || q.ctx.Err() != nil {
		return
	}
	for l.inFlight < l.limit && len(l.waiting) > 0 {
		t := q.take(l)
		if t == nil {
			q.wakeAt(l.waiting[0].due)
			return
		}
		l.inFlight++
		q.running.Go(func() { q.deliver(l, t) })
	}
}

func (q *Queue) dispatchAll() {
	for _, l := range q.lanes {
		q.dispatch(l)
	}
}

// take removes and returns the first task if it is due, else nil.
func (q *Queue) take(l *lane) *task {
	if len(l.waiting) == 0 || l.waiting[0].due.After(q.opts.Clock.Now()) {
		return nil
	}
	t, _ := heap.Pop(&l.waiting).(*task)
	return t
}

// wakeAt makes Run dispatch at this time or earlier.
func (q *Queue) wakeAt(at time.Time) {
	if q.alarm.IsZero() || at.Before(q.alarm) {
		q.alarm = at
		if q.wake != nil {
			q.wake()
		}
	}
}

// end removes a task from the queue. Its name stays used for the deduplication window.
func (q *Queue) end(l *lane, t *task) {
	t.ended = true
	delete(l.tasks, t.Name)
	q.tasks--
	q.names.add(taskName{l.name, t.Name}, q.opts.Clock.Now())
}

// drop removes an empty lane.
func (q *Queue) drop(l *lane) {
	if len(l.tasks) == 0 && l.inFlight == 0 {
		delete(q.lanes, l.name)
	}
}

// schedule is a heap of tasks, ordered by due time, then arrival.
type schedule []*task

// Len implements [heap.Interface].
func (s schedule) Len() int { return len(s) }

// Less implements [heap.Interface].
func (s schedule) Less(i, j int) bool {
	if s[i].due.Equal(s[j].due) {
		return s[i].arrival < s[j].arrival
	}
	return s[i].due.Before(s[j].due)
}

// Swap implements [heap.Interface].
func (s schedule) Swap(i, j int) {
	s[i], s[j] = s[j], s[i]
	s[i].index, s[j].index = i, j
}

// Push implements [heap.Interface].
func (s *schedule) Push(x any) {
	t, _ := x.(*task)
	t.index = len(*s)
	*s = append(*s, t)
}

// Pop implements [heap.Interface].
func (s *schedule) Pop() any {
	last := len(*s) - 1
	t := (*s)[last]
	(*s)[last] = nil
	*s = (*s)[:last]
	t.index = -1
	return t
}

type taskName struct{ queue, name string }

// usedNames contains the names of tasks that have ended, for a window, up to a limit.
type usedNames struct {
	window time.Duration
	limit  int
	used   map[taskName]struct{}
	ended  []endedName // the names in used, oldest first
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
	for len(m.ended) >= m.limit {
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
