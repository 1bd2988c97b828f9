package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/space"
	"github.com/servo-orchestration/servo/pkg/staleness"
)

// chooseByStatus evaluates selections with a status, such as "2025-03;missing". It stores the matching partitions in
// Plan.Only. It does nothing if no selection has a status.
func chooseByStatus(ctx context.Context, snap *snapshot.Snapshot, r *RunRequest, now time.Time) error {
	if !slices.ContainsFunc(r.Plan.Partitions, func(s plan.Selection) bool { return s.Status != "" }) {
		return nil
	}
	for _, s := range r.Plan.Partitions {
		if s.Status == "" {
			return &PlanError{fmt.Errorf("choose partitions: the selection %s has no status, but another selection has one: add a status to it, or start two runs",
				r.Plan.Form.Select(s.String()))}
		}
	}
	e, err := evaluated(ctx, snap, &r.Plan, now)
	if err != nil {
		return err
	}
	selected, err := selectedAssets(&r.Plan)
	if err != nil {
		return err
	}
	c := statusChooser{evaluation: e, calendar: view.Calendar(snap.State, now), selections: r.Plan.Partitions}
	c.calendar.Future = r.Plan.AllowFuture
	if slices.ContainsFunc(r.Plan.Partitions, func(s plan.Selection) bool { return s.Status == space.Failed }) {
		if c.failed, err = failedPartitions(ctx, snap, &r.Plan, c.calendar, selected, false); err != nil {
			return err
		}
	}
	only := map[ids.AssetKey][]string{}
	for i := range r.Plan.Assets {
		a := &r.Plan.Assets[i]
		if !selected[a.Key] || a.Broken != "" {
			continue
		}
		keys, err := c.choose(a, slices.Contains(r.Plan.Select, a.Key))
		if err != nil {
			return err
		}
		if len(keys) > 0 {
			only[a.Key] = keys
		}
	}
	if len(only) == 0 {
		texts := make([]string, len(c.selections))
		for i, s := range c.selections {
			texts[i] = r.Plan.Form.Select(s.String())
		}
		return fmt.Errorf("%w: no selected partition matches %s", ErrNothing, strings.Join(texts, " or "))
	}
	r.Plan.Only, r.Plan.Partitions = only, nil
	return nil
}

// statusChooser chooses partitions by selections with a status.
type statusChooser struct {
	evaluation *staleness.Evaluation
	calendar   plan.Calendar
	selections []plan.Selection
	failed     map[ids.AssetKey][]string
}

// choose returns the partitions of an asset that match at least one of the selections, sorted. If named is true, the
// request names the asset, and every selection must fit the dimensions of the asset.
func (c *statusChooser) choose(a *plan.Asset, named bool) ([]string, error) {
	chosen := map[string]bool{}
	for _, s := range c.selections {
		keys, err := c.withStatus(a.Key, s.Status)
		if err != nil {
			return nil, err
		}
		inside := func(string) bool { return true } // an unpartitioned asset
		if a.Partitions != nil {
			inside, err = c.calendar.Filter(a.Partitions, s)
			if other := new(space.UnknownDimensionError); errors.As(err, &other) && !named {
				continue
			}
			if err != nil {
				return nil, &PlanError{fmt.Errorf("asset %s: %w", a.Key, err)}
			}
		}
		for _, key := range keys {
			if inside(key) {
				chosen[key] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(chosen)), nil
}

// withStatus returns the partitions of an asset that have a status.
func (c *statusChooser) withStatus(asset ids.AssetKey, status string) ([]string, error) {
	if status == space.Failed {
		return c.failed[asset], nil
	}
	want := staleness.Missing
	if status == space.Stale {
		want = staleness.Stale
	}
	partitions, err := c.evaluation.Partitions(asset)
	var keys []string
	for _, p := range partitions {
		if p.Status == want {
			keys = append(keys, p.Key)
		}
	}
	return keys, err
}
