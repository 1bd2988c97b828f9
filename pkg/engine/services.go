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
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/wakeup"
)

// Services implements [Compactor] for domains whose compactor runs in a separate service. The store notifies that
// service of new entries. Services only waits until a published state contains these entries.
type Services struct {
	Domain    ids.Domain
	Store     blob.Store
	Snapshots Snapshots
	Clock     clock.Clock
	// Remind is the time after which Services creates a wakeup; 0: 30 seconds. The wakeup causes a sweep, which finds
	// entries whose notification was lost.
	Remind time.Duration
}

// These limits assume that stores deliver notifications within seconds, at least once.
const (
	remind = 30 * time.Second
	// giveUp is how long Compact waits: long enough for a sweep, which runs once a minute.
	giveUp = 2 * time.Minute
)

// errNotFolded means that no service has folded the appended events in time. It says what to check.
var errNotFolded = errors.New("no service has folded it after " + giveUp.String() +
	"; check that servo-compactor runs, that notifications of the bucket reach it, and that servo-sweeper is called once a minute. The appended events stay in the ledger, and are folded when the services work again")

// Compact implements [Compactor]. It waits until a published revision contains the entries.
func (s Services) Compact(ctx context.Context, r compactor.Request) (compactor.Result, error) {
	if r.Barrier {
		return compactor.Result{}, errors.New("barriers are not available here, because only the services list the ledger: call POST /v1/sweep?full=true of servo-sweeper")
	}
	delay := cmp.Or(s.Remind, remind)
	result, waited, err := s.wait(ctx, r, delay)
	if !waited {
		return result, err
	}
	// This call may fail, because the caller may lack the permission to create wakeups. Compact returns the error only
	// if the entries are not folded within giveUp.
	marked := wakeup.Create(ctx, s.Store, wakeup.Wakeup{At: wakeup.Minute(event.At(s.Clock.Now())), Domain: s.Domain})
	result, waited, err = s.wait(ctx, r, giveUp-delay)
	if waited {
		return result, errors.Join(errNotFolded, marked)
	}
	return result, err
}

// wait waits until the entries are folded. The result waited is true if they were not folded within atMost.
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
			snap, err = s.Snapshots.Current(waiting) // the current state may be newer than the awaited one
		}
	}
	if ctx.Err() == nil && waiting.Err() != nil {
		return compactor.Result{}, true, nil
	}
	return compactor.Result{}, false, fmt.Errorf("wait for the services of %s: %w", s.Domain, err)
}
