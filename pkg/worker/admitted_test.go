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

// admitted is what a queue that asks before it delivers says of an attempt.
func admitted(env *contract.Envelope) { env.AdmittedUntil = event.At(epoch.Add(time.Second)) }

func TestAnAdmittedTaskThatIsShortIsReportedByTheAnswerAlone(t *testing.T) {
	for name, tc := range map[string]struct {
		work map[string]plan.Work
		want event.Outcome
	}{
		"succeeded": {hello, event.Succeeded},
		"failed":    {map[string]plan.Work{"a/b": shell("exit 3")}, event.Failed},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, nil, tc.work, ab)
			status, body := post(t, w.server.URL, w.envelope("a/b", 1, admitted))
			require.Equal(t, http.StatusOK, status)
			end, err := contract.DecodeFinished([]byte(body))
			require.NoError(t, err)
			require.Equal(t, tc.want, end.Outcome)
			require.Equal(t, event.At(epoch), end.StartedAt, "the end tells of the start")
			require.Zero(t, w.control.calls(contract.VerbStarted))
			require.Zero(t, w.control.calls(contract.VerbFinished))
		})
	}
}

func TestATaskThatIsNotAdmittedIsNotReportedByTheAnswer(t *testing.T) {
	w := newWorld(t, nil, hello, ab)
	status, body := post(t, w.server.URL, w.envelope("a/b", 1))
	require.Equal(t, http.StatusOK, status)
	require.Empty(t, body, "the queue may be one that reads no answers")
	require.Equal(t, event.Succeeded, w.control.end(t).Outcome)
}

// onlyStarted leaves an envelope the URLs that one has whose attempt is not known to have
// started; the answer to started brings the others.
func (w *world) onlyStarted(env *contract.Envelope) {
	admitted(env)
	all := env.Callbacks
	env.Callbacks = contract.Callbacks{Started: all.Started, Authorization: contract.Authorization{Started: all.Authorization.Started}}
	w.control.answer = func(verb string, n int) (int, any) {
		switch {
		case verb == contract.VerbStarted && n <= w.control.away:
			return http.StatusInternalServerError, nil
		case verb == contract.VerbStarted:
			return http.StatusOK, contract.StartedAnswer{Callbacks: contract.Callbacks{Heartbeat: all.Heartbeat, Finished: all.Finished, Authorization: all.Authorization}}
		}
		return 0, nil
	}
}

func TestAnAdmittedTaskThatTakesLongerIsReportedByCallbacks(t *testing.T) {
	p := newProcesses(t, "")
	w := newWorld(t, nil, map[string]plan.Work{"a/b": shell(p.script)}, ab)
	answer := w.deliverLater("a/b", w.onlyStarted)
	p.started(t)
	w.clock.fire(t, tellAfter)
	w.clock.asleep(t, w.config.HeartbeatEvery, func(int) {}) // it goes on with heartbeats
	require.Equal(t, 1, w.control.calls(contract.VerbStarted))
	require.NoError(t, w.worker.Close(t.Context()))
	require.Equal(t, http.StatusOK, <-answer)
	require.Equal(t, event.Failed, w.control.end(t).Outcome)
	require.Equal(t, 1, w.control.calls(contract.VerbStarted))
}

// The back-off between two calls of a start passes at once here: it is given up after six.
func TestAStartThatCouldNotBeReportedIsReportedByTheNextBeatOrTheEnd(t *testing.T) {
	for name, beats := range map[string]int{"the next beat": 1, "the end": 0} {
		t.Run(name, func(t *testing.T) {
			p := newProcesses(t, "")
			w := newWorld(t, nil, map[string]plan.Work{"a/b": shell(p.script)}, ab)
			w.control.away = 5
			answer := w.deliverLater("a/b", w.onlyStarted)
			p.started(t)
			w.clock.fire(t, tellAfter)
			for range beats {
				w.clock.fire(t, w.config.HeartbeatEvery)
			}
			w.clock.asleep(t, w.config.HeartbeatEvery, func(int) {})
			require.Equal(t, w.control.away+beats, w.control.calls(contract.VerbStarted))
			require.NoError(t, w.worker.Close(t.Context()))
			require.Equal(t, http.StatusOK, <-answer)
			require.Equal(t, event.Failed, w.control.end(t).Outcome)
			require.Equal(t, w.control.away+1, w.control.calls(contract.VerbStarted))
		})
	}
}

func TestAnAdmittedTaskThatWasReplacedMeanwhileIsKilledAndReportsNothing(t *testing.T) {
	p := newProcesses(t, "")
	w := newWorld(t, nil, map[string]plan.Work{"a/b": shell(p.script)}, ab)
	w.control.answer = func(string, int) (int, any) {
		return http.StatusConflict, contract.Problem{Status: http.StatusConflict}
	}
	answer := w.deliverLater("a/b", admitted)
	pid := p.started(t)
	w.clock.fire(t, tellAfter)
	require.Equal(t, http.StatusOK, <-answer)
	p.dead(t, pid)
	require.Zero(t, w.control.calls(contract.VerbFinished))
}

func TestAnAdmissionThatCannotBeReliedOnIsNone(t *testing.T) {
	for name, change := range map[string]func(*contract.Envelope){
		"its time is over": func(env *contract.Envelope) { env.AdmittedUntil = event.At(epoch) },
		"the queue will not deliver again": func(env *contract.Envelope) {
			admitted(env)
			env.TimeoutSec = int32(longTimeout / time.Second)
		},
	} {
		w := newWorld(t, nil, hello, ab)
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
