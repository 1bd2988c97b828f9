package worker

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// reservations is a memory with 10 bytes and its own clock.
type reservations struct {
	t   *testing.T
	m   memory
	now time.Time
}

// ask adds a waiting task. It returns the task, and a function that cancels its wait.
func (r *reservations) ask(bytes int64, declared bool) (*reservation, func()) {
	r.t.Helper()
	ctx, cancel := context.WithCancelCause(r.t.Context())
	task, ended := &reservation{bytes: bytes, declared: declared}, make(chan error, 1)
	go func() { ended <- r.m.reserve(ctx, task, func() time.Time { return r.now }) }()
	synctest.Wait()
	return task, func() {
		errStopped := errors.New("stopped")
		cancel(errStopped)
		require.ErrorIs(r.t, <-ended, errStopped)
		synctest.Wait()
	}
}

func (*reservations) runs(task *reservation) bool {
	select {
	case <-task.granted:
		return true
	default:
		return false
	}
}

func TestMemoryIsSharedByDeclaredTasks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testMemoryIsSharedByDeclaredTasks)
}

func testMemoryIsSharedByDeclaredTasks(t *testing.T) {
	t.Helper()
	r := &reservations{t: t, m: memory{capacity: 10}, now: time.Unix(0, 0)}
	first, _ := r.ask(7, true)
	second, _ := r.ask(4, true)
	small, _ := r.ask(3, true)
	require.True(t, r.runs(first))
	require.False(t, r.runs(second), "7 + 4 bytes do not fit")
	require.True(t, r.runs(small), "it overtakes")
	r.m.release(small, r.now)
	require.False(t, r.runs(second))
	r.now = r.now.Add(overtaking)
	late, giveUp := r.ask(1, false)
	require.False(t, r.runs(late), "nobody overtakes for more than 60 s")
	giveUp()
	later, _ := r.ask(1, false)
	r.m.release(first, r.now)
	require.True(t, r.runs(second))
	require.True(t, r.runs(later))
	r.m.release(second, r.now)
	r.m.release(later, r.now)
	require.Zero(t, r.m.used+int64(r.m.running+r.m.declared+len(r.m.waiting)))
}

func TestMemoryOfATaskThatGivesUpIsFree(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testMemoryOfATaskThatGivesUpIsFree)
}

func testMemoryOfATaskThatGivesUpIsFree(t *testing.T) {
	t.Helper()
	r := &reservations{t: t, m: memory{capacity: 10}, now: time.Unix(0, 0)}
	first, _ := r.ask(4, true)
	_, giveUp := r.ask(10, true)
	r.now = r.now.Add(overtaking)
	small, _ := r.ask(1, true)
	require.True(t, r.runs(first))
	require.False(t, r.runs(small))
	giveUp()
	require.True(t, r.runs(small), "the task before it has gone")
}

func TestSharesDoNotWaitForEachOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testSharesDoNotWaitForEachOther)
}

func testSharesDoNotWaitForEachOther(t *testing.T) {
	t.Helper()
	r := &reservations{t: t, m: memory{capacity: 10}, now: time.Unix(0, 0)}
	for range 4 {
		task, _ := r.ask(4, false)
		require.True(t, r.runs(task), "a workers.memory_limit may exceed the machine")
	}
	declared, _ := r.ask(1, true)
	require.False(t, r.runs(declared))
	alone := &reservations{t: t, m: memory{capacity: 10}}
	task, _ := alone.ask(64, false)
	require.True(t, alone.runs(task), "the least share may exceed the machine")
}
