// Package engine implements the operations of a domain that users request, independent of the CLI and the API: run
// assets, cancel a run, retry failed tasks, explain why a task is waiting. This package is not a stable API.
//
// An engine is a stateless writer: it appends events to the ledger, waits until they are folded, and reads the result
// from a snapshot. It works both in the process that compacts the domain and in other processes.
package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/domain"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
	"github.com/servo-orchestration/servo/pkg/trace"
)

// Snapshots provides the published states of a domain.
type Snapshots interface {
	// Current returns the newest published state.
	Current(ctx context.Context) (*snapshot.Snapshot, error)
	// Await waits for a published state whose revision is greater than the parameter "after", and returns this state.
	Await(ctx context.Context, after int64) (*snapshot.Snapshot, error)
}

// Compactor folds appended entries.
type Compactor interface {
	// Compact returns when a published revision contains the entries.
	Compact(ctx context.Context, r compactor.Request) (compactor.Result, error)
}

// Config holds the dependencies of an engine.
type Config struct {
	*domain.Handle
	Appender  *ledger.Appender
	Compactor Compactor
	Snapshots Snapshots
	// Traces records spans of triggers; nil: no spans.
	Traces *trace.Tracer
	// Root is the folder of the caller's project. Runs that were planned in another folder cannot be retried. "": the
	// engine does not compare folders.
	Root string
}

// Engine reads and changes one domain. It is safe for concurrent use.
type Engine struct {
	Snapshots // where the engine reads the states of its domain

	cfg        Config
	principal  string
	conditions Conditions
}

// New returns an engine that only reads. [Engine.As] returns an engine that also changes the domain.
func New(cfg Config) *Engine { return &Engine{Snapshots: cfg.Snapshots, cfg: cfg} }

// User returns the principal of a user.
func User(name string) string { return "user:" + name }

// As returns an engine for the calls of a principal, such as "user:jane". All events that it appends record the
// principal, so the principal must be verified.
func (e *Engine) As(principal string) *Engine {
	as := *e
	as.principal = principal
	return &as
}

// These are the errors that callers distinguish.
var (
	// ErrNotFound: the named object does not exist, for example a run, a task or a log. Errors that wrap it suggest
	// alternatives.
	ErrNotFound = errors.New("not found")
	// ErrConflict: a different request has already used the run key, or the key of the command.
	ErrConflict = errors.New("run key conflict")
	// ErrLiveRetry: the run cannot be retried, because another run in its chain of retries is live.
	ErrLiveRetry = errors.New("another run of the same chain of retries has not ended")
	// ErrOtherFolder: the run cannot be retried, because it was planned in another project folder.
	ErrOtherFolder = errors.New("the run was planned in another project folder")
	// ErrMissingInput: an output that a retry would read was hidden, deleted or replaced after the retried run, or all
	// partitions that need to run lack an input.
	ErrMissingInput = errors.New(plan.CodeMissingInput)
	// ErrNoEffect: the state of a backfill does not allow the command, or a request cannot be cancelled because it
	// belongs to a chunk of a backfill.
	ErrNoEffect = errors.New("no effect")
	// ErrEnded: the run has ended and cannot be changed.
	ErrEnded = errors.New("the run has ended")
	// ErrRequestEnded: the request cannot be cancelled, because it has become a run or has ended in another way.
	ErrRequestEnded = errors.New("the request has ended")

	errNoPrincipal = errors.New("the caller is unknown: call Engine.As with the verified principal")
)

// Domain returns the domain of the engine.
func (e *Engine) Domain() ids.Domain { return e.cfg.Domain }

// Store returns the store of the domain.
func (e *Engine) Store() blob.Store { return e.cfg.Store }

// Now returns the time of the engine's clock.
func (e *Engine) Now() time.Time { return e.cfg.Clock.Now() }

// CatchUp lists the ledger, and waits until all entries that it finds are folded.
func (e *Engine) CatchUp(ctx context.Context) (compactor.Result, error) {
	return e.cfg.Compactor.Compact(ctx, compactor.Request{Barrier: true})
}

// ErrDurable reports that a call failed after its events were written to the ledger, but before they were folded. The
// events will be folded later.
var ErrDurable = errors.New("which is durable and will be folded")

