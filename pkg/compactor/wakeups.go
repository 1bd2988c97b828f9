package compactor

import (
	"cmp"
	"context"
	"hash/fnv"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/servo-orchestration/servo/pkg/control"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/state"
	"github.com/servo-orchestration/servo/pkg/wakeup"
)

const (
	// slot is the interval between the wakeups of a busy domain: how long stuck work may stay
	// stuck.
	slot = 10 * time.Minute
	// maxWakeupAhead limits how far in the future a wakeup is. If more time is left until work is
	// due, the sweep creates another wakeup.
	maxWakeupAhead = 30 * 24 * time.Hour
	// maxSweeperAhead is how far a sweeper's clock may be ahead of this one. Later wakeups that it
	// has found are released by another sweep.
	maxSweeperAhead = 15 * time.Minute
	// wakeupExpiry is how long after its minute a wakeup is taken to be lost: a sweep would have
	// replaced it. If it still exists because nothing sweeps, another one does no harm.
	wakeupExpiry = time.Hour
	// unannouncedAge is the minimum age of a listed entry that counts as unannounced. The
	// announcement of a younger one may be on its way.
	unannouncedAge = 15 * time.Second
)

// nextWakeup returns the wakeup of a state that is to be published, by the rules of [manifest.Wakeup].
//
// A wakeup that is due within a slot stays, whatever the state. So a busy domain creates one wakeup
// per slot, and folding need not search the state for each publish. A sweep releases the wakeup, and
// creates no other one if nothing can get stuck.
func (c *Compactor) nextWakeup(work *state.State, p publication) manifest.Wakeup {
	var d manifest.Wakeup
	if c.manifest != nil {
		d = c.manifest.Wakeup
	}
	d.Through = max(d.Through, p.through)
	if d.At <= d.Through {
		d.At = 0
	}
	if !c.Wakeups {
		return d
	}
	now := event.At(c.Clock.Now())
	if d.At != 0 && now.Sub(d.At) > wakeupExpiry {
		d.At = 0
	}
	soon := c.slotAfter(now)
	if p.soon {
		soon = wakeup.Minute(now).Add(time.Minute)
	}
	soon = max(soon, d.Through.Add(time.Minute))
	if d.At != 0 && d.At <= soon {
		return d
	}
	needed, ok := control.Attention(work, now)
	if !ok {
		return d
	}
	at := soon
	if !p.soon {
		at = max(soon, c.slotAfter(min(needed, now.Add(maxWakeupAhead))))
	}
	if d.At == 0 || at < d.At {
		d.At = at
	}
	return d
}

// slotAfter returns the minute of the domain's first slot after t. A hash of the domain's name
// offsets its slots, so that not all domains are swept in the same minute.
func (c *Compactor) slotAfter(t event.Time) event.Time {
	const minutes = int64(slot / time.Minute)
	h := fnv.New32a()
	_, _ = h.Write([]byte(c.Domain.String())) // hashes return no error
	minute := wakeup.Minute(t).Time().Unix()/60 + 1
	wait := (int64(h.Sum32()) - minute) % minutes
	if wait < 0 {
		wait += minutes
	}
	return event.At(time.Unix((minute+wait)*60, 0))
}

// createWakeup starts to create the wakeup of a state and returns a function that waits for it. The
// wakeup must exist before the manifest does. A wakeup named by the parent, or created by this
// process, exists: a wakeup is deleted only after a published manifest has released it.
func (c *Compactor) createWakeup(ctx context.Context, d manifest.Wakeup) (wait func() error) {
	if d.At == 0 || d.At == c.createdWakeup || c.manifest != nil && d.At == c.manifest.Wakeup.At {
		return func() error { return nil }
	}
	var creating errgroup.Group
	creating.Go(func() error { return wakeup.Create(ctx, c.Store, wakeup.Wakeup{At: d.At, Domain: c.Domain}) })
	return func() error {
		err := creating.Wait()
		if err == nil {
			c.createdWakeup = d.At
		}
		return err
	}
}

// publishWakeups publishes, at the end of a sweep's request, up to which minute wakeups may be
// deleted, and which wakeup the domain has from now on. If the current manifest says the same, it
// publishes nothing.
//
// If the sweep has found something, or something is overdue, the next wakeup is in a minute.
func (c *Compactor) publishWakeups(ctx context.Context, r Request) error {
	if c.manifest == nil {
		return nil
	}
	err := c.commit(ctx, func() (*state.State, publication, error) {
		now := event.At(c.Clock.Now())
		p := publication{
			through: wakeup.Minute(min(r.Through, now.Add(maxSweeperAhead))),
			soon:    c.unannounced || len(control.Sweep(c.state, now)) > 0,
		}
		if c.nextWakeup(c.state, p) == c.manifest.Wakeup {
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
func (c *Compactor) hasUnannounced(found []Entry, announced ...[]Entry) bool {
	known := map[string]bool{}
	for _, e := range slices.Concat(announced...) {
		known[e.ID] = true
	}
	now := c.Clock.Now()
	return slices.ContainsFunc(found, func(e Entry) bool { return !known[e.ID] && now.Sub(ids.Time(e.ID)) >= unannouncedAge })
}

// releasedThrough returns the minute up to which wakeups may be deleted.
func (c *Compactor) releasedThrough() event.Time {
	return cmp.Or(c.manifest, &manifest.Manifest{}).Wakeup.Through
}
