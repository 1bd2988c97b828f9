package engine

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/staleness"
	"github.com/servo-orchestration/servo/pkg/state"
)

// Need determines which partitions of the selected assets a run materializes.
type Need string

// These are the values of [Need]. The zero value means all partitions that the request selects.
const (
	// NeedStale means the partitions that are stale or missing, and the partitions that read one of them.
	NeedStale Need = "stale"
	// NeedMissing means the partitions that are missing.
	NeedMissing Need = "missing"
	// NeedFailed means the partitions that failed and that no later run has materialized. A partition failed if its task
	// failed, or if its task was cancelled because its run timed out. NeedFailed includes the partitions that were skipped
	// because an upstream task failed. Only the newest 100 runs with failed or timed-out tasks are read.
	NeedFailed Need = "failed"
)

// ErrNothing means that no partition of the selected assets needs to run.
var ErrNothing = errors.New("nothing to run")

// Staleness evaluates the staleness of assets on a snapshot.
func Staleness(ctx context.Context, snap *snapshot.Snapshot, assets []plan.Asset, now time.Time) (*staleness.Evaluation, error) {
	g, err := plan.NewGraph(assets)
	if err != nil {
		return nil, err
	}
	return Evaluate(ctx, snap, g, now), nil
}

// Evaluate is like [Staleness], for callers that already have the graph of the assets.
func Evaluate(ctx context.Context, snap *snapshot.Snapshot, g *plan.Graph, now time.Time) *staleness.Evaluation {
	return staleness.New(g, staleness.Data{
		Rows: func(asset ids.AssetKey) iter.Seq2[*state.Partition, error] {
			return snap.Versions(ctx, asset.String())
		},
		Version: func(asset ids.AssetKey, partition string) (*state.Partition, error) {
			return snap.Version(ctx, asset.String(), partition)
		},
		Row: func(asset ids.AssetKey, partition string) (*state.Partition, error) {
			return snap.Partition(ctx, asset.String(), partition)
		},
		Accepted: func(asset ids.AssetKey, code string) ([]string, error) {
			return AcceptedCodes(snap.State, asset.String(), code)
		},
		Marks: func(asset ids.AssetKey) iter.Seq[*state.Mark] {
			return snap.MarksOf(ctx, asset.String())
		},
		Calendar:   view.Calendar(snap.State, now),
		KeyChanges: snap.State.KeyChanges,
	})
}

// evaluated returns the evaluation of the assets of a request.
func evaluated(ctx context.Context, snap *snapshot.Snapshot, r *plan.Request, now time.Time) (*staleness.Evaluation, error) {
	g, err := r.AssetGraph()
	if err != nil {
		return nil, err
	}
	return Evaluate(ctx, snap, g, now), nil
}

// Choose sets Plan.Only of a request to the partitions that need to run, and returns warnings. If no partition needs
// to run, the error wraps [ErrNothing].
func Choose(ctx context.Context, snap *snapshot.Snapshot, r *RunRequest, now time.Time) (warnings []string, err error) {
	if r.Need == "" {
		return nil, chooseByStatus(ctx, snap, r, now)
	}
	e, err := evaluated(ctx, snap, &r.Plan, now)
	if err != nil {
		return nil, err
	}
	e.AllowIncomplete(r.Plan.AllowIncomplete)
	selected, err := selectedAssets(&r.Plan)
	if err != nil {
		return nil, err
	}
	if err := restrictTo(e, snap, r, selected, now); err != nil {
		return nil, err
	}
	var blocked map[ids.AssetKey]int
	switch r.Need {
	case NeedStale:
		r.Plan.Only, blocked, err = e.ToRun(selected)
	case NeedMissing:
		r.Plan.Only, blocked, err = e.ToMake(selected)
	case NeedFailed:
		r.Plan.Only, err = failedPartitions(ctx, snap, &r.Plan, view.Calendar(snap.State, now), selected, true)
	default:
		err = fmt.Errorf("choose partitions: unknown need %q: expected stale, missing or failed", r.Need)
	}
	if err != nil {
		return nil, err
	}
	noKeys := ""
	if set := emptySet(&r.Plan, selected, view.Calendar(snap.State, now)); set != "" {
		noKeys = fmt.Sprintf(", and the key set %s has no keys: add them with `servo partitions add %s KEY…`", set, set)
	}
	switch {
	case len(blocked) > 0 && noKeys != "":
		warnings = append(warnings, "skipped "+blockedText(blocked)+": an expected input is missing"+noKeys)
	case len(blocked) > 0:
		warnings = append(warnings, "skipped "+blockedText(blocked)+fmt.Sprintf(": an expected input is missing: add %s, or accept this with %s",
			r.Plan.Form.Name(plan.OptionUpstream), r.Plan.Form.Name(plan.OptionAllowIncomplete)))
	}
	never := ""
	if impossible := e.Impossible(); len(impossible) > 0 {
		never = "skipped " + blockedText(impossible) + ", because an upstream asset declares none of the partitions that they read: " +
			"`servo validate` names the assets"
		warnings = append(warnings, never)
	}
	for _, err := range e.Unlisted() {
		warnings = append(warnings, "skipped an asset: "+err.Error())
	}
	if len(r.Plan.Only) == 0 {
		what := map[Need]string{NeedStale: "is stale or missing", NeedMissing: "is missing", NeedFailed: "has failed"}[r.Need]
		err = fmt.Errorf("%w: no selected partition %s%s", ErrNothing, what, noKeys)
		if never != "" {
			err = fmt.Errorf("%w; %s", err, never)
		}
		if len(blocked) > 0 {
			err = fmt.Errorf("%w: no selected partition can run: %s", ErrMissingInput, warnings[0])
		}
	}
	return warnings, err
}

