package cli

import (
	"context"
	"strings"

	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/estimate"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/snapshot"
)

// planEstimate predicts the run that `servo run --stale` would start after a deployment.
type planEstimate struct {
	Tasks int `json:"tasks"`
	dryRunEstimate
	// UnknownAssets are the assets without a successful task.
	UnknownAssets []string `json:"unknown_assets,omitempty"`
	texts         []string
}

// withoutPast returns the assets without a successful task.
func withoutPast(e *estimate.Estimate) (unknown []string) {
	for _, asset := range e.Assets {
		if asset.Samples == 0 {
			unknown = append(unknown, asset.Asset)
		}
	}
	return unknown
}

// addEstimate plans the run of the partitions in toRun with the new definitions, and estimates its duration. If the
// run cannot be planned, addEstimate adds the reason to the report and returns no error, because the release can
// still be deployed.
func (a *app) addEstimate(ctx context.Context, r *planReport, c *candidate, snap *snapshot.Snapshot, toRun map[ids.AssetKey][]string) error {
	if len(r.Run) == 0 {
		return nil
	}
	built, err := engine.Prepare(ctx, snap, plan.Request{Root: c.project.Root, Assets: c.Code.Assets, All: true, Only: toRun}, a.Clock.Now())
	if err != nil {
		if ctx.Err() != nil {
			return err
		}
		r.Facts = append(r.Facts, "no estimate of servo run --stale: "+err.Error())
		return nil
	}
	limits, err := a.slots(snap.State, c.project, c.project.MaxParallelism)
	if err != nil {
		return err
	}
	e, err := engine.Estimate(snap.State, built, limits)
	if err != nil {
		return err
	}
	of := estimateOf(&e, c.project.Pricing)
	r.Estimate = &planEstimate{Tasks: e.Tasks, dryRunEstimate: of, UnknownAssets: withoutPast(&e), texts: of.texts(&e)}
	return nil
}

// text writes the estimate for people.
func (e *planEstimate) text(b *strings.Builder) {
	if e == nil {
		return
	}
	for _, text := range e.texts {
		b.WriteString(text + "\n")
	}
}
