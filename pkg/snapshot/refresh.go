package snapshot

import (
	"context"
	"errors"
	"slices"

	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/state"
)

const (
	// maxSteps is how many revisions are followed one by one before the newest is loaded
	// directly.
	maxSteps = 16
	// maxRestarts limits how often a read starts over because the revision's files were
	// collected during the read.
	maxRestarts = 4
)

// Refresh returns the newest manifest and its state. The parameter last is the manifest from which Refresh starts, or
// nil, and own is the state of that manifest. If nothing was published since then, Refresh returns last and own. It
// takes ownership of own, as [Advance] does. follows reports whether the result is known to descend from last. If
// enough is greater than 0, Refresh may stop at the first revision whose number is at least enough. The error is
// [manifest.ErrNone] if nothing was ever published.
//
// If the next revision does not name last as its parent, Refresh loads the whole state. So
// it never mixes the states of two writers whose histories diverged because revisions were
// deleted.
func Refresh(
	ctx context.Context, c *Codec, store *manifest.Store, last *manifest.Manifest, own *state.State, enough int64,
) (m *manifest.Manifest, st *state.State, follows bool, err error) {
	for restarts := 0; ; restarts++ {
		m, follows, err = newest(ctx, store, last, enough)
		if err != nil {
			return nil, nil, false, err
		}
		if m == last {
			return last, own, true, nil
		}
		if !follows {
			last, own = nil, nil
		}
		st, err = Advance(ctx, c, store, last, own, m)
		if errors.Is(err, manifest.ErrMissing) && restarts < maxRestarts {
			if live, liveErr := store.Live(ctx, m); liveErr == nil && !live {
				last, own = nil, nil // the files were collected during the read: start over
				continue
			}
		}
		return m, st, follows, err
	}
}

// newest returns the newest manifest. It follows the chain of revisions from last, or loads the newest
// directly. follows reports whether the result is known to descend from last.
//
// If enough is greater than 0, newest stops at the first revision whose number is at least enough. It need not read
// the successors to know that this revision was not collected: Next has verified this for the predecessor, and
// revisions are collected in ascending order.
func newest(ctx context.Context, store *manifest.Store, last *manifest.Manifest, enough int64) (m *manifest.Manifest, follows bool, err error) {
	m = last
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
		if enough > 0 && m.Revision >= enough {
			return m, true, nil
		}
	}
	known := m
	m, err = store.Load(ctx)
	return m, err == nil && known != nil && descends(m, known), err
}

// descends reports whether m contains the delta that the manifest from added. Only descendants of that manifest
// contain the delta. Once the delta is merged, descends returns false for them as well.
func descends(m, from *manifest.Manifest) bool {
	if m.Timeline != from.Timeline || len(from.L0) == 0 {
		return false
	}
	added := from.L0[len(from.L0)-1]
	return added.Revision == from.Revision &&
		slices.ContainsFunc(m.L0, func(d manifest.Delta) bool { return d.ID == added.ID })
}
