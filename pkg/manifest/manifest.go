// Package manifest publishes and reads the revisions of a domain's state. This package is not a
// stable API.
//
// # Authority
//
// A revision is an immutable object whose key contains its number. Creating the next number is the only act that
// changes a domain, and the store lets exactly one caller succeed. Everything in a published revision has taken effect,
// and nothing else has. There is no lock and no lease: a process that wrongly believes it is the only writer loses the
// race for a number and nothing more.
//
// Three kinds of objects accompany the revisions:
//
//   - The boundary holds the number up to which revisions have been collected, or were ended by a rebuild. Every
//     revision at or below that number counts as absent, even if an object with its number exists: a writer that
//     slept for a day can re-create a deleted object. A process replaces the boundary only if its version still
//     matches, and always before it deletes anything.
//   - The hint names a revision that was the newest a short time ago. It saves a listing. It may be outdated, absent
//     or invalid, so readers never trust it.
//   - A pin is a byte-for-byte copy of a revision, which stays when the revision is collected. It is created before the
//     boundary passes the revision.
//
// # Publishing
//
// [Store.Publish] creates revision r+1 and then reads the boundary. It returns:
//
//   - nil: r+1 is this manifest, and it is committed.
//   - [ErrConflict]: another manifest is r+1. Nothing was changed; load, fold and
//     publish again.
//   - [ErrNotCommitted]: the boundary is at or past r+1, because the writer stalled for too long. Either its revision
//     was never committed, or it was committed, followed by other revisions and collected. Load the newest revision
//     to find out which.
//   - [ErrUnknown]: ctx ended before the outcome was known. Load, or publish the
//     same manifest again.
//
// A response can be lost, and a rejection can be caused by a proxy that repeated our
// own request. So unless a create clearly succeeds, the writer reads the object: its
// own nonce means success, another nonce means conflict, and if the object is absent
// the writer sends the same bytes again. Only stored bytes decide.
//
// # Reading
//
// [Store.Load] starts at the hint, probes forward until a number is absent, and reads the boundary last. The order
// matters: a revision is committed if the boundary, read after the revision, does not cover it. If the boundary
// covers the result, or there is no hint, Load lists the revisions and takes the greatest.
//
// [Store.Next] advances a reader from revision r with one request. It accepts r+1
// only if r+1 names r's nonce as its parent. A reader that knows r was the newest does not read the boundary again
// for ten seconds, the trust window. This is safe, because revisions are kept longer than the trust window: for an
// hour in a bucket. A rebuild raises the boundary immediately, so a reader may notice the rebuild up to ten seconds
// late.
//
// # Timelines
//
// A rebuild starts a new timeline. If the newest revision r can be read, the rebuild publishes r+1 as the first
// revision of the new timeline, without a parent ([Manifest.Rebuilt]). Nothing else is needed for the switch: writers
// of the old timeline lose the race for r+1, and readers see that r+1 does not descend from r. Both then load the new
// timeline.
//
// If no revision can be read, or some are missing, the next number is not certain. The
// rebuild then first replaces the boundary with a number 2^20 above the greatest in use,
// and publishes its first revision above that number ([Store.NewTimeline]). The boundary
// covers everything that writers of the old timeline still create.
//
// # Retention
//
// A revision's age is the time since its successor was published. [Collector.Retain] finds revisions that have expired,
// pins the revisions that its [Policy] keeps longer, raises the boundary over them, and only then deletes them. The
// newest revision has no age and is never collected. A process may die between any two of these steps, and any number
// of collectors may run at once. This is safe for three reasons. The revisions alone decide which pins are created.
// Everything at or below the boundary is garbage. A collector replaces the boundary only if it still has the version
// that the collector read before it read the revisions.
//
// # State files
//
// An unreferenced file belongs either to a writer that is about to publish or to one that died. [Collector.Collect]
// deletes only files whose ids are below the orphan floor of the oldest revision. Three rules for writers make that
// safe; the documentation of Collect has the proof:
//
//   - A file that a revision references, and that its parent does not reference, has an id at or above the parent's
//     floor. New ids satisfy this, because [Store] raises the [ids.Source] to each floor. A file written before the
//     parent was loaded, such as a rewritten base, must be checked with [NamedFrom] and dropped if it is below the
//     floor.
//   - A floor is never lower than the parent's. A publish raises the floor to a recent time. A writer whose file ids
//     are older than this time must start over.
//   - The first revision of a new timeline carries the floor of the revision before it, and references no file whose id
//     is below this floor.
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
	// ErrNone means that nothing was ever published in the domain.
	ErrNone = errors.New("no manifest has been published")
	// ErrAbsent means that the revision does not exist yet, or was collected.
	ErrAbsent = errors.New("no such revision")
	// ErrReload means that a reader cannot advance from the revision that it has loaded: call Load.
	ErrReload = errors.New("the loaded revision was collected or replaced; load the newest revision")
	// ErrConflict means that the number belongs to another manifest: see [ConflictError].
	ErrConflict = errors.New("another writer published the revision")
	// ErrNotCommitted means that the boundary covers the revision: it was created too late, or it was committed and has
	// since been collected.
	ErrNotCommitted = errors.New("the revision is below the boundary")
	// ErrUnknown means that a publish may have happened, or may still happen.
	ErrUnknown = errors.New("outcome unknown")
	// ErrMissing means that a state file does not exist: its revision was collected
	// (see [Store.Live]), or the state is damaged.
	ErrMissing = errors.New("state file is missing")
)

