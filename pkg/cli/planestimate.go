package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/estimate"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/snapshot"
)

// planEstimate predicts the run of what `servo run --stale` would materialize after a deployment.
type planEstimate struct {
	Tasks int `json:"tasks"`
	dryRunEstimate
	// UnknownAssets are those of which no task has succeeded yet.
	UnknownAssets []string `json:"unknown_assets,omitempty"`
	texts         []string
}

// estimateOf returns the parts of an estimate that people see.
func estimateOf(e *estimate.Estimate) dryRunEstimate {
	return dryRunEstimate{
		Unknown: e.Unknown, Work: e.Work.Seconds(), Makespan: e.Makespan.Seconds(), MakespanP95: e.MakespanP95.Seconds(), Rows: e.Rows, Bytes: e.Bytes,
	}
}

// estimateTexts describes an estimate in one line, and the assets that it does not cover in another.
func estimateTexts(e *estimate.Estimate) (texts []string) {
	if e.Tasks > e.Unknown {
		texts = append(texts, fmt.Sprintf("estimate: about %s, or %s if every task takes its 95th percentile; %s of work in all tasks, %s, %s",
			view.Span(e.Makespan), view.Span(e.MakespanP95), view.Span(e.Work), plural(int(e.Rows), "row"), bytesText(e.Bytes)))
	}
	if unknown := withoutPast(e); len(unknown) > 0 {
		texts = append(texts, fmt.Sprintf("no estimate for %s: no task has succeeded yet", view.Some(unknown)))
	}
	return texts
}

// withoutPast returns the assets of which no task has succeeded yet.
func withoutPast(e *estimate.Estimate) (unknown []string) {
	for _, asset := range e.Assets {
		if asset.Samples == 0 {
			unknown = append(unknown, asset.Asset)
		}
	}
	return unknown
}

// addEstimate plans the run of the partitions in toRun with the new definitions, and estimates its
// duration. If the run cannot be planned, the report says so, but there is no error: the release can
// be deployed nevertheless.
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
	e, err := engine.Estimate(ctx, snap, built, limits)
	if err != nil {
		return err
	}
	r.Estimate = &planEstimate{Tasks: e.Tasks, dryRunEstimate: estimateOf(&e), UnknownAssets: withoutPast(&e)}
	r.Estimate.texts = estimateTexts(&e)
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
