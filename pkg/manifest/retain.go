package manifest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"time"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/event"
)

// Policy defines how long a revision is kept after its successor was published. Zero
// fields have defaults. The newest revision is always kept.
type Policy struct {
	// All is how long every revision is kept; default 1 hour. A reader or writer that stalls for longer must start
	// over. All must exceed the sum of trustWindow and the difference between clocks: a reader of revision r may follow
	// a revision r+1 for trustWindow without reading the boundary. If revision r+1 were collected within this time, a
	// delayed writer could create another revision r+1. The reader would follow this false revision until it reads the
	// boundary.
	All time.Duration
	// Newest is how many of the newest revisions are kept at any age; default 1.
	Newest int64
	// Minutely is how long the policy keeps revisions that were current at a full minute; default 0. It complements a
	// short All: see [OneMachine].
	Minutely time.Duration
	// Hourly is how long the policy keeps revisions that were current at a full hour; default 7 days.
	Hourly time.Duration
	// Daily is how long the policy keeps revisions that were current at midnight UTC; default 30 days.
	Daily time.Duration
	// Orphans is how old an unreferenced file must be before it may be deleted; default 10 minutes. A writer must
	// publish within this time after it has written its first file; if its clock is behind, it has that much less time.
	// A slower writer must write its files again.
	Orphans time.Duration
}

const (
	keepAll    = time.Hour
	keepHourly = 7 * 24 * time.Hour
	keepDaily  = 30 * 24 * time.Hour
	orphans    = 10 * time.Minute
)

// OneMachine returns the policy of a state folder. A folder may get a hundred revisions a second, and a bucket gets
// about one. So the policy keeps every revision only for seconds, and then one revision per minute for an hour. So
// short an All is safe, because the processes of a folder share a clock.
func OneMachine() Policy {
	return Policy{All: 3 * trustWindow / 2, Minutely: time.Hour, Orphans: trustWindow}
}

// NewestOnClose is how many revisions the owner of a state folder keeps when it exits.
const NewestOnClose = 16

// Closing returns the policy for the owner of a state folder that is about to exit: it keeps only the newest revisions.
// A run of a few seconds leaves about a hundred revisions. With the usual All, they would still be too young to be
// collected, and no process would collect them later. A reader of a collected revision starts over.
func (p Policy) Closing() Policy {
	p.All, p.Newest = 1, NewestOnClose
	return p
}

// WithDefaults returns the policy with defaults for zero fields.
func (p Policy) WithDefaults() Policy {
	set := func(d *time.Duration, otherwise time.Duration) {
		if *d == 0 {
			*d = otherwise
		}
	}
	set(&p.All, keepAll)
	set(&p.Hourly, keepHourly)
	set(&p.Daily, keepDaily)
	set(&p.Orphans, orphans)
	return p
}

// pins reports whether a revision that was current in [from, until) must have a pin at the time now. The result
// depends only on the policy and these times, so all collectors create the same pins.
func (p Policy) pins(from, until, now event.Time) bool {
	age := now.Sub(until)
	return age < p.Minutely && crosses(from, until, time.Minute) ||
		age < p.Hourly && crosses(from, until, time.Hour) ||
		age < p.Daily && crosses(from, until, 24*time.Hour)
}

// crosses reports whether a multiple of step lies in [from, until).
func crosses(from, until event.Time, step time.Duration) bool {
	s := event.Time(step.Microseconds())
	return (until-1)/s > (from-1)/s
}

const (
	// maxRevisions is the maximum number of expired revisions that one call of Retain handles.
	maxRevisions = 512
	// maxRemoved is how many manifests one call of Retain may delete.
	maxRemoved = 1024
)

