package wakeup

import (
	"context"
	"hash/fnv"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/control"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/state"
)

// Slot is the interval between the wakeups of a busy domain. Lost work may wait for this long until a sweep repairs
// it.
const Slot = 10 * time.Minute

const (
	// maxAhead is how far in the future a wakeup may be. If work is due later, the domain gets a wakeup at this limit,
	// and the sweep at that wakeup creates the next one.
	maxAhead = 30 * 24 * time.Hour
	// maxSweeperAhead limits which wakeups a sweep may delete: only those up to this process's time plus
	// maxSweeperAhead. A sweeper lists the wakeups that are due by its own clock. If that clock is further ahead, the
	// sweep also finds later wakeups. These may be deleted only after a later sweep.
	maxSweeperAhead = 15 * time.Minute
	// expiry is the age above which a wakeup is assumed to be lost: a sweep would have replaced it by then. If the
	// wakeup still exists, because no sweeps run, a second wakeup is harmless.
	expiry = time.Hour
)

// Swept describes how the revision that is published at the end of a sweep changes the wakeups. For all other
// revisions, it is the zero value.
type Swept struct {
	// Through is the minute up to which wakeups may be deleted from now on.
	Through event.Time
	// Soon means that the next wakeup is due within a minute, and not at the domain's next slot.
	Soon bool
}

// After returns the [Swept] for the publish at the end of a sweep. The parameter "through" is the minute up to which
// the sweep has listed wakeups, and found says whether the sweep found something to repair. If found is true or work is
// overdue, After sets Soon, so that another sweep follows within a minute.
func After(st *state.State, now, through event.Time, found bool) Swept {
	return Swept{
		Through: Minute(min(through, now.Add(maxSweeperAhead))),
		Soon:    found || len(control.Sweep(st, now)) > 0 || control.Unattended(st, now),
	}
}

// Schedule decides which wakeups a domain needs, and creates them. It belongs to the writer of the
// domain's manifests.
type Schedule struct {
	Domain ids.Domain
	Store  blob.Store
	// Off means that the domain needs no wakeups, because nothing sweeps it.
	Off bool

	created event.Time // the newest wakeup that was created and is not known to be deleted
}

// Next returns the wakeup for the state of the next revision. It follows from the wakeup of the parent revision by
// the rules of [manifest.Wakeup].
//
// Next keeps the parent's wakeup if it is due no later than the domain's next slot, unless swept.Soon requires an
// earlier one or the wakeup has expired. So a busy domain creates one wakeup per slot, and most publishes need not
// search the state. After a sweep has allowed the deletion of the wakeup, Next returns a new one only if work can get
// stuck.
func (s *Schedule) Next(parent manifest.Wakeup, work *state.State, now event.Time, swept Swept) manifest.Wakeup {
	next := parent
	next.Through = max(next.Through, swept.Through)
	if next.At <= next.Through {
		next.At = 0
	}
	if s.Off {
		return next
	}
	if next.At != 0 && now.Sub(next.At) > expiry {
		next.At = 0
	}
	soon := max(slotAfter(s.Domain, now), next.Through.Add(time.Minute))
	if swept.Soon {
		soon = soonest(next, now)
	}
	if next.At != 0 && next.At <= soon {
		return next
	}
	needed, ok := control.Attention(work, now)
	if !ok {
		return next
	}
	at := soon
	if !swept.Soon {
		at = max(soon, slotAfter(s.Domain, min(needed, now.Add(maxAhead))))
	}
	if next.At == 0 || at < next.At {
		next.At = at
	}
	return next
}

// Create starts the creation of the wakeup in the parameter next, which the manifest that the caller publishes
// afterwards names. Create returns a function that waits until the wakeup exists. The caller must call this function
// before it publishes the manifest. If the parent manifest names the same wakeup, or if s has created it, Create does
// nothing: the wakeup still exists, because a wakeup is deleted only after a published manifest has allowed this.
func (s *Schedule) Create(ctx context.Context, parent, next manifest.Wakeup) (wait func() error) {
	if next.At == 0 || next.At == s.created || next.At == parent.At {
		return func() error { return nil }
	}
	var creating errgroup.Group
	creating.Go(func() error { return Create(ctx, s.Store, Wakeup{At: next.At, Domain: s.Domain}) })
	return func() error {
		err := creating.Wait()
		if err == nil {
			s.created = next.At
		}
		return err
	}
}

// Forget resets the record of the newest created wakeup, because another timeline may have allowed the deletion of
// this wakeup.
func (s *Schedule) Forget() { s.created = 0 }

// Soon returns a manifest's wakeup. If this wakeup may already be deleted, or is later than the minute that soonest
// returns, Soon returns a wakeup at that minute instead.
func Soon(w manifest.Wakeup, now event.Time) manifest.Wakeup {
	if at := soonest(w, now); w.At <= w.Through || w.At > at {
		w.At = at
	}
	return w
}

// soonest returns the first minute after now whose wakeup may not be deleted yet.
func soonest(w manifest.Wakeup, now event.Time) event.Time {
	return max(Minute(now), w.Through).Add(time.Minute)
}

// slotAfter returns the minute of a domain's first slot after t. A hash of the domain's name
// offsets its slots, so that not all domains are swept in the same minute.
func slotAfter(d ids.Domain, t event.Time) event.Time {
	const minutes = int64(Slot / time.Minute)
	h := fnv.New32a()
	_, _ = h.Write([]byte(d.String())) // writes to a hash do not fail
	minute := Minute(t).Time().Unix()/60 + 1
	wait := (int64(h.Sum32()) - minute) % minutes
	if wait < 0 {
		wait += minutes
	}
	return event.At(time.Unix((minute+wait)*60, 0))
}
