package worker_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/memblob"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/worker"
)

var threeDays = []string{`{"date":"2025-01-01"}`, `{"date":"2025-01-02"}`, `{"date":"2025-01-03"}`}

// batchTask returns a task that materializes three days.
func batchTask(key string) plan.Task {
	t := task(key, threeDays[0], nil)
	t.Partitions = threeDays
	return t
}

// A command writes a folder for each partition. The folders become one output with one marker.
func TestCommandWritesFoldersOfBatch(t *testing.T) {
	t.Parallel()
	const key = "raw/days"
	for _, store := range []blob.Store{nil, memblob.New(memblob.Options{})} {
		w := newFixture(t, store, map[string]plan.Work{key: {
			Batch: true, Dimensions: map[string]string{"date": "DATE"},
			Command: []string{"sh", "-c", `for d in $SERVO_PARTITION_DATE_KEYS; do mkdir "$SERVO_OUTPUT/date=$d"; done
				test -z "$SERVO_PARTITION_DATE"; printf one >"$SERVO_OUTPUT/date=2025-01-03/b"; printf two >"$SERVO_OUTPUT/date=2025-01-03/a"; printf three >"$SERVO_OUTPUT/date=2025-01-01/a"`},
		}}, batchTask(key))
		end := w.end(key, 1)
		require.Equal(t, event.Succeeded, end.Outcome, "%+v", end.Error)
		require.Equal(t, []event.OutputCell{{ByteSize: 5}, {}, {ByteSize: 6}}, end.Output.Cells)
		m := w.marker(key)
		require.True(t, contract.IsBatchURI(m.URI))
		require.Equal(t, []string{"date-2025-01-01/a", "date-2025-01-03/a", "date-2025-01-03/b"}, []string{m.Files[0].Name, m.Files[1].Name, m.Files[2].Name})
		w.scratchIsEmpty()

		again := w.end(key, 2) // another execution adopts the marker
		require.Equal(t, end.Output, again.Output)
	}
}

func TestCommandWritesOutsideOfBatch(t *testing.T) {
	t.Parallel()
	const key = "raw/days"
	for _, name := range []string{"a", "date=2025-01-04/a", "date-2025-01-01/a", "region=eu/a"} {
		w := newFixture(t, nil, map[string]plan.Work{key: {
			Batch: true, Dimensions: map[string]string{"date": "DATE"},
			Command: []string{"sh", "-c", `mkdir -p "$(dirname "$SERVO_OUTPUT/` + name + `")"; touch "$SERVO_OUTPUT/` + name + `"`},
		}}, batchTask(key))
		end := w.end(key, 1)
		require.Equal(t, worker.CodeInvalidOutput, end.Error.Code)
		require.Contains(t, end.Error.Message, "is not in the folder of a partition of the task: write it to a folder such as date=2025-01-01/")
		require.Empty(t, w.keysBelow("assets/"))
	}
}

// A command that skips a partition by mistake must not replace the output of this partition with an empty one.
func TestCommandMustCreateFolderOfEachPartition(t *testing.T) {
	t.Parallel()
	const key = "raw/days"
	for script, message := range map[string]string{
		`mkdir "$SERVO_OUTPUT/date=2025-01-01" "$SERVO_OUTPUT/date=2025-01-03"`: "created no folder for partition date=2025-01-02: create date=2025-01-02/",
		`for d in 1 2 3; do mkdir "$SERVO_OUTPUT/date=2025-01-0$d"; done; mkdir "$SERVO_OUTPUT/date=2025%2D01-01"
			touch "$SERVO_OUTPUT/date=2025-01-01/a" "$SERVO_OUTPUT/date=2025%2D01-01/a"`: "two folders name partition date=2025-01-01",
	} {
		w := newFixture(t, nil, map[string]plan.Work{key: {
			Batch: true, Dimensions: map[string]string{"date": "DATE"}, Command: []string{"sh", "-c", script},
		}}, batchTask(key))
		end := w.end(key, 1)
		require.Equal(t, worker.CodeInvalidOutput, end.Error.Code)
		require.Contains(t, end.Error.Message, message)
		require.False(t, end.Error.Retryable)
		require.Empty(t, w.keysBelow("assets/"))
	}
}
