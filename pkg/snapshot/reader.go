package snapshot

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/state"
)

// Reader reads a domain's published states from the store. It is for processes other than
// the publisher, and safe for concurrent use.
type Reader struct {
	domain ids.Domain
	codec  *Codec
	store  *manifest.Store
	clock  clock.Clock

	// next is the read that starts when the running one ends, or nil if no caller waits
	// for it. All callers that arrive before it starts share its result.
	mu   sync.Mutex
	next *read

	// busy is a semaphore that guards the fields below. Unlike with a mutex, a waiting
	// caller can give up when its context ends.
	busy chan struct{}
	last *manifest.Manifest
	snap *Snapshot
	// lastState is the state of the manifest in last. Callers get copies, never lastState itself: Copy modifies the state
	// that it copies, so no other goroutine may read this state at that time.
	lastState *state.State
	// bytes is the size of lastState. It is atomic, because Bytes reads it without the semaphore.
	bytes atomic.Int64
}

// Bytes returns the approximate memory of the last state that was read, in bytes.
func (r *Reader) Bytes() int64 { return r.bytes.Load() }

// NewReader returns a reader of a domain.
func NewReader(d ids.Domain, codec *Codec, store *manifest.Store, c clock.Clock) *Reader {
	return &Reader{domain: d, codec: codec, store: store, clock: c, busy: make(chan struct{}, 1)}
}

// pollEvery is how often Await looks for a new revision.
const pollEvery = 50 * time.Millisecond

// read is a read of the newest state. snap and err are valid after done has been closed.
type read struct {
	done chan struct{}
	snap *Snapshot
	err  error
}

// Current returns the newest published state, or an empty one if none was published. The state contains everything
// that was published before the call. Callers that arrive during a read share the next read.
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
	case <-mine.done: // another caller has just finished this read
		return mine.snap, mine.err
	default:
	}
	r.begin(mine)
	snap, err := r.refresh(ctx, 0)
	if err == nil || ctx.Err() == nil { // otherwise, this caller's context has ended, and a waiting caller reads instead
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

// begin is called when a read starts. From then on, new callers share the next read, because the read that has
// started may miss revisions that these callers must see.
func (r *Reader) begin(mine *read) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.next == mine {
		r.next = nil
	}
}

// refresh reads the newest revision or, if target is greater than 0, the first revision whose number is at least
// target. The caller must hold busy.
func (r *Reader) refresh(ctx context.Context, target int64) (*Snapshot, error) {
	m, st, _, err := Refresh(ctx, r.codec, r.store, r.last, r.lastState, target)
	switch {
	case errors.Is(err, manifest.ErrNone):
		return &Snapshot{State: state.New(r.domain)}, nil
	case err != nil:
		return nil, err
	case m == r.last:
		return r.snap, nil
	}
	r.last, r.lastState = m, st
	r.bytes.Store(st.Bytes())
	r.snap = &Snapshot{
		State: st.Copy(), Revision: m.Revision, Nonce: m.Nonce, Timeline: m.Timeline, CaughtUpAt: m.Watermarks.CaughtUpAt, CompleteThrough: m.Watermarks.CompleteThrough, History: HistoryOf(r.codec, r.store, m),
	}
	return r.snap, nil
}

// Await waits for a revision whose number is greater than the given one, and returns its state. The revision need not
// be the newest one: if an earlier read has returned such a revision, Await does not read again.
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

// reach returns the last state that was read, if its revision is at least the given one. Otherwise, it reads later
// revisions up to the given one, or up to the newest one if the given one is not published yet.
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
