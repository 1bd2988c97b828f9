package worker_test

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/memblob"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/quality"
	"github.com/servo-orchestration/servo/pkg/worker"
)

// quarantined returns w with a quarantine, and with a check that passes only if the project's folder has a file "good".
func quarantined(w plan.Work) plan.Work {
	w = checked(w, quality.Check{Name: "good", Kind: quality.Command, Command: []string{"sh", "-c", `test -f good && exit 0; echo '{"passed": false}' > $SERVO_VERDICT`}})
	w.Quarantine = &event.Quarantine{ExpiresSec: 60}
	return w
}

// TestI23BlockedOutputIsQuarantined: the files of a blocked output are kept, with a marker that readers ignore. The
// next execution reports the same blocked output.
func TestI23BlockedOutputIsQuarantined(t *testing.T) {
	const key = "a/b"
	for _, store := range []blob.Store{nil, memblob.New(memblob.Options{})} {
		w := newFixture(t, store, map[string]plan.Work{key: quarantined(shell("echo ran >> ran; echo 1 > $SERVO_OUTPUT/rows.txt"))}, task(key, "", nil))
		first := w.end(key, 1)
		require.Equal(t, event.Failed, first.Outcome)
		require.Equal(t, worker.CodeCheckFailed, first.Error.Code)
		require.NotNil(t, first.Output)
		require.Equal(t, "1\n", w.read(first.Output.URI+"rows.txt"))
		keys := w.keysBelow("assets/")
		require.Contains(t, keys, contract.QuarantineMarkerKeyOf(first.Output.URI))
		require.NotContains(t, keys, contract.CommitMarkerKeyOf(first.Output.URI))
		w.file("good", "") // now the check would pass, but its result is already recorded
		second := w.end(key, 2)
		require.Equal(t, first.Output, second.Output)
		require.Equal(t, worker.CodeCheckFailed, second.Error.Code)
		require.Equal(t, first.CheckResults, second.CheckResults)
		ran, err := os.ReadFile(w.root + "/ran")
		require.NoError(t, err)
		require.Equal(t, "ran\n", string(ran), "the task is not repeated")
	}
}

func TestPreCheckLeavesNoCandidate(t *testing.T) {
	const key = "a/b"
	work := quarantined(shell("echo 1 > $SERVO_OUTPUT/rows.txt"))
	work.Checks[0].Phase = quality.Pre
	w := newFixture(t, nil, map[string]plan.Work{key: work}, task(key, "", nil))
	end := w.end(key, 1)
	require.Equal(t, worker.CodeCheckFailed, end.Error.Code)
	require.Nil(t, end.Output)
	require.Empty(t, w.keysBelow("assets/"))
}

// TestI23CommitMarkerPrecedesQuarantine: if a check passed in one execution of a task and blocked the output in
// another, both markers exist. In this case, the commit marker counts.
func TestI23CommitMarkerPrecedesQuarantine(t *testing.T) {
	const key = "a/b"
	w := newFixture(t, nil, map[string]plan.Work{key: quarantined(shell("echo 1 > $SERVO_OUTPUT/rows.txt"))}, task(key, "", nil))
	w.file("good", "")
	first := w.end(key, 1)
	_, err := w.store.Create(t.Context(), contract.QuarantineMarkerKeyOf(first.Output.URI), []byte("not a marker"))
	require.NoError(t, err)
	second := w.end(key, 2)
	require.Equal(t, event.Succeeded, second.Outcome)
	require.Equal(t, first.Output, second.Output)
}

// The task has two inputs that were in quarantine. The first is an output of the same run: a check blocked it, so the
// task does not read it. The second is an output of an earlier run: a decision published it, so the task reads it.
func TestI23QuarantinedOutputIsNotAnInput(t *testing.T) {
	const up, down, later = "a/b", "c/d", "e/f"
	reader := task(down, "", map[string]plan.InputSet{up: from(up)}, up)
	reader.TriggerRule = event.RuleAllDone
	list := "find -L $SERVO_INPUT_A_B/ -name rows.txt | wc -l > $SERVO_OUTPUT/found"
	assets := map[string]plan.Work{up: quarantined(shell("echo 1 > $SERVO_OUTPUT/rows.txt")), down: shell(list), later: shell(list)}
	w := newFixture(t, nil, assets, task(up, "", nil), reader)
	blocked := w.end(up, 1)
	require.NotNil(t, blocked.Output)
	end := w.end(down, 1, without(contract.WithoutTasks([]string{up})))
	require.Equal(t, event.Succeeded, end.Outcome)
	require.Equal(t, "0", strings.TrimSpace(w.read(end.Output.URI+"found")))

	w.setPlan(assets, task(later, "", map[string]plan.InputSet{up: {Items: []plan.Input{{MaterializationID: blocked.MaterializationID, URI: blocked.Output.URI}}}}))
	end = w.end(later, 1)
	require.Equal(t, event.Succeeded, end.Outcome)
	require.Equal(t, "1", strings.TrimSpace(w.read(end.Output.URI+"found")))
}
