// Package localqueue implements [queue.Queue] in this process. It has the semantics of Cloud Tasks, so that code that
// works with this queue also works in the cloud. This package is not a stable API.
//
// The queue delivers tasks by these rules:
//
//   - A name is refused while its task waits or runs, and for a window after that.
//   - A task is POSTed at or after its schedule time, up to the queue's concurrency. Among the due tasks, those of the
//     greatest priority go first. Groups of equal priority take turns. In a group, the oldest task goes first. Tasks
//     without a [queue.Turn] are one group, so they are sent in the order of schedule time, then arrival.
//   - Only a 2xx status is a success. Every other status is a failure, and so is a delivery without an answer within
//     the deadline. Redirects are not followed.
//   - A failed task is retried with exponential backoff, and dropped after its last attempt.
//   - A task that is deleted while it runs is not retried.
//
// Unlike Cloud Tasks, the queue is not durable: its tasks are lost when the process ends, and the next process
// creates them again from the projections.
//
// Waiting tasks are in heaps. The queue chooses the next task only when a slot becomes free, so a task of a greater
// priority that arrives later overtakes waiting tasks. Each delivery in flight uses two goroutines, one for its
// deadline, and [Queue.Run] uses one. Nothing polls: a delivery starts in Create, when another delivery ends, or when
// Run wakes at the due time of the earliest task.
package localqueue

import (
	"bytes"
	"container/heap"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"sync"
	"time"

	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/queue"
)

// Defaults of [Options].
const (
	DefaultConcurrency   = 100
	DefaultMinBackoff    = 100 * time.Millisecond
	DefaultMaxBackoff    = 10 * time.Second
	DefaultMaxAttempts   = 100
	DefaultDedupWindow   = time.Hour
	DefaultMaxRemembered = 100_000
	DefaultMaxTasks      = 1_000_000
)

// maxSleep is the longest time that Run sleeps while tasks wait. Timers of the operating system stop while a machine
// is suspended, and ignore changes of the clock. So Run checks the time regularly.
const maxSleep = time.Minute

// Options configure a queue. The zero value is ready to use.
type Options struct {
	// Clock returns the time and creates timers; nil means the system clock.
	Clock clock.Clock
	// Client sends the requests; nil means that the queue creates a client. The queue never follows redirects, even if
	// Client is configured to do so.
	Client *http.Client
	// Logger receives an error for each dropped task and, at debug level, each failed
	// delivery; nil discards them.
	Logger *slog.Logger
	// Concurrency returns how many deliveries of a queue may be in flight. It is called
	// when a queue gets its first task. If it is nil or returns less than 1,
	// DefaultConcurrency applies.
	Concurrency func(queue string) int
	// MinBackoff is the wait before the first retry; it doubles up to
	// MaxBackoff. 0 means the default.
	MinBackoff, MaxBackoff time.Duration
	// MaxAttempts is the number of failures after which a task is dropped; 0 means the
	// default.
	MaxAttempts int
	// DedupWindow is how long a name is refused after its task has ended; 0
	// means the default.
	DedupWindow time.Duration
	// MaxRemembered is the maximum number of names that are refused because of DedupWindow. If more tasks end within the
	// window, the oldest names are accepted again before their window ends. 0 means the default.
	MaxRemembered int
	// MaxTasks is the maximum number of tasks that wait or are being delivered; 0 means the default.
	MaxTasks int
}

