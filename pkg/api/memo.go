package api

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/servov1"
	"github.com/servo-orchestration/servo/pkg/snapshot"
)

// memoStep is how long a result stays valid. Results expire because expected partitions and deadlines depend on the
// time.
const memoStep = time.Minute

// moment identifies the snapshot, the project and the minute that the results of a memo depend on.
type moment struct {
	snap *snapshot.Snapshot
	// assets points to the first asset of the project. A reloaded project has another pointer.
	assets *plan.Asset
	count  int
	minute int64
}

// momentOf returns the moment of a snapshot, a project and a time. The project may be nil.
func momentOf(snap *snapshot.Snapshot, p *Project, now time.Time) moment {
	m := moment{snap: snap, minute: now.UnixNano() / int64(memoStep)}
	if p == nil {
		m.count = -1
	} else if m.count = len(p.Assets); m.count > 0 {
		m.assets = &p.Assets[0]
	}
	return m
}

// memo keeps the results of the newest moment. An open web page repeats its requests, and while nothing changes, memo
// answers them without a computation. Its zero value is empty.
type memo struct {
	attending shared[moment, []engine.Attention]

	mu        sync.Mutex
	at        moment
	attention []engine.Attention
	attended  bool
	judged    *judged
}

// judged holds the assets that callers have requested for one revision, project and minute. Callers that request the
// same assets share one computation. Callers that request other assets do not wait for it.
type judged struct {
	listing   shared[string, []*servov1.Asset]
	searching shared[struct{}, map[string][]engine.Failure]
	counting  shared[string, *servov1.PartitionSummary]

	mu     sync.Mutex // guards the fields below; no computation holds the lock
	assets map[ids.AssetKey]*servov1.Asset
	// outputs says where the newest output of each of these assets is stored.
	outputs map[ids.AssetKey]string
	// failures are the failed partitions by asset; nil: not computed yet.
	failures map[string][]engine.Failure
	readers  map[ids.AssetKey][]string
	// summaries are the summaries of partitions by request.
	summaries map[string]*servov1.PartitionSummary
}

// maxSummaries limits how many summaries of partitions are kept: enough for all assets of a page.
const maxSummaries = 1000

// assetsAt returns the assets of a moment. If the revision is earlier than that of m, m does not keep the returned
// assets. If it kept them, a listing of an earlier revision and an open web page would keep discarding each other's
// results.
func (m *memo) assetsAt(at moment) *judged {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.later(at) {
		return newJudged()
	}
	m.reset(at)
	return m.judged
}

// later reports whether the results in m are of a later revision than at. The caller holds the lock.
func (m *memo) later(at moment) bool {
	return m.at.snap != nil && at.snap.Revision < m.at.snap.Revision
}

func newJudged() *judged {
	return &judged{assets: map[ids.AssetKey]*servov1.Asset{}, outputs: map[ids.AssetKey]string{}}
}

// reset discards the results in m if they belong to another moment than at. The caller holds the lock.
func (m *memo) reset(at moment) {
	if m.at != at {
		m.at, m.attention, m.attended, m.judged = at, nil, false, newJudged()
	}
}

// attend returns what needs attention. Calls at the same moment wait for one computation.
func (m *memo) attend(ctx context.Context, at moment, find func(context.Context) ([]engine.Attention, error)) ([]engine.Attention, error) {
	return m.attending.do(ctx, at, func(ctx context.Context) ([]engine.Attention, error) {
		m.mu.Lock()
		if !m.later(at) {
			m.reset(at)
		}
		found, known := m.attention, m.attended && m.at == at
		m.mu.Unlock()
		if known {
			return found, nil
		}
		found, err := find(ctx)
		if err != nil {
			return nil, err
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.at == at {
			m.attention, m.attended = found, true
		}
		return found, nil
	})
}

// list returns assets with their totals and the status of their partitions, in the order of the argument. It computes
// only the assets that no earlier call has computed for this moment. The evaluation of the partitions is discarded
// after the computation, because it keeps all rows that it has read.
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

// known returns the computed assets, in the order of the argument. An asset that is not computed is nil in found, and
// is listed in missing.
func (j *judged) known(assets []*plan.Asset) (found []*servov1.Asset, missing []*plan.Asset) {
	j.mu.Lock()
	defer j.mu.Unlock()
	found = make([]*servov1.Asset, len(assets))
	for i, asset := range assets {
		if found[i] = j.assets[asset.Key]; found[i] == nil {
			missing = append(missing, asset)
		}
	}
	return found, missing
}

// compute computes assets and keeps them.
func (j *judged) compute(ctx context.Context, at *page, p *Project, assets []*plan.Asset) ([]*servov1.Asset, error) {
	found, missing := j.known(assets) // another call may have computed some of them meanwhile
	if len(missing) == 0 {
		return found, nil
	}
	failures, err := j.search(ctx, at, p)
	if err != nil {
		return nil, err
	}
	judge, readers := newJudge(ctx, at, p, failures), j.readersIn(p)
	for i, asset := range assets {
		if found[i] != nil {
			continue
		}
		one, output, err := assetOf(ctx, at, asset, readers)
		if err != nil {
			return nil, err
		}
		judge.fill(one, asset)
		j.keep(asset.Key, one, output)
		found[i] = one
	}
	return found, nil
}

func (j *judged) keep(key ids.AssetKey, one *servov1.Asset, output string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.outputs[key] = output
	if one.GetStatusProblem() != "" { // the cause may be temporary: the callers have left, or the store did not answer
		return
	}
	j.assets[key] = one
}

// readersIn returns, for each asset, the keys of the assets that read it.
func (j *judged) readersIn(p *Project) map[ids.AssetKey][]string {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.readers == nil {
		j.readers = readersOf(p.Assets) // fast: it reads only the project
	}
	return j.readers
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

// detail returns the failed partitions of an asset that list has returned, and where its newest output is stored.
func (j *judged) detail(asset ids.AssetKey) (failed []engine.Failure, output string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.failures[asset.String()], j.outputs[asset]
}

// failedAt returns the failed partitions of an asset. It searches for them if no earlier call has done so for this
// moment.
func (j *judged) failedAt(ctx context.Context, at *page, p *Project, asset ids.AssetKey) (engine.Failed, error) {
	failures, err := j.search(ctx, at, p)
	return engine.FailedOf(failures[asset.String()], asset), err
}

// summary returns the summary of partitions that a request asks for.
func (j *judged) summary(
	ctx context.Context, r *servov1.GetPartitionSummaryRequest, count func(context.Context) (*servov1.PartitionSummary, error),
) (*servov1.PartitionSummary, error) {
	key, err := proto.MarshalOptions{Deterministic: true}.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encode the request: %w", err)
	}
	return j.counting.do(ctx, string(key), func(ctx context.Context) (*servov1.PartitionSummary, error) {
		j.mu.Lock()
		known := j.summaries[string(key)]
		j.mu.Unlock()
		if known != nil {
			return known, nil
		}
		found, err := count(ctx)
		if err != nil {
			return nil, err
		}
		j.mu.Lock()
		defer j.mu.Unlock()
		if j.summaries == nil || len(j.summaries) == maxSummaries {
			j.summaries = map[string]*servov1.PartitionSummary{}
		}
		j.summaries[string(key)] = found
		return found, nil
	})
}
