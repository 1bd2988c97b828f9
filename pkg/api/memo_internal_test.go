package api

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/servov1"
	"github.com/servo-orchestration/servo/pkg/snapshot"
)

// The list of what needs attention is computed once for each revision, project and minute, and again after an error.
func TestMemoComputesOncePerMoment(t *testing.T) {
	var m memo
	count, failure := 0, error(nil)
	find := func(context.Context) ([]engine.Attention, error) {
		count++
		return []engine.Attention{{Count: int64(count)}}, failure
	}
	first, now := &snapshot.Snapshot{Revision: 1}, time.Date(2025, 1, 15, 12, 0, 1, 0, time.UTC)
	project := &Project{Assets: make([]plan.Asset, 2)}
	ask := func(at moment) int64 {
		found, err := m.attend(t.Context(), at, find)
		require.NoError(t, err)
		return found[0].Count
	}
	require.EqualValues(t, 1, ask(momentOf(first, project, now)))
	require.EqualValues(t, 1, ask(momentOf(first, project, now.Add(58*time.Second))))
	same := *project
	require.EqualValues(t, 1, ask(momentOf(first, &same, now)), "the same assets")
	require.EqualValues(t, 2, ask(momentOf(first, project, now.Add(59*time.Second))), "another minute")
	require.EqualValues(t, 3, ask(momentOf(&snapshot.Snapshot{Revision: 2}, project, now)), "another revision")
	require.EqualValues(t, 4, ask(momentOf(first, &Project{Assets: make([]plan.Asset, 2)}, now)), "another project")
	failure = errors.New("damaged")
	_, err := m.attend(t.Context(), momentOf(first, nil, now), find)
	require.ErrorIs(t, err, failure)
	failure = nil
	require.EqualValues(t, 6, ask(momentOf(first, nil, now)))

	third := &snapshot.Snapshot{Revision: 3}
	j := m.assetsAt(momentOf(third, nil, now))
	require.NotSame(t, j, m.assetsAt(momentOf(first, nil, now)))
	require.Same(t, j, m.assetsAt(momentOf(third, nil, now)), "a page of an earlier revision discards nothing")
	summaries := 0
	for range 2 {
		for _, name := range []string{"a", "b"} {
			got, err := j.summary(t.Context(), &servov1.GetPartitionSummaryRequest{Name: name}, 3, "", func(context.Context) (*servov1.PartitionSummary, error) {
				summaries++
				return &servov1.PartitionSummary{AssetKey: name}, nil
			})
			require.NoError(t, err)
			require.Equal(t, name, got.GetAssetKey())
		}
	}
	require.Equal(t, 2, summaries)
	require.NotSame(t, j, m.assetsAt(momentOf(third, nil, now.Add(time.Minute))))
}

// This test fails if a caller waits for a computation that only another caller has requested, or if a caller keeps
// waiting for its own computation after its context has ended.
func TestJudgedCallersDoNotBlockEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m memo
		j := m.assetsAt(momentOf(&snapshot.Snapshot{Revision: 3}, nil, time.Date(2025, 1, 15, 12, 0, 0, 0, time.UTC)))
		release := make(chan struct{})
		slow := func(context.Context) (*servov1.PartitionSummary, error) { //nolint:unparam // the signature that summary requires
			<-release
			return &servov1.PartitionSummary{AssetKey: "slow"}, nil
		}
		ctx, leave := context.WithCancel(t.Context())
		left, stayed := make(chan error), make(chan string)
		go func() {
			_, err := j.summary(ctx, &servov1.GetPartitionSummaryRequest{Name: "slow"}, 3, "", slow)
			left <- err
		}()
		synctest.Wait()
		go func() {
			got, _ := j.summary(t.Context(), &servov1.GetPartitionSummaryRequest{Name: "slow"}, 3, "", nil)
			stayed <- got.GetAssetKey()
		}()
		synctest.Wait()
		got, err := j.summary(t.Context(), &servov1.GetPartitionSummaryRequest{Name: "fast"}, 3, "", func(context.Context) (*servov1.PartitionSummary, error) {
			return &servov1.PartitionSummary{AssetKey: "fast"}, nil
		})
		require.NoError(t, err)
		require.Equal(t, "fast", got.GetAssetKey())
		found, missing := j.known(nil)
		require.Empty(t, found)
		require.Empty(t, missing)
		leave()
		require.ErrorIs(t, <-left, context.Canceled)
		close(release)
		require.Equal(t, "slow", <-stayed)
	})
}
