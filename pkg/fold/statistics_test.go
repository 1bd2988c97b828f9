package fold_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/state"
)

// TestStatisticsDescribeSuccesses counts each success once. Failures, repeated reports, checks and successes
// of cancelled runs do not count.
func TestStatisticsDescribeSuccesses(t *testing.T) {
	w := foldtest.New(t)
	def := func(key string) event.TaskDef { return event.TaskDef{TaskKey: key, AssetKey: "test/a", MaxAttempts: 2} }
	end := func(run, key string, attempt int32, outcome event.Outcome, took time.Duration, metrics map[string]int64) *event.TaskFinished {
		started := w.Started(run, key, attempt)
		w.MustFold(started)
		w.Pass(took)
		p := w.Finished(run, key, attempt, outcome)
		p.StartedAt, p.Metrics = started.StartedAt, metrics
		return p
	}
	run := w.Run(def("a"), def("b"), event.TaskDef{TaskKey: "c", AssetKey: "test/a", Kind: event.KindCheck, MaxAttempts: 1})
	success := end(run, "a", 1, event.Succeeded, 1234*time.Millisecond, map[string]int64{"cpu_ms": 98765, "allocated_mib_ms": 7})
	w.MustFold(success)
	require.Equal(t, state.NoChange, w.Fold(success).Row.Outcome)
	w.MustFold(end(run, "b", 1, event.Failed, time.Hour, nil))
	w.MustFold(end(run, "c", 1, event.Succeeded, time.Hour, nil))
	cancelled := w.Run(def("a"))
	late := end(cancelled, "a", 1, event.Succeeded, time.Hour, nil)
	w.MustFold(&event.RunCancelRequested{RunID: cancelled})
	w.MustFold(late)
	again := w.Run(def("a"))
	w.MustFold(end(again, "a", 1, event.Succeeded, 0, map[string]int64{"cpu_ms": -1}))

	row := *w.State.Statistics.Get("test/a")
	row.Meta = state.Meta{}
	require.Equal(t, state.AssetStatistics{
		AssetKey: "test/a", DurationMS: "[1230,0]", Rows: "[1,1]", Bytes: "[2,2]", CPUMS: "[98800,null]", MemoryMS: "[7,null]",
	}, row)
}

func TestStatisticsCountPartitionsOfBatch(t *testing.T) {
	w := foldtest.New(t)
	w.MustFold(cellsOf(w, w.Run(batched()), 3))
	require.Equal(t, "[3]", w.State.Statistics.Get("test/a").Partitions)
}
