package api

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/servov1"
	"github.com/servo-orchestration/servo/pkg/snapshot"
)

// judged holds the assets that callers have requested for one revision, project and minute. Callers that request the
// same assets share one computation. Callers that request other assets do not wait for it.
type judged struct {
	listing   shared[string, []*servov1.Asset]
	searching shared[struct{}, map[string][]engine.Failure]
	counting  shared[string, *servov1.PartitionSummary]

	// earlier holds the results for earlier moments with the same project and timeline.
	earlier results

	mu sync.Mutex // guards the fields below; not held during a computation
	// now holds the results for the current moment.
	now results
	// failures are the failed partitions by asset; nil: not computed yet.
	failures map[string][]engine.Failure
}

// results are computed from the rows of a revision.
type results struct {
	assets    map[ids.AssetKey]assetResult
	summaries map[string]summaryResult // by request
	// project describes the project; nil: not computed yet.
	project *projectIndex
}

// projectIndex describes the assets of a project, by key.
type projectIndex struct {
	sorted []keyedAsset
	assets map[ids.AssetKey]*plan.Asset
	// readers contains, for each asset, the keys of the assets that read it.
	readers map[ids.AssetKey][]string
}

// keyedAsset is an asset with the text of its key.
type keyedAsset struct {
	key   string
	asset *plan.Asset
}

func indexOf(p *Project) *projectIndex {
	index := &projectIndex{assets: make(map[ids.AssetKey]*plan.Asset, len(p.Assets)), readers: readersOf(p.Assets)}
	for i := range p.Assets {
		a := &p.Assets[i]
		index.assets[a.Key], index.sorted = a, append(index.sorted, keyedAsset{a.Key.String(), a})
	}
	slices.SortFunc(index.sorted, func(a, b keyedAsset) int { return strings.Compare(a.key, b.key) })
	return index
}

// assetResult is an asset that callers have requested.
type assetResult struct {
	asset  *servov1.Asset
	output string // where the newest output of the asset is stored
	inputs string // see [inputs.identify]
}

// summaryResult is a summary of the partitions of an asset.
type summaryResult struct {
	summary *servov1.PartitionSummary
	inputs  string
}

func newJudged() *judged {
	return &judged{now: results{assets: map[ids.AssetKey]assetResult{}, summaries: map[string]summaryResult{}}}
}

// results returns the newest result for each asset and each summary. A result may be of an earlier revision.
func (j *judged) results() results {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.now.assets) == 0 && len(j.now.summaries) == 0 {
		return j.earlier
	}
	all := results{assets: maps.Clone(j.earlier.assets), summaries: maps.Clone(j.earlier.summaries), project: j.now.project}
	if all.assets == nil {
		all.assets = map[ids.AssetKey]assetResult{}
	}
	if all.summaries == nil || len(all.summaries) > maxSummaries {
		all.summaries = map[string]summaryResult{}
	}
	maps.Copy(all.assets, j.now.assets)
	maps.Copy(all.summaries, j.now.summaries)
	if all.project == nil {
		all.project = j.earlier.project
	}
	return all
}

// inputs contains everything on which the statuses of partitions depend at one moment, except the project.
type inputs struct {
	snap     *snapshot.Snapshot
	calendar plan.Calendar
	keys     snapshot.Stamp
	assets   map[ids.AssetKey]*plan.Asset
}

func inputsAt(at *page, project *projectIndex) *inputs {
	return &inputs{snap: at.snap, calendar: view.Calendar(at.snap.State, at.now), keys: at.snap.KeysStamp(), assets: project.assets}
}

// identify returns a text that identifies everything on which the statuses of an asset's partitions depend: the rows
// and the begun and expected periods of this asset and of the assets that it reads; the keys of the key sets; and the
// failed partitions of this asset. If the text is the same at two moments, the statuses are, too.
func (in *inputs) identify(asset *plan.Asset, failures []engine.Failure) string {
	var b strings.Builder
	fmt.Fprint(&b, in.keys)
	for _, key := range append([]ids.AssetKey{asset.Key}, asset.Deps...) {
		fmt.Fprint(&b, in.snap.StampOf(key.String()))
		if one := in.assets[key]; one != nil {
			b.WriteString(in.calendar.Progress(one.Partitions))
		}
	}
	for i := range failures {
		fmt.Fprintf(&b, " %q", failures[i].Partition)
	}
	return b.String()
}

// maxSummaries limits how many summaries of partitions are kept: enough for all assets of a page.
const maxSummaries = 1000

// list returns assets with their totals and the status of their partitions, in the order of the argument. It computes
// only the assets that no earlier call has computed for this moment.
func (j *judged) list(ctx context.Context, at *page, p *Project, assets []*plan.Asset) ([]*servov1.Asset, error) {
	found, missing := j.known(assets)
	if len(missing) == 0 {
		return found, nil
	}
	var key strings.Builder
	for _, asset := range missing {
		key.WriteString(asset.Key.String() + "\n")
	}
	computed, err := j.listing.do(ctx, key.String(), func(ctx context.Context) ([]*servov1.Asset, error) {
		return j.compute(ctx, at, p, missing)
	})
	if err != nil {
		return nil, err
	}
	for i := range found {
		if found[i] == nil {
			found[i], computed = computed[0], computed[1:]
		}
	}
	return found, nil
}

