// Package queuetest contains the contract of [queue.Queue] as tests. Every implementation and every fake must pass
// them.
package queuetest

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/queue"
)

// Config describes how to create the queues under test.
type Config struct {
	// Open returns an empty queue that delivers to target until the test ends, and the URL that reaches the target. The
	// queue should begin retries within a tenth of a second.
	Open func(t *testing.T, target http.Handler) (q queue.Queue, url string)
	// If Virtual is set, each test runs in a bubble of testing/synctest, and the queue must not use the network.
	Virtual bool
}

// Run checks that the queues fulfil the contract.
func Run(t *testing.T, cfg Config) {
	t.Helper()
	for _, row := range []struct {
		name  string
		check func(t *testing.T, h *harness)
	}{
		{"a task is one POST of its body with its headers", onePost},
		{"the content type is JSON unless the task says otherwise", contentType},
		{"a delivery names its queue, task, attempt and ETA", describesItself},
		{"any status outside 2xx is a failure, and is retried", retriesFailures},
		{"a redirect is a failure and is not followed", doesNotFollow},
		{"a 5xx answer is not counted as an execution", countsExecutions},
		{"a success is not delivered again", deliversOnce},
		{"a task is not delivered before its time", waitsForSchedule},
		{"the name of an existing task, or of a task that succeeded, is refused", refusesNames},
		{"one of several racing creates wins and is delivered once", createRace},
		{"the same name may be used in several queues", queuesAreApart},
		{"a deleted task is not delivered and does not exist, but its name stays used", deletes},
		{"a task exists while it waits and while it is delivered", exists},
		{"an invalid task is refused and not delivered", refusesInvalid},
		{"a call with a finished context fails", finishedContext},
		{"the caller may reuse body and headers after Create", ownsItsBytes},
		{"many tasks are all delivered", deliversMany},
	} {
		t.Run(row.name, func(t *testing.T) {
			check := func(t *testing.T) {
				h := &harness{t: t, deliveries: make(chan Delivery, 10_000)}
				h.Queue, h.url = cfg.Open(t, h)
				row.check(t, h)
			}
			if cfg.Virtual {
				synctest.Test(t, check)
			} else {
				check(t)
			}
		})
	}
}

// Delivery is one request that the target received.
type Delivery struct {
	Task   string
	Path   string
	Method string
	Header http.Header
	Body   string
	At     time.Time
}

// count parses a header whose value is a number.
func (d Delivery) count(t *testing.T, header string) int {
	t.Helper()
	n, err := strconv.Atoi(d.Header.Get(header))
	require.NoError(t, err, "header %s of a delivery", header)
	return n
}

// harness is the target of the deliveries, together with the queue under test.
type harness struct {
	queue.Queue
	t          *testing.T
	url        string
	deliveries chan Delivery
	// answer returns the status for the n-th delivery (from 0) of a task; nil means 200.
	answer func(d Delivery, n int, w http.ResponseWriter) int

	mu   sync.Mutex
	seen map[string]int
}

// ServeHTTP records the delivery and answers it.
func (h *harness) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		h.t.Errorf("read the body of a delivery: %v", err)
	}
	d := Delivery{
		Task: r.Header.Get(queue.HeaderTaskName), Path: r.URL.Path, Method: r.Method,
		Header: r.Header.Clone(), Body: string(body), At: clock.System{}.Now(),
	}
	h.mu.Lock()
	if h.seen == nil {
		h.seen = map[string]int{}
	}
	n := h.seen[d.Task]
	h.seen[d.Task]++
	h.mu.Unlock()
	status := http.StatusOK
	if h.answer != nil {
		status = h.answer(d, n, w)
	}
	h.deliveries <- d
	w.WriteHeader(status)
}

// task returns a valid task that is due now.
func (h *harness) task(name string) queue.Task {
	return queue.Task{Queue: "default", Name: name, URL: h.url + "/execute", Body: []byte(`{"task":"` + name + `"}`)}
}

func (h *harness) create(name string) {
	h.t.Helper()
	require.NoError(h.t, h.Create(h.t.Context(), h.task(name)))
}

// next returns the next delivery. It fails the test if none arrives within 30 seconds.
func (h *harness) next() Delivery {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), 30*time.Second)
	defer cancel()
	select {
	case d := <-h.deliveries:
		return d
	case <-ctx.Done():
		require.FailNow(h.t, "no delivery within 30 seconds")
		return Delivery{}
	}
}

// drain returns the deliveries of the next 300 ms. It waits for the delivery of a sentinel task that is due at the
// end of this time.
func (h *harness) drain() (before []Delivery) {
	h.t.Helper()
	last := h.task(fmt.Sprintf("later-%d", len(h.deliveries)))
	last.Queue, last.ScheduleTime = "later", clock.System{}.Now().Add(300*time.Millisecond)
	require.NoError(h.t, h.Create(h.t.Context(), last))
	for {
		d := h.next()
		if d.Task == last.Name {
			return before
		}
		before = append(before, d)
	}
}