func (o Options) withDefaults() (_ Options, ownTransport *http.Transport) {
	orInt := func(v *int, def int) {
		if *v <= 0 {
			*v = def
		}
	}
	orDuration := func(v *time.Duration, def time.Duration) {
		if *v <= 0 {
			*v = def
		}
	}
	if o.Clock == nil {
		o.Clock = clock.System{}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	client := http.Client{}
	if o.Client != nil {
		client = *o.Client
	} else {
		// Tasks go to few targets, on this machine or near it, so the client keeps an idle connection for each concurrent
		// delivery.
		ownTransport = &http.Transport{MaxIdleConnsPerHost: 256, IdleConnTimeout: 90 * time.Second, DisableCompression: true}
		client.Transport = ownTransport
	}
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	o.Client = &client
	orDuration(&o.MinBackoff, DefaultMinBackoff)
	orDuration(&o.MaxBackoff, DefaultMaxBackoff)
	orDuration(&o.DedupWindow, DefaultDedupWindow)
	orInt(&o.MaxAttempts, DefaultMaxAttempts)
	orInt(&o.MaxRemembered, DefaultMaxRemembered)
	orInt(&o.MaxTasks, DefaultMaxTasks)
	return o, ownTransport
}

var (
	errStopped = errors.New("the queue has stopped and accepts no tasks")
	errFull    = errors.New("the queue is full")
)

// Queue delivers tasks while [Queue.Run] runs. Create it with [New].
type Queue struct {
	opts      Options
	transport *http.Transport // the transport of the queue's own client, or nil

	mu       sync.Mutex
	lanes    map[string]*lane
	names    usedNames
	tasks    int    // in all lanes
	arrivals uint64 // counts created tasks, to order tasks of the same age
	phase    phase
	ctx      context.Context //nolint:containedctx // the context of Run; all deliveries run under it
	running  sync.WaitGroup
	alarm    time.Time // when Run dispatches next; zero: when wake is called
	wake     context.CancelFunc
}

type phase int

const (
	created phase = iota
	running
	stopped
)

var _ queue.Queue = (*Queue)(nil)

// New returns a queue. It accepts tasks immediately, and delivers them while Run runs.
func New(opts Options) *Queue {
	q := &Queue{lanes: map[string]*lane{}}
	q.opts, q.transport = opts.withDefaults()
	q.names = usedNames{window: q.opts.DedupWindow, maxNames: q.opts.MaxRemembered, used: map[taskName]struct{}{}}
	return q
}

// Run delivers tasks until ctx is done, and then cancels the deliveries in flight. It returns when all deliveries
// have ended. Run may be called only once.
func (q *Queue) Run(ctx context.Context) error {
	q.mu.Lock()
	if q.phase != created {
		q.mu.Unlock()
		return errors.New("run queue: it has already run: create a new queue")
	}
	q.phase, q.ctx = running, ctx
	q.dispatchAll()
	q.mu.Unlock()

	for ctx.Err() == nil {
		q.waitForAlarm(ctx)
	}

	q.mu.Lock()
	q.phase = stopped // no delivery starts after this
	q.mu.Unlock()
	q.running.Wait()
	if q.transport != nil {
		q.transport.CloseIdleConnections()
	}
	return nil
}

// waitForAlarm sleeps until the alarm, then dispatches. It returns early if the alarm is
// set to an earlier time.
func (q *Queue) waitForAlarm(ctx context.Context) {
	q.mu.Lock()
	ctx, wake := context.WithCancel(ctx)
	defer wake()
	q.wake = wake
	at := q.alarm
	q.mu.Unlock()

	if at.IsZero() {
		<-ctx.Done()
		return
	}
	if q.opts.Clock.Sleep(ctx, min(at.Sub(q.opts.Clock.Now()), maxSleep)) != nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.alarm = time.Time{}
	q.dispatchAll()
}

// Create implements [queue.Queue].
func (q *Queue) Create(ctx context.Context, t queue.Task) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("create task %q of queue %q: %w", t.Name, t.Queue, err)
	}
	now := q.opts.Clock.Now()
	if err := queue.Validate(t, now); err != nil {
		return fmt.Errorf("create task: %w", err)
	}
	t.Body, t.Header = bytes.Clone(t.Body), maps.Clone(t.Header)
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.checkNew(t, now); err != nil {
		return fmt.Errorf("create task %q of queue %q: %w", t.Name, t.Queue, err)
	}
	l := q.lane(t.Queue)
	item := &task{Task: t, due: t.ScheduleTime}
	if item.due.IsZero() {
		item.due = now
	}
	if item.since = t.Turn.Since; item.since.IsZero() {
		item.since = item.due
	}
	l.tasks[t.Name] = item
	q.tasks++
	q.arrivals++
	item.arrival = q.arrivals
	heap.Push(&l.waiting, item)
	q.dispatch(l)
	return nil
}

// checkNew returns nil if the valid task t may be added. Otherwise, it returns ErrExists, errStopped or errFull.
func (q *Queue) checkNew(t queue.Task, now time.Time) error {
	if l, ok := q.lanes[t.Queue]; ok && l.tasks[t.Name] != nil || q.names.contains(taskName{t.Queue, t.Name}, now) {
		return queue.ErrExists
	}
	if q.phase == stopped {
		return errStopped
	}
	if q.tasks >= q.opts.MaxTasks {
		return fmt.Errorf("%w: %d tasks are waiting: retry later under the same name", errFull, q.tasks)
	}
	return nil
}

// Delete implements [queue.Queue]. A delivery in flight continues, but is not retried.
func (q *Queue) Delete(ctx context.Context, queueName, name string) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("delete task %q of queue %q: %w", name, queueName, err)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	l, ok := q.lanes[queueName]
	if !ok {
		return nil
	}
	item, ok := l.tasks[name]
	if !ok {
		return nil
	}
	l.remove(item)
	q.end(l, item)
	q.drop(l)
	return nil
}

// Exists implements [queue.Queue].
func (q *Queue) Exists(ctx context.Context, queueName, name string) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, fmt.Errorf("look for task %q of queue %q: %w", name, queueName, err)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	l, ok := q.lanes[queueName]
	return ok && l.tasks[name] != nil, nil
}
