package api

import (
	"context"
	"sync"
	"time"

	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/plan"
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

// later reports whether the results in m are of a later revision than the given moment. The caller holds the lock.
func (m *memo) later(at moment) bool {
	return m.at.snap != nil && at.snap.Revision < m.at.snap.Revision
}

// reset discards the results in m if they belong to another moment than the given one. The results for assets may still
// be valid, so reset keeps them as the earlier results. The caller holds the lock.
func (m *memo) reset(at moment) {
	if m.at == at {
		return
	}
	next := newJudged()
	if m.judged != nil && m.at.comparable(at) {
		next.earlier = m.judged.results()
	}
	m.at, m.attention, m.attended, m.judged = at, nil, false, next
}

// comparable reports whether two moments have the same project, and whether their revisions belong to the same
// timeline.
func (m moment) comparable(other moment) bool {
	return m.assets == other.assets && m.count == other.count && m.snap != nil && m.snap.Timeline == other.snap.Timeline
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
