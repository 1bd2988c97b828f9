package api_test

import (
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/servov1"
)

func TestAssetSaysHowItsPartitionsAre(t *testing.T) {
	bad := daily(asset("raw/days", `test "$SERVO_PARTITION_DATE" != 2025-01-02 && touch "$SERVO_OUTPUT/x"`))
	f := serve(t, bad, asset("mart/all", `touch "$SERVO_OUTPUT/x"`))
	c := f.connect(t)
	f.run(t, "date=2025-01-01..2025-01-03")

	one, err := c.assets.GetAsset(t.Context(), &servov1.GetAssetRequest{Namespace: "raw", Name: "days"})
	require.NoError(t, err)
	require.EqualValues(t, 5, one.GetExpected())
	require.EqualValues(t, 2, one.GetStatus().GetFresh())
	require.EqualValues(t, 2, one.GetStatus().GetMissing(), "the failed partition counts once")
	require.EqualValues(t, 1, one.GetStatus().GetFailed())
	require.Len(t, one.GetFailures(), 1)
	require.Equal(t, "raw/days[date=2025-01-02]", one.GetFailures()[0].GetTaskKey())
	require.Contains(t, one.GetFailures()[0].GetError(), "EXIT_STATUS")
	require.Contains(t, one.GetCode(), "SERVO_PARTITION_DATE")

	list, err := c.assets.ListAssets(t.Context(), &servov1.ListAssetsRequest{})
	require.NoError(t, err)
	require.EqualValues(t, 1, list.GetAssets()[0].GetStatus().GetFresh())
	require.EqualValues(t, 1, list.GetAssets()[1].GetStatus().GetFailed())
	require.Empty(t, list.GetAssets()[1].GetCode(), "only GetAsset returns it")
}

func TestFailedPartitionsAreListedCountedAndExplained(t *testing.T) {
	bad := daily(asset("raw/days", `test "$SERVO_PARTITION_DATE" != 2025-01-02 && touch "$SERVO_OUTPUT/x"`))
	f := serve(t, bad)
	c := f.connect(t)
	run := f.run(t, "date=2025-01-01..2025-01-03")
	list := func(status ...string) (found []string) {
		page, err := c.partitions.ListPartitions(t.Context(), &servov1.ListPartitionsRequest{Namespace: "raw", Name: "days", Status: status})
		require.NoError(t, err)
		for _, p := range page.GetPartitions() {
			found = append(found, p.GetPartition()+" "+p.GetStatus())
		}
		return found
	}
	require.Equal(t, []string{"date=2025-01-02 failed"}, list("failed"))
	require.Equal(t, []string{"date=2025-01-04 missing", "date=2025-01-05 missing"}, list("missing"))
	require.Len(t, list(), 5)
	sum, err := c.partitions.GetPartitionSummary(t.Context(), &servov1.GetPartitionSummaryRequest{Namespace: "raw", Name: "days"})
	require.NoError(t, err)
	require.EqualValues(t, 1, sum.GetTotal().GetFailed())
	require.EqualValues(t, 2, sum.GetTotal().GetMissing())
	require.EqualValues(t, 1, sum.GetBuckets()[1].GetFailed())
	x, err := c.partitions.ExplainPartition(t.Context(), &servov1.ExplainPartitionRequest{Namespace: "raw", Name: "days", Partition: "date=2025-01-02"})
	require.NoError(t, err)
	require.Equal(t, "failed", x.GetStatus())
	require.Equal(t, run, x.GetFailure().GetRunId())
	require.Contains(t, x.GetHeadline(), "failed in its newest run: EXIT_STATUS")

	status, err := c.execution.GetRunStatus(t.Context(), &servov1.GetRunStatusRequest{RunId: run})
	require.NoError(t, err)
	require.Len(t, status.GetNext(), 2)
	require.Equal(t, "run", status.GetNext()[0].GetAction())
	require.Equal(t, "retry", status.GetNext()[1].GetAction())
	attention, err := c.state.ListAttention(t.Context(), &servov1.ListAttentionRequest{})
	require.NoError(t, err)
	require.Equal(t, "retry", attention.GetAttention()[0].GetNext().GetAction())
}

func TestRunsChoosePartitionsByStatus(t *testing.T) {
	f := serve(t, daily(asset("raw/days", `touch "$SERVO_OUTPUT/x"`)))
	c := f.connect(t)
	f.run(t, "date=2025-01-01..2025-01-03")
	started, err := c.execution.TriggerRun(t.Context(), &servov1.TriggerRunRequest{All: true, Only: "missing"})
	require.NoError(t, err)
	require.EqualValues(t, 2, started.GetTasks())
	f.await(t, started.GetRunId())
	_, err = c.execution.TriggerRun(t.Context(), &servov1.TriggerRunRequest{All: true, Only: "stale"})
	require.Equal(t, connect.CodeFailedPrecondition, connect.CodeOf(err), "nothing is stale: %v", err)
	for _, wrong := range []*servov1.TriggerRunRequest{{All: true, Only: "fresh"}, {All: true, Only: "stale", Partitions: []string{"date=2025-01-01"}}, {All: true, AllowFuture: true}} {
		_, err = c.execution.TriggerRun(t.Context(), wrong)
		require.Equal(t, connect.CodeInvalidArgument, connect.CodeOf(err), "%v", err)
	}
}

func TestRunsOfOneAssetAreListed(t *testing.T) {
	f := serve(t, asset("raw/a", `touch "$SERVO_OUTPUT/x"`), asset("raw/b", `touch "$SERVO_OUTPUT/x"`))
	c := f.connect(t)
	started, err := c.execution.TriggerRun(t.Context(), &servov1.TriggerRunRequest{Assets: []string{"raw/b"}})
	require.NoError(t, err)
	f.await(t, started.GetRunId())
	for asset, want := range map[string]int{"raw/a": 0, "raw/b": 1, "": 1} {
		found, err := c.execution.ListRuns(t.Context(), &servov1.ListRunsRequest{Asset: asset})
		require.NoError(t, err)
		require.Len(t, found.GetRuns(), want, asset)
	}
}

func TestGanttRowsHaveErrorsAndOutputs(t *testing.T) {
	f := serve(t, asset("raw/a", `touch "$SERVO_OUTPUT/x"`), asset("raw/b", `exit 3`, "raw/a"))
	c := f.connect(t)
	run := f.run(t)
	g, err := c.execution.GetGantt(t.Context(), &servov1.GetGanttRequest{RunId: run})
	require.NoError(t, err)
	require.Len(t, g.GetRows(), 2)
	require.Equal(t, "EXIT_STATUS", g.GetRows()[1].GetErrorCode())
	require.EqualValues(t, 1, g.GetRows()[1].GetFailed())
	require.Equal(t, []string{"raw/a", "raw/b"}, g.GetCriticalPath())
	require.Positive(t, g.GetCriticalDuration().AsDuration())
}
