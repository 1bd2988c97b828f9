package api

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/servov1"
	"github.com/servo-orchestration/servo/pkg/snapshot"
)

// memoStep is the resolution of time of what is computed once: expected partitions and deadlines depend on the
// time.
const memoStep = time.Minute

// moment is what the results of a memo depend on.
type moment struct {
	snap *snapshot.Snapshot
	// assets is the first asset of the project: a project that is read again has other ones.
	assets *plan.Asset
	count  int
	minute int64
}

// momentOf returns the moment of a time. The project may be nil.
func momentOf(snap *snapshot.Snapshot, p *Project, now time.Time) moment {
	m := moment{snap: snap, minute: now.UnixNano() / int64(memoStep)}
	if p == nil {
		m.count = -1
	} else if m.count = len(p.Assets); m.count > 0 {
		m.assets = &p.Assets[0]
	}
	return m
}

// memo keeps what was computed from the newest moment, so that an open page, which asks again and again, costs
// nothing while nothing changes. Its zero value is empty.
type memo struct {
	attending sync.Mutex // held while the attention is computed

	mu        sync.Mutex
	at        moment
	attention []engine.Attention
	attended  bool
	judged    *judged
}

// judged holds the assets that callers have requested for one revision, project and minute. Its lock is held while
// assets are computed, so that callers who ask for the same ones share the work.
type judged struct {
	mu     sync.Mutex
	assets map[ids.AssetKey]*servov1.Asset
	// failures are the failed partitions by asset; nil: not searched yet.
	failures map[string][]engine.Failure
	readers  map[ids.AssetKey][]string
	// summaries are the summaries of partitions by request.
	summaries map[string]*servov1.PartitionSummary
}

// maxSummaries limits the kept summaries of partitions: those of all assets of a page.
const maxSummaries = 1000

// assetsAt returns the assets of a moment. Those of an earlier revision, which the pages of a listing show, are
// computed for the call alone: otherwise a listing and an open page would discard the results of each other.
func (m *memo) assetsAt(at moment) *judged {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.later(at) {
		return newJudged()
	}
	m.reset(at)
	return m.judged
}

// later reports whether m is of a later revision. The caller holds the lock.
func (m *memo) later(at moment) bool {
	return m.at.snap != nil && at.snap.Revision < m.at.snap.Revision
}

func newJudged() *judged { return &judged{assets: map[ids.AssetKey]*servov1.Asset{}} }

// reset forgets what was computed from another moment. The caller holds the lock.
func (m *memo) reset(at moment) {
	if m.at != at {
		m.at, m.attention, m.attended, m.judged = at, nil, false, newJudged()
	}
}

// attend returns what needs attention. Calls at the same moment wait for one computation.
func (m *memo) attend(ctx context.Context, at moment, find func(context.Context) ([]engine.Attention, error)) ([]engine.Attention, error) {
	m.attending.Lock()
	defer m.attending.Unlock()
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
}

// list returns assets with their totals and the status of their partitions, in the same order. It computes those that
// nobody has asked for at this moment. An evaluation keeps all rows that it has read, so it ends with the call.
func (j *judged) list(ctx context.Context, at *page, p *Project, assets []*plan.Asset) ([]*servov1.Asset, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	var judge *judge
	found := make([]*servov1.Asset, len(assets))
	for i, asset := range assets {
		if found[i] = j.assets[asset.Key]; found[i] != nil {
			continue
		}
		if judge == nil {
			var err error
			if judge, err = newJudge(ctx, at, p.Assets, j.failures); err != nil {
				return nil, err
			}
			j.failures = judge.failures
		}
		if j.readers == nil {
			j.readers = readersOf(p.Assets)
		}
		one, err := assetOf(ctx, at, asset, j.readers)
		if err != nil {
			return nil, err
		}
		judge.fill(one, asset)
		if one.GetStatusProblem() == "" { // it may be that the caller has gone, or that the store has not answered
			j.assets[asset.Key] = one
		}
		found[i] = one
	}
	return found, nil
}

// failed returns the failed partitions of an asset that list has returned.
func (j *judged) failed(asset ids.AssetKey) []engine.Failure {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.failures[asset.String()]
}

// summary returns the summary of partitions that a request asks for.
func (j *judged) summary(
	ctx context.Context, r *servov1.GetPartitionSummaryRequest, count func(context.Context) (*servov1.PartitionSummary, error),
) (*servov1.PartitionSummary, error) {
	key, err := proto.MarshalOptions{Deterministic: true}.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encode the request: %w", err)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if known := j.summaries[string(key)]; known != nil {
		return known, nil
	}
	found, err := count(ctx)
	if err != nil {
		return nil, err
	}
	if j.summaries == nil || len(j.summaries) == maxSummaries {
		j.summaries = map[string]*servov1.PartitionSummary{}
	}
	j.summaries[string(key)] = found
	return found, nil
}
