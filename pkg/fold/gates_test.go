package fold_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/state"
)

// TestI23OnlyPassedChecksPublish reports a success with arbitrary results. The output becomes visible if and only if
// every check of severity CRITICAL has passed, and no result that decides the outcome is missing.
func TestI23OnlyPassedChecksPublish(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		w := foldtest.New(t)
		def := foldtest.Task("a")
		def.Checks, def.ErrorChecks = []string{"c1", "c2"}, []string{"e1"}
		run := w.Run(def)
		finished := w.Finished(run, "a", 1, event.Succeeded)
		visible, degraded, complete := true, false, true
		for _, name := range []string{"c1", "c2", "e1", "w1"} {
			verdict := rapid.SampledFrom([]string{"passed", "failed", "broken", "missing"}).Draw(r, name)
			decides := name != "w1"
			switch verdict {
			case "missing":
				complete = complete && !decides
				continue
			case "failed", "broken":
				visible = visible && name != "c1" && name != "c2"
				degraded = degraded || name == "e1"
			}
			finished.CheckResults = append(finished.CheckResults, event.CheckResult{
				Name: name, Passed: verdict == "passed", Broken: verdict == "broken",
				Severity: rapid.SampledFrom([]string{"CRITICAL", "ERROR", "WARNING", "INFO", ""}).Draw(r, "severity of the worker"),
			})
		}
		w.MustFold(finished)
		task := w.State.Tasks.Get(state.Key2{A: run, B: "a"})
		output := w.State.Partitions.Get(state.Key2{A: def.AssetKey})
		require.Equal(t, visible && complete, output != nil)
		require.EqualValues(t, len(finished.CheckResults), w.State.CheckResults.Len())
		switch {
		case !visible:
			require.Equal(t, fold.CodeCheckFailed, task.ErrorCode)
		case !complete:
			require.Equal(t, fold.CodeChecksMissing, task.ErrorCode)
		case degraded:
			require.Equal(t, state.Degraded, output.Quality)
		default:
			require.Equal(t, state.Passed, output.Quality)
		}
		require.NoError(t, foldtest.Check(w.State))
	})
}
