package snapshot

import (
	"context"
	"errors"
	"slices"

	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/state"
)

const (
	// maxSteps is how many successive revisions a reader reads one by one before it loads the newest one directly.
	maxSteps = 16
	// maxRestarts is how often a read may start over because a collector has deleted the revision's files during the
	// read.
	maxRestarts = 4
)

// Refresh returns the newest manifest and its state. The parameter prev is the manifest from which Refresh starts, or
// nil, and prevState is the state of that manifest. If no later revision was published, Refresh returns these two. It
// takes ownership of prevState, as [Advance] does. The third result is true if the returned manifest is known to
// descend from prev. If target is greater than 0, Refresh may return an older revision than the newest: the first one
// whose number is at least target. The error is [manifest.ErrNone] if nothing was ever published.
//
// If the next revision does not name prev as its parent, Refresh loads the whole state. So Refresh never mixes the
// states of two writers whose histories have diverged, which can happen if revisions were deleted.
func Refresh(
	ctx context.Context, c *Codec, store *manifest.Store, prev *manifest.Manifest, prevState *state.State, target int64,
) (m *manifest.Manifest, st *state.State, follows bool, err error) {
	for restarts := 0; ; restarts++ {
		m, follows, err = newest(ctx, store, prev, target)
		if err != nil {
			return nil, nil, false, err
		}
		if m == prev {
			return prev, prevState, true, nil
		}
		if !follows {
			prev, prevState = nil, nil
		}
		st, err = Advance(ctx, c, store, prev, prevState, m)
		if errors.Is(err, manifest.ErrMissing) && restarts < maxRestarts {
			if live, liveErr := store.Live(ctx, m); liveErr == nil && !live {
				prev, prevState = nil, nil // a collector has deleted the files during the read: start over
				continue
			}
		}
		return m, st, follows, err
	}
}

// newest returns the newest manifest. It follows the chain of revisions from prev, or loads the newest one directly.
// The second result is true if the returned manifest is known to descend from prev.
//
// If target is greater than 0, newest stops at the first revision whose number is at least target. It does not check
// whether a collector has deleted this revision: Next has verified that the predecessor was not deleted, and collectors
// delete revisions in ascending order.
func newest(ctx context.Context, store *manifest.Store, prev *manifest.Manifest, target int64) (m *manifest.Manifest, follows bool, err error) {
	m = prev
	for range maxSteps {
		if m == nil {
			break
		}
		next, err := store.Next(ctx, m)
		if errors.Is(err, manifest.ErrReload) {
			break
		}
		if err != nil {
			return nil, false, err
		}
		if next == nil {
			return m, true, nil
		}
		m = next
		if target > 0 && m.Revision >= target {
			return m, true, nil
		}
	}
	known := m
	m, err = store.Load(ctx)
	return m, err == nil && known != nil && descends(m, known), err
}

// descends reports whether m is known to descend from the earlier manifest prev: m still lists the delta that prev
// added. After this delta has been merged, descends returns false even if m descends from prev.
func descends(m, prev *manifest.Manifest) bool {
	if m.Timeline != prev.Timeline || len(prev.L0) == 0 {
		return false
	}
	added := prev.L0[len(prev.L0)-1]
	return added.Revision == prev.Revision &&
		slices.ContainsFunc(m.L0, func(d manifest.Delta) bool { return d.ID == added.ID })
}
