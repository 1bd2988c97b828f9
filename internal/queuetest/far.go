package queuetest

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/queue"
)

// RunFar checks names, limits and deduplication of a queue whose deliveries the test cannot receive, and which may
// have been used before. The tasks that RunFar creates are due in an hour or later, and RunFar deletes them at the
// end. The parameter nonce makes their names unique.
func RunFar(t *testing.T, q queue.Queue, queueName, nonce string) {
	t.Helper()
	task := func(name string) queue.Task {
		return queue.Task{
			Queue: queueName, Name: name + "-" + nonce, URL: "https://servo.invalid/execute", Body: []byte("{}"),
			ScheduleTime: clock.System{}.Now().Add(time.Hour),
		}
	}
	create := func(made queue.Task) {
		t.Helper()
		require.NoError(t, q.Create(t.Context(), made))
		t.Cleanup(func() { require.NoError(t, q.Delete(context.WithoutCancel(t.Context()), made.Queue, made.Name)) })
	}
	exists := func(made queue.Task) bool {
		t.Helper()
		found, err := q.Exists(t.Context(), made.Queue, made.Name)
		require.NoError(t, err)
		return found
	}

	first := task("first")
	require.False(t, exists(first))
	create(first)
	require.True(t, exists(first))
	require.ErrorIs(t, q.Create(t.Context(), first), queue.ErrExists, "it is waiting")
	require.NoError(t, q.Delete(t.Context(), first.Queue, first.Name))
	require.False(t, exists(first))
	require.NoError(t, q.Delete(t.Context(), first.Queue, first.Name), "it is already deleted")
	require.ErrorIs(t, q.Create(t.Context(), first), queue.ErrExists, "the name stays used")

	last := task("last")
	last.ScheduleTime = clock.System{}.Now().Add(queue.MaxSchedule - time.Minute)
	create(last)
	last.Name += "-and-more"
	last.ScheduleTime = last.ScheduleTime.Add(time.Hour)
	require.ErrorIs(t, q.Create(t.Context(), last), queue.ErrInvalid)

	large := task("large")
	large.Header = map[string]string{"Authorization": "Bearer x", "X-More": strings.Repeat("x", 1000)}
	const added = 100 // room for the Content-Type that the adapter adds
	large.Body = []byte(strings.Repeat("x", queue.MaxTaskBytes-large.Size()-added))
	create(large)
	long := task("long")
	long.Name = strings.Repeat("n", queue.MaxNameBytes-len(long.Name)) + long.Name
	create(long)
	patient := task("patient")
	patient.DispatchDeadline = queue.MaxDispatchDeadline
	create(patient)
}