// known returns the computed assets, in the order of the argument. For each asset that is not computed, found contains
// nil, and missing contains the asset.
func (j *judged) known(assets []*plan.Asset) (found []*servov1.Asset, missing []*plan.Asset) {
	j.mu.Lock()
	defer j.mu.Unlock()
	found = make([]*servov1.Asset, len(assets))
	for i, asset := range assets {
		if found[i] = j.now.assets[asset.Key].asset; found[i] == nil {
			missing = append(missing, asset)
		}
	}
	return found, missing
}

// compute computes assets and keeps them. It reuses the result of an earlier moment if the inputs are the same. It does
// not keep the judge, because the evaluation of the judge holds all rows that it has read.
func (j *judged) compute(ctx context.Context, at *page, p *Project, assets []*plan.Asset) ([]*servov1.Asset, error) {
	found, missing := j.known(assets) // another call may have computed some of them meanwhile
	if len(missing) == 0 {
		return found, nil
	}
	failures, err := j.search(ctx, at, p)
	if err != nil {
		return nil, err
	}
	project := j.projectIndex(p)
	judge, in := newJudge(ctx, at, p, failures), inputsAt(at, project)
	for i, asset := range assets {
		if found[i] != nil {
			continue
		}
		one := assetResult{inputs: in.identify(asset, failures[asset.Key.String()])}
		if before := j.earlier.assets[asset.Key]; before.asset != nil && before.inputs == one.inputs {
			one = before
		} else if one.asset, one.output, err = assetOf(ctx, at, asset, project.readers); err != nil {
			return nil, err
		} else {
			judge.fill(one.asset, asset)
		}
		j.keep(asset.Key, one)
		found[i] = one.asset
	}
	return found, nil
}

// keep keeps a result. If the status could not be evaluated, only the place of the output is kept, because the cause
// may be temporary: the callers have left, or the store did not answer.
func (j *judged) keep(key ids.AssetKey, one assetResult) {
	if one.asset.GetStatusProblem() != "" {
		one.asset = nil
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.now.assets[key] = one
}

// projectIndex describes the project.
func (j *judged) projectIndex(p *Project) *projectIndex {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.now.project == nil {
		j.now.project = j.earlier.project
	}
	if j.now.project == nil {
		j.now.project = indexOf(p)
	}
	return j.now.project
}

// search returns the failed partitions of all assets.
func (j *judged) search(ctx context.Context, at *page, p *Project) (map[string][]engine.Failure, error) {
	return j.searching.do(ctx, struct{}{}, func(ctx context.Context) (map[string][]engine.Failure, error) {
		j.mu.Lock()
		known := j.failures
		j.mu.Unlock()
		if known != nil {
			return known, nil
		}
		found, err := failuresOf(ctx, at, p.Assets)
		if err != nil {
			return nil, err
		}
		j.mu.Lock()
		defer j.mu.Unlock()
		j.failures = found
		return found, nil
	})
}

// detail returns the failed partitions of an asset that list has returned, and the location of its newest output.
func (j *judged) detail(asset ids.AssetKey) (failed []engine.Failure, output string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.failures[asset.String()], j.now.assets[asset].output
}

// failedAt returns the failed partitions of an asset. It searches for them if no earlier call has done so for this
// moment.
func (j *judged) failedAt(ctx context.Context, at *page, p *Project, asset ids.AssetKey) (engine.Failed, error) {
	failures, err := j.search(ctx, at, p)
	return engine.FailedOf(failures[asset.String()], asset), err
}

// summary returns the summary of partitions that a request asks for. The parameter identity is the result of
// [inputs.identify] for the asset at the revision.
func (j *judged) summary(
	ctx context.Context, r *servov1.GetPartitionSummaryRequest, revision int64, identity string,
	count func(context.Context) (*servov1.PartitionSummary, error),
) (*servov1.PartitionSummary, error) {
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encode the request: %w", err)
	}
	key := string(raw)
	return j.counting.do(ctx, key, func(ctx context.Context) (*servov1.PartitionSummary, error) {
		j.mu.Lock()
		known := j.now.summaries[key]
		j.mu.Unlock()
		if known.summary != nil {
			return known.summary, nil
		}
		one := summaryResult{inputs: identity}
		if before := j.earlier.summaries[key]; before.summary != nil && before.inputs == identity {
			one.summary = proto.CloneOf(before.summary)
			one.summary.Revision = revision
		} else if one.summary, err = count(ctx); err != nil {
			return nil, err
		}
		j.mu.Lock()
		defer j.mu.Unlock()
		if len(j.now.summaries) == maxSummaries {
			clear(j.now.summaries)
		}
		j.now.summaries[key] = one
		return one.summary, nil
	})
}
