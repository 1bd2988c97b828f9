package api_test

import (
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/servov1"
)

func TestTriggerRunLimitsTheRun(t *testing.T) {
	f := serve(t, asset("a/b", "true"))
	f.project.MaxParallelism = 7
	execution := f.connect(t).execution
	for _, c := range []struct {
		request     *servov1.TriggerRunRequest
		parallelism int32
	}{
		{&servov1.TriggerRunRequest{All: true}, 7},
		{&servov1.TriggerRunRequest{All: true, MaxParallelism: 2, TimeoutSec: 3600}, 2},
	} {
		started, err := execution.TriggerRun(t.Context(), c.request)
		require.NoError(t, err)
		f.await(t, started.GetRunId())
		snap, err := f.stack.Current(t.Context())
		require.NoError(t, err)
		run := snap.State.Runs.Get(started.GetRunId())
		require.Equal(t, c.parallelism, run.MaxParallelism)
		require.Equal(t, c.request.GetTimeoutSec(), run.TimeoutSec)
	}
	_, err := execution.TriggerRun(t.Context(), &servov1.TriggerRunRequest{All: true, TimeoutSec: -1})
	require.Equal(t, connect.CodeInvalidArgument, connect.CodeOf(err))
}
