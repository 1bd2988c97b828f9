package worker_test

import (
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/faultblob"
	"github.com/servo-orchestration/servo/internal/memblob"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/worker"
)

// long sets a task timeout that exceeds the time for which a delivery waits.
func long(e *contract.Envelope) { e.TimeoutSec = int32(longTimeout / time.Second) }

func TestLongTaskIsAnsweredAfterStartAndRunsOnce(t *testing.T) {
	p := newProcesses(t, "")
	w := newFixture(t, nil, map[string]plan.Work{"a/b": shell(p.script)}, ab)
	w.control.answer = cancelOnHeartbeat
	require.Equal(t, http.StatusAccepted, w.deliver("a/b", long), "at once")
	require.Equal(t, 1, w.control.calls(contract.VerbStarted))
	pid := p.started(t)
	require.Equal(t, http.StatusAccepted, w.deliver("a/b", long), "a redelivery")
	require.Equal(t, 1, w.control.calls(contract.VerbStarted), "joins the same execution")
	w.clock.fire(t, w.config.HeartbeatEvery)
	require.Equal(t, event.Cancelled, w.control.awaitEnd(t).Outcome)
	p.dead(t, pid)
	require.NoError(t, w.worker.Close(t.Context()))
	w.scratchIsEmpty()
	require.Empty(t, w.keysBelow("assets/"))
}

func TestLongTaskIsAcceptedOnlyAfterItsStart(t *testing.T) {
	for answer, want := range map[int]int{
		http.StatusConflict: http.StatusOK, http.StatusUnauthorized: http.StatusOK, http.StatusBadGateway: http.StatusInternalServerError,
	} {
		w := newFixture(t, nil, hello, ab)
		w.control.answer = func(string, int) (int, any) { return answer, nil }
		require.Equal(t, want, w.deliver("a/b", long))
		require.Empty(t, w.keysBelow("assets/"))
	}
}

func TestBackgroundTaskTimesOut(t *testing.T) {
	p := newProcesses(t, "")
	w := newFixture(t, nil, map[string]plan.Work{"a/b": shell(p.script)}, ab)
	require.Equal(t, http.StatusAccepted, w.deliver("a/b", long))
	pid := p.started(t)
	w.clock.fire(t, longTimeout)
	require.Equal(t, event.TimedOut, w.control.awaitEnd(t).Outcome)
	p.dead(t, pid)
}

// gated returns a command that writes its output when the function open is called.
func gated(t *testing.T) (work plan.Work, open func()) {
	t.Helper()
	fifo := t.TempDir() + "/gate"
	require.NoError(t, syscall.Mkfifo(fifo, 0o600))
	return shell("read x < " + fifo + "; echo hello > $SERVO_OUTPUT/x"), func() {
		gate, err := os.OpenFile(fifo, os.O_WRONLY, 0) // OpenFile blocks until the command opens the pipe
		require.NoError(t, err)
		_, err = gate.WriteString("x\n")
		require.NoError(t, err)
		require.NoError(t, gate.Close())
	}
}

func TestBackgroundTaskReportsItsEnd(t *testing.T) {
	work, open := gated(t)
	w := newFixture(t, nil, map[string]plan.Work{"a/b": work}, ab)
	require.Equal(t, http.StatusAccepted, w.deliver("a/b", long))
	open()
	end := w.control.awaitEnd(t)
	require.Equal(t, event.Succeeded, end.Outcome)
	require.Equal(t, "hello\n", w.read(end.Output.URI+"x"))
}

// If the delivery has already been answered, the worker retries the report of the end as long as the report's URL is
// valid. If a delivery is still waiting, the worker retries for an hour. Then it answers the delivery with an error,
// so that the queue redelivers the task.
func TestBackgroundEndIsRetriedWhileURLIsValid(t *testing.T) {
	const tries = 400 // the tries are half a minute apart, so they take more than an hour
	for name, c := range map[string]struct {
		change func(*contract.Envelope)
		status int
		ends   int
	}{
		"released": {long, http.StatusAccepted, 1},
		"waiting":  {func(*contract.Envelope) {}, http.StatusInternalServerError, 0},
	} {
		t.Run(name, func(t *testing.T) {
			work, open := gated(t)
			w := newFixture(t, nil, map[string]plan.Work{"a/b": work}, ab)
			w.control.answer = func(verb string, n int) (int, any) {
				if verb == contract.VerbFinished && n < tries {
					return http.StatusServiceUnavailable, nil
				}
				return 0, nil
			}
			answer := w.deliverLater("a/b", c.change)
			if c.ends == 1 {
				require.Equal(t, c.status, <-answer)
				open()
				require.Equal(t, event.Succeeded, w.control.awaitEnd(t).Outcome)
				return
			}
			open()
			require.Equal(t, c.status, <-answer)
			require.Less(t, w.control.calls(contract.VerbFinished), tries)
		})
	}
}

