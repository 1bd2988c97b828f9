package compactor

import (
	"cmp"
	"context"
	"hash/fnv"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/servo-orchestration/servo/pkg/control"
	"github.com/servo-orchestration/servo/pkg/due"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/state"
)

const (
	// slot is how far apart the minutes of a domain's markers are, while nothing is
	// amiss: how long what got stuck may stay so.
	slot = 10 * time.Minute
	// farthest is how far ahead a marker may be: then somebody looks, and it is moved on.
	farthest = 30 * 24 * time.Hour
	// ahead is how much a sweeper's clock may be ahead of this one: what it has found
	// beyond that is attended to later.
	ahead = 15 * time.Minute
	// strayed is how long after its minute a marker counts for nothing: a sweep would have
	// moved it on. Somebody has removed it, or nobody sweeps, and then one more does no harm.
	strayed = time.Hour
	// overlookedAge is how old an entry is that a listing finds, and that nobody seems to
	// have told anybody of. Younger ones may be on their way.
	overlookedAge = 15 * time.Second
)

// marked says which marker stands for a state that is to be published, by the rules of
// [manifest.Due].
//
// One that is due soon enough stays, whatever the state: so folding looks no further
// while there is work, and a domain in which runs come and go creates a marker a slot.
// A sweep takes it away, and does not put it back where nothing can get stuck.
func (c *Compactor) marked(work *state.State, p publication) manifest.Due {
	var d manifest.Due
	if c.manifest != nil {
		d = c.manifest.Due
	}
	d.Through = max(d.Through, p.through)
	if d.At <= d.Through {
		d.At = 0
	}
	if !c.Markers {
		return d
	}
	now := event.At(c.Clock.Now())
	if d.At != 0 && now.Sub(d.At) > strayed {
		d.At = 0
	}
	soon := c.slotAfter(now)
	if p.soon {
		soon = due.Minute(now).Add(time.Minute)
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
		at = max(soon, c.slotAfter(min(needed, now.Add(farthest))))
	}
	if d.At == 0 || at < d.At {
		d.At = at
	}
	return d
}

// slotAfter is the first of the domain's minutes that a time has passed by then. Each
// domain has its own, so that not all of them are swept in one minute out of ten.
func (c *Compactor) slotAfter(t event.Time) event.Time {
	const minutes = int64(slot / time.Minute)
	h := fnv.New32a()
	_, _ = h.Write([]byte(c.Domain.String())) // hashes take everything
	minute := due.Minute(t).Time().Unix()/60 + 1
	wait := (int64(h.Sum32()) - minute) % minutes
	if wait < 0 {
		wait += minutes
	}
	return event.At(time.Unix((minute+wait)*60, 0))
}

// mark begins to create the marker of a state, which must be there before the manifest
// is, and gives what waits for it. One that the parent has, or that this process has
// created, is there: whoever deletes it publishes first that it may.
func (c *Compactor) mark(ctx context.Context, d manifest.Due) (wait func() error) {
	if d.At == 0 || d.At == c.created || c.manifest != nil && d.At == c.manifest.Due.At {
		return func() error { return nil }
	}
	var creating errgroup.Group
	creating.Go(func() error { return due.Create(ctx, c.Store, due.Marker{At: d.At, Domain: c.Domain}) })
	return func() error {
		err := creating.Wait()
		if err == nil {
			c.created = d.At
		}
		return err
	}
}

// attend publishes, at the end of a sweep's request, what has to be said of markers:
// that those which were found may be deleted, and which one stands for the domain from
// here on, if it needs one. Where that is said already it publishes nothing.
//
// After a sweep that found something, or in a state in which something is overdue, the
// next one comes in a minute.
func (c *Compactor) attend(ctx context.Context, r Request) error {
	if c.manifest == nil {
		return nil
	}
	err := c.commit(ctx, func() (*state.State, publication, error) {
		now := event.At(c.Clock.Now())
		p := publication{
			through: due.Minute(min(r.Through, now.Add(ahead))),
			soon:    c.overlooked || len(control.Sweep(c.state, now)) > 0,
		}
		if c.marked(c.state, p) == c.manifest.Due {
			return nil, p, nil
		}
		return c.state.Copy(), p, nil
	})
	if err == nil {
		c.overlooked = false
	}
	return err
}

// overlook reports whether there are entries, of those that a listing has found, that
// nobody was told of: old ones, that are not among those that were announced.
func (c *Compactor) overlook(found []Entry, announced ...[]Entry) bool {
	told := map[string]bool{}
	for _, e := range slices.Concat(announced...) {
		told[e.ID] = true
	}
	now := c.Clock.Now()
	return slices.ContainsFunc(found, func(e Entry) bool { return !told[e.ID] && now.Sub(ids.Time(e.ID)) >= overlookedAge })
}

// attended is the minute up to which markers may be deleted.
func (c *Compactor) attended() event.Time {
	return cmp.Or(c.manifest, &manifest.Manifest{}).Due.Through
}
