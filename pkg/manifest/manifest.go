// Package manifest publishes and reads the revisions of a domain's state.
//
// # Authority
//
// A revision is an immutable object under a number. Creating the next number,
// which a store grants to one caller only, is the one act by which anything in
// a domain changes: what is in a published revision has happened, what is not
// has not. There is no lock and no lease. A process that thinks it is the only
// writer, and is not, loses the race for a number and nothing else.
//
// Three kinds of objects stand beside the revisions:
//
//   - The boundary says which lineage is in force, and up to which number
//     revisions have been collected. Revisions at or below it do not exist, even
//     if an object of that name does: a writer that slept for a day can create a
//     number again that has been deleted since. It is replaced only under a
//     generation match, and before anything is deleted.
//   - The hint says which revision was the newest a moment ago. It saves a
//     listing, may be late, absent or nonsense, and is never trusted.
//   - A pin is a copy of a revision, byte for byte, that outlives its collection.
//     It is made before the boundary passes the revision.
//
// # Publishing
//
// [Store.Publish] creates number r+1 and then reads the boundary. Its outcomes:
//
//   - nil: r+1 is this manifest, and it is committed.
//   - [ErrConflict]: another manifest is r+1. Nothing was changed; load, fold
//     again, publish again.
//   - [ErrNotCommitted]: the boundary is at or past r+1, or names another lineage.
//     The writer had been away too long; its work is void, or was committed, built
//     upon and collected before the writer could ask. Load anew: what is there
//     then says which.
//   - [ErrUnknown]: ctx ended before the outcome was known. Load, or publish the
//     same manifest again.
//
// An answer can be lost on its way, and a refusal can be the echo of an own
// request that a proxy repeated. So after anything but a clear success the writer
// reads the number: its own nonce means that it holds it; another's, that it
// does not; absent, that the same bytes are written again. No answer but what
// is stored decides.
//
// # Reading
//
// [Store.Load] starts at the hint, probes forward until a number is absent, and
// finally reads the boundary. The order matters: a revision that the boundary
// does not cover after it was read is one that was committed. A result that the
// boundary covers, or no hint, and it lists and takes the greatest.
//
// [Store.Next] is the step of a reader that holds revision r: one request. r+1
// follows only if it names r's nonce as its parent. That r is the newest is
// good knowledge for a while, since revisions are kept for an hour: within the
// trust window of ten seconds the boundary is not read again. A reader may thus
// see a rebuild of the state, which alone does not wait an hour, that much late.
//
// # Lineages
//
// A rebuild starts a new lineage. It first replaces the boundary, naming the new
// lineage and a number far (2^20) above the greatest in use, and then publishes
// its first revision, without a parent, above that. Whatever writers of the old
// lineage still create is covered by the boundary.
//
// # Retention
//
// A revision's age is the time since another took its place. [Collector.Retain]
// finds those whose time is over, pins the ones that its [Policy] keeps longer,
// raises the boundary over them, and only then deletes them. The newest revision
// has no age, and is never collected. A process may die between any two of these
// steps, and any number of collectors may work at a time: the pins to be made
// follow from the revisions alone, the boundary is replaced under the generation
// that was read before them, and whatever lies at or below it is rubbish.
//
// # State files
//
// A file that no revision refers to may be the work of a writer that is about to
// publish, or of one that died. [Collector.Collect] deletes only those named below
// the orphan floor of the oldest revision there is. Three rules for writers make
// that safe; its documentation has the proof:
//
//   - What a revision refers to beyond its parent is named at or above the parent's
//     floor. New names are, since [Store] raises the [ids.Source] to each floor.
//     A file written before the parent was loaded, as that of a base rewrite, has
//     to be checked ([NamedFrom]) and dropped if it is not.
//   - A floor is never lower than the parent's. A publish raises it to a time
//     that files under way have passed; whose files have not starts over.
//   - The first revision of a new lineage carries the floor of the old one.
package manifest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/ids"
)

// Errors that callers branch on.
var (
	// ErrNone says that the domain has no manifest at all: nothing was ever published.
	ErrNone = errors.New("no manifest has been published")
	// ErrAbsent says that there is no such revision: not yet, or no more.
	ErrAbsent = errors.New("no such revision")
	// ErrReload says that a warm reader cannot go on from where it is: call Load.
	ErrReload = errors.New("the revision held is not followed by the next one; load anew")
	// ErrConflict says that another manifest holds the revision: see [ConflictError].
	ErrConflict = errors.New("another writer published the revision")
	// ErrNotCommitted says that a revision was created too late to count.
	ErrNotCommitted = errors.New("the revision is below the boundary or of a lineage that has ended")
	// ErrUnknown says that a publish may or may not have happened, or may yet.
	ErrUnknown = errors.New("outcome unknown")
	// ErrMissing says that a state file is not there: its revision was collected
	// (see [Store.Live]), or the state is damaged.
	ErrMissing = errors.New("state file is missing")
)

// CorruptError says that an object is not what it should be.
type CorruptError struct {
	Key    string
	Reason string
}

// Error implements error.
func (e *CorruptError) Error() string {
	return fmt.Sprintf("object %s is damaged: %s; if no other build of servo wrote it, run `servo admin rebuild`", e.Key, e.Reason)
}

// ConflictError is [ErrConflict] with the manifest that won.
type ConflictError struct{ Current *Manifest }

// Error implements error.
func (e *ConflictError) Error() string {
	return fmt.Sprintf("%v: %d, by %s", ErrConflict, e.Current.Revision, e.Current.Writer)
}

