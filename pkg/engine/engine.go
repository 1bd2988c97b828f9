// Package engine is what people ask of a domain, whoever asks and however: run
// these assets, cancel this run, retry what failed, why is this task waiting.
//
// It is a stateless writer: it appends intents to the ledger, has them folded,
// and reads the answer from a snapshot. It works the same inside the process
// that compacts the domain and outside of it.
package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
	"github.com/servo-orchestration/servo/pkg/trace"
)

// Snapshots are the published states of a domain.
type Snapshots interface {
	// Current is the newest published state.
	Current(ctx context.Context) (*snapshot.Snapshot, error)
	// Await is a published state of a revision greater than after, once there is one.
	Await(ctx context.Context, after int64) (*snapshot.Snapshot, error)
}

// Compactor folds what was appended.
type Compactor interface {
	// Compact returns once the entries are folded in a published revision.
	Compact(ctx context.Context, r compactor.Request) (compactor.Result, error)
}

// Config is what an engine works with.
type Config struct {
	Domain    ids.Domain
	Store     blob.Store
	Appender  *ledger.Appender
	Compactor Compactor
	Snapshots Snapshots
	IDs       *ids.Source
	Clock     clock.Clock
	// Actor is who asks: "user:jane".
	Actor string
	// Traces make the spans of triggers; nil: there are none.
	Traces *trace.Tracer
}

// Engine answers and acts for one domain. It is safe for concurrent use.
type Engine struct{ Config }

// New makes an engine.
func New(cfg Config) *Engine { return &Engine{cfg} }

// Errors that callers branch on.
var (
	// ErrNotFound is wrapped with what was not found and what there is instead.
	ErrNotFound = errors.New("not found")
	// ErrConflict says that a run key is held by a run that asked for something else.
	ErrConflict = errors.New("run key conflict")
	// ErrEnded says that a run has ended and cannot be changed.
	ErrEnded = errors.New("the run has ended")
)

// append makes events durable as one group, has them folded, and gives the first
// snapshot that has them.
func (e *Engine) append(ctx context.Context, correlation string, payloads ...event.Payload) (*snapshot.Snapshot, string, error) {
	group := make([]*event.Envelope, len(payloads))
	for i, p := range payloads {
		group[i] = &event.Envelope{Domain: e.Domain, CorrelationID: correlation, Actor: e.Actor, Payload: p}
	}
	appended, err := e.Appender.Append(ctx, group)
	if err != nil {
		return nil, "", err
	}
	result, err := e.Compactor.Compact(ctx, compactor.Request{Entries: []compactor.Entry{{ID: appended.Entry}}})
	if err != nil {
		return nil, "", fmt.Errorf("fold ledger entry %s, which is durable and will be folded: %w", appended.Entry, err)
	}
	if slices.Contains(result.Unread, appended.Entry) {
		return nil, "", fmt.Errorf("fold ledger entry %s: it is durable and cannot be read back now, or its plan cannot: it will be folded when that is over", appended.Entry)
	}
	snap, err := e.Snapshots.Await(ctx, result.Revision-1)
	return snap, appended.Entry, err
}

// Cancel asks for a run to end. With force, running tasks are closed without
// waiting for their workers.
func (e *Engine) Cancel(ctx context.Context, runID, reason string, force bool) error {
	snap, err := e.Snapshots.Current(ctx)
	if err != nil {
		return err
	}
	_, run, err := FindRun(ctx, snap, runID)
	if err != nil {
		return err
	}
	if run.State.Terminal() {
		return fmt.Errorf("cancel run %s: %w: it is %s since %s", run.RunID, ErrEnded, run.State, run.CompletedAt)
	}
	_, _, err = e.append(ctx, run.RunID, &event.RunCancelRequested{RunID: run.RunID, Reason: reason, Force: force})
	return err
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

// FindRun is the run with this id, or whose id is the only one to end with it;
// "" and "latest" are the newest run. The state has the rows of the run: it is the
// live one, or, where the run is closed, one of the run alone.
func FindRun(ctx context.Context, snap *snapshot.Snapshot, id string) (*state.State, *state.Run, error) {
	if id == "" || id == "latest" {
		latest, err := snap.Runs(ctx, 1, func(*state.Run) bool { return true })
		switch {
		case err != nil:
			return nil, nil, err
		case len(latest) == 0:
			return nil, nil, fmt.Errorf("run %q: %w: no run has been started here yet; start one with `servo run`", id, ErrNotFound)
		}
		return withRun(ctx, snap, latest[0].RunID)
	}
	if ids.Valid(id) {
		return withRun(ctx, snap, id)
	}
	found, err := endingWith(ctx, snap, id)
	switch {
	case err != nil:
		return nil, nil, err
	case len(found) == 1:
		return withRun(ctx, snap, found[0].RunID)
	case len(found) > 1:
		return nil, nil, fmt.Errorf("run %q: %w: %d runs end with it; give more of the id", id, ErrNotFound, len(found))
	}
	return nil, nil, errNoRun(snap, id)
}

// endingWith are the live runs whose ids end with a text, or, where none does and
// it says enough, the closed ones: these have to be read.
func endingWith(ctx context.Context, snap *snapshot.Snapshot, end string) ([]*state.Run, error) {
	const some, enough = 100, 6
	var found []*state.Run
	for run := range snap.State.Runs.All {
		if strings.HasSuffix(run.RunID, end) {
			found = append(found, run)
		}
	}
	if len(found) > 0 || len(end) < enough || strings.Trim(end, "0123456789ABCDEFGHJKMNPQRSTVWXYZ") != "" {
		return found, nil
	}
	return snap.Runs(ctx, some, func(r *state.Run) bool { return strings.HasSuffix(r.RunID, end) })
}

func withRun(ctx context.Context, snap *snapshot.Snapshot, id string) (*state.State, *state.Run, error) {
	s, err := snap.WithRun(ctx, id)
	switch {
	case err != nil:
		return nil, nil, err
	case s == nil:
		return nil, nil, errNoRun(snap, id)
	}
	return s, s.Runs.Get(id), nil
}

func errNoRun(snap *snapshot.Snapshot, id string) error {
	if ids.Valid(id) && !snap.History.Kept(id) {
		return fmt.Errorf("run %q: %w: finished runs that were triggered before %s have been deleted", id, ErrNotFound, snap.History.Since())
	}
	if snap.RunCount() == 0 && snap.History.Since() == 0 {
		return fmt.Errorf("run %q: %w: no run has been started here yet; start one with `servo run`", id, ErrNotFound)
	}
	return fmt.Errorf("run %q: %w: list the runs with `servo runs`", id, ErrNotFound)
}
