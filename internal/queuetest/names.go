package queuetest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/queue"
)

func refusesNames(t *testing.T, h *harness) {
	waiting := h.task("waiting")
	waiting.ScheduleTime = clock.System{}.Now().Add(time.Hour)
	require.NoError(t, h.Create(t.Context(), waiting))
	require.ErrorIs(t, h.Create(t.Context(), waiting), queue.ErrExists, "the task is waiting")
	other := h.task("waiting")
	other.Body = []byte("other")
	require.ErrorIs(t, h.Create(t.Context(), other), queue.ErrExists, "even with another body")
	require.ErrorContains(t, h.Create(t.Context(), other), "waiting", "the error names the task")

	h.create("done")
	require.Equal(t, "done", h.next().Task)
	require.ErrorIs(t, h.Create(t.Context(), h.task("done")), queue.ErrExists, "the task succeeded recently")
	require.Empty(t, h.drain(), "a refused task is not delivered")
	require.NoError(t, h.Delete(t.Context(), "default", "waiting"))
}

func createRace(t *testing.T, h *harness) {
	const names, creators = 10, 16
	var mu sync.Mutex
	won := map[string]int{}
	var wg sync.WaitGroup
	for i := range names * creators {
		wg.Go(func() {
			name := fmt.Sprintf("t%d", i%names)
			err := h.Create(t.Context(), h.task(name))
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				won[name]++
			} else if !errors.Is(err, queue.ErrExists) {
				t.Errorf("create: %v", err)
			}
		})
	}
	wg.Wait()
	require.Len(t, won, names)
	for name, count := range won {
		require.Equal(t, 1, count, "exactly one create of %s wins", name)
	}
	delivered := map[string]bool{}
	for range names {
		delivered[h.next().Task] = true
	}
	require.Len(t, delivered, names)
	require.Empty(t, h.drain(), "each task is delivered once")
}

func queuesAreApart(t *testing.T, h *harness) {
	got := map[string]bool{}
	for _, name := range []string{"q1", "q2"} {
		task := h.task("same")
		task.Queue = name
		require.NoError(t, h.Create(t.Context(), task))
		got[h.next().Header.Get(queue.HeaderQueueName)] = true
	}
	require.Equal(t, map[string]bool{"q1": true, "q2": true}, got)
}

func deletes(t *testing.T, h *harness) {
	task := h.task("t1")
	task.ScheduleTime = clock.System{}.Now().Add(100 * time.Millisecond)
	require.NoError(t, h.Create(t.Context(), task))
	require.NoError(t, h.Delete(t.Context(), "default", "t1"))
	found, err := h.Exists(t.Context(), "default", "t1")
	require.NoError(t, err)
	require.False(t, found)
	require.NoError(t, h.Delete(t.Context(), "default", "t1"), "already deleted")
	require.NoError(t, h.Delete(t.Context(), "default", "never-there"))
	require.NoError(t, h.Delete(t.Context(), "no-such-queue", "t1"))
	require.ErrorIs(t, h.Create(t.Context(), task), queue.ErrExists, "the name stays used")
	require.Empty(t, h.drain(), "a deleted task is not delivered")
	h.create("never-there")
	require.Equal(t, "never-there", h.next().Task, "after the deletion of an absent task, its name is still free")
}

func exists(t *testing.T, h *harness) {
	found := func(name string) bool {
		t.Helper()
		found, err := h.Exists(t.Context(), "default", name)
		require.NoError(t, err)
		return found
	}
	during := make(chan bool, 1)
	h.answer = func(d Delivery, _ int, _ http.ResponseWriter) int {
		if d.Task == "t1" {
			there, err := h.Exists(h.t.Context(), "default", "t1")
			during <- there && err == nil
		}
		return http.StatusOK
	}
	require.False(t, found("t1"))
	task := h.task("t1")
	task.ScheduleTime = clock.System{}.Now().Add(100 * time.Millisecond)
	require.NoError(t, h.Create(t.Context(), task))
	require.True(t, found("t1"), "it is waiting")
	require.Equal(t, "t1", h.next().Task)
	require.True(t, <-during, "it is being delivered")
	require.Empty(t, h.drain())
	require.False(t, found("t1"), "it was delivered")
}

func refusesInvalid(t *testing.T, h *harness) {
	for name, change := range map[string]func(*queue.Task){
		"queue": func(task *queue.Task) { task.Queue = "no_such_character" },
		"name":  func(task *queue.Task) { task.Name = "a/b" },
		"URL":   func(task *queue.Task) { task.URL = "elsewhere" },
		"body":  func(task *queue.Task) { task.Body = make([]byte, queue.MaxTaskBytes) },
		"whole": func(task *queue.Task) {
			task.Body, task.Header = make([]byte, 60_000), map[string]string{"X": strings.Repeat("x", 40_000)}
		},
		"schedule": func(task *queue.Task) { task.ScheduleTime = clock.System{}.Now().Add(queue.MaxSchedule + time.Hour) },
		"deadline": func(task *queue.Task) { task.DispatchDeadline = time.Second },
		"header":   func(task *queue.Task) { task.Header = map[string]string{queue.HeaderTaskName: "forged"} },
	} {
		task := h.task("t-" + name)
		change(&task)
		require.ErrorIs(t, h.Create(t.Context(), task), queue.ErrInvalid, name)
	}
	require.Empty(t, h.drain())
}

func finishedContext(t *testing.T, h *harness) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, h.Create(ctx, h.task("t1")), context.Canceled)
	require.ErrorIs(t, h.Delete(ctx, "default", "t1"), context.Canceled)
	_, err := h.Exists(ctx, "default", "t1")
	require.ErrorIs(t, err, context.Canceled)
	h.create("t1")
	require.Equal(t, "t1", h.next().Task, "after a canceled call, the name is still free")
}

func ownsItsBytes(t *testing.T, h *harness) {
	task := h.task("t1")
	task.Body, task.Header = []byte("original"), map[string]string{"X-A": "original"}
	task.ScheduleTime = clock.System{}.Now().Add(50 * time.Millisecond)
	require.NoError(t, h.Create(t.Context(), task))
	copy(task.Body, "SCRIBBLE")
	task.Header["X-A"] = "changed"
	d := h.next()
	require.Equal(t, "original", d.Body)
	require.Equal(t, "original", d.Header.Get("X-A"))
}

func deliversMany(t *testing.T, h *harness) {
	h.answer = func(d Delivery, n int, _ http.ResponseWriter) int {
		if n == 0 && len(d.Task)%2 == 0 { // the first deliveries of some tasks fail
			return http.StatusInternalServerError
		}
		return http.StatusOK
	}
	const tasks = 500
	want, deliveries := map[string]int{}, 0
	var wg sync.WaitGroup
	for i := range tasks {
		task := h.task(fmt.Sprintf("t%d", i))
		task.Queue = fmt.Sprintf("q%d", i%3)
		want[task.Name] = 1
		if len(task.Name)%2 == 0 {
			want[task.Name] = 2
		}
		deliveries += want[task.Name]
		wg.Go(func() {
			if err := h.Create(t.Context(), task); err != nil {
				t.Errorf("create: %v", err)
			}
		})
	}
	wg.Wait()
	got := map[string]int{}
	for range deliveries {
		got[h.next().Task]++
	}
	require.Equal(t, want, got)
	require.Empty(t, h.drain())
}
