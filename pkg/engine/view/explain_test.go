package view_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/state"
)

// explain explains a task of a world at the current time of the world.
func explain(w *foldtest.World, run, key string) *view.Explanation {
	return view.Explain(w.State, w.Task(run, key), event.At(w.Now), nil)
}

func TestExplainBlockedNamesOpenUpstreams(t *testing.T) {
	w := foldtest.New(t)
	run := w.Run(foldtest.Task("a"), foldtest.Task("b"), foldtest.Task("c", "a", "b"))
	w.MustFold(w.Started(run, "a", 1))
	w.MustFold(w.Started(run, "b", 1))
	w.MustFold(w.Finished(run, "b", 1, event.Succeeded))
	w.Pass(90 * time.Second)
	x := explain(w, run, "c")
	require.Equal(t, "BLOCKED: waits for a (RUNNING for 1m 30s)", x.Headline)
	require.Len(t, x.Upstreams, 2)
	require.Equal(t, state.ResolvedSuccess, x.Upstreams[1].Resolution)
	require.Equal(t, 1, explain(w, run, "a").Downstreams)
}

func TestExplainBlockedCountsGroupMembers(t *testing.T) {
	w := foldtest.New(t)
	group := event.TaskDef{TaskKey: "p[*]", Kind: event.KindGroup, DependsOn: []string{"p1", "p2", "p3"}}
	run := w.Run(foldtest.Task("p1"), foldtest.Task("p2"), foldtest.Task("p3"), group, foldtest.Task("z", "p[*]"))
	w.MustFold(w.Started(run, "p1", 1))
	w.MustFold(w.Finished(run, "p2", 1, event.Succeeded))
	require.Equal(t, "BLOCKED: waits for 2 of the 3 partitions of p (1 RUNNING, 1 READY)", explain(w, run, "z").Headline)
}

func TestExplainReadyNamesFullLimit(t *testing.T) {
	pooled := func(key string) event.TaskDef {
		def := foldtest.Task(key)
		def.Pool = "duckdb"
		return def
	}
	t.Run("a pool", func(t *testing.T) {
		w := foldtest.New(t)
		w.MustFold(&event.LimitSet{CommandID: w.ID(), Scope: event.ScopePool, Name: "duckdb", Slots: 1})
		run := w.Run(pooled("a"), pooled("b"), pooled("c"))
		x := explain(w, run, "c")
		require.Equal(t, "READY: waits for a slot in pool duckdb: 1 of 1 in use by a; 1 task of this run ahead of it", x.Headline)
		require.Equal(t, []string{"a"}, x.Limits[0].Holders)
		other := w.Run(pooled("d"))
		require.Equal(t, "READY: waits for a slot in pool duckdb: 1 of 1 in use by a of run "+run, explain(w, other, "d").Headline)
	})
	t.Run("the run", func(t *testing.T) {
		w := foldtest.New(t)
		run := w.RunWith(event.RunTriggered{MaxParallelism: 1}, foldtest.Task("a"), foldtest.Task("b"))
		require.Equal(t, "READY: waits for a slot of the run: 1 of 1 in use by a", explain(w, run, "b").Headline)
	})
	t.Run("the workspace", func(t *testing.T) {
		w := foldtest.New(t)
		w.MustFold(&event.LimitSet{CommandID: w.ID(), Scope: event.ScopeWorkspace, Slots: 1})
		run := w.Run(foldtest.Task("a"), foldtest.Task("b"))
		require.Equal(t, "READY: waits for a slot of the workspace: 1 of 1 in use by a", explain(w, run, "b").Headline)
	})
	t.Run("no limit: it is admitted", func(t *testing.T) {
		w := foldtest.New(t)
		run := w.Run(foldtest.Task("a"))
		w.Pass(2 * time.Second)
		x := explain(w, run, "a")
		require.Equal(t, "READY: got a slot 2.00 s ago and is being handed to queue default", x.Headline)
		require.Equal(t, state.DispatchPending, x.Dispatch.Status)
	})
}

func TestExplainDispatchedNamesQueue(t *testing.T) {
	w := foldtest.New(t)
	run := w.Run(foldtest.Task("a"))
	for row := range w.State.Outbox.All {
		w.MustFold(&event.DispatchEnqueued{
			DispatchID: row.DispatchID, RunID: run, TaskKey: "a", Attempt: 1, QueueTaskName: row.QueueTaskName,
		})
	}
	w.Pass(3 * time.Second)
	require.Equal(t, "DISPATCHED: in queue default for 3.00 s; no worker has started it yet", explain(w, run, "a").Headline)
}

