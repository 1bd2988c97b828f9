package worker_test

import (
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/blob/faultblob"
	"github.com/servo-orchestration/servo/pkg/blob/memblob"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/worker"
)

// long gives an envelope a time-out that no delivery is held for.
func long(e *contract.Envelope) { e.TimeoutSec = int32(longTimeout / time.Second) }

func TestATaskThatMayTakeLongIsAnsweredOnceItHasStartedAndRunsOnce(t *testing.T) {
	p := newProcesses(t, "")
	w := newWorld(t, nil, map[string]plan.Work{"a/b": shell(p.script)}, ab)
	w.control.answer = cancelOnHeartbeat
	require.Equal(t, http.StatusAccepted, w.deliver("a/b", long), "though no time passes")
	require.Equal(t, 1, w.control.calls(contract.VerbStarted))
	pid := p.started(t)
	require.Equal(t, http.StatusAccepted, w.deliver("a/b", long), "a delivery more")
	require.Equal(t, 1, w.control.calls(contract.VerbStarted), "is of the same execution")
	w.clock.fire(t, w.config.HeartbeatEvery)
	require.Equal(t, event.Cancelled, w.control.awaitEnd(t).Outcome)
	p.dead(t, pid)
	require.NoError(t, w.worker.Close(t.Context()))
	w.scratchIsEmpty()
	require.Empty(t, w.keysBelow("assets/"))
}

func TestATaskThatMayTakeLongIsNotAnsweredBeforeItsStartIsTaken(t *testing.T) {
	for answer, want := range map[int]int{
		http.StatusConflict: http.StatusOK, http.StatusUnauthorized: http.StatusOK, http.StatusBadGateway: http.StatusInternalServerError,
	} {
		w := newWorld(t, nil, hello, ab)
		w.control.answer = func(string, int) (int, any) { return answer, nil }
		require.Equal(t, want, w.deliver("a/b", long))
		require.Empty(t, w.keysBelow("assets/"))
	}
}

func TestATaskThatTakesLongIsTimedOutAlthoughNoDeliveryWaits(t *testing.T) {
	p := newProcesses(t, "")
	w := newWorld(t, nil, map[string]plan.Work{"a/b": shell(p.script)}, ab)
	require.Equal(t, http.StatusAccepted, w.deliver("a/b", long))
	pid := p.started(t)
	w.clock.fire(t, longTimeout)
	require.Equal(t, event.TimedOut, w.control.awaitEnd(t).Outcome)
	p.dead(t, pid)
}

// gated is a command that makes its output when the gate is opened.
func gated(t *testing.T) (work plan.Work, open func()) {
	t.Helper()
	fifo := t.TempDir() + "/gate"
	require.NoError(t, syscall.Mkfifo(fifo, 0o600))
	return shell("read x < " + fifo + "; echo hello > $SERVO_OUTPUT/x"), func() {
		gate, err := os.OpenFile(fifo, os.O_WRONLY, 0) // waits for the command
		require.NoError(t, err)
		_, err = gate.WriteString("x\n")
		require.NoError(t, err)
		require.NoError(t, gate.Close())
	}
}

func TestATaskThatTookLongIsReported(t *testing.T) {
	work, open := gated(t)
	w := newWorld(t, nil, map[string]plan.Work{"a/b": work}, ab)
	require.Equal(t, http.StatusAccepted, w.deliver("a/b", long))
	open()
	end := w.control.awaitEnd(t)
	require.Equal(t, event.Succeeded, end.Outcome)
	require.Equal(t, "hello\n", w.read(end.Output.URI+"x"))
}

// With a delivery that waits, the queue is asked for another one after an hour.
func TestAnEndThatNobodyWillDeliverAgainIsReportedForAsLongAsItsURLIsGood(t *testing.T) {
	const tries = 400 // of half a minute each
	for name, c := range map[string]struct {
		change func(*contract.Envelope)
		status int
		ends   int
	}{
		"let go":  {long, http.StatusAccepted, 1},
		"waiting": {func(*contract.Envelope) {}, http.StatusInternalServerError, 0},
	} {
		t.Run(name, func(t *testing.T) {
			work, open := gated(t)
			w := newWorld(t, nil, map[string]plan.Work{"a/b": work}, ab)
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

func TestABackgroundTaskHoldsItsSlot(t *testing.T) {
	work, open := gated(t)
	w := newWorld(t, nil, map[string]plan.Work{"a/b": work, "a/c": shell("true")}, ab, task("a/c", "", nil))
	config := w.config
	config.MaxConcurrent = 1
	_, w.server = w.open(config)
	require.Equal(t, http.StatusAccepted, w.deliver("a/b", long))
	next := w.deliverLater("a/c")
	w.clock.fire(t, 25*time.Minute) // of the delivery that waits for a slot
	require.Equal(t, http.StatusInternalServerError, <-next, "not 429 or 503: the queue would slow down")
	require.Equal(t, 1, w.control.calls(contract.VerbStarted))
	open()
	<-w.control.ended
	<-w.control.ended // the other one, which was waiting all the time
	require.Equal(t, 2, w.control.calls(contract.VerbStarted))
}

func TestAWorkerThatIsClosedInterruptsItsBackgroundTasks(t *testing.T) {
	for name, trap := range map[string]string{"ends when asked": "", "has to be killed": `trap "" TERM;`} {
		t.Run(name, func(t *testing.T) {
			p := newProcesses(t, trap)
			w := newWorld(t, nil, map[string]plan.Work{"a/b": shell(p.script), "a/c": shell("true")}, ab, task("a/c", "", nil))
			require.Equal(t, http.StatusAccepted, w.deliver("a/b", long))
			pid := p.started(t)
			closed := make(chan error, 1)
			go func() { closed <- w.worker.Close(t.Context()) }()
			if trap != "" {
				w.clock.asleep(t, 5*time.Second, func(int) {})
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
			require.Equal(t, http.StatusInternalServerError, w.deliver("a/c", long), "another worker is to do it")
			require.Equal(t, 1, w.control.calls(contract.VerbStarted))
		})
	}
}

func TestWhatIsBeingCommittedWhenTheWorkerIsClosedIsReportedAsMade(t *testing.T) {
	var w *world
	closed := make(chan error, 1)
	w = newWorld(t, marking(memblob.New(memblob.Options{}), func(int) faultblob.Fault {
		go func() { closed <- w.worker.Close(t.Context()) }()
		for { // until it has told all tasks: it holds the lock that a delivery needs
			if status, _ := post(t, w.server.URL, w.envelope("a/b", 2)); status == http.StatusInternalServerError {
				return faultblob.None
			}
		}
	}), hello, ab)
	w.control.answer = func(verb string, n int) (int, any) {
		if verb == contract.VerbStarted && n > 1 {
			return http.StatusConflict, nil // a delivery before it was closed
		}
		return 0, nil
	}
	require.Equal(t, http.StatusOK, w.deliver("a/b"))
	require.NoError(t, <-closed)
	end := w.control.end(t)
	require.Equal(t, event.Succeeded, end.Outcome)
	require.Equal(t, w.marker("a/b").URI, end.Output.URI)
}

func TestAnInterruptedTaskIsReportedBeforeItsLogIsStored(t *testing.T) {
	p := newProcesses(t, "echo working;")
	reported := make(chan struct{})
	w := newWorld(t, faultblob.New(memblob.New(memblob.Options{}), func(op faultblob.Op, key string) faultblob.Fault {
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
