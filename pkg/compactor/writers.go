package compactor

import (
	"context"
	"slices"
	"time"

	"github.com/servo-orchestration/servo/pkg/manifest"
)

const (
	// otherWriterAge is how long, after a publish by another writer, this writer expects further publishes by others.
	otherWriterAge = 5 * time.Second
	// notifiedDelay is how long an entry lingers if a notification announced it: about the duration of a publish.
	// Meanwhile another instance may fold the entry, because the entry's writer may have handed it over to that instance.
	notifiedDelay = 300 * time.Millisecond
)

// noteWriter records when a manifest was published, if another writer has published it.
func (c *Compactor) noteWriter(m *manifest.Manifest) {
	if m.Writer != c.cfg.Writer {
		c.otherWriterAt.Store(m.PublishedAt.Time().UnixMilli())
	}
}

// hasOtherWriters reports whether another writer has published recently. It is safe for concurrent
// use.
func (c *Compactor) hasOtherWriters() bool {
	at := c.otherWriterAt.Load()
	age := c.cfg.Clock.Now().Sub(time.UnixMilli(at))
	return c.cfg.Shared && at != 0 && age.Abs() < otherWriterAge
}

// linger returns how long a request lingers. Barriers, sweeps and flushes never linger. A lazy request lingers, and a
// request from a notification lingers while other instances publish. Other requests never linger, because perhaps no
// other instance knows their entries.
func (c *Compactor) linger(r Request) time.Duration {
	switch {
	case r.Barrier || r.Sweep || r.Flush:
		return 0
	case r.Lazy:
		return MaxLinger
	case r.Notified && c.hasOtherWriters():
		return notifiedDelay
	}
	return 0
}

// refreshFirst is called before a step folds entries. If another writer has published recently, it loads the newest
// state. This read costs a third of a lost race, and shows which entries are already folded.
func (c *Compactor) refreshFirst(ctx context.Context, r Request) error {
	if r.Sweep && c.manifest != nil {
		// In an idle domain, nothing else would notice that the state was rebuilt.
		_, err := c.reload(ctx)
		return err
	}
	if !c.hasOtherWriters() || !slices.ContainsFunc(r.Entries, func(e Entry) bool { return !c.recorded(e.ID) }) {
		return nil
	}
	_, err := c.reload(ctx)
	return err
}
