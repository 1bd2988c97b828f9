package view_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/ids"
)

// blocked starts a run of task a and of task b, which reads the output of a. A check blocks this output.
func blocked(t *testing.T) (w *foldtest.World, run string) {
	t.Helper()
	w = foldtest.New(t)
	def := foldtest.Task("a")
	def.Checks, def.Quarantine = []string{"c"}, &event.Quarantine{ExpiresSec: 3600}
	run = w.Run(def, foldtest.Task("b", "a"))
	p := w.Finished(run, "a", 1, event.Failed)
	p.Error = &event.Error{Code: fold.CodeCheckFailed, Message: "check c: 3 of 9 rows"}
	p.CheckResults = []event.CheckResult{{Name: "c", Phase: "POST", Message: "3 of 9 rows"}}
	p.Output = &event.Output{URI: "assets/x/", RowCount: 9, ByteSize: 5, SchemaHash: "h"}
	w.MustFold(p)
	w.Pass(time.Minute)
	return w, run
}

func decideBlocked(w *foldtest.World, run, decision string) {
	w.MustFold(&event.QuarantineResolved{
		CommandID: w.ID(), Asset: "test/a", MaterializationID: ids.MaterializationID(foldtest.Domain, run, "a"), Decision: decision, Reason: "ticket 7",
	})
}

func statusOf(w *foldtest.World, run string) *view.Status {
	return view.StatusOf(w.State, w.State.Runs.Get(run), event.At(w.Now))
}

func TestQuarantineIsNamedBeforeDecision(t *testing.T) {
	w, run := blocked(t)
	x := explain(w, run, "a")
	require.True(t, x.Quarantine.Pending())
	require.Contains(t, x.Headline, "FAILED: ")
	require.Contains(t, x.Headline, "the output is in quarantine until "+x.Quarantine.ExpiresAt.Time().Format(time.RFC3339)+", then rejected")
	st := statusOf(w, run)
	require.True(t, st.Failed[0].Quarantine.Pending())
	require.Equal(t, "servo run --failed-only", st.Next[0].Command)
}

func TestApprovedOutputNeedsNoRepetition(t *testing.T) {
	w, run := blocked(t)
	decideBlocked(w, run, event.DecisionApprove)
	x := explain(w, run, "a")
	require.Regexp(t, `^APPROVED: the output is approved by .+ at 20.+Z: ticket 7; attempt 1 of 1 failed with CHECK_FAILED`, x.Headline)
	st := statusOf(w, run)
	require.True(t, st.Failed[0].Quarantine.Approved())
	require.Equal(t, []view.Step{{
		Action: view.StepRun, Command: "servo run --stale", Reason: "The blocked outputs were approved: run the assets that read them.",
	}}, st.Next)
}

func TestRejectedOutputIsRepeated(t *testing.T) {
	w, run := blocked(t)
	decideBlocked(w, run, event.DecisionReject)
	require.Contains(t, explain(w, run, "a").Headline, "the output is rejected by ")
	require.Equal(t, "servo run --failed-only", statusOf(w, run).Next[0].Command)
}
