package api

import (
	"context"
	"strings"

	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/servov1"
	"github.com/servo-orchestration/servo/pkg/staleness"
)

// judge counts the partitions of assets by status, in one snapshot.
type judge struct {
	calendar   plan.Calendar
	evaluation *staleness.Evaluation
	unknown    error // the error of the evaluation
	failures   map[string][]engine.Failure
}

// newJudge returns a judge for the snapshot and the time of a page. The parameter failures contains the failed
// partitions of all assets.
func newJudge(ctx context.Context, p *page, project *Project, failures map[string][]engine.Failure) *judge {
	j := &judge{calendar: view.Calendar(p.snap.State, p.now), failures: failures}
	j.evaluation, j.unknown = project.evaluate(ctx, p.snap, p.now)
	return j
}

// failuresOf returns the failed partitions by asset.
func failuresOf(ctx context.Context, p *page, assets []plan.Asset) (map[string][]engine.Failure, error) {
	byKey := make(map[string]*plan.Asset, len(assets))
	for i := range assets {
		byKey[assets[i].Key.String()] = &assets[i]
	}
	found, err := engine.Failures(ctx, p.snap, byKey, view.Calendar(p.snap.State, p.now))
	if err != nil {
		return nil, err
	}
	failures := map[string][]engine.Failure{}
	for _, f := range found {
		failures[f.Asset.String()] = append(failures[f.Asset.String()], f)
	}
	return failures, nil
}

// fill sets the fields of an asset that describe the status of its partitions. If the status cannot be
// evaluated, the call still succeeds, and the response says why there is no status.
func (j *judge) fill(into *servov1.Asset, asset *plan.Asset) {
	into.Expected = int32(view.PartitionCount(asset, j.calendar)) //nolint:gosec // at most space.MaxListed
	into.Problem = asset.Broken
	if asset.Broken != "" { // the asset file has problems, so its partitions may be unknown
		into.Expected, into.StatusProblem = max(into.Expected, into.GetMaterialized()), asset.Broken
		return
	}
	err := j.unknown
	if err == nil {
		var counts engine.Counts
		if counts, err = engine.FailedOf(j.failures[asset.Key.String()], asset.Key).Count(j.evaluation, asset.Key); err == nil {
			into.Expected = int32(counts.Total()) //nolint:gosec // at most space.MaxListed
			into.Status = &servov1.Asset_Status{
				Fresh: int32(counts.Fresh), Stale: int32(counts.Stale), Missing: int32(counts.Missing), Failed: int32(counts.Failed), //nolint:gosec // at most space.MaxListed
			}
			return
		}
	}
	into.StatusProblem = err.Error()
}

// maxFailures is the greatest number of failed partitions that a response lists for an asset.
const maxFailures = 100

// fillDetail sets the fields that only GetAsset returns. The columns are those of the given output.
func (s *server) fillDetail(ctx context.Context, into *servov1.Asset, p *page, asset *plan.Asset, failed []engine.Failure, output string) {
	into.Code = asset.Work.SQL
	if len(asset.Work.Command) > 0 {
		into.Code = strings.Join(asset.Work.Command, "\n")
	}
	for _, c := range view.AssetChecks(p.snap.State, asset) {
		into.Checks = append(into.Checks, assetCheck(c))
	}
	for i := range failed[:min(len(failed), maxFailures)] {
		into.Failures = append(into.Failures, failureOf(&failed[i]))
	}
	if output == "" {
		return
	}
	marker, _, err := engine.ReadMarker(ctx, s.Engine.Store(), output)
	if err != nil || marker == nil {
		return // without the commit marker, the columns are unknown
	}
	for _, c := range marker.Columns {
		into.Columns = append(into.Columns, &servov1.Asset_Column{Name: c.Name, Type: c.Type})
	}
}

func failureOf(f *engine.Failure) *servov1.Asset_Failure {
	return &servov1.Asset_Failure{
		PartitionKey: f.Partition, RunId: f.Task.RunID, TaskKey: f.Task.TaskKey, At: timestamp(f.Task.CompletedAt),
		Error: view.ErrorLine(f.Task.ErrorCode, f.Task.ErrorMessage),
	}
}

func assetCheck(c view.AssetCheck) *servov1.Asset_Check {
	one := &servov1.Asset_Check{Check: c.Check, Kind: c.Kind, Phase: c.Phase, Severity: c.Severity, Last: c.Last()}
	if c.Row != nil {
		one.Passed, one.Failed, one.LastAt = c.Row.Passed, c.Row.Failed, timestamp(c.Row.LastAt)
		one.LastRunId, one.LastPartitionKey = c.Row.LastRunID, c.Row.LastPartition
		one.LastTask = c.TaskName(c.Row.LastPartition)
		if !c.Row.LastPassed {
			one.Message = c.Row.FailedMessage
		}
		if c.Row.Failed > 0 {
			one.FailedAt, one.FailedRunId, one.FailedTask = timestamp(c.Row.FailedAt), c.Row.FailedRunID, c.TaskName(c.Row.FailedPartition)
			one.FailedMessage, one.FailedRows = c.Row.FailedMessage, c.Row.FailedSample
		}
	}
	return one
}