func onePost(t *testing.T, h *harness) {
	task := h.task("t1")
	task.URL = h.url + "/a/b%20c?x=y"
	task.Header = map[string]string{"X-Servo-Signature": "abc", "Authorization": "Bearer x"}
	require.NoError(t, h.Create(t.Context(), task))
	d := h.next()
	require.Equal(t, http.MethodPost, d.Method)
	require.Equal(t, "/a/b c", d.Path)
	require.Equal(t, string(task.Body), d.Body)
	require.Equal(t, "abc", d.Header.Get("X-Servo-Signature"))
	require.Equal(t, "Bearer x", d.Header.Get("Authorization"))

	empty := h.task("t2")
	empty.Body = nil
	require.NoError(t, h.Create(t.Context(), empty))
	require.Empty(t, h.next().Body, "a body may be empty")

	large := h.task("t3")
	large.Body = nil
	const added = 100 // room for the Content-Type that the adapter adds
	large.Body = []byte(strings.Repeat("x", queue.MaxTaskBytes-large.Size()-added))
	require.NoError(t, h.Create(t.Context(), large))
	require.Len(t, h.next().Body, len(large.Body))
}

func contentType(t *testing.T, h *harness) {
	h.create("t1")
	require.Equal(t, "application/json", h.next().Header.Get("Content-Type"))
	task := h.task("t2")
	task.Header = map[string]string{"content-type": "text/plain"}
	require.NoError(t, h.Create(t.Context(), task))
	require.Equal(t, []string{"text/plain"}, h.next().Header.Values("Content-Type"))
}

func describesItself(t *testing.T, h *harness) {
	h.answer = func(_ Delivery, n int, _ http.ResponseWriter) int { return []int{429, 200}[n] }
	due := clock.System{}.Now().Add(50 * time.Millisecond)
	task := h.task("t_1-A")
	task.ScheduleTime = due
	require.NoError(t, h.Create(t.Context(), task))
	first, second := h.next(), h.next()
	for i, d := range []Delivery{first, second} {
		require.Equal(t, "default", d.Header.Get(queue.HeaderQueueName))
		require.Equal(t, "t_1-A", d.Header.Get(queue.HeaderTaskName))
		require.Equal(t, i, d.count(t, queue.HeaderRetryCount))
		require.Equal(t, i, d.count(t, queue.HeaderExecutionCount))
		eta, err := strconv.ParseFloat(d.Header.Get(queue.HeaderETA), 64)
		require.NoError(t, err, "the ETA is in seconds")
		require.LessOrEqual(t, eta, float64(d.At.UnixMicro()+1)/1e6, "no delivery comes before its ETA")
	}
	require.Equal(t, fmt.Sprintf("%d.%06d", due.Unix(), due.Nanosecond()/1000), first.Header.Get(queue.HeaderETA))
}

func retriesFailures(t *testing.T, h *harness) {
	failures := []int{301, 400, 404, 409, 429, 500, 503}
	h.answer = func(_ Delivery, n int, _ http.ResponseWriter) int {
		if n < len(failures) {
			return failures[n]
		}
		return http.StatusNoContent
	}
	h.create("t1")
	for i := range len(failures) + 1 {
		d := h.next()
		require.Equal(t, "t1", d.Task)
		require.Equal(t, i, d.count(t, queue.HeaderRetryCount), "each attempt is counted")
		require.Equal(t, `{"task":"t1"}`, d.Body, "each attempt sends the whole body")
	}
	require.Empty(t, h.drain(), "204 is success")
}

func doesNotFollow(t *testing.T, h *harness) {
	h.answer = func(_ Delivery, n int, w http.ResponseWriter) int {
		w.Header().Set("Location", h.url+"/elsewhere")
		return []int{302, 307, 303, 200}[n]
	}
	h.create("t1")
	for i := range 4 {
		d := h.next()
		require.Equal(t, "/execute", d.Path, "a redirect is not followed")
		require.Equal(t, http.MethodPost, d.Method)
		require.Equal(t, i, d.count(t, queue.HeaderRetryCount))
		require.Equal(t, i, d.count(t, queue.HeaderExecutionCount), "a redirect is an answer")
	}
}

func countsExecutions(t *testing.T, h *harness) {
	statuses := []int{500, 404, 503, 302, 200}
	h.answer = func(_ Delivery, n int, _ http.ResponseWriter) int { return statuses[n] }
	h.create("t1")
	for i, executions := range []int{0, 0, 1, 1, 2} {
		d := h.next()
		require.Equal(t, i, d.count(t, queue.HeaderRetryCount))
		require.Equal(t, executions, d.count(t, queue.HeaderExecutionCount), "after %v", statuses[:i])
	}
}

func deliversOnce(t *testing.T, h *harness) {
	h.answer = func(_ Delivery, n int, _ http.ResponseWriter) int { return []int{200, 500}[n] }
	for i := range 5 {
		h.create(fmt.Sprintf("t%d", i))
		require.Equal(t, fmt.Sprintf("t%d", i), h.next().Task)
	}
	require.Empty(t, h.drain())
}

func waitsForSchedule(t *testing.T, h *harness) {
	start := clock.System{}.Now()
	for i, wait := range []time.Duration{400 * time.Millisecond, 200 * time.Millisecond, -time.Hour} {
		task := h.task(fmt.Sprintf("t%d", i))
		task.ScheduleTime = start.Add(wait)
		require.NoError(t, h.Create(t.Context(), task))
	}
	for _, want := range []struct {
		task string
		wait time.Duration
	}{{"t2", 0}, {"t1", 200 * time.Millisecond}, {"t0", 400 * time.Millisecond}} {
		d := h.next()
		require.Equal(t, want.task, d.Task)
		require.False(t, d.At.Before(start.Add(want.wait)), "%s came %v after the start, not %v", d.Task, d.At.Sub(start), want.wait)
	}
}
