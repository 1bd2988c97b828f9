package localqueue

import (
	"container/heap"
	"time"

	"github.com/servo-orchestration/servo/pkg/queue"
)

// lane holds the tasks of one queue, from its first task until it is empty.
type lane struct {
	name     string
	limit    int // deliveries at once
	tasks    map[string]*task
	waiting  schedule
	inFlight int
}

// task is one that waits for a delivery or is being delivered.
type task struct {
	queue.Task
	due        time.Time
	arrival    uint64
	place      int // in the schedule; -1 while it is being delivered
	ended      bool
	attempts   int // that failed
	executions int // of those, the ones that the target answered below 500
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

// enqueue lets a task wait for the time at which it is due.
func (q *Queue) enqueue(l *lane, t *task) {
	q.arrivals++
	t.arrival = q.arrivals
	heap.Push(&l.waiting, t)
}

// advance starts what is due and has a slot, and sees to it that the lane is
// looked at again when the next task is due. A lane without a free slot is
// looked at when a delivery ends.
func (q *Queue) advance(l *lane) {
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

func (q *Queue) advanceAll() {
	for _, l := range q.lanes {
		q.advance(l)
	}
}

// take is the first task if it is due, else nil.
func (q *Queue) take(l *lane) *task {
	if len(l.waiting) == 0 || l.waiting[0].due.After(q.opts.Clock.Now()) {
		return nil
	}
	t, _ := heap.Pop(&l.waiting).(*task)
	return t
}

// wakeAt has Run look at the lanes at this time, or earlier.
func (q *Queue) wakeAt(at time.Time) {
	if q.alarm.IsZero() || at.Before(q.alarm) {
		q.alarm = at
		if q.rouse != nil {
			q.rouse()
		}
	}
}

// end takes a task off the queue; its name stays used for a while.
func (q *Queue) end(l *lane, t *task) {
	t.ended = true
	delete(l.tasks, t.Name)
	q.tasks--
	q.names.add(taskName{l.name, t.Name}, q.opts.Clock.Now())
}

// drop forgets an empty lane.
func (q *Queue) drop(l *lane) {
	if len(l.tasks) == 0 && l.inFlight == 0 {
		delete(q.lanes, l.name)
	}
}

// schedule is a heap of tasks: the first is due first, or arrived first.
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
	s[i].place, s[j].place = i, j
}

// Push implements [heap.Interface].
func (s *schedule) Push(x any) {
	t, _ := x.(*task)
	t.place = len(*s)
	*s = append(*s, t)
}

// Pop implements [heap.Interface].
func (s *schedule) Pop() any {
	last := len(*s) - 1
	t := (*s)[last]
	(*s)[last] = nil
	*s = (*s)[:last]
	t.place = -1
	return t
}

type taskName struct{ queue, name string }

// memory holds the names of tasks that have ended, for a window, and at most so
// many.
type memory struct {
	window time.Duration
	limit  int
	used   map[taskName]struct{}
	ended  []ending // of the names in used, oldest first
}

type ending struct {
	name taskName
	at   time.Time
}

func (m *memory) holds(name taskName, now time.Time) bool {
	for len(m.ended) > 0 && now.Sub(m.ended[0].at) >= m.window {
		m.forgetOldest()
	}
	_, ok := m.used[name]
	return ok
}

func (m *memory) add(name taskName, now time.Time) {
	for len(m.ended) >= m.limit {
		m.forgetOldest()
	}
	m.used[name] = struct{}{}
	m.ended = append(m.ended, ending{name: name, at: now})
}

func (m *memory) forgetOldest() {
	delete(m.used, m.ended[0].name)
	m.ended[0] = ending{}
	m.ended = m.ended[1:]
}
