package engine_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/snapshot"
)

func TestJudgeSetsOutcomeOfFoldedEvents(t *testing.T) {
	w := foldtest.New(t)
	run := w.Run(foldtest.Task("a"))
	g := w.Group(w.Beat(run, "a", 7)) // attempt 7 does not exist
	w.Apply(g)
	events := []view.EventInfo{{Entry: g.Entry, Group: g.ID}, {Entry: w.ID(), Group: g.ID}}
	require.NoError(t, engine.Judge(t.Context(), &snapshot.Snapshot{State: w.State}, events))
	require.NotEmpty(t, events[0].Outcome)
	require.Empty(t, events[1].Outcome, "not folded")
}

func TestFindTaskByKeyAssetOrPart(t *testing.T) {
	w := foldtest.New(t)
	day := func(d string) event.TaskDef {
		return event.TaskDef{TaskKey: "clean/daily[date=" + d + "]", AssetKey: "clean/daily"}
	}
	run := w.Run(day("2012-01-01"), day("2012-01-02"), event.TaskDef{TaskKey: "raw/x", AssetKey: "raw/x"})
	for name, want := range map[string]string{
		"clean/daily[date=2012-01-02]": "clean/daily[date=2012-01-02]",
		"raw/x":                        "raw/x",
		"01-01":                        "clean/daily[date=2012-01-01]",
	} {
		task, err := engine.FindTask(w.State, run, name)
		require.NoError(t, err)
		require.Equal(t, want, task.TaskKey)
	}
	for name, want := range map[string]string{
		"clean/daily": "it matches 2 tasks, for example clean/daily[date=2012-01-01]",
		"raw/y":       "did you mean raw/x?",
		"nothing":     "it has 3 tasks",
	} {
		_, err := engine.FindTask(w.State, run, name)
		require.ErrorIs(t, err, engine.ErrNotFound)
		require.ErrorContains(t, err, want)
	}
}

func TestFindTaskByPartitionOfBatch(t *testing.T) {
	w := foldtest.New(t)
	days := []string{`{"date":"2025-01-01"}`, `{"date":"2025-01-02"}`}
	batch := event.TaskDef{TaskKey: "raw/days[date=2025-01-01..2025-01-02]", AssetKey: "raw/days", PartitionKey: days[0], Partitions: days}
	run := w.Run(batch, event.TaskDef{TaskKey: "raw/days[date=2025-01-03]", AssetKey: "raw/days", PartitionKey: `{"date":"2025-01-03"}`})
	for name, want := range map[string]string{
		"raw/days[date=2025-01-01]": batch.TaskKey,
		"raw/days[date=2025-01-02]": batch.TaskKey,
		"raw/days[date=2025-01-03]": "raw/days[date=2025-01-03]",
	} {
		task, err := engine.FindTask(w.State, run, name)
		require.NoError(t, err)
		require.Equal(t, want, task.TaskKey)
	}
	_, err := engine.FindTask(w.State, run, "raw/days[date=2025-01-04]")
	require.ErrorIs(t, err, engine.ErrNoTask)
}
