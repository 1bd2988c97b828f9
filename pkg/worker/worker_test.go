package worker_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/faultblob"
	"github.com/servo-orchestration/servo/internal/memblob"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/worker"
)

var (
	hello = map[string]plan.Work{"a/b": shell("echo hello > $SERVO_OUTPUT/x")}
	ab    = task("a/b", "", nil)
)

func TestInvalidEnvelopesAreRejected(t *testing.T) {
	w := newFixture(t, nil, hello, ab)
	body := string(w.envelope("a/b", 1))
	for name, c := range map[string]struct {
		body   string
		status int
		answer string
	}{
		"forged":    {strings.Replace(body, `"max_attempts":3`, `"max_attempts":4`, 1), http.StatusUnauthorized, ""},
		"no JSON":   {"x", http.StatusBadRequest, ""},
		"a field":   {strings.Replace(body, `"attempt":1`, `"attempt":"1"`, 1), http.StatusBadRequest, `"field":"attempt"`},
		"too large": {body + strings.Repeat(" ", 200<<10), http.StatusBadRequest, ""},
	} {
		status, answer := post(t, w.server.URL, []byte(c.body))
		require.Equal(t, c.status, status, name)
		require.Contains(t, answer, c.answer)
	}
	w.clock.mu.Lock()
	w.clock.now = epoch.Add(8 * 24 * time.Hour)
	w.clock.mu.Unlock()
	status, _ := post(t, w.server.URL, []byte(body))
	require.Equal(t, http.StatusUnauthorized, status, "expired")
	require.Zero(t, w.control.calls(contract.VerbStarted))
}

func TestAttemptWithRejectedStartIsNotExecuted(t *testing.T) {
	for _, status := range []int{http.StatusConflict, http.StatusUnauthorized, http.StatusNotFound, http.StatusBadRequest} {
		w := newFixture(t, nil, hello, ab)
		w.control.answer = func(string, int) (int, any) { return status, contract.Problem{Status: status} }
		require.Equal(t, http.StatusOK, w.deliver("a/b"), "no redelivery")
		require.Zero(t, w.control.calls(contract.VerbFinished))
		require.Empty(t, w.keysBelow("assets/"))
	}
}

func TestUnreportedStartIsRedelivered(t *testing.T) {
	w := newFixture(t, nil, hello, ab)
	var down atomic.Bool
	down.Store(true)
	w.control.answer = func(string, int) (int, any) {
		if down.Load() {
			return http.StatusServiceUnavailable, nil
		}
		return 0, nil
	}
	require.Equal(t, http.StatusInternalServerError, w.deliver("a/b"))
	require.Empty(t, w.keysBelow("assets/"))
	down.Store(false)
	w.run("a/b")
}

func TestEndReportIsRetried(t *testing.T) {
	w := newFixture(t, nil, hello, ab)
	w.control.answer = func(verb string, n int) (int, any) {
		if verb == contract.VerbFinished && n < 4 {
			return http.StatusInternalServerError, nil
		}
		return 0, nil
	}
	w.run("a/b")
	require.Equal(t, 4, w.control.calls(contract.VerbFinished))
}

func TestUnreportedEndIsRedeliveredAndFoundCommitted(t *testing.T) {
	w := newFixture(t, nil, map[string]plan.Work{"a/b": shell("echo ran >> ran; echo hello > $SERVO_OUTPUT/x")}, ab)
	var refuse atomic.Bool
	refuse.Store(true)
	w.control.answer = func(verb string, _ int) (int, any) {
		if verb == contract.VerbFinished && refuse.Load() {
			return http.StatusUnauthorized, nil
		}
		return 0, nil
	}
	require.Equal(t, http.StatusInternalServerError, w.deliver("a/b"))
	refuse.Store(false)
	w.run("a/b")
	ran, err := os.ReadFile(filepath.Join(w.root, "ran"))
	require.NoError(t, err)
	require.Equal(t, "ran\n", string(ran), "executed once")
}

func TestRejectedEndIsDropped(t *testing.T) {
	for _, status := range []int{http.StatusConflict, http.StatusNotFound, http.StatusBadRequest} {
		w := newFixture(t, nil, hello, ab)
		w.control.answer = func(verb string, _ int) (int, any) {
			if verb == contract.VerbFinished {
				return status, nil
			}
			return 0, nil
		}
		require.Equal(t, http.StatusOK, w.deliver("a/b"))
		require.Equal(t, 1, w.control.calls(contract.VerbFinished))
	}
}

