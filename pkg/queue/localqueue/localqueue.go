// Package localqueue is a [queue.Queue] inside this process with the semantics
// of Cloud Tasks, so that what works with it works in the cloud:
//
//   - A name is refused while its task waits or runs, and for a window after.
//   - A task is POSTed at its schedule time or after; tasks that are due go out
//     by schedule time and then arrival, as many at once as the queue allows.
//   - Only a status of 2xx is success. A redirect is not followed: it is a
//     failure like every other status, like no answer within the deadline.
//   - A failed task is retried with exponential back-off, and dropped when its
//     attempts run out.
//   - A task that is deleted while it runs is not retried.
//
// Unlike Cloud Tasks it keeps nothing: what was queued ends with the process,
// and is queued again from the projections at the next start.
//
// A waiting task costs a place in a heap. Goroutines are one for each delivery
// under way, one for its deadline, and that of [Queue.Run]. Nothing polls: a
// delivery starts where its cause is, in Create, at the end of another
// delivery, or when Run wakes at the time of the earliest task.
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

// maxNap bounds one sleep of Run. Timers stand still while a machine is
// suspended, and do not follow a clock that is set; so look again now and then,
// as long as a task waits for its time.
const maxNap = time.Minute

// Options configure a queue. The zero value is ready to use.
type Options struct {
	// Clock tells and waits for time; nil means the system's.
	Clock clock.Clock
	// Client makes the requests; nil means one of the queue's own. Redirects
	// are never followed, whatever it says.
	Client *http.Client
	// Logger hears of tasks that are dropped, and at debug level of each failed
	// delivery; nil means nobody does.
	Logger *slog.Logger
	// Concurrency is how many deliveries of a queue may be under way at once.
	// It is asked when a queue gets its first task; nil and numbers below 1
	// mean DefaultConcurrency.
	Concurrency func(queue string) int
	// MinBackoff is the wait before the first retry; it doubles up to
	// MaxBackoff. 0 means the default.
	MinBackoff, MaxBackoff time.Duration
	// MaxAttempts is after how many failures a task is dropped; 0 means the default.
	MaxAttempts int
	// DedupWindow is how long a name is refused after its task has ended; 0
	// means the default.
	DedupWindow time.Duration
	// MaxRemembered bounds the names refused for that reason: beyond it, the
	// oldest is free before its time. 0 means the default.
	MaxRemembered int
	// MaxTasks bounds the tasks that wait or run; 0 means the default.
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
		// The targets are few and near: keep a connection for each delivery.
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
	errStopped = errors.New("the queue has stopped, and with it every task")
	errFull    = errors.New("the queue is full")
)

// Queue delivers tasks while [Queue.Run] runs. Create it with [New].
type Queue struct {
	opts      Options
	transport *http.Transport // the queue's own, or nil

	mu       sync.Mutex
	lanes    map[string]*lane
	names    memory
	tasks    int    // in all lanes
	arrivals uint64 // counts tasks and retries, to break ties
	phase    phase
	ctx      context.Context //nolint:containedctx // of Run, which owns the deliveries that Create starts
	running  sync.WaitGroup
	alarm    time.Time // when Run looks again; zero: not before it is roused
	rouse    context.CancelFunc
}

type phase int

const (
	created phase = iota
	running
	stopped
)

var _ queue.Queue = (*Queue)(nil)

// New makes a queue. Tasks may be created at once; they are delivered when it runs.
func New(opts Options) *Queue {
	q := &Queue{lanes: map[string]*lane{}}
	q.opts, q.transport = opts.withDefaults()
	q.names = memory{window: q.opts.DedupWindow, limit: q.opts.MaxRemembered, used: map[taskName]struct{}{}}
	return q
}

// Run delivers until ctx is done, which ends the deliveries under way too, and
// returns when all of them have. It runs once.
func (q *Queue) Run(ctx context.Context) error {
	q.mu.Lock()
	if q.phase != created {
		q.mu.Unlock()
		return errors.New("run queue: it ran before; make a new one")
	}
	q.phase, q.ctx = running, ctx
	q.advanceAll()
	q.mu.Unlock()

	for ctx.Err() == nil {
		q.waitForAlarm(ctx)
	}

	q.mu.Lock()
	q.phase = stopped // from here on nothing starts
	q.mu.Unlock()
	q.running.Wait()
	if q.transport != nil {
		q.transport.CloseIdleConnections()
	}
	return nil
}

// waitForAlarm sleeps until the alarm, and starts what is due then; or until the
// alarm is set to an earlier time.
func (q *Queue) waitForAlarm(ctx context.Context) {
	q.mu.Lock()
	ctx, rouse := context.WithCancel(ctx)
	defer rouse()
	q.rouse = rouse
	at := q.alarm
	q.mu.Unlock()

	if at.IsZero() {
		<-ctx.Done()
		return
	}
	if q.opts.Clock.Sleep(ctx, min(at.Sub(q.opts.Clock.Now()), maxNap)) != nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.alarm = time.Time{}
	q.advanceAll()
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
	if err := q.admit(t, now); err != nil {
		return fmt.Errorf("create task %q of queue %q: %w", t.Name, t.Queue, err)
	}
	l := q.lane(t.Queue)
	item := &task{Task: t, due: t.ScheduleTime}
	if item.due.IsZero() {
		item.due = now
	}
	l.tasks[t.Name] = item
	q.tasks++
	q.enqueue(l, item)
	q.advance(l)
	return nil
}

// admit decides whether a valid task may enter.
func (q *Queue) admit(t queue.Task, now time.Time) error {
	if l, ok := q.lanes[t.Queue]; ok && l.tasks[t.Name] != nil || q.names.holds(taskName{t.Queue, t.Name}, now) {
		return queue.ErrExists
	}
	if q.phase == stopped {
		return errStopped
	}
	if q.tasks >= q.opts.MaxTasks {
		return fmt.Errorf("%w: %d tasks wait; try again under the same name", errFull, q.tasks)
	}
	return nil
}

// Delete implements [queue.Queue]. A delivery that is under way goes on, and is
// the last.
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
	if item.place >= 0 {
		heap.Remove(&l.waiting, item.place)
	}
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
