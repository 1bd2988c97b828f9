package snapshot

import (
	"context"
	"errors"

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

// Refresh gives the newest manifest and its state. It goes on from those of an
// earlier revision, which may be nil, and gives them back where nothing was published
// since. The error is [manifest.ErrNone] when there is no revision at all. What
// becomes of own is as with [Advance].
//
// The states of two writers who did not know of each other, because somebody deleted
// revisions under them, never become one: where the next revision is not last's
// child, all is read anew.
func Refresh(
	ctx context.Context, c *Codec, store *manifest.Store, last *manifest.Manifest, own *state.State,
) (*manifest.Manifest, *state.State, error) {
	for restarts := 0; ; restarts++ {
		m, follows, err := newest(ctx, store, last)
		if err != nil {
			return nil, nil, err
		}
		if m == last {
			return last, own, nil
		}
		if !follows {
			last, own = nil, nil
		}
		st, err := Advance(ctx, c, store, last, own, m)
		if errors.Is(err, manifest.ErrMissing) && restarts < maxRestarts {
			if live, liveErr := store.Live(ctx, m); liveErr == nil && !live {
				last, own = nil, nil // collected while it was being read
				continue
			}
		}
		return m, st, err
	}
}

// newest is the newest manifest: step by step from the last one seen, or anew. It
// follows the last one when that was not given up on the way.
func newest(ctx context.Context, store *manifest.Store, last *manifest.Manifest) (m *manifest.Manifest, follows bool, err error) {
	if last == nil {
		m, err = store.Load(ctx)
		return m, false, err
	}
	m = last
	for range maxSteps {
		next, err := store.Next(ctx, m)
		if errors.Is(err, manifest.ErrReload) {
			m, err = store.Load(ctx)
			return m, false, err
		}
		if err != nil {
			return nil, false, err
		}
		if next == nil {
			return m, true, nil
		}
		m = next
	}
	m, err = store.Load(ctx)
	return m, true, err
}