// Collector deletes what a policy does not keep: see the package documentation. It caches its position and the pins.
// The content of a pin never changes. A new Collector starts without stored state: it reads the pins again. Any number
// of collectors may work on a domain, but each one must be used by one goroutine at a time.
type Collector struct {
	store  *Store
	policy Policy
	log    *slog.Logger
	pins   map[int64]*pin
	asked  Asked

	position string // the state file after which Collect continues
	sweeping bool   // a pass of Collect is incomplete
	swept    string // the orphan floor when the last pass of Collect began
	absent   bool   // the last Retain found the boundary replaced or a revision missing: the next one looks for gaps

	oldest Oldest
}

// Asked returns the revisions that people have pinned and whose pins have not ended at the time now, as the newest
// state records them. current is false if this process has not seen the newest state. In this case, the collector
// deletes no pin.
type Asked func(ctx context.Context, now event.Time) (pinned map[int64]bool, current bool, err error)

// NewCollector returns a collector of a domain's revisions and files. Until [Collector.Ask] is called, it does not
// keep the pins that people have asked for.
func NewCollector(s *Store, p Policy) *Collector {
	asked := func(context.Context, event.Time) (map[int64]bool, bool, error) { return nil, true, nil }
	return &Collector{store: s, policy: p.WithDefaults(), log: s.log, pins: map[int64]*pin{}, asked: asked}
}

// Ask makes the collector keep the pins that people have asked for. The collector calls asked before it deletes a
// pin.
func (c *Collector) Ask(asked Asked) { c.asked = asked }

// errMoved means that another collector or a rebuild replaced the boundary since it was
// read. Revisions that were read before may have been deleted since.
var errMoved = errors.New("the boundary has moved")

// Retain deletes expired revisions and pins. It does a bounded amount of work and
// reports whether more remains. It may be interrupted at any point: the next call continues from the stored objects.
func (c *Collector) Retain(ctx context.Context) (more bool, err error) {
	s := c.store
	b, version, err := s.Boundary(ctx)
	if err != nil {
		return false, err
	}
	w := &window{ctx: ctx, store: s, first: b.DeletedThrough + 1, seen: map[int64]*Manifest{}}
	if stepped, err := w.stepOver(version, c.policy.All); stepped || err != nil {
		return stepped, err
	}
	oldest, err := w.at(w.first)
	if err != nil || oldest == nil {
		return false, err // nothing is published yet, or a rebuild is not finished: keep the old revisions
	}
	now, limited := event.At(s.clock.Now()), false
	through, err := w.expired(now.Add(-c.policy.All))
	if err == nil && through > b.DeletedThrough {
		if now, err = s.limit(ctx, now); err == nil {
			limited = true
			through, err = w.expired(now.Add(-c.policy.All))
		}
	}
	if err != nil {
		return false, err
	}
	if through, err = w.exceptNewest(through, c.policy.Newest); err != nil {
		return false, err
	}
	careful := c.absent
	if c.absent = false; careful { // the binary search in w.expired can overlook a gap
		if through, err = w.belowGap(through); err != nil {
			return false, err
		}
	}
	if through > b.DeletedThrough {
		more = through == b.DeletedThrough+maxRevisions || careful
		next := Boundary{Timeline: oldest.Timeline, DeletedThrough: through}
		err := c.pinAll(ctx, w, through, now, version)
		if err == nil {
			err = s.raise(ctx, next, version)
		}
		if c.absent = errors.Is(err, errMoved); c.absent {
			return true, nil
		}
		if err != nil {
			return false, err
		}
		b = next
	}
	left, err := c.remove(ctx, b.DeletedThrough)
	if err != nil {
		return false, err
	}
	if oldest, err = w.at(b.DeletedThrough + 1); err != nil || oldest == nil {
		return more || left, err
	}
	return more || left, c.unpin(ctx, oldest, now, limited)
}

// limit returns the parameter now or, if the store's clock is behind, the store's time. Collectors call it before they
// delete revisions or pins, because a machine whose clock is ahead would delete them too early.
func (s *Store) limit(ctx context.Context, now event.Time) (event.Time, error) {
	stored, ok, err := blob.TimeOf(ctx, s.blobs)
	if err != nil {
		return 0, fmt.Errorf("ask the store for its time: %w", err)
	}
	if ok {
		now = min(now, event.At(stored))
	}
	return now, nil
}

