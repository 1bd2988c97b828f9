package worker_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/memblob"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/quality"
	"github.com/servo-orchestration/servo/pkg/worker"
)

// checkTask returns a task that checks the committed output of key.
func (w *fixture) checkTask(key string) plan.Task {
	m := w.marker(key)
	check := task(key, "", nil)
	check.Kind, check.Output = event.KindCheck, event.OutputNone
	check.Checked = &plan.Input{MaterializationID: m.MaterializationID, URI: m.URI}
	return check
}

// TestCheckTaskChecksCommittedOutput: the task stores samples, and runs the checks of both phases even if one of them
// fails. It neither materializes nor commits anything.
func TestCheckTaskChecksCommittedOutput(t *testing.T) {
	const key = "clean/people"
	for _, store := range []blob.Store{nil, memblob.New(memblob.Options{})} {
		w := newFixture(t, store, map[string]plan.Work{key: query(people)}, task(key, "", nil))
		w.run(key)
		before := w.keysBelow("assets/")
		check := w.checkTask(key)
		w.setPlan(map[string]plan.Work{key: checked(plan.Work{SQL: "SELECT error('the work must not run')"},
			quality.Check{Name: "pre", Kind: quality.SQL, Phase: quality.Pre, SQL: "SELECT 1 AS x"},
			quality.Check{Name: "names", Kind: quality.NotNull, Columns: []string{"name"}},
			quality.Check{Name: "previous", Kind: quality.RowCount, Params: quality.Params{MinOfPrevious: 900_000}},
			quality.Check{Name: "files", Kind: quality.Command, Command: []string{"sh", "-c", "ls $SERVO_OUTPUT/*.parquet"}},
		)}, check)
		end := w.end(key, 2)
		require.Equal(t, event.Failed, end.Outcome)
		require.Equal(t, worker.CodeCheckFailed, end.Error.Code)
		require.Nil(t, end.Output)
		require.Equal(t, map[string]string{
			"pre":   `failed: 1 failing row; for example {"x":1}`,
			"names": `failed: 1 of 3 rows failed; for example {"id":2,"name":null,"age":-1,"seen":"2026-11-22"}`, "previous": "passed", "files": "passed",
		}, resultsOf(end.CheckResults))
		require.Len(t, w.keysBelow("assets/"), len(before)+2, "two samples, and no marker")
		w.scratchIsEmpty()
	}
}

func TestCheckTaskSucceedsWithoutAnOutput(t *testing.T) {
	const key = "clean/people"
	w := newFixture(t, nil, map[string]plan.Work{key: query(people)}, task(key, "", nil))
	w.run(key)
	w.setPlan(map[string]plan.Work{key: checked(query(people), quality.Check{Name: "ids", Kind: quality.NotNull, Columns: []string{"id"}})}, w.checkTask(key))
	end := w.end(key, 2)
	require.Equal(t, event.Succeeded, end.Outcome)
	require.Nil(t, end.Output)
	require.Equal(t, map[string]string{"ids": "passed"}, resultsOf(end.CheckResults))
}