func TestBackgroundTaskKeepsItsSlot(t *testing.T) {
	work, open := gated(t)
	w := newFixture(t, nil, map[string]plan.Work{"a/b": work, "a/c": shell("true")}, ab, task("a/c", "", nil))
	config := w.config
	config.MaxConcurrent = 1
	_, w.server = w.open(config)
	require.Equal(t, http.StatusAccepted, w.deliver("a/b", long))
	next := w.deliverLater("a/c")
	w.clock.fire(t, 25*time.Minute) // this ends the delivery that waits for a slot
	require.Equal(t, http.StatusInternalServerError, <-next, "not 429 or 503: the queue would slow down")
	require.Equal(t, 1, w.control.calls(contract.VerbStarted))
	open()
	<-w.control.ended
	<-w.control.ended // the report of a/c, which has waited for the slot
	require.Equal(t, 2, w.control.calls(contract.VerbStarted))
}

func TestCloseInterruptsBackgroundTasks(t *testing.T) {
	for name, trap := range map[string]string{"ends on SIGTERM": "", "ignores SIGTERM": `trap "" TERM;`} {
		t.Run(name, func(t *testing.T) {
			p := newProcesses(t, trap)
			w := newFixture(t, nil, map[string]plan.Work{"a/b": shell(p.script), "a/c": shell("true")}, ab, task("a/c", "", nil))
			require.Equal(t, http.StatusAccepted, w.deliver("a/b", long))
			pid := p.started(t)
			closed := make(chan error, 1)
			go func() { closed <- w.worker.Close(t.Context()) }()
			if trap != "" {
				w.clock.awaitSleeper(t, 5*time.Second, func(int) {})
				require.Equal(t, http.StatusInternalServerError, w.deliver("a/c", long), "while it ends")
				w.clock.fire(t, 5*time.Second)
			}
			require.NoError(t, <-closed)
			p.dead(t, pid)
			end := w.control.end(t)
			require.Equal(t, event.Failed, end.Outcome)
			require.Equal(t, worker.CodeInterrupted, end.Error.Code)
			require.Equal(t, worker.CategoryInfrastructure, end.Error.Category)
			require.True(t, end.Error.Retryable)
			require.Empty(t, w.keysBelow("assets/"))
			require.Equal(t, http.StatusInternalServerError, w.deliver("a/c", long), "leaves it to another worker")
			require.Equal(t, 1, w.control.calls(contract.VerbStarted))
		})
	}
}

func TestCloseDuringCommitReportsSuccess(t *testing.T) {
	var w *fixture
	closed := make(chan error, 1)
	w = newFixture(t, faultyCommits(memblob.New(memblob.Options{}), func(int) faultblob.Fault {
		go func() { closed <- w.worker.Close(t.Context()) }()
		for { // repeat until Close has set closing and interrupted all tasks
			if status, _ := post(t, w.server.URL, w.envelope("a/b", 2)); status == http.StatusInternalServerError {
				return faultblob.None
			}
		}
	}), hello, ab)
	w.control.answer = func(verb string, n int) (int, any) {
		if verb == contract.VerbStarted && n > 1 {
			return http.StatusConflict, nil // the start of the second delivery is rejected if that delivery arrives before Close
		}
		return 0, nil
	}
	require.Equal(t, http.StatusOK, w.deliver("a/b"))
	require.NoError(t, <-closed)
	end := w.control.end(t)
	require.Equal(t, event.Succeeded, end.Outcome)
	require.Equal(t, w.marker("a/b").URI, end.Output.URI)
}

func TestInterruptedTaskReportsBeforeStoringLog(t *testing.T) {
	p := newProcesses(t, "echo working;")
	reported := make(chan struct{})
	w := newFixture(t, faultblob.New(memblob.New(memblob.Options{}), func(op faultblob.Op, key string) faultblob.Fault {
		if op == faultblob.Put && strings.HasPrefix(key, "logs/") {
			<-reported
		}
		return faultblob.None
	}), map[string]plan.Work{"a/b": shell(p.script)}, ab)
	w.control.answer = func(verb string, _ int) (int, any) {
		if verb == contract.VerbFinished {
			close(reported)
		}
		return 0, nil
	}
	require.Equal(t, http.StatusAccepted, w.deliver("a/b", long))
	p.started(t)
	require.NoError(t, w.worker.Close(t.Context()))
	require.Equal(t, worker.CodeInterrupted, w.control.end(t).Error.Code)
	require.Contains(t, w.log("a/b"), "working")
}