func TestEnvelopesOfContract10AreExecuted(t *testing.T) {
	w := newFixture(t, nil, map[string]plan.Work{"a/b": shell("true")}, ab)
	require.Equal(t, http.StatusOK, w.deliver("a/b", func(e *contract.Envelope) {
		c := contract.Callback{
			Domain: domain, RunID: runID, TaskKey: "a/b", Attempt: 1, AttemptID: e.AttemptID, Expires: event.At(epoch.Add(time.Hour)), Revision: 1,
		}
		signed := func(verb string) string {
			c.Verb = verb
			return contract.CallbackURL(w.control.server.URL, c, keys)
		}
		e.ContractVersion = "1.0"
		e.Callbacks = contract.Callbacks{
			Started: signed(contract.VerbStarted), Heartbeat: signed(contract.VerbHeartbeat), Finished: signed(contract.VerbFinished),
		}
	}))
	require.Equal(t, event.Succeeded, w.control.end(t).Outcome)
}

func TestCallbacksUseRenewedURLs(t *testing.T) {
	w := newFixture(t, nil, map[string]plan.Work{"a/b": shell("true")}, ab)
	renewed := contract.CallbackURL(w.control.server.URL, contract.Callback{
		Domain: domain, RunID: runID, TaskKey: "a/b", Attempt: 1, AttemptID: ids.AttemptID(domain, runID, "a/b", 1),
		Verb: contract.VerbFinished, Expires: event.At(epoch.Add(time.Hour)), Revision: 2,
	}, keys)
	w.control.answer = func(verb string, _ int) (int, any) {
		if verb == contract.VerbStarted {
			return http.StatusOK, contract.StartedResponse{Callbacks: contract.Callbacks{Finished: renewed}}
		}
		return 0, nil
	}
	// No server listens at the URL in the envelope.
	require.Equal(t, http.StatusOK, w.deliver("a/b", func(e *contract.Envelope) { e.Callbacks.Finished = "http://127.0.0.1:1/" }))
	require.Equal(t, event.Succeeded, w.control.end(t).Outcome)
}

func TestConcurrentDeliveriesShareOneExecution(t *testing.T) {
	p := newProcesses(t, "")
	w := newFixture(t, nil, map[string]plan.Work{"a/b": shell(p.script)}, ab)
	w.control.answer = cancelOnHeartbeat
	answers := make(chan int, 3)
	deliver := func() {
		later := w.deliverLater("a/b")
		go func() { answers <- <-later }()
	}
	deliver()
	pid := p.started(t)
	deliver()
	deliver()
	for range 3 { // all three deliveries wait for the same execution
		w.clock.fire(t, 25*time.Minute)
		require.Equal(t, http.StatusAccepted, <-answers)
	}
	w.clock.fire(t, w.config.HeartbeatEvery)
	w.control.awaitEnd(t)
	p.dead(t, pid)
	require.Equal(t, 1, w.control.calls(contract.VerbStarted))
	require.Equal(t, 1, w.control.calls(contract.VerbFinished))
}

// awaitEnd waits for the report of the end and returns it.
func (c *control) awaitEnd(t *testing.T) *contract.Finished {
	t.Helper()
	select {
	case <-c.ended:
	case <-t.Context().Done():
		t.Fatal("no end was reported")
	}
	return c.end(t)
}

func TestDeliveryIsAcceptedWhenHoldTimeEnds(t *testing.T) {
	fifo := newProcesses(t, "")
	w := newFixture(t, nil, map[string]plan.Work{"a/b": shell(fifo.script)}, ab)
	w.control.answer = cancelOnHeartbeat
	answer := w.deliverLater("a/b")
	pid := fifo.started(t)
	w.clock.fire(t, 25*time.Minute)
	require.Equal(t, http.StatusAccepted, <-answer)
	w.clock.fire(t, w.config.HeartbeatEvery)
	require.Equal(t, event.Cancelled, w.control.awaitEnd(t).Outcome)
	fifo.dead(t, pid)
}