// pinAll pins those revisions that the policy keeps longer than Policy.All. It considers the revisions up to and
// including "through". It steps from one full hour (or full minute) to the next. For each step, a binary search finds
// the revision that was current at that time.
func (c *Collector) pinAll(ctx context.Context, w *window, through int64, now event.Time, version int64) error {
	for from := w.first; from <= through; {
		m, err := w.at(from)
		if err != nil {
			return err
		}
		if m == nil {
			return errMoved
		}
		step := event.Time(time.Hour / time.Microsecond)
		if now.Sub(m.PublishedAt) < c.policy.Minutely+time.Hour {
			step = event.Time(time.Minute / time.Microsecond)
		}
		mark := (m.PublishedAt + step - 1) / step * step
		next, err := w.after(from+1, through+2, mark)
		if err != nil {
			return err
		}
		if next > through+1 {
			return nil // the revision that was current at mark comes after through
		}
		current, err := w.at(next - 1)
		if err != nil {
			return err
		}
		successor, err := w.at(next)
		if err != nil {
			return err
		}
		if current == nil || successor == nil {
			return errMoved
		}
		if c.policy.pins(current.PublishedAt, successor.PublishedAt, now) {
			if err := c.store.pin(ctx, current.Revision, version); err != nil {
				return err
			}
		}
		from = next
	}
	return nil
}

// pin copies a revision. If the boundary still has the given version after the revision was read, the bytes are those
// of the committed revision.
//
// A collector that stalls just before it creates the copy may create it after another collector has pinned the revision
// and has moved the boundary past it. Usually the pin exists then, and the late creation has no effect. If the pin has
// expired and was deleted in the meantime, the late creation stores it again, and the next Retain deletes it.
func (s *Store) pin(ctx context.Context, revision, version int64) error {
	data, _, err := blob.Get(ctx, s.blobs, Key(s.domain, revision), maxBytes)
	if errors.Is(err, blob.ErrNotFound) {
		return errMoved
	}
	if err != nil {
		return fmt.Errorf("pin revision %d of %s: %w", revision, s.domain, err)
	}
	_, current, err := s.Boundary(ctx)
	if err != nil {
		return err
	}
	if current != version {
		return errMoved
	}
	if _, err := s.blobs.Create(ctx, PinKey(s.domain, revision), data); err != nil && !errors.Is(err, blob.ErrExists) {
		return fmt.Errorf("pin revision %d of %s: %w", revision, s.domain, err)
	}
	return nil
}

// Pin copies an existing revision, so that the copy stays when the revision is deleted. Collectors keep the copy as
// soon as [Asked] names the revision. Pin returns the version of the copy: if a second call returns the same version,
// the copy has existed without interruption since the first call. The error is [ErrAbsent] if the revision no longer
// exists.
func (s *Store) Pin(ctx context.Context, revision int64) (version int64, err error) {
	for {
		_, err := s.get(ctx, PinKey(s.domain, revision), revision)
		if err == nil {
			var copied blob.Object
			if copied, err = s.blobs.Head(ctx, PinKey(s.domain, revision)); err == nil {
				return copied.Version, nil
			}
		}
		if !errors.Is(err, ErrAbsent) && !errors.Is(err, blob.ErrNotFound) {
			return 0, err
		}
		b, boundary, err := s.Boundary(ctx)
		if err != nil {
			return 0, err
		}
		if b.Covers(revision) {
			return 0, fmt.Errorf("pin revision %d of %s: %w", revision, s.domain, ErrAbsent)
		}
		if _, err := s.get(ctx, Key(s.domain, revision), revision); err != nil {
			return 0, err
		}
		if err := s.pin(ctx, revision, boundary); err != nil && !errors.Is(err, errMoved) {
			return 0, err
		}
	}
}

