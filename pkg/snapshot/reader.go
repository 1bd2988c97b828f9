package snapshot

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/state"
)

// Reader follows a domain's published states from its store, from outside the
// process that publishes them. It is safe for concurrent use.
type Reader struct {
	domain ids.Domain
	codec  *Codec
	store  *manifest.Store
	clock  clock.Clock

	// next is the read that begins when the present one ends, if somebody waits for
	// it: it is for all who came before it begins.
	mu   sync.Mutex
	next *read

	// busy holds a token while somebody reads. It is no mutex, so that who waits
	// for its turn can give up.
	busy chan struct{}
	last *manifest.Manifest
	snap *Snapshot
	// own is the state of last. It is never handed out, only copies are: copying
	// counts as writing, and others are reading theirs.
	own *state.State
}

// NewReader makes a reader.
func NewReader(d ids.Domain, codec *Codec, store *manifest.Store, c clock.Clock) *Reader {
	return &Reader{domain: d, codec: codec, store: store, clock: c, busy: make(chan struct{}, 1)}
}

// pollEvery is how often Await looks for a new revision.
const pollEvery = 50 * time.Millisecond

// read is a read of the newest state, and what came of it once done is closed.
type read struct {
	done chan struct{}
	snap *Snapshot
	err  error
}

// Current is the newest published state; an empty one where there is none. It is
// no older than the call: of those who wait for the present read to end, one reads
// for all.
func (r *Reader) Current(ctx context.Context) (*Snapshot, error) {
	mine := r.join()
	select {
	case <-mine.done:
		return mine.snap, mine.err
	case <-ctx.Done():
		return nil, ctx.Err()
	case r.busy <- struct{}{}:
	}
	defer func() { <-r.busy }()
	select {
	case <-mine.done: // just now
		return mine.snap, mine.err
	default:
	}
	r.begin(mine)
	snap, err := r.refresh(ctx, 0)
	if err == nil || ctx.Err() == nil { // else another of those who wait reads
		mine.snap, mine.err = snap, err
		close(mine.done)
	}
	return snap, err
}

func (r *Reader) join() *read {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.next == nil {
		r.next = &read{done: make(chan struct{})}
	}
	return r.next
}

// begin parts those who wait for a read from those who come from now on, and may
// ask for what it does not see.
func (r *Reader) begin(mine *read) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.next == mine {
		r.next = nil
	}
}

// refresh reads on; who calls it holds the token.
func (r *Reader) refresh(ctx context.Context, enough int64) (*Snapshot, error) {
	m, st, _, err := Refresh(ctx, r.codec, r.store, r.last, r.own, enough)
	switch {
	case errors.Is(err, manifest.ErrNone):
		return &Snapshot{State: state.New(r.domain)}, nil
	case err != nil:
		return nil, err
	case m == r.last:
		return r.snap, nil
	}
	r.last, r.own = m, st
	r.snap = &Snapshot{
		State: st.Copy(), Revision: m.Revision, CaughtUpAt: m.Watermarks.CaughtUpAt, History: HistoryOf(r.codec, r.store, m),
	}
	return r.snap, nil
}

// Await is a published state of a revision greater than after, once there is one. It
// need not be the newest: nothing is read if such a one was read before.
func (r *Reader) Await(ctx context.Context, after int64) (*Snapshot, error) {
	for {
		snap, err := r.reach(ctx, after+1)
		if err != nil || snap.Revision > after {
			return snap, err
		}
		if err := r.clock.Sleep(ctx, pollEvery); err != nil {
			return nil, err
		}
	}
}

// reach is the state of the last revision that was read, or else reads on, as far as
// to the one that is wanted.
func (r *Reader) reach(ctx context.Context, revision int64) (*Snapshot, error) {
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case r.busy <- struct{}{}:
	}
	defer func() { <-r.busy }()
	if r.snap != nil && r.snap.Revision >= revision {
		return r.snap, nil
	}
	return r.refresh(ctx, revision)
}
