package compactor

import (
	"context"
	"slices"
	"time"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/state"
	"github.com/servo-orchestration/servo/pkg/wakeup"
)

// unannouncedAge is the minimum age of a listed entry that counts as unannounced. The announcement
// of a younger one may be on its way.
const unannouncedAge = 15 * time.Second

// publishWakeups publishes, at the end of a sweep's request, up to which minute wakeups may be
// deleted, and which wakeup the domain has from now on. If the current manifest says the same, it
// publishes nothing.
func (c *Compactor) publishWakeups(ctx context.Context, r Request) error {
	if c.manifest == nil {
		return nil
	}
	err := c.commit(ctx, func() (*state.State, publication, error) {
		now := event.At(c.cfg.Clock.Now())
		p := publication{swept: wakeup.After(c.state, now, r.Through, c.unannounced)}
		if c.wakeups.Next(c.manifest.Wakeup, c.state, now, p.swept) == c.manifest.Wakeup {
			return nil, p, nil
		}
		return c.state.Copy(), p, nil
	})
	if err == nil {
		c.unannounced = false
	}
	return err
}

// hasUnannounced reports whether a listing has found old entries that were not announced.
func hasUnannounced(now time.Time, found []Entry, announced ...[]Entry) bool {
	known := map[string]bool{}
	for _, e := range slices.Concat(announced...) {
		known[e.ID] = true
	}
	return slices.ContainsFunc(found, func(e Entry) bool { return !known[e.ID] && now.Sub(ids.Time(e.ID)) >= unannouncedAge })
}