// ConflictError wraps [ErrConflict] and holds the manifest that won.
type ConflictError struct{ Current *Manifest }

// Error implements error.
func (e *ConflictError) Error() string {
	return fmt.Sprintf("%v: %d, by %s", ErrConflict, e.Current.Revision, e.Current.Writer)
}

// Unwrap returns [ErrConflict].
func (e *ConflictError) Unwrap() error { return ErrConflict }

const (
	// trustWindow is how long a reader may advance without reading the boundary. It starts when a reader has verified
	// that a revision is the newest.
	trustWindow = 10 * time.Second
	// hintInterval is the least time between two hints: stores accept about one write per second to a key.
	hintInterval = time.Second
	// maxProbes is how many revisions a reader probes one by one before it lists.
	maxProbes = 16
	// maxRestarts limits how often a reader starts over because the revisions that it
	// reads are being collected.
	maxRestarts = 8
)

// Config holds the domain and the dependencies of a [Store].
type Config struct {
	Domain ids.Domain
	Store  blob.Store
	IDs    *ids.Source
	Clock  clock.Clock
	// OnStored is called with a revision as soon as it is stored, before the boundary has confirmed it. The function
	// must load the revision before using it, and must not block. OnStored may be nil.
	OnStored func(revision int64)
	// Logger receives a warning whenever Publish retries. It may be nil.
	Logger *slog.Logger
	// Decoder decodes manifests. If it is nil, the store creates its own decoder.
	Decoder *Decoder
}

// Store publishes and reads the revisions of one domain. It is safe for
// concurrent use.
type Store struct {
	domain   ids.Domain
	blobs    blob.Store
	ids      *ids.Source
	clock    clock.Clock
	onStored func(int64)
	log      *slog.Logger

	mu         sync.Mutex
	newest     Ref // the revision that was newest and committed at verifiedAt
	verifiedAt time.Time
	hintedAt   time.Time
	texts      texts               // the texts of the last encoded manifest; never modified
	segments   map[string]segments // the history segments that were read last, by table

	decoder *Decoder
}

// New returns the store of a domain's manifests.
func New(cfg Config) *Store {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.OnStored == nil {
		cfg.OnStored = func(int64) {}
	}
	if cfg.Decoder == nil {
		cfg.Decoder = &Decoder{Domain: cfg.Domain}
	}
	return &Store{
		domain: cfg.Domain, blobs: cfg.Store, ids: cfg.IDs, clock: cfg.Clock, onStored: cfg.OnStored, log: cfg.Logger,
		decoder: cfg.Decoder,
	}
}

// Boundary defines which revisions exist: a revision exists if its number is above DeletedThrough.
// The zero value, which means an absent boundary, covers no revision.
type Boundary struct {
	// Timeline is the timeline of the oldest revision that was above DeletedThrough when the boundary was written.
	Timeline       string `json:"timeline"`
	DeletedThrough int64  `json:"deleted_through"`
}

// Covers reports whether a revision was collected or was ended by a rebuild. Such a revision is absent, even if an
// object with its number exists.
func (b Boundary) Covers(revision int64) bool { return revision <= b.DeletedThrough }

// Boundary returns the boundary and its version, which a replacement must match.
// The version is 0 if the domain has no boundary yet.
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
	if b.DeletedThrough < 0 || !ids.Valid(b.Timeline) {
		return Boundary{}, 0, &CorruptError{Key: key, Reason: "it has no timeline, or deleted_through is negative"}
	}
	return b, object.Version, nil
}

// Live reports whether a manifest still exists: it was neither collected nor replaced by a rebuild. A reader that
// cannot find a file calls Live before it reports damage.
func (s *Store) Live(ctx context.Context, m *Manifest) (bool, error) {
	b, _, err := s.Boundary(ctx)
	return err == nil && !b.Covers(m.Revision), err
}

// verified records that m was committed and the newest revision at time t.
func (s *Store) verified(m *Manifest, t time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m.Revision >= s.newest.Revision || t.Sub(s.verifiedAt) >= trustWindow {
		s.newest, s.verifiedAt = m.Ref(), t
	}
}

// distrust makes the next reader read the boundary.
func (s *Store) distrust() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.verifiedAt = time.Time{}
}

// trusted reports whether a reader may advance from m without reading the boundary.
func (s *Store) trusted(m *Manifest) bool {
	now := s.clock.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	age := now.Sub(s.verifiedAt)
	return age >= 0 && age < trustWindow &&
		(m.Ref() == s.newest || m.Revision > s.newest.Revision)
}

// tooLarge reports whether a read failed because of the object's size.
func tooLarge(err error) bool {
	_, large := errors.AsType[*blob.TooLargeError](err)
	return large
}

// get reads the manifest under key, which is the key of the revision or of its pin.
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
