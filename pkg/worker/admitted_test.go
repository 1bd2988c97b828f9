package worker_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/plan"
)

// admitted sets AdmittedUntil in an envelope, like a queue that admits attempts before it delivers them.
func admitted(env *contract.Envelope) { env.AdmittedUntil = event.At(epoch.Add(time.Second)) }

func TestAdmittedShortTaskReportsInResponseOnly(t *testing.T) {
	for name, tc := range map[string]struct {
		work map[string]plan.Work
		want event.Outcome
	}{
		"succeeded": {hello, event.Succeeded},
		"failed":    {map[string]plan.Work{"a/b": shell("exit 3")}, event.Failed},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t, nil, tc.work, ab)
			status, body := post(t, w.server.URL, w.envelope("a/b", 1, admitted))
			require.Equal(t, http.StatusOK, status)
			end, err := contract.DecodeFinished([]byte(body))
			require.NoError(t, err)
			require.Equal(t, tc.want, end.Outcome)
			require.Equal(t, event.At(epoch), end.StartedAt, "the end has the start time")
			require.Zero(t, w.control.calls(contract.VerbStarted))
			require.Zero(t, w.control.calls(contract.VerbFinished))
		})
	}
}

func TestTaskNotAdmittedReportsByCallback(t *testing.T) {
	w := newFixture(t, nil, hello, ab)
	status, body := post(t, w.server.URL, w.envelope("a/b", 1))
	require.Equal(t, http.StatusOK, status)
	require.Empty(t, body, "the queue may not read responses")
	require.Equal(t, event.Succeeded, w.control.end(t).Outcome)
}

// onlyStarted admits the attempt, and removes all URLs from the envelope except the URL of the callback "started".
// The response to this callback contains the other URLs.
func (w *fixture) onlyStarted(env *contract.Envelope) {
	admitted(env)
	all := env.Callbacks
	env.Callbacks = contract.Callbacks{Started: all.Started, Authorization: contract.Authorization{Started: all.Authorization.Started}}
	w.control.answer = func(verb string, n int) (int, any) {
		switch {
		case verb == contract.VerbStarted && n <= w.control.failedStarts:
			return http.StatusInternalServerError, nil
		case verb == contract.VerbStarted:
			return http.StatusOK, contract.StartedResponse{Callbacks: contract.Callbacks{Heartbeat: all.Heartbeat, Finished: all.Finished, Authorization: all.Authorization}}
		}
		return 0, nil
	}
}

func TestAdmittedLongTaskReportsByCallbacks(t *testing.T) {
	p := newProcesses(t, "")
	w := newFixture(t, nil, map[string]plan.Work{"a/b": shell(p.script)}, ab)
	answer := w.deliverLater("a/b", w.onlyStarted)
	p.started(t)
	w.clock.fire(t, lateStart)
	w.clock.awaitSleeper(t, w.config.HeartbeatEvery, func(int) {}) // the worker now sends heartbeats
	require.Equal(t, 1, w.control.calls(contract.VerbStarted))
	require.NoError(t, w.worker.Close(t.Context()))
	require.Equal(t, http.StatusOK, <-answer)
	require.Equal(t, event.Failed, w.control.end(t).Outcome)
	require.Equal(t, 1, w.control.calls(contract.VerbStarted))
}

// In this test, a backoff takes no time. The worker sends the callback "started" five times before it gives up.
func TestLateStartIsRetriedByHeartbeatOrEnd(t *testing.T) {
	for name, beats := range map[string]int{"the next heartbeat": 1, "the end": 0} {
		t.Run(name, func(t *testing.T) {
			p := newProcesses(t, "")
			w := newFixture(t, nil, map[string]plan.Work{"a/b": shell(p.script)}, ab)
			w.control.failedStarts = 5
			answer := w.deliverLater("a/b", w.onlyStarted)
			p.started(t)
			w.clock.fire(t, lateStart)
			for range beats {
				w.clock.fire(t, w.config.HeartbeatEvery)
			}
			w.clock.awaitSleeper(t, w.config.HeartbeatEvery, func(int) {})
			require.Equal(t, w.control.failedStarts+beats, w.control.calls(contract.VerbStarted))
			require.NoError(t, w.worker.Close(t.Context()))
			require.Equal(t, http.StatusOK, <-answer)
			require.Equal(t, event.Failed, w.control.end(t).Outcome)
			require.Equal(t, w.control.failedStarts+1, w.control.calls(contract.VerbStarted))
		})
	}
}

func TestAdmittedTaskIsKilledWhenReplaced(t *testing.T) {
	p := newProcesses(t, "")
	w := newFixture(t, nil, map[string]plan.Work{"a/b": shell(p.script)}, ab)
	w.control.answer = func(string, int) (int, any) {
		return http.StatusConflict, contract.Problem{Status: http.StatusConflict}
	}
	answer := w.deliverLater("a/b", admitted)
	pid := p.started(t)
	w.clock.fire(t, lateStart)
	require.Equal(t, http.StatusOK, <-answer)
	p.dead(t, pid)
	require.Zero(t, w.control.calls(contract.VerbFinished))
}

func TestUnreliableAdmissionIsIgnored(t *testing.T) {
	for name, change := range map[string]func(*contract.Envelope){
		"expired": func(env *contract.Envelope) { env.AdmittedUntil = event.At(epoch) },
		"a long task, which the queue does not redeliver": func(env *contract.Envelope) {
			admitted(env)
			env.TimeoutSec = int32(longTimeout / time.Second)
		},
	} {
		w := newFixture(t, nil, hello, ab)
		w.control.answer = func(verb string, _ int) (int, any) {
			if verb == contract.VerbStarted {
				return http.StatusConflict, contract.Problem{Status: http.StatusConflict}
			}
			return 0, nil
		}
		require.Equal(t, http.StatusOK, w.deliver("a/b", change), name)
		require.Equal(t, 1, w.control.calls(contract.VerbStarted), name)
		require.Zero(t, w.control.calls(contract.VerbFinished), name)
		require.Empty(t, w.keysBelow("assets/"), name)
	}
}