// Damaged reports whether an error says that something stored is missing or is not
// what it should be: it will be so the next time.
func Damaged(err error) bool {
	var corrupt *CorruptError
	return errors.Is(err, ErrMissing) || errors.As(err, &corrupt)
}

// Unwrap is [ErrConflict].
func (e *ConflictError) Unwrap() error { return ErrConflict }

const (
	// trustWindow is how long it is good knowledge that a revision was the newest.
	trustWindow = 10 * time.Second
	// hintInterval is the least time between two hints: stores take about one
	// mutation a second of one name.
	hintInterval = time.Second
	// maxProbes is how many revisions are probed for, one by one, before listing.
	maxProbes = 16
	// maxRestarts bounds how often a reader starts over because revisions are
	// being collected under it.
	maxRestarts = 8
)

// Config is what a [Store] needs.
type Config struct {
	Domain ids.Domain
	Store  blob.Store
	IDs    *ids.Source
	Clock  clock.Clock
	// Held is told of a revision that is stored, before it is known to count: whoever
	// hears of it has to look for himself. It must not block. It may be nil.
	Held func(revision int64)
	// Logger is told of publishes that are repeated. It may be nil.
	Logger *slog.Logger
}

// Store publishes and reads the revisions of one domain. It is safe for
// concurrent use.
type Store struct {
	domain ids.Domain
	blobs  blob.Store
	ids    *ids.Source
	clock  clock.Clock
	held   func(int64)
	log    *slog.Logger

	mu         sync.Mutex
	newest     Ref // was the newest revision, and committed, at verifiedAt
	verifiedAt time.Time
	hintedAt   time.Time
	texts      texts               // of the manifest that was encoded last; never changed
	segments   map[string]segments // of history, by table, as they were read last

	decoder Decoder
}

// New makes the store of a domain's manifests.
func New(cfg Config) *Store {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Held == nil {
		cfg.Held = func(int64) {}
	}
	return &Store{
		domain: cfg.Domain, blobs: cfg.Store, ids: cfg.IDs, clock: cfg.Clock, held: cfg.Held, log: cfg.Logger, decoder: Decoder{Domain: cfg.Domain},
	}
}

// Boundary says which revisions exist: those of the lineage above the number.
// The zero value, which an absent object stands for, rules out none.
type Boundary struct {
	Lineage        string `json:"lineage"`
	DeletedThrough int64  `json:"deleted_through"`
}

// Covers reports whether a revision of a lineage does not exist.
func (b Boundary) Covers(lineage string, revision int64) bool {
	return revision <= b.DeletedThrough || b.Lineage != "" && b.Lineage != lineage
}

// Boundary reads the boundary, and the generation to replace it under: 0 when
// there is none yet.
func (s *Store) Boundary(ctx context.Context) (Boundary, int64, error) {
	key := BoundaryKey(s.domain)
	data, object, err := blob.Get(ctx, s.blobs, key, maxSmall)
	switch {
	case errors.Is(err, blob.ErrNotFound):
		return Boundary{}, 0, nil
	case tooLarge(err):
		return Boundary{}, 0, &CorruptError{Key: key, Reason: err.Error()}
	case err != nil:
		return Boundary{}, 0, fmt.Errorf("read boundary %s: %w", key, err)
	}
	var b Boundary
	if err := json.Unmarshal(data, &b); err != nil {
		return Boundary{}, 0, &CorruptError{Key: key, Reason: err.Error()}
	}
	if b.DeletedThrough < 0 || !ids.Valid(b.Lineage) {
		return Boundary{}, 0, &CorruptError{Key: key, Reason: "it has no lineage, or a negative number"}
	}
	return b, object.Generation, nil
}

// Live reports whether a manifest still exists: neither collected nor replaced
// by a rebuild. A reader that misses a file asks this before it cries damage.
func (s *Store) Live(ctx context.Context, m *Manifest) (bool, error) {
	b, _, err := s.Boundary(ctx)
	return err == nil && !b.Covers(m.Lineage, m.Revision), err
}

// verified notes that m was committed, and the newest, at the time t.
func (s *Store) verified(m *Manifest, t time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m.Revision >= s.newest.Revision || t.Sub(s.verifiedAt) >= trustWindow {
		s.newest, s.verifiedAt = m.Ref(), t
	}
}

// distrust has whoever asks next read the boundary.
func (s *Store) distrust() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.verifiedAt = time.Time{}
}

// trusted reports whether what follows m can be told without the boundary.
func (s *Store) trusted(m *Manifest) bool {
	now := s.clock.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	age := now.Sub(s.verifiedAt)
	return age >= 0 && age < trustWindow &&
		(m.Ref() == s.newest || m.Revision > s.newest.Revision)
}

// tooLarge reports whether an object was not read because of its size.
func tooLarge(err error) bool {
	_, large := errors.AsType[*blob.TooLargeError](err)
	return large
}

// get reads the manifest under a key, which is a revision's or its pin's.
func (s *Store) get(ctx context.Context, key string, revision int64) (*Manifest, error) {
	data, _, err := blob.Get(ctx, s.blobs, key, maxBytes)
	switch {
	case errors.Is(err, blob.ErrNotFound):
		return nil, fmt.Errorf("read manifest %s: %w", key, ErrAbsent)
	case tooLarge(err):
		return nil, &CorruptError{Key: key, Reason: err.Error()}
	case err != nil:
		return nil, fmt.Errorf("read manifest %s: %w", key, err)
	}
	m, err := s.decoder.Decode(key, revision, data)
	if err != nil {
		return nil, err
	}
	s.ids.Raise(m.OrphanFloor)
	return m, nil
}
