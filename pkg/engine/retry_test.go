package engine_test

import (
	"bytes"
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/faultblob"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

// failedAfter starts a run of the assets a and b, where b reads a. Only a succeeds.
func (w *fixture) failedAfter() engine.RunHandle {
	handle := w.run(request(asset("a"), asset("b", "a")))
	w.report(w.finished(handle.RunID, "raw/a", event.Succeeded), w.finished(handle.RunID, "raw/b", event.Failed))
	return handle
}

func TestRetryRefusesHiddenInput(t *testing.T) {
	inBothProcesses(t, func(t *testing.T, w *fixture) {
		parent := w.failedAfter()
		key := ids.AssetKey{Namespace: "raw", Name: "a"}
		_, err := w.Mark(t.Context(), engine.MarkRequest{
			Assets: request(asset("a"), asset("b", "a")).Plan.Assets, Asset: key, Mark: event.MarkMissing, Reason: "wrong currency",
		})
		require.NoError(t, err)
		runs := w.state().Runs.Len()
		_, err = w.Retry(t.Context(), parent.RunID)
		require.ErrorIs(t, err, engine.ErrMissingInput)
		require.ErrorContains(t, err, "retry run "+parent.RunID+": MISSING_INPUT: task raw/b reads raw/a: jane marked it as missing at ")
		require.ErrorContains(t, err, ": wrong currency: make the outputs again with `servo run`")
		require.Equal(t, runs, w.state().Runs.Len())
	})
}

// In an earlier build, a retry copied the code of a damaged plan into a new plan, which no worker could recognize as
// damaged.
func TestRetryRefusesDamagedPlan(t *testing.T) {
	w := newFixture(t, false)
	parent := w.failedAfter()
	ref := w.state().Runs.Get(parent.RunID).PlanRef
	data, _, err := w.blobs.Get(t.Context(), ref)
	require.NoError(t, err)
	damaged := func() []string {
		t.Helper()
		problems, err := engine.DamagedDocuments(t.Context(), w.blobs, w.Domain(), w.state())
		require.NoError(t, err)
		return problems
	}
	require.Empty(t, damaged())
	other := bytes.ReplaceAll(data, []byte("raw/b"), []byte("raw/c"))
	require.NotEqual(t, data, other)
	_, err = w.blobs.Put(t.Context(), ref, other)
	require.NoError(t, err)
	_, err = w.Retry(t.Context(), parent.RunID)
	require.ErrorContains(t, err, "it is damaged")
	require.Len(t, damaged(), 1)
	require.NoError(t, w.blobs.Delete(t.Context(), ref))
	require.Len(t, damaged(), 1)
	require.Contains(t, damaged()[0], ref)

	_, err = w.blobs.Put(t.Context(), ref, data)
	require.NoError(t, err)
	require.Empty(t, damaged())
	_, err = w.Retry(t.Context(), parent.RunID)
	require.NoError(t, err)
}

// madeA returns a report that a run has materialized asset a. The output has a URI like that of a worker's output.
func (w *fixture) madeA(run string) *event.TaskFinished {
	made := w.finished(run, "raw/a", event.Succeeded)
	id := ids.MaterializationID(w.Domain(), run, "raw/a")
	made.Output.URI = contract.ExecutionPrefix(w.Domain(), ids.AssetKey{Namespace: "raw", Name: "a"}, "", id, made.AttemptID, "n")
	return made
}

// commit stores the commit marker of the reported output of asset a.
func (w *fixture) commit(made *event.TaskFinished) {
	w.t.Helper()
	marker, err := json.Marshal(&contract.CommitMarker{
		MaterializationID: ids.MaterializationID(w.Domain(), made.RunID, "raw/a"), RunID: made.RunID, TaskKey: "raw/a", AssetKey: "raw/a",
		Attempt: 1, AttemptID: made.AttemptID, Nonce: "n", URI: made.Output.URI, CommittedAt: made.CompletedAt, StartedAt: made.StartedAt,
	})
	require.NoError(w.t, err)
	_, err = w.blobs.Create(w.t.Context(), contract.CommitMarkerKeyOf(made.Output.URI), marker)
	require.NoError(w.t, err)
}

func TestRetryRefusesDeletedInput(t *testing.T) {
	w := newFixture(t, false)
	parent := w.run(request(asset("a"), asset("b", "a")))
	made := w.madeA(parent.RunID)
	w.report(made, w.finished(parent.RunID, "raw/b", event.Failed))
	later := w.run(request(asset("a")))
	w.report(w.finished(later.RunID, "raw/a", event.Succeeded))
	_, err := w.Retry(t.Context(), parent.RunID)
	require.ErrorIs(t, err, engine.ErrMissingInput)
	require.ErrorContains(t, err, "task raw/b reads raw/a: a later output replaced it, and `keep` has expired")

	w.faults(func(op faultblob.Op, key string) faultblob.Fault {
		if op == faultblob.Get && contract.IsMarker(key) {
			return faultblob.FailBefore
		}
		return faultblob.None
	})
	_, err = w.Retry(t.Context(), parent.RunID)
	require.ErrorIs(t, err, faultblob.ErrInjected)
	require.NotErrorIs(t, err, engine.ErrMissingInput)
	w.faults(nil)

	w.commit(made)
	handle, err := w.Retry(t.Context(), parent.RunID)
	require.NoError(t, err, "the output is superseded, but still stored")
	require.Equal(t, 1, handle.Tasks)
}

// A run of a request may be planned after another run, with a greater id, has materialized asset a. Then the request's
// run also materializes a, but this output does not become visible, because its run has the smaller id. A retry of the
// request's run reads this invisible output for b. The new output of b must be stale, because b has not read the
// visible output of a. It does not matter that the state on which the request's run was planned already contained the
// visible output.
func TestI21RetryOfOvertakenInputIsStale(t *testing.T) {
	t.Run("files", func(t *testing.T) { testRetryOfOvertakenInput(t, false) })
	t.Run("an output without files", func(t *testing.T) { testRetryOfOvertakenInput(t, true) })
}

func testRetryOfOvertakenInput(t *testing.T, noFiles bool) {
	t.Helper()
	w := newFixture(t, false)
	r := request(asset("a"), asset("b", "a"))
	now := clock.System{}.Now()
	asked, err := w.RequestRun(t.Context(), now.Add(-time.Hour), event.RunSpec{All: true})
	require.NoError(t, err)
	w.fireTimers()
	w.cfg.IDs.Observe(w.state().Requests.Get(asked.ID).RunID)
	later := w.run(request(asset("a")))
	w.report(w.finished(later.RunID, "raw/a", event.Succeeded))
	visible := w.state().Partitions.Get(state.Key2{A: "raw/a"})

	snap, err := w.Current(t.Context())
	require.NoError(t, err)
	row := snap.State.Requests.Get(asked.ID)
	_, err = w.PlanRequest(t.Context(), snap, row, r, now)
	require.ErrorIs(t, err, engine.ErrOvertaken)
	w.planWithoutCheck(snap, row, r, now)
	parent := w.state().Runs.Get(row.RunID)
	require.GreaterOrEqual(t, parent.InputsSeq, visible.VersionSeq)
	made := w.madeA(parent.RunID)
	if noFiles {
		made.Output = nil
	} else {
		w.commit(made)
	}
	w.report(made, w.finished(parent.RunID, "raw/b", event.Failed))
	require.Equal(t, visible, w.state().Partitions.Get(state.Key2{A: "raw/a"}))

	retry, err := w.Retry(t.Context(), parent.RunID)
	require.NoError(t, err)
	require.Less(t, w.state().Runs.Get(retry.RunID).InputsAt, visible.MaterializedAt, "a rebuild compares times")
	w.report(w.finished(retry.RunID, "raw/b", event.Succeeded))
	reader := w.state().Partitions.Get(state.Key2{A: "raw/b"})
	require.Equal(t, retry.RunID, reader.RunID)
	require.Less(t, reader.InputsSeq, visible.VersionSeq, "it seems to have read the visible output of a")
	require.NotEqual(t, visible.ReadIn(), reader.Root())
}

// planWithoutCheck starts the run of a request as an earlier version of Servo did: without a check whether later runs
// have overtaken the run.
func (w *fixture) planWithoutCheck(snap *snapshot.Snapshot, row *state.RunRequest, r engine.RunRequest, now time.Time) {
	w.t.Helper()
	built, err := engine.Prepare(w.t.Context(), snap, r.Plan, now)
	require.NoError(w.t, err)
	data, sha, err := built.Encode()
	require.NoError(w.t, err)
	ref := plan.Ref(w.Domain(), sha)
	_, err = w.blobs.Create(w.t.Context(), ref, data)
	require.NoError(w.t, err)
	created := &event.PlanCreated{
		RunID: row.RunID, PlanID: w.cfg.IDs.New(), PlanRef: ref, Fingerprint: sha, TasksTotal: int32(len(built.Tasks)), //nolint:gosec // few
		ObservedSeq: snap.State.FoldSeq, ObservedTime: snap.State.FoldTime,
	}
	for i := range built.Tasks {
		created.Tasks = append(created.Tasks, built.Tasks[i].TaskDef)
	}
	w.report(&event.RunTriggered{
		RunID: row.RunID, PlanID: created.PlanID, RequestID: row.RequestID, Trigger: event.Trigger{Type: "manual"}, Fingerprint: sha,
	}, created)
}

// Two retries of a run both materialize the asset a. All these runs belong to one chain, and a task counts as having
// read the newest output of its chain. A retry of the first retry would read the output of the first retry, but the
// state would say that it had read the output of the second one. So it is refused.
func TestI21RetryRefusesInputReplacedInChain(t *testing.T) {
	w := newFixture(t, false)
	r := request(asset("a"), asset("b", "a"))
	root := w.run(r)
	w.report(w.finished(root.RunID, "raw/a", event.Failed))
	retry := func(of string) engine.RunHandle {
		h, err := w.Retry(t.Context(), of)
		require.NoError(t, err)
		return h
	}
	one := retry(root.RunID)
	made := w.madeA(one.RunID)
	w.commit(made)
	w.report(made, w.finished(one.RunID, "raw/b", event.Failed))
	two := retry(root.RunID)
	w.report(w.finished(two.RunID, "raw/a", event.Succeeded), w.finished(two.RunID, "raw/b", event.Failed))
	visible := w.state().Partitions.Get(state.Key2{A: "raw/a"})
	require.Equal(t, two.RunID, visible.RunID)
	_, err := w.Retry(t.Context(), one.RunID)
	require.ErrorIs(t, err, engine.ErrMissingInput)
	require.ErrorContains(t, err, "task raw/b reads raw/a: run "+two.RunID+" of the same chain of retries has replaced it")
	three := retry(two.RunID)
	w.report(w.finished(three.RunID, "raw/b", event.Succeeded))
	require.Equal(t, three.RunID, w.state().Partitions.Get(state.Key2{A: "raw/b"}).RunID)
}

// outdated is a source of snapshots whose current snapshot is old. Only a wait after an append returns a newer one.
type outdated struct {
	engine.Snapshots

	old *snapshot.Snapshot
}

func (o outdated) Current(context.Context) (*snapshot.Snapshot, error) { return o.old, nil }

// Two retries of one run are planned on the same state, and the first one ends before the second one is folded. The
// second one would read an output that the first one has replaced.
func TestRetryIsRejectedAfterUnseenRetry(t *testing.T) {
	w := newFixture(t, false)
	parent := w.failedAfter()
	old, err := w.Current(t.Context())
	require.NoError(t, err)
	first, err := w.Retry(t.Context(), parent.RunID)
	require.NoError(t, err)
	w.report(w.finished(first.RunID, "raw/b", event.Failed))
	cfg := w.cfg
	cfg.Snapshots = outdated{cfg.Snapshots, old}
	_, err = engine.New(cfg).As(engine.User("jane")).Retry(t.Context(), parent.RunID)
	require.ErrorContains(t, err, "run "+first.RunID+" of the same chain of retries has been created since the retry was planned")
	_, err = w.Retry(t.Context(), parent.RunID)
	require.NoError(t, err)
}
