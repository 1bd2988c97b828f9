package engine

import (
	"context"

	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

// Failure is a partition whose task failed, and which no later run has materialized.
type Failure struct {
	Asset     ids.AssetKey
	Partition string
	Task      *state.Task
}

// Failures returns the failed partitions of the given assets: their task failed, and no later run has
// materialized them. It reads the newest 100 runs with failures, newest first. Each partition appears
// once.
func Failures(ctx context.Context, snap *snapshot.Snapshot, assets map[string]*plan.Asset, calendar plan.Calendar) ([]Failure, error) {
	var found []Failure
	seen := map[state.Key2]bool{}
	err := eachFailure(ctx, snap, "", calendar, assets, func(t *state.Task, partition string) {
		if key := (state.Key2{A: t.AssetKey, B: partition}); !seen[key] {
			seen[key] = true
			found = append(found, Failure{assets[t.AssetKey].Key, partition, t})
		}
	})
	return found, err
}