func TestExplainDispatchedCountsTasksThatMayStartFirst(t *testing.T) {
	w := foldtest.New(t)
	def := func(key string, priority int32) event.TaskDef {
		task := foldtest.Task(key)
		task.Priority = priority
		return task
	}
	backfill := w.ID()
	chunks := event.RunTriggered{Trigger: event.Trigger{Type: "backfill", BackfillID: backfill}}
	older := w.RunWith(chunks, def("a", -100))
	chunk := w.RunWith(chunks, def("a", -100), def("b", -100))
	w.Pass(time.Second)
	live := w.Run(def("a", 0), def("b", 7), def("c", 0))
	for row := range w.State.Outbox.All {
		w.MustFold(&event.DispatchEnqueued{
			DispatchID: row.DispatchID, RunID: row.RunID, TaskKey: row.TaskKey, Attempt: 1, QueueTaskName: row.QueueTaskName,
		})
	}
	const waits = "DISPATCHED: in queue default for 0.00 s; no worker has started it yet"
	require.Equal(t, waits, explain(w, live, "b").Headline)
	require.Equal(t, waits+"; the queue also has 1 task of greater priority (run "+live+
		"), and 1 task of this run (queued at the same time or earlier)", explain(w, live, "a").Headline)
	require.Equal(t, waits+"; the queue also has 3 tasks of greater priority (run "+live+"), and 1 task of this run "+
		"(queued at the same time or earlier), and 1 task of the same priority (backfill "+backfill+")", explain(w, chunk, "b").Headline)

	w.MustFold(w.Started(live, "a", 1)) // the task no longer waits
	w.MustFold(w.Started(live, "b", 1))
	w.MustFold(w.Started(live, "c", 1))
	require.Equal(t, waits+"; the queue also has 2 tasks of the same priority (backfill "+backfill+")", explain(w, older, "a").Headline)
}

func TestExplainRunningNamesWorkerAndTimers(t *testing.T) {
	w := foldtest.New(t)
	def := foldtest.Retrying("a", 3)
	def.TimeoutSec = 60
	run := w.Run(def)
	w.MustFold(w.Started(run, "a", 1))
	w.Pass(10 * time.Second)
	beat := w.Beat(run, "a", 1)
	beat.Message = "half"
	w.MustFold(beat)
	w.Pass(5 * time.Second)
	x := explain(w, run, "a")
	require.Equal(t,
		"RUNNING: on worker-1 for 15.0 s, attempt 1 of 3; last heartbeat 5.00 s ago (half); times out in 45.0 s", x.Headline)
	require.Equal(t, event.TimerLiveness, x.Timers[0].Type)
	require.Equal(t, "half", x.Heartbeat.Message)
	require.Equal(t, state.AttemptRunning, x.Attempts[0].State)

	w.MustFold(&event.RunCancelRequested{RunID: run, Reason: "enough"})
	require.Contains(t, explain(w, run, "a").Headline, "the run is being cancelled, and the attempt will end within 30.0 s")
}

func TestExplainRetryWaitNamesErrorAndTime(t *testing.T) {
	w := foldtest.New(t)
	run := w.Run(foldtest.Retrying("a", 3))
	w.MustFold(w.Finished(run, "a", 1, event.Failed))
	x := explain(w, run, "a")
	require.Equal(t,
		"RETRY_WAIT: attempt 1 failed with BOOM: it went wrong; attempt 2 of 3 starts at 2026-01-02T03:04:06Z (in 1.00 s)", x.Headline)
	require.Equal(t, event.TimerRetry, x.Timers[0].Type)
	w.Pass(3 * time.Second)
	require.Contains(t, explain(w, run, "a").Headline, "as soon as its timer fires (due 2.00 s ago)")
}

func TestExplainSkippedNamesRootCause(t *testing.T) {
	w := foldtest.New(t)
	run := w.Run(foldtest.Task("a"), foldtest.Task("b", "a"), foldtest.Task("c", "b"))
	w.MustFold(w.Finished(run, "a", 1, event.Failed))
	x := explain(w, run, "c")
	require.Equal(t, "SKIPPED: because a is FAILED: BOOM: it went wrong (through b)", x.Headline)
	require.Equal(t, []view.Cause{
		{TaskKey: "b", State: state.TaskSkipped, Error: "UPSTREAM_FAILED"},
		{TaskKey: "a", State: state.TaskFailed, Error: "BOOM: it went wrong"},
	}, x.Cause)
	require.Equal(t, "FAILED: attempt 1 of 1 failed with BOOM: it went wrong", explain(w, run, "a").Headline)
}

func TestExplainSkippedCountsAllRootCauses(t *testing.T) {
	w := foldtest.New(t)
	group := event.TaskDef{TaskKey: "p[*]", Kind: event.KindGroup, DependsOn: []string{"p1", "p2", "p3"}}
	run := w.Run(foldtest.Task("p1"), foldtest.Task("p2"), foldtest.Task("p3"), group, foldtest.Task("y", "p[*]"), foldtest.Task("z", "y"))
	w.MustFold(w.Finished(run, "p1", 1, event.Succeeded))
	w.MustFold(w.Finished(run, "p3", 1, event.Failed))
	w.MustFold(w.Finished(run, "p2", 1, event.Failed))
	x := explain(w, run, "z")
	require.Equal(t, []string{"p2", "p3"}, x.RootCauses)
	require.Contains(t, x.Headline, "SKIPPED: because p")
	require.Contains(t, x.Headline, "; 1 more of its upstream tasks failed")
	require.Empty(t, explain(w, run, "p2").RootCauses)
}

