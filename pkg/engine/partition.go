package engine

import (
	"context"

	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/staleness"
	"github.com/servo-orchestration/servo/pkg/state"
)

// ExplainPartition explains a partition of an asset. If its output was in quarantine, the explanation names the
// person who approved the output.
func ExplainPartition(
	ctx context.Context, snap *snapshot.Snapshot, e *staleness.Evaluation, asset ids.AssetKey, key string,
) (*view.PartitionExplanation, error) {
	row, err := snap.Partition(ctx, asset.String(), key)
	if err != nil {
		return nil, err
	}
	var decision *view.Quarantined
	if row != nil && row.Quality == state.Approved {
		if decision, err = approvalOf(ctx, snap, row); err != nil {
			return nil, err
		}
	}
	return view.ExplainPartition(e, asset, key, decision)
}

// approvalOf returns the approval that published an output, or nil if the rows of the output's run no longer exist.
func approvalOf(ctx context.Context, snap *snapshot.Snapshot, row *state.Partition) (*view.Quarantined, error) {
	s, err := snap.WithRun(ctx, row.RunID)
	if err != nil || s == nil {
		return nil, err
	}
	task := s.Tasks.Get(state.Key2{A: row.RunID, B: row.TaskKey})
	if task == nil {
		return nil, nil
	}
	return view.QuarantineOf(s, task), nil
}

// Shows reports whether the visible output of a partition comes from the task t although t has failed, because the
// output was approved in quarantine.
func Shows(ctx context.Context, snap *snapshot.Snapshot, t *state.Task, partition string) (bool, error) {
	if t.State != state.TaskFailed || t.AssetKey == "" {
		return false, nil
	}
	row, err := snap.Partition(ctx, t.AssetKey, partition)
	return row != nil && row.Quality == state.Approved && row.RunID == t.RunID && row.TaskKey == t.TaskKey, err
}
