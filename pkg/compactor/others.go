package compactor

import (
	"context"
	"slices"
	"time"

	"github.com/servo-orchestration/servo/pkg/manifest"
)

const (
	// othersAge is how long after a revision of another writer one has to reckon with more.
	othersAge = 5 * time.Second
	// notifiedDelay is how long an entry waits that this instance was notified of, for
	// another one to fold that was handed it: about as long as a publish takes.
	notifiedDelay = 300 * time.Millisecond
)

// seen takes note of who has published the newest revision.
func (c *Compactor) seen(m *manifest.Manifest) {
	if m.Writer != c.Writer {
		c.otherAt.Store(m.PublishedAt.Time().UnixMilli())
	}
}

// others reports whether another writer has published a moment ago. It may be called
// at any time.
func (c *Compactor) others() bool {
	at := c.otherAt.Load()
	age := c.Clock.Now().Sub(time.UnixMilli(at))
	return c.Shared && at != 0 && age.Abs() < othersAge
}

// patience is how long a request waits for company. What was handed to this instance
// never does: nobody else may have it.
func (c *Compactor) patience(r Request) time.Duration {
	switch {
	case r.Barrier || r.Sweep || r.Settle:
		return 0
	case r.Lazy:
		return LazyDelay
	case r.Notified && c.others():
		return notifiedDelay
	}
	return 0
}

// lookFirst takes up what another writer has published, before entries are folded: a
// read costs a third of what it costs to lose a race, and tells of entries that are
// folded already.
func (c *Compactor) lookFirst(ctx context.Context, r Request) error {
	if r.Sweep && c.manifest != nil {
		// In a domain that is idle nobody else would notice that its state was rebuilt.
		_, err := c.reload(ctx)
		return err
	}
	if !c.others() || !slices.ContainsFunc(r.Entries, func(e Entry) bool { return !c.recorded(e.ID) }) {
		return nil
	}
	_, err := c.reload(ctx)
	return err
}
