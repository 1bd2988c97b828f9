package snapshot

import (
	"context"
	"errors"
	"slices"

	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/state"
)

const (
	// maxSteps is how many revisions are followed one by one; who is further behind
	// asks for the newest at once.
	maxSteps = 16
	// maxRestarts bounds how often a read starts over because the revision's files
	// were collected under it.
	maxRestarts = 4
)

// Refresh gives the newest manifest and its state; with enough, at once one of that
// revision or a later one, if it is met on the way. It goes on from those of an
// earlier revision, which may be nil, and gives them back where nothing was published
// since; follows says that it did, and that the newest is known to descend from it. The error is [manifest.ErrNone] when there is no revision at all. What
// becomes of own is as with [Advance].
//
// The states of two writers who did not know of each other, because somebody deleted
// revisions under them, never become one: where the next revision is not last's
// child, all is read anew.
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
				last, own = nil, nil // collected while it was being read
				continue
			}
		}
		return m, st, follows, err
	}
}

// newest is the newest manifest: step by step from the last one seen, or anew. It
// follows that one if it is known to descend from it. What follows a revision that is
// not deleted is not either: it may be given without looking for what comes after it.
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

// descends reports whether a manifest names the delta that another brought: only its
// descendants do, until it is merged, and then nobody can tell.
func descends(m, from *manifest.Manifest) bool {
	if m.Lineage != from.Lineage || len(from.L0) == 0 {
		return false
	}
	brought := from.L0[len(from.L0)-1]
	return brought.Revision == from.Revision &&
		slices.ContainsFunc(m.L0, func(d manifest.Delta) bool { return d.ID == brought.ID })
}