// append appends events as one group and waits until they are folded. It returns a snapshot that contains them, and
// the key of the group's row in ledger_entries: the names of the entry and of the group.
func (e *Engine) append(ctx context.Context, correlation string, payloads ...event.Payload) (*snapshot.Snapshot, state.Key2, error) {
	if e.principal == "" {
		return nil, state.Key2{}, errNoPrincipal
	}
	group := make([]*event.Envelope, len(payloads))
	for i, p := range payloads {
		group[i] = &event.Envelope{Domain: e.cfg.Domain, CorrelationID: correlation, Actor: e.principal, Payload: p}
	}
	appended, err := e.cfg.Appender.Append(ctx, group)
	if err != nil {
		return nil, state.Key2{}, err
	}
	result, err := e.cfg.Compactor.Compact(ctx, compactor.Request{Entries: []compactor.Entry{{ID: appended.Entry}}})
	if err != nil {
		return nil, state.Key2{}, fmt.Errorf("fold ledger entry %s, %w: %w", appended.Entry, ErrDurable, err)
	}
	if slices.Contains(result.Unreadable, appended.Entry) {
		return nil, state.Key2{}, fmt.Errorf("fold ledger entry %s: the entry or its plan cannot be read at the moment; the entry is durable and will be folded later", appended.Entry)
	}
	snap, err := e.Await(ctx, result.Revision-1)
	return snap, state.Key2{A: appended.Entry, B: group[0].GroupID()}, err
}

// Cancel requests the cancellation of a run. With force, running attempts end immediately, without a grace period.
func (e *Engine) Cancel(ctx context.Context, runID, reason string, force bool) error {
	snap, err := e.Current(ctx)
	if err != nil {
		return err
	}
	_, run, err := FindRun(ctx, snap, runID)
	if err != nil {
		return err
	}
	if id, err := e.repeated(snap); err != nil || id != "" {
		return err
	}
	if run.State.Terminal() {
		return fmt.Errorf("cancel run %s: %w: it has been %s since %s", run.RunID, ErrEnded, run.State, run.CompletedAt)
	}
	after, _, err := e.append(ctx, run.RunID, &event.RunCancelRequested{
		RunID: run.RunID, Reason: reason, Force: force, CommandKey: e.conditions.Key, Fingerprint: e.conditions.Fingerprint,
	})
	if err != nil {
		return err
	}
	_, err = e.repeated(after) // fails if a concurrent call has used the key for another request
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

// FindRun returns the run with the given id, or the only run whose id ends with it. "" and "latest" mean the newest
// run. The returned state has the run's rows. It is the live state or, for a closed run, a state that contains only
// that run.
func FindRun(ctx context.Context, snap *snapshot.Snapshot, id string) (*state.State, *state.Run, error) {
	id, err := runNamed(ctx, snap, id)
	if err != nil {
		return nil, nil, err
	}
	return withRun(ctx, snap, id)
}

// FindRunRow finds a run like [FindRun], but returns only the row of the run. It does not read the other rows of a
// closed run.
func FindRunRow(ctx context.Context, snap *snapshot.Snapshot, id string) (*state.Run, error) {
	id, err := runNamed(ctx, snap, id)
	if err != nil {
		return nil, err
	}
	run, err := snap.Run(ctx, id)
	if run == nil && err == nil {
		err = errNoRun(snap, id)
	}
	return run, err
}

// runNamed returns the id of the run that id names: see [FindRun].
func runNamed(ctx context.Context, snap *snapshot.Snapshot, id string) (string, error) {
	if id == "" || id == "latest" {
		latest, err := snap.FindRuns(ctx, snapshot.RunQuery{Limit: 1})
		switch {
		case err != nil:
			return "", err
		case len(latest.Runs) == 0:
			return "", errNoRunYet
		}
		return latest.Runs[0].RunID, nil
	}
	if ids.Valid(id) {
		return id, nil
	}
	found, err := endingWith(ctx, snap, id)
	switch {
	case err != nil:
		return "", err
	case len(found) == 1:
		return found[0].RunID, nil
	case len(found) > 1:
		return "", fmt.Errorf("run %q: %w: the ids of %d runs end with it; use more characters of the id", id, ErrNotFound, len(found))
	}
	return "", errNoRun(snap, id)
}

// endingWith returns the live runs whose ids end with a text. If there is none, it searches the closed runs in
// history, but only if the text is long enough.
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
	page, err := snap.FindRuns(ctx, snapshot.RunQuery{Limit: some, Match: func(r snapshot.RunHead) bool { return strings.HasSuffix(r.RunID, end) }})
	return page.Runs, err
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

// ErrNoTask wraps [ErrNotFound]. It means that no run has the task yet.
var ErrNoTask = fmt.Errorf("%w", ErrNotFound)

// errNoRunYet is an [ErrNoTask] with another message: no run has been started yet.
var errNoRunYet error = noRunError{}

type noRunError struct{}

func (noRunError) Error() string {
	return "no run has been started here yet; start one with `servo run`"
}
func (noRunError) Unwrap() error { return ErrNoTask }

func errNoRun(snap *snapshot.Snapshot, id string) error {
	if ids.Valid(id) && !snap.History.Kept(id) {
		return fmt.Errorf("run %q: %w: finished runs that were triggered before %s have been deleted", id, ErrNotFound, snap.History.Since())
	}
	if snap.RunCount() == 0 && snap.History.Since() == 0 {
		return errNoRunYet
	}
	return fmt.Errorf("run %q: %w: list the runs with `servo runs`", id, ErrNotFound)
}