// restrictTo limits an evaluation to the partitions of the root assets that a request selects, and to
// those partitions of the other selected assets that these root partitions read.
func restrictTo(e *staleness.Evaluation, snap *snapshot.Snapshot, r *RunRequest, selected map[ids.AssetKey]bool, now time.Time) error {
	if len(r.Plan.Partitions) == 0 {
		return nil
	}
	p := r.Plan
	p.Calendar = view.Calendar(snap.State, now)
	if len(r.Roots) > 0 {
		p.Select = r.Roots
	}
	choice, err := plan.Choose(p, plan.MaxTasks)
	if err != nil {
		return &PlanError{err}
	}
	r.Plan.Partitions = nil
	return e.Restrict(choice.Partitions, selected)
}

// blockedText describes the partitions that lack an input.
func blockedText(blocked map[ids.AssetKey]int) string {
	total, names := 0, []string{}
	for _, key := range slices.SortedFunc(maps.Keys(blocked), plan.CompareKeys) {
		total += blocked[key]
		names = append(names, key.String())
	}
	return view.Count(total, "partition") + " of " + view.Some(names)
}

// emptySet returns an empty key set that defines partitions of a selected asset, or "".
func emptySet(r *plan.Request, selected map[ids.AssetKey]bool, c plan.Calendar) string {
	for i := range r.Assets {
		if set := c.EmptySet(r.Assets[i].Partitions); set != "" && selected[r.Assets[i].Key] {
			return set
		}
	}
	return ""
}

// selectedAssets returns the assets that a request selects.
func selectedAssets(r *plan.Request) (map[ids.AssetKey]bool, error) {
	g, err := r.AssetGraph()
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

// failedAndSkipped returns the failed tasks of a run, and those that the run skipped because an upstream task failed.
func failedAndSkipped(ctx context.Context, snap *snapshot.Snapshot, run *state.Run) ([]snapshot.FailedTask, error) {
	failed, err := snap.FailedTasks(ctx, run)
	if err != nil {
		return nil, err
	}
	skipped, err := snap.SkippedTasks(ctx, run)
	skipped = slices.DeleteFunc(skipped, func(one snapshot.FailedTask) bool { return one.Task.ErrorCode != fold.CodeUpstreamFailed })
	return slices.Concat(failed, skipped), err
}

// failedPartitions returns the partitions whose task failed in one of the newest runs with failed tasks, and that no
// later run has materialized. If skipped is true, it also returns the partitions that these runs skipped because an
// upstream task failed: nothing else would materialize them after the failure is fixed.
func failedPartitions(
	ctx context.Context, snap *snapshot.Snapshot, r *plan.Request, calendar plan.Calendar, selected map[ids.AssetKey]bool, skipped bool,
) (map[ids.AssetKey][]string, error) {
	assets := make(map[string]*plan.Asset, len(r.Assets))
	for i := range r.Assets {
		if selected[r.Assets[i].Key] {
			assets[r.Assets[i].Key.String()] = &r.Assets[i]
		}
	}
	found := map[ids.AssetKey]map[string]bool{}
	add := func(t *state.Task, partition string) {
		key := assets[t.AssetKey].Key
		if found[key] == nil {
			found[key] = map[string]bool{}
		}
		found[key][partition] = true
	}
	tasksOf := snap.FailedTasks
	if skipped {
		tasksOf = func(ctx context.Context, run *state.Run) ([]snapshot.FailedTask, error) {
			return failedAndSkipped(ctx, snap, run)
		}
	}
	if err := eachUnmade(ctx, snap, "", calendar, assets, tasksOf, add); err != nil {
		return nil, err
	}
	only := make(map[ids.AssetKey][]string, len(found))
	for asset, keys := range found {
		only[asset] = slices.Sorted(maps.Keys(keys))
	}
	return only, nil
}
