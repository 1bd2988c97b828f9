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

func TestAnAdmittedTaskThatIsShortIsReportedOnce(t *testing.T) {
	w := newWorld(t, nil, hello, ab)
	require.Equal(t, http.StatusOK, w.deliver("a/b", admitted))
	end := w.control.end(t)
	require.Equal(t, event.Succeeded, end.Outcome)
	require.Equal(t, event.At(epoch), end.StartedAt, "the end tells of the start")
	require.Zero(t, w.control.calls(contract.VerbStarted))
}

func TestTheStartOfAnAdmittedTaskThatTakesLongerIsReported(t *testing.T) {
	p := newProcesses(t, "")
	w := newWorld(t, nil, map[string]plan.Work{"a/b": shell(p.script)}, ab)
	answer := w.deliverLater("a/b", admitted)
	p.started(t)
	w.clock.fire(t, tellAfter)
	w.clock.asleep(t, w.config.HeartbeatEvery, func(int) {}) // it goes on with heartbeats
	require.Equal(t, 1, w.control.calls(contract.VerbStarted))
	require.NoError(t, w.worker.Close(t.Context()))
	require.Equal(t, http.StatusOK, <-answer)
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