func TestTwoProcessesCommitOnce(t *testing.T) {
	w := newFixture(t, nil, map[string]plan.Work{"a/b": shell("echo $SERVO_OUTPUT > $SERVO_OUTPUT/x")}, ab)
	// Each process commits only after both have executed the task.
	var both sync.WaitGroup
	both.Add(2)
	gate := faultblob.New(w.store, func(op faultblob.Op, key string) faultblob.Fault {
		if op == faultblob.Create && strings.HasSuffix(key, "_commit.json") {
			both.Done()
			both.Wait()
		}
		return faultblob.None
	})
	var answers []<-chan int
	var workers [2]*worker.Worker
	for i, id := range []string{"w1", "w2"} {
		config := w.config
		config.Store, config.WorkerID = gate, id
		workers[i], w.server = w.open(config)
		answers = append(answers, w.deliverLater("a/b"))
	}
	for _, answer := range answers {
		require.Equal(t, http.StatusOK, <-answer)
	}
	require.Len(t, w.control.ends, 2)
	m := w.marker("a/b")
	for _, end := range w.control.ends {
		require.Equal(t, event.Succeeded, end.Outcome)
		require.Equal(t, m.Output(), end.Output, "both report the winner's output")
	}
	for _, each := range workers {
		require.NoError(t, each.Close(t.Context()), "files are deleted after the report")
	}
	require.ElementsMatch(t, []string{m.URI + "x", contract.CommitMarkerKeyOf(m.URI)}, w.keysBelow("assets/"), "the loser's files are gone")
}

// faultyCommits wraps a store. fault returns the fault of the n-th commit.
func faultyCommits(inner blob.Store, fault func(n int) faultblob.Fault) blob.Store {
	var n atomic.Int32
	return faultblob.New(inner, func(op faultblob.Op, key string) faultblob.Fault {
		if op == faultblob.Create && strings.HasSuffix(key, "_commit.json") {
			return fault(int(n.Add(1)))
		}
		return faultblob.None
	})
}

func TestCommitWithLostResponseIsRecognized(t *testing.T) {
	w := newFixture(t, faultyCommits(memblob.New(memblob.Options{}), func(int) faultblob.Fault { return faultblob.FailAfter }), hello, ab)
	end := w.run("a/b")
	m := w.marker("a/b")
	require.Equal(t, m.URI, end.Output.URI)
	require.Equal(t, "hello\n", w.read(m.URI+"x"))
}

func TestFailedCommitIsRetried(t *testing.T) {
	w := newFixture(t, faultyCommits(memblob.New(memblob.Options{}), func(n int) faultblob.Fault {
		if n < 4 {
			return faultblob.FailBefore
		}
		return faultblob.None
	}), hello, ab)
	end := w.run("a/b")
	require.Equal(t, end.Output.URI, w.marker("a/b").URI)
}

func TestRetryCommitsAfterDeathBeforeCommit(t *testing.T) {
	inner := memblob.New(memblob.Options{})
	dead := newFixture(t, faultyCommits(inner, func(int) faultblob.Fault { return faultblob.FailBefore }), hello, ab)
	got := dead.failed("a/b")
	require.Equal(t, worker.CodeStore, got.Code)
	require.True(t, got.Retryable)
	require.Len(t, dead.keysBelow("assets/"), 1, "files that no marker names")

	w := newFixture(t, inner, hello, ab)
	w.nonces.Store(100)
	end := w.run("a/b")
	require.Equal(t, "hello\n", w.read(end.Output.URI+"x"))
	require.Len(t, w.keysBelow("assets/"), 3)
}

func TestLaterAttemptAdoptsCommittedOutput(t *testing.T) {
	w := newFixture(t, nil, hello, ab)
	first := w.run("a/b")
	status, _ := post(t, w.server.URL, w.envelope("a/b", 2))
	require.Equal(t, http.StatusOK, status)
	second := w.control.last(t)
	require.Equal(t, first.Output, second.Output)
	require.Equal(t, ids.AttemptID(domain, runID, "a/b", 2), second.AttemptID)
	require.EqualValues(t, 1, w.marker("a/b").Attempt)
}

func TestUploadWithUnknownOutcomeIsRetried(t *testing.T) {
	var n atomic.Int32
	w := newFixture(t, faultblob.New(memblob.New(memblob.Options{}), func(op faultblob.Op, _ string) faultblob.Fault {
		if op != faultblob.CreateFrom {
			return faultblob.None
		}
		return []faultblob.Fault{faultblob.FailBefore, faultblob.FailAfter, faultblob.None}[n.Add(1)-1]
	}), hello, ab)
	end := w.run("a/b")
	require.Equal(t, "hello\n", w.read(end.Output.URI+"x"))
	require.EqualValues(t, 6, end.Output.ByteSize)
	require.Equal(t, blob.CRC32C([]byte("hello\n")), w.marker("a/b").Files[0].CRC32C)
}

func TestMarkerOutsideItsFolderIsRejected(t *testing.T) {
	w := newFixture(t, nil, hello, ab)
	w.run("a/b")
	m := w.marker("a/b")
	text := strings.Replace(w.read(contract.CommitMarkerKeyOf(m.URI)), m.URI, "assets/other/"+m.MaterializationID+"/x/", 1)
	_, err := w.store.Put(t.Context(), contract.CommitMarkerKeyOf(m.URI), []byte(text))
	require.NoError(t, err)
	_, w.server = w.open(w.config) // a new worker, whose caches are empty
	require.Equal(t, worker.CodeInvalidMarker, w.failed("a/b").Code)
}