func TestFirstLineNamesPythonException(t *testing.T) {
	for text, want := range map[string]string{
		"one":                                 "one",
		"one\ntwo":                            "one …",
		"sh exited with status 3:\nit broke":  "sh exited with status 3: it broke",
		"sh exited with status 3:\nit\nbroke": "sh exited with status 3: it …",
		"EXIT_STATUS: python3 exited with status 1:\nnote\nTraceback (most recent call last):\n  File \"x.py\", line 1, in <module>\n    main()\nValueError: no rows\n": "EXIT_STATUS: python3 exited with status 1: ValueError: no rows …",
		"python3 exited with status 1:\n  File \"x.py\", line 1\n    f(\n     ^\nSyntaxError: '(' was never closed":                                                     "python3 exited with status 1: SyntaxError: '(' was never closed …",
		"python3 exited with status 1:\nTraceback (most recent call last):\n  File \"x.py\", line 1":                                                                    "python3 exited with status 1: Traceback (most recent call last): …",
	} {
		require.Equal(t, want, view.FirstLine(text))
	}
}

func TestExplainSkippedByWorker(t *testing.T) {
	w := foldtest.New(t)
	run := w.Run(foldtest.Task("a"))
	w.MustFold(w.Finished(run, "a", 1, event.Skipped))
	require.Equal(t, "SKIPPED: its worker reported that there was nothing to do: BOOM: it went wrong", explain(w, run, "a").Headline)
}

func TestExplainCancelledNamesReason(t *testing.T) {
	w := foldtest.New(t)
	run := w.Run(foldtest.Task("a"), foldtest.Task("b", "a"))
	w.MustFold(&event.RunCancelRequested{RunID: run, Reason: "wrong day", Force: true})
	w.Pass(time.Minute)
	require.Equal(t, "CANCELLED: with its run, which was cancelled 1m 00s ago: wrong day", explain(w, run, "b").Headline)
}

func TestExplainFailedNotRetryable(t *testing.T) {
	w := foldtest.New(t)
	run := w.Run(foldtest.Retrying("a", 3))
	failed := w.Finished(run, "a", 1, event.Failed)
	failed.Error.Retryable = false
	w.MustFold(failed)
	require.Equal(t,
		"FAILED: attempt 1 failed with BOOM: it went wrong; not retried, because another attempt would fail in the same way",
		explain(w, run, "a").Headline)
}

func TestExplainSucceededSummarizesOutput(t *testing.T) {
	w := foldtest.New(t)
	run := w.Run(foldtest.Task("a"))
	w.MustFold(w.Started(run, "a", 1))
	w.Pass(2 * time.Second)
	w.MustFold(w.Finished(run, "a", 1, event.Succeeded))
	w.Pass(time.Second)
	x := explain(w, run, "a")
	require.Equal(t, "SUCCEEDED: attempt 1 of 1, in 2.00 s, with 1 row in 2 bytes, 1.00 s ago", x.Headline)
	require.Equal(t, "succeeded", x.Attempts[0].Outcome)
}

func TestSpanFormatsDurations(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second:                  "0.00 s",
		1234 * time.Millisecond:       "1.23 s",
		9999 * time.Millisecond:       "10.0 s",
		12345 * time.Millisecond:      "12.3 s",
		59999 * time.Millisecond:      "1m 00s",
		75 * time.Second:              "1m 15s",
		3*time.Hour + 7*time.Minute:   "3h 07m",
		51*time.Hour + 30*time.Minute: "2d 03h",
	} {
		require.Equal(t, want, view.Span(d), d.String())
	}
}

func TestExplainNamesTheTasksOfAnOrderNode(t *testing.T) {
	w := foldtest.New(t)
	order := func(key string, up ...string) event.TaskDef {
		return event.TaskDef{TaskKey: key, Kind: event.KindGroup, DependsOn: up, TriggerRule: event.RuleAllDone}
	}
	run := w.Run(foldtest.Task("a1"), foldtest.Task("a2"), order("a[order]", "a1", "a2"), order("b[order]", "a[order]"), foldtest.Task("c", "b[order]"))
	w.MustFold(w.Started(run, "a1", 1))
	w.MustFold(w.Finished(run, "a2", 1, event.Failed))
	require.Equal(t, "BLOCKED: waits for the end of a1 (RUNNING for 0.00 s), whose output it does not read", explain(w, run, "c").Headline)
}
