package fold_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
)

// The definition of a paused schedule changes. A resume with catch-up must still create ticks for the instants before
// the change.
func TestResumeFindsInstantsBeforeChangeOfPausedSchedule(t *testing.T) {
	for _, change := range []bool{false, true} {
		w := newTicking(t, event.Schedule{Overlap: event.OverlapBufferAll, CatchUp: event.CatchUpAll})
		command := func(verb string, catchUp bool) {
			w.MustFold(&event.AutomationCommand{
				CommandID: ids.NewSource(func() time.Time { return w.Now }, nil).New(), Target: event.TargetSchedule, Name: "clock", Verb: verb, CatchUp: catchUp,
			})
			w.automate()
		}
		command(event.VerbPause, false)
		w.Pass(5 * minute)
		if change {
			w.spec.JitterSec = 1 // any change of the definition
			w.deploy()
			w.automate()
		}
		w.Pass(5 * minute)
		command(event.VerbResume, true)
		_, buffered := w.State.BufferedOf("clock")
		require.Equal(t, 10, len(w.runs)+buffered+int(w.row().TicksDropped), "changed: %v", change)
	}
}