func TestTaskSucceedsWithoutStoredLog(t *testing.T) {
	w := newFixture(t, faultblob.New(memblob.New(memblob.Options{}), func(op faultblob.Op, key string) faultblob.Fault {
		if op == faultblob.Put && strings.HasPrefix(key, "logs/") {
			return faultblob.FailBefore
		}
		return faultblob.None
	}), map[string]plan.Work{"a/b": shell("echo hello")}, ab)
	w.run("a/b")
}

func TestPlanIsReadOnceForManyTasks(t *testing.T) {
	store := memblob.New(memblob.Options{})
	var plans atomic.Int32
	counting := faultblob.New(store, func(op faultblob.Op, key string) faultblob.Fault {
		if op == faultblob.Get && strings.HasPrefix(key, "plans/") {
			plans.Add(1)
		}
		return faultblob.None
	})
	assets := map[string]plan.Work{"a/b": {Command: []string{"true"}}}
	w := newFixture(t, counting, assets, task("a/b[n=1]", `{"n":"1"}`, nil), task("a/b[n=2]", `{"n":"2"}`, nil), task("a/b[n=3]", `{"n":"3"}`, nil))
	var answers []<-chan int
	for _, key := range []string{"a/b[n=1]", "a/b[n=2]", "a/b[n=3]"} {
		answers = append(answers, w.deliverLater(key))
	}
	for _, answer := range answers {
		require.Equal(t, http.StatusOK, <-answer)
	}
	require.EqualValues(t, 1, plans.Load())
}

func TestOpenRemovesScratchOfDeadWorkers(t *testing.T) {
	w := newFixture(t, nil, hello, ab)
	dead := filepath.Join(w.config.ScratchDir, "worker-dead", "x", "y")
	require.NoError(t, os.MkdirAll(dead, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(w.config.ScratchDir, "worker-dead", "lock"), nil, 0o600))
	w.open(w.config)
	require.NoDirExists(t, filepath.Join(w.config.ScratchDir, "worker-dead"))
	w.run("a/b") // the folder of the first worker still exists
}

func TestReadyzFollowsClose(t *testing.T) {
	w := newFixture(t, nil, hello, ab)
	get := func(path string) int {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.server.URL+path, nil)
		require.NoError(t, err)
		response, err := http.DefaultClient.Do(request)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		return response.StatusCode
	}
	require.Equal(t, http.StatusOK, get("/healthz"))
	require.Equal(t, http.StatusOK, get("/readyz"))
	require.NoError(t, w.worker.Close(t.Context()))
	require.Equal(t, http.StatusOK, get("/healthz"))
	require.Equal(t, http.StatusServiceUnavailable, get("/readyz"))
	require.NoError(t, w.worker.Close(t.Context()), "closing twice is fine")
}

func TestOpenRejectsIncompleteConfig(t *testing.T) {
	w := newFixture(t, nil, hello, ab)
	for name, change := range map[string]func(*worker.Config){
		"store":   func(c *worker.Config) { c.Store = nil },
		"worker":  func(c *worker.Config) { c.WorkerID = "" },
		"scratch": func(c *worker.Config) { c.ScratchDir = "" },
		"keys":    func(c *worker.Config) { c.Keyring = contract.Keyring{} },
	} {
		config := w.config
		change(&config)
		_, err := worker.Open(config)
		require.Error(t, err, name)
	}
}

// This test fails if the worker commits an empty output for a task that declares output: none.
func TestTaskWithOutputNoneCommitsNothing(t *testing.T) {
	load := shell("echo loaded")
	load.Output = plan.OutputNone
	w := newFixture(t, nil, map[string]plan.Work{"a/b": load}, ab)
	require.Nil(t, w.run("a/b").Output)
	require.Empty(t, w.keysBelow("assets/"))
	require.Equal(t, "loaded\n", w.log("a/b"))
	w.scratchIsEmpty()

	load.Command[2] = "echo hello > $SERVO_OUTPUT/x"
	w = newFixture(t, nil, map[string]plan.Work{"a/b": load}, ab)
	failure := w.failed("a/b")
	require.Equal(t, worker.CodeInvalidOutput, failure.Code)
	require.False(t, failure.Retryable)
	require.Contains(t, failure.Message, "the asset has `output: none`, but its task wrote files (x)")
	require.Empty(t, w.keysBelow("assets/"))
}
