package embedded

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/clock"
)

// trouble remembers why a repeated operation fails, and since when. A full disk stops all progress although no process
// crashes, so a user who waits must see the error.
type trouble struct {
	mu    sync.Mutex
	err   error
	since time.Time
}

// note records the result of the operation at the given time: an error, or nil for a success.
func (t *trouble) note(err error, at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err == nil {
		t.err, t.since = nil, time.Time{}
		return
	}
	t.err = err
	if t.since.IsZero() {
		t.since = at
	}
}

func (t *trouble) get() (since time.Time, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.since, t.err
}

// watched is a store that records whether objects can be created in it.
type watched struct {
	blob.Store
	clock   clock.Clock
	trouble *trouble
}

// Create implements [blob.Store].
func (w watched) Create(ctx context.Context, key string, data []byte) (blob.Object, error) {
	object, err := w.Store.Create(ctx, key, data)
	switch {
	case err == nil || errors.Is(err, blob.ErrExists):
		w.trouble.note(nil, time.Time{})
	case ctx.Err() == nil:
		w.trouble.note(err, w.clock.Now())
	}
	return object, err
}
