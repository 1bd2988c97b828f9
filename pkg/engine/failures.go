package engine

import (
	"context"

	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/staleness"
	"github.com/servo-orchestration/servo/pkg/state"
)

// Failure is a partition whose task failed, and that no later run has materialized.
type Failure struct {
	Asset     ids.AssetKey
	Partition string
	Task      *state.Task
}

// Failures returns the failed partitions of the given assets: their task failed, and no later run has materialized
// them. It reads the newest 100 runs with failures, newest first. Each partition appears once.
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

// StatusFailed is the status of a partition whose newest task failed, and that no later run has materialized. It
// hides the underlying status of the partition: missing, stale or fresh. Options such as `--missing-only` use the
// underlying status, so that they also select failed partitions.
const StatusFailed staleness.Status = view.PartitionFailed

// Failed are the failed partitions of one asset, by key.
type Failed map[string]*Failure

// FailedOf returns the failed partitions of an asset among failures.
func FailedOf(failures []Failure, asset ids.AssetKey) Failed {
	failed := Failed{}
	for i := range failures {
		if failures[i].Asset == asset {
			failed[failures[i].Partition] = &failures[i]
		}
	}
	return failed
}

// Status returns StatusFailed for a failed partition, unless the partition is unexpected. Otherwise it returns the
// given underlying status.
func (f Failed) Status(partition string, underlying staleness.Status) staleness.Status {
	if f[partition] == nil || underlying == staleness.Unexpected {
		return underlying
	}
	return StatusFailed
}

// Counts are the numbers of partitions of an asset by status. Each partition counts once.
type Counts struct {
	staleness.Counts

	Failed int `json:"failed"`
}

// Total returns the number of partitions that are expected or materialized.
func (c Counts) Total() int { return c.Fresh + c.Stale + c.Missing + c.Failed }

// Count counts the partitions of an asset.
func (f Failed) Count(e *staleness.Evaluation, asset ids.AssetKey) (Counts, error) {
	all, err := e.Partitions(asset)
	var c Counts
	for _, p := range all {
		switch f.Status(p.Key, p.Status) {
		case staleness.Fresh:
			c.Fresh++
		case staleness.Stale:
			c.Stale++
		case staleness.Missing:
			c.Missing++
		case StatusFailed:
			c.Failed++
		case staleness.Unexpected:
		}
	}
	return c, err
}
