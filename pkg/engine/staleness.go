package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/staleness"
	"github.com/servo-orchestration/servo/pkg/state"
)

// Need says which partitions of the selected assets a run materializes.
type Need string

// Needs. The zero Need takes the partitions that the request selects.
const (
	// NeedStale takes the partitions that are stale or missing, and those that read one of them.
	NeedStale Need = "stale"
	// NeedMissing takes the partitions that are missing.
	NeedMissing Need = "missing"
	// NeedFailed takes the partitions whose task failed and which no later run has materialized. It
	// looks at the newest 100 runs with failed tasks.
	NeedFailed Need = "failed"
)

// ErrNothing means that no partition of the selected assets needs to run.
var ErrNothing = errors.New("nothing to run")

// Staleness returns an evaluation of assets at a state.
func Staleness(s *state.State, assets []plan.Asset, now time.Time) (*staleness.Evaluation, error) {
	g, err := plan.NewGraph(assets)
	if err != nil {
		return nil, err
	}
	return staleness.New(g, staleness.Data{
		Rows: func(asset ids.AssetKey) []*state.Partition {
			var rows []*state.Partition
			key := asset.String()
			s.Partitions.Ascend(state.Key2{A: key}, func(row *state.Partition) bool {
				if row.AssetKey == key {
					rows = append(rows, row)
				}
				return row.AssetKey == key
			})
			return rows
		},
		Accepted: func(asset ids.AssetKey, code string) ([]string, error) { return AcceptedCodes(s, asset.String(), code) },
		Calendar: plan.Calendar{Now: now, Zone: time.LoadLocation},
	}), nil
}

// Choose sets Plan.Only of a request to the partitions that it needs, and returns warnings. If none
// needs to run, the error is an [ErrNothing].
func Choose(ctx context.Context, snap *snapshot.Snapshot, r *RunRequest, now time.Time) (warnings []string, err error) {
	if r.Need == "" {
		return nil, nil
	}
	e, err := Staleness(snap.State, r.Plan.Assets, now)
	if err != nil {
		return nil, err
	}
	selected, err := selectedAssets(&r.Plan)
	if err != nil {
		return nil, err
	}
	blocked := 0
	switch r.Need {
	case NeedStale:
		r.Plan.Only, blocked, err = e.ToRun(selected)
	case NeedMissing:
		r.Plan.Only, blocked, err = e.ToMake(selected)
	case NeedFailed:
		r.Plan.Only, err = failedPartitions(ctx, snap, &r.Plan, plan.Calendar{Now: now, Zone: time.LoadLocation}, selected)
	default:
		err = fmt.Errorf("choose partitions: unknown need %q: expected stale, missing or failed", r.Need)
	}
	if err != nil {
		return nil, err
	}
	if blocked > 0 {
		text := fmt.Sprintf("left out %s: a partition that they read is missing: add --upstream", view.Count(blocked, "partition"))
		warnings = append(warnings, text)
	}
	if len(r.Plan.Only) == 0 {
		what := map[Need]string{NeedStale: "stale or missing", NeedMissing: "missing", NeedFailed: "failed"}[r.Need]
		err = fmt.Errorf("%w: no selected partition is %s", ErrNothing, what)
		if blocked > 0 {
			err = fmt.Errorf("no selected partition can run: %s", warnings[0])
		}
	}
	return warnings, err
}

// selectedAssets returns the assets that a request selects.
func selectedAssets(r *plan.Request) (map[ids.AssetKey]bool, error) {
	g, err := plan.NewGraph(r.Assets)
	if err != nil {
		return nil, err
	}
	keys := slices.Concat(r.Select, r.Matched)
	switch {
	case r.All:
		keys = g.Keys()
	case r.Upstream:
		keys = slices.Concat(g.Upstream(r.Select...), r.Matched)
	}
	selected := make(map[ids.AssetKey]bool, len(keys))
	for _, key := range keys {
		selected[key] = true
	}
	return selected, nil
}

// failedPartitions returns the partitions whose task failed in one of the newest runs with failed
// tasks, and which no later run has materialized.
func failedPartitions(
	ctx context.Context, snap *snapshot.Snapshot, r *plan.Request, calendar plan.Calendar, selected map[ids.AssetKey]bool,
) (map[ids.AssetKey][]string, error) {
	runs, err := snap.Runs(ctx, maxOlderRuns, func(run *state.Run) bool { return run.TasksFailed > 0 })
	if err != nil {
		return nil, err
	}
	assets := make(map[string]*plan.Asset, len(r.Assets))
	for i := range r.Assets {
		if selected[r.Assets[i].Key] {
			assets[r.Assets[i].Key.String()] = &r.Assets[i]
		}
	}
	found := map[ids.AssetKey]map[string]bool{}
	for _, run := range runs {
		s, err := snap.WithRun(ctx, run.RunID)
		if err != nil {
			return nil, err
		}
		if s == nil {
			continue
		}
		s.TasksOf(run.RunID, func(t *state.Task) bool {
			asset := assets[t.AssetKey]
			if t.State != state.TaskFailed || t.Kind != event.KindTask || asset == nil {
				return true
			}
			if members, err := calendar.Members(asset.Partitions); err != nil || !members.Has(t.PartitionKey) {
				return true // the definition has changed
			}
			made := snap.State.Partitions.Get(state.Key2{A: t.AssetKey, B: t.PartitionKey})
			if made == nil || made.RunID < run.RunID {
				if found[asset.Key] == nil {
					found[asset.Key] = map[string]bool{}
				}
				found[asset.Key][t.PartitionKey] = true
			}
			return true
		})
	}
	only := make(map[ids.AssetKey][]string, len(found))
	for asset, keys := range found {
		only[asset] = slices.Sorted(maps.Keys(keys))
	}
	return only, nil
}
