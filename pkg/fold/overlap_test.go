package fold_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/state"
)

// If too many requests of the domain wait to be planned, a tick cannot start. Then it must not end the run that it
// would replace, or neither of them would run.
func TestDroppedTickEndsNoRun(t *testing.T) {
	for policy, want := range map[string]state.TickOutcome{
		event.OverlapCancelOther: state.TickDropped, event.OverlapTerminateOther: state.TickDropped,
		event.OverlapAllowAll: state.TickDropped, event.OverlapSkip: state.TickSkipped, event.OverlapBufferAll: state.TickBuffered,
	} {
		t.Run(policy, func(t *testing.T) {
			w := newTicking(t, event.Schedule{Overlap: policy})
			w.minutes(1, func(int) (int, bool) { return 0, false })
			require.Equal(t, state.RunRunning, w.RunState(w.runs[0]))
			for i := range state.MaxPending {
				id := fmt.Sprintf("at:%d", i)
				w.State.Requests.Put(&state.RunRequest{
					RequestID: id, Spec: "{}", State: state.RequestPending, CreatedAt: event.At(w.Now), ReleasedAt: event.At(w.Now),
					RunID: ids.RequestedRunID(foldtest.Domain, id, w.Now),
				})
			}
			w.Pass(minute)
			w.MustFold(w.Fire(w.Timer(event.TimerWake)))
			tick := w.State.Ticks.Get(w.row().LastTick)
			require.Equal(t, want, tick.Outcome, tick.Detail)
			require.Equal(t, state.RunRunning, w.RunState(w.runs[0]))
		})
	}
}
