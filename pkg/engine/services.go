package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/due"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
)

// Services are a [Compactor] where services fold what is appended: they are told by the
// store. It waits until the state has it.
type Services struct {
	Domain    ids.Domain
	Store     blob.Store
	Snapshots Snapshots
	Clock     clock.Clock
	// Remind is how long it waits until it marks the domain as due, for a sweep to find
	// what the services were not told of; 0: 30 seconds.
	Remind time.Duration
}

// Notifications of a store come within seconds, and at least once.
const (
	remind = 30 * time.Second
	// giveUp leaves a sweep, which comes once a minute, time to be made.
	giveUp = 2 * time.Minute
)

// errNobodyFolds says what to look at when nothing is folded.
var errNobodyFolds = errors.New("no service has folded it after " + giveUp.String() +
	"; check that servo-compactor runs, that notifications of the bucket reach it, and that servo-sweeper is called once a minute. The appended events stay in the ledger and are folded then")

// Compact implements [Compactor]: it waits until the entries are folded in a published
// revision.
func (s Services) Compact(ctx context.Context, r compactor.Request) (compactor.Result, error) {
	if r.Barrier {
		return compactor.Result{}, errors.New("barriers are not available here, because only the services list the ledger: call POST /v1/sweep?full=true of servo-sweeper")
	}
	patience := cmp.Or(s.Remind, remind)
	result, waited, err := s.wait(ctx, r, patience)
	if !waited {
		return result, err
	}
	// Whoever waits is not told whether this could be done: he may lack the right, and what
	// counts is whether it is folded.
	marked := due.Create(ctx, s.Store, due.Marker{At: due.Minute(event.At(s.Clock.Now())), Domain: s.Domain})
	result, waited, err = s.wait(ctx, r, giveUp-patience)
	if waited {
		return result, errors.Join(errNobodyFolds, marked)
	}
	return result, err
}

// wait waits until the entries are folded; waited: it has done so for as long as it was to.
func (s Services) wait(ctx context.Context, r compactor.Request, atMost time.Duration) (result compactor.Result, waited bool, err error) {
	waiting, cancel := context.WithTimeout(ctx, atMost)
	defer cancel()
	snap, err := s.Snapshots.Current(waiting)
	for err == nil {
		folded := true
		for _, entry := range r.Entries {
			folded = folded && snap.Recorded(entry.ID)
		}
		if folded {
			return compactor.Result{Revision: snap.Revision}, false, nil
		}
		if _, err = s.Snapshots.Await(waiting, snap.Revision); err == nil {
			snap, err = s.Snapshots.Current(waiting) // there may be more
		}
	}
	if ctx.Err() == nil && waiting.Err() != nil {
		return compactor.Result{}, true, nil
	}
	return compactor.Result{}, false, fmt.Errorf("wait for the services of %s: %w", s.Domain, err)
}
