package dispatcher_test

import (
	"context"
	"errors"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/state"
)

func TestSuccessWithoutCommitMarkerFails(t *testing.T) {
	for name, output := range map[string]bool{"output without commit marker": true, "no output": false} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t)
			w.unmarked = true
			run := w.trigger(foldtest.Task("a"), foldtest.Task("b", "a"))
			cb := w.callback(run, "a", contract.VerbFinished, 1)
			report, _ := w.body(cb).(contract.Finished)
			if !output {
				report.Output = nil
			}
			require.Equal(t, http.StatusOK, w.reportAs(cb, report).status, "the report is accepted; the task fails")
			w.fold()
			task := w.task(run, "a")
			require.Equal(t, state.TaskFailed, task.State)
			require.Equal(t, "MARKER_MISSING", task.ErrorCode)
			require.Contains(t, task.ErrorMessage, "_commit.json does not exist")
			require.Empty(t, task.OutputURI)
			require.Equal(t, state.TaskSkipped, w.task(run, "b").State)
		})
	}
}

func TestSuccessWithoutOutputNeedsNoMarker(t *testing.T) {
	w := newFixture(t)
	w.unmarked = true
	def := foldtest.Task("a")
	def.Output = event.OutputNone
	run := w.trigger(def)
	cb := w.callback(run, "a", contract.VerbFinished, 1)
	report, _ := w.body(cb).(contract.Finished)
	report.Output = nil
	require.Equal(t, http.StatusOK, w.reportAs(cb, report).status)
	w.fold()
	require.Equal(t, state.TaskSucceeded, w.task(run, "a").State)
}

// away is a store that does not respond.
type away struct{ blob.Store }

func (away) Head(context.Context, string) (blob.Object, error) {
	return blob.Object{}, errors.New("connection reset")
}

func TestReportFailsWhileMarkerStoreIsDown(t *testing.T) {
	w := newFixture(t)
	run := w.trigger(foldtest.Task("a"))
	w.d = w.dispatcherOver(away{w.blobs}, w.snapshots)
	cb := w.callback(run, "a", contract.VerbFinished, 1)
	require.Equal(t, http.StatusInternalServerError, w.report(cb).status, "the worker reports again")
	w.d = w.dispatcher(w.snapshots)
	require.Equal(t, http.StatusOK, w.report(cb).status)
	w.fold()
	require.Equal(t, state.TaskSucceeded, w.task(run, "a").State)
}
