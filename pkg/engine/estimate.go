package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/estimate"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/quality"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

// Prepare plans a run on a snapshot in the same way as [Engine.Run], and changes nothing.
func Prepare(ctx context.Context, snap *snapshot.Snapshot, r plan.Request, now time.Time) (*plan.Plan, error) {
	var failed error
	r.Materialized = func(asset ids.AssetKey) []plan.Input {
		inputs, err := Materialized(ctx, snap, asset)
		failed = cmp.Or(failed, err)
		return inputs
	}
	r.Calendar = view.Calendar(snap.State, now)
	r.Calendar.Future, r.Calendar.ReadsAt = r.AllowFuture, r.ReadsAt
	if newest := snap.State.Runs.Last(); newest != nil && ids.Time(newest.RunID).After(r.ReadsAt) {
		// The id of the newest run may come from a clock that is ahead of this machine's clock. By that clock, further
		// periods may have begun, and the newest run may have materialized them. The new run must read these outputs, so it
		// is planned with the time in that id.
		r.Calendar.ReadsAt = ids.Time(newest.RunID)
	}
	r.History = func(asset string, check *quality.Check, season, partition string) []int64 {
		values, err := history(snap.State, asset, check, season, partition)
		failed = cmp.Or(failed, err)
		return values
	}
	built, err := plan.Build(r)
	if failed != nil {
		return nil, failed // reading some data failed, so the plan is incomplete
	}
	return planned(built, err)
}

// history returns the values that a check has measured in partitions other than the given one. The parameter season is
// the day of the week of these values, or "" for a check that does not compare by season. history omits values that
// were measured before the metric of the check was changed.
func history(s *state.State, asset string, check *quality.Check, season, partition string) (past []int64, err error) {
	row := s.CheckHistory.Get(state.Key3{A: asset, B: check.Name, C: season})
	if row == nil {
		return nil, nil
	}
	var values []state.HistoryValue
	if err := json.Unmarshal([]byte(row.Values), &values); err != nil {
		return nil, fmt.Errorf("read the history of check %s of %s: %w", check.Name, asset, err)
	}
	for _, v := range values {
		if v.Metric == check.MetricName() && (partition == "" || v.Partition != partition) {
			past = append(past, v.Value)
		}
	}
	return past, nil
}

// Estimate predicts the duration and the output of a planned run from the newest successful attempts of its assets. The
// parameter limits contains the maximum numbers of tasks that run at once.
func Estimate(s *state.State, p *plan.Plan, limits estimate.Limits) (estimate.Estimate, error) {
	tasks := make([]estimate.Task, len(p.Tasks))
	at := make(map[string]int, len(p.Tasks))
	assets := map[string]bool{}
	for i := range p.Tasks {
		t := &p.Tasks[i]
		at[t.TaskKey] = i
		tasks[i] = estimate.Task{Asset: t.AssetKey, Pool: t.Pool, Priority: t.Priority, Partitions: len(t.Partitions), Node: t.Kind == event.KindGroup}
		for _, before := range t.DependsOn {
			tasks[i].After = append(tasks[i].After, at[before]) // the plan is in topological order
		}
		if !tasks[i].Node {
			assets[t.AssetKey] = true
		}
	}
	past, err := Past(s, assets)
	if err != nil {
		return estimate.Estimate{}, err
	}
	return estimate.Of(tasks, past, limits), nil
}

// Past returns the newest successful attempts of assets, by asset.
func Past(s *state.State, assets map[string]bool) (map[string][]estimate.Sample, error) {
	past := make(map[string][]estimate.Sample, len(assets))
	for asset := range assets {
		samples, err := Samples(s, asset)
		if err != nil {
			return nil, err
		}
		past[asset] = samples
	}
	return past, nil
}

// Samples returns the newest successful attempts of an asset, oldest first.
func Samples(s *state.State, asset string) ([]estimate.Sample, error) {
	row := s.Statistics.Get(asset)
	if row == nil {
		return nil, nil
	}
	kept, err := row.Samples()
	samples := make([]estimate.Sample, len(kept))
	for i, k := range kept {
		samples[i] = estimate.Sample{
			Partitions: int(k.Partitions),
			Duration:   time.Duration(k.DurationMS) * time.Millisecond, Rows: k.Rows, Bytes: k.Bytes, CPU: estimate.Unknown, Memory: k.MemoryMS,
		}
		if k.CPUMS >= 0 {
			samples[i].CPU = time.Duration(k.CPUMS) * time.Millisecond
		}
	}
	return samples, err
}