// raise replaces the boundary if it still has the given version. After an error, which may be a lost response, it
// reads the stored boundary to find out whether the replacement happened.
func (s *Store) raise(ctx context.Context, next Boundary, version int64) error {
	data, err := json.Marshal(next)
	if err != nil {
		return fmt.Errorf("encode boundary: %w", err)
	}
	_, err = s.blobs.Replace(ctx, BoundaryKey(s.domain), data, version)
	if err == nil {
		return nil
	}
	stored, current, readErr := s.Boundary(ctx)
	switch {
	case readErr == nil && stored == next:
		return nil
	case readErr == nil && current != version:
		return errMoved
	}
	return fmt.Errorf("raise boundary of %s to %d: %w", s.domain, next.DeletedThrough, err)
}

// remove deletes manifests in ascending order, up to and including the parameter "through". It lists from the first
// manifest on, because a writer that slept may have re-created a deleted manifest.
func (c *Collector) remove(ctx context.Context, through int64) (more bool, err error) {
	s := c.store
	var expired []int64
	for revision, err := range s.listed(ctx, Prefix(s.domain), 0) {
		if err != nil {
			return false, err
		}
		if revision > through {
			break
		}
		if more = len(expired) == maxRemoved; more {
			break
		}
		expired = append(expired, revision)
	}
	for _, revision := range expired {
		if err := s.blobs.Delete(ctx, Key(s.domain, revision)); err != nil {
			return false, fmt.Errorf("delete revision %d of %s: %w", revision, s.domain, err)
		}
	}
	if len(expired) > 0 {
		c.log.InfoContext(ctx, "revisions collected", slog.String("domain", s.domain.String()),
			slog.Int64("deleted_through", through), slog.Int("deleted", len(expired)))
	}
	return more, nil
}

// window caches the revisions above the boundary during one call. Their numbers have no gaps, and a revision with a
// greater number was published later.
type window struct {
	ctx   context.Context //nolint:containedctx // used only during one call
	store *Store
	first int64
	seen  map[int64]*Manifest
}

// at returns a revision, or nil if it is beyond the newest or was collected.
func (w *window) at(revision int64) (*Manifest, error) {
	if m, ok := w.seen[revision]; ok {
		return m, nil
	}
	m, err := w.store.get(w.ctx, Key(w.store.domain, revision), revision)
	if errors.Is(err, ErrAbsent) {
		return nil, nil //nolint:nilnil // absence is not an error here
	}
	if err != nil {
		return nil, err
	}
	w.seen[revision] = m
	return m, nil
}

// expired returns the greatest revision whose successor was published at or before the given time. If no revision
// qualifies, it returns the number before the first revision of the window.
func (w *window) expired(then event.Time) (int64, error) {
	next, err := w.at(w.first + 1)
	if err != nil || next == nil || next.PublishedAt > then {
		return w.first - 1, err // in the usual case, one read suffices
	}
	// Find the first revision that is absent or was published later than the given time. Its predecessor has not
	// expired, but all revisions before the predecessor have. The newest revision never expires, because its successor
	// is absent.
	young, err := w.after(w.first+2, w.first+1+maxRevisions, then)
	return young - 2, err
}

// exceptNewest returns the parameter "through" or, if through is one of the newest n revisions, the last revision
// before these.
func (w *window) exceptNewest(through, n int64) (int64, error) {
	if n <= 1 || through < w.first {
		return through, nil
	}
	const end = event.Time(math.MaxInt64)
	absent, err := w.after(through+1, through+n+1, end)
	if absent > through+n {
		return through, err
	}
	return max(w.first-1, absent-1-n), err
}

// after returns the least revision in [from, end) that was published after t or is absent. If there is none, it returns
// end.
func (w *window) after(from, end int64, t event.Time) (int64, error) {
	for from < end {
		middle := from + (end-from)/2
		m, err := w.at(middle)
		if err != nil {
			return 0, err
		}
		if m == nil || m.PublishedAt > t {
			end = middle
		} else {
			from = middle + 1
		}
	}
	return from, nil
}
