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

// Policy says how long a revision is kept after another took its place. What is
// zero has its default. The newest revision is always kept.
type Policy struct {
	// All is how long every revision is kept, one hour. Who reads or writes, and
	// stands still for longer than that, has to start over.
	All time.Duration
	// Newest is how many of the newest revisions are kept whatever their age; 0: one.
	Newest int64
	// Minutely is how long those are kept that were current on a full minute; 0: not at all. It is for a short All:
	// see [OneMachine].
	Minutely time.Duration
	// Hourly is how long those are kept that were current on a full hour, 7 days.
	Hourly time.Duration
	// Daily is how long those are kept that were current at midnight, UTC, 30 days.
	Daily time.Duration
	// Orphans is how far behind the clock files are safe that nothing refers to yet,
	// ten minutes: how long a writer may take from its first file to its publish, and
	// how far its clock may be behind, before it has to write again.
	Orphans time.Duration
}

const (
	keepAll    = time.Hour
	keepHourly = 7 * 24 * time.Hour
	keepDaily  = 30 * 24 * time.Hour
	orphans    = 10 * time.Minute
)

// OneMachine is the policy of a state folder. A folder publishes a hundred revisions a second where a bucket publishes
// one, and all of its writers and readers share a clock. A reader that stands still for longer than All starts over;
// All is longer than readers trust what they know (trustWindow).
func OneMachine() Policy {
	return Policy{All: 3 * trustWindow / 2, Minutely: time.Hour, Orphans: trustWindow}
}

// NewestOnClose is how many revisions a process leaves that owned a state folder.
const NewestOnClose = 16

// Closing is the policy of a process that owns its folder and ends: a run of seconds leaves a hundred revisions that
// All would keep, and nobody would collect them. A reader that knew one of them starts over.
func (p Policy) Closing() Policy {
	p.All, p.Newest = 1, NewestOnClose
	return p
}

// WithDefaults is the policy with its defaults filled in.
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

// pins reports whether a revision that was current from one time until another
// has a pin, now. It is a function of what is stored, but for now: all collectors
// make the same pins, whoever of them comes first, however often.
func (p Policy) pins(from, until, now event.Time) bool {
	age := now.Sub(until)
	return age < p.Minutely && crosses(from, until, time.Minute) || age < p.Hourly && crosses(from, until, time.Hour) || age < p.Daily && crosses(from, until, 24*time.Hour)
}

// crosses reports whether a multiple of step lies in [from, until).
func crosses(from, until event.Time, step time.Duration) bool {
	s := event.Time(step.Microseconds())
	return (until-1)/s > (from-1)/s
}

const (
	// maxRevisions is how many revisions one call of Retain looks at.
	maxRevisions = 512
	// maxRemoved is how many manifests one call of Retain deletes.
	maxRemoved = 1024
)

// Collector deletes what a policy does not keep: see the package documentation.
// It remembers where it is, and pins, which never change; who begins with
// another one pays for reading them again, and nothing else. Any number of
// collectors may work on a domain, but each is for one goroutine at a time.
type Collector struct {
	store  *Store
	policy Policy
	log    *slog.Logger
	pins   map[int64]*pin

	position string // the state file after which Collect goes on
	sweeping bool   // Collect is in the middle
	swept    string // the floor at which Collect last began

	oldest Oldest
}

// NewCollector makes a collector of a domain's revisions and files.
func NewCollector(s *Store, p Policy) *Collector {
	return &Collector{store: s, policy: p.WithDefaults(), log: s.log, pins: map[int64]*pin{}}
}

// errMoved says that the boundary was replaced meanwhile: what was read before
// may not be there any more, and another collector, or a rebuild, has taken over.
var errMoved = errors.New("the boundary has moved")

// Retain deletes revisions and pins whose time is over. It does a bounded amount
// of work and reports whether there is more to do. It may end anywhere, by an
// error too: the next call goes on from what is stored.
func (c *Collector) Retain(ctx context.Context) (more bool, err error) {
	s := c.store
	b, generation, err := s.Boundary(ctx)
	if err != nil {
		return false, err
	}
	w := &window{ctx: ctx, store: s, first: b.DeletedThrough + 1, seen: map[int64]*Manifest{}}
	oldest, err := w.at(w.first)
	if err != nil || oldest == nil || b.Covers(oldest.Lineage, oldest.Revision) {
		return false, err // nothing yet, or a rebuild that has not published: what there was stays until it has
	}
	now := event.At(s.clock.Now())
	through, err := w.due(now.Add(-c.policy.All))
	if err != nil {
		return false, err
	}
	if through, err = w.sparing(through, c.policy.Newest); err != nil {
		return false, err
	}
	if through > b.DeletedThrough {
		more = through == b.DeletedThrough+maxRevisions
		next := Boundary{Lineage: oldest.Lineage, DeletedThrough: through}
		err := c.pinAll(ctx, w, through, now, generation)
		if err == nil {
			err = s.raise(ctx, next, generation)
		}
		if errors.Is(err, errMoved) {
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
	return more || left, c.unpin(ctx, oldest, now)
}

// pinAll copies those revisions up to one that outlive it. On each full hour, or full
// minute, one was current: pins are found by halving, step by step.
func (c *Collector) pinAll(ctx context.Context, w *window, through int64, now event.Time, generation int64) error {
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
			return nil // at the next mark a revision is current that is kept
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
			if err := c.store.pin(ctx, current.Revision, generation); err != nil {
				return err
			}
		}
		from = next
	}
	return nil
}

// pin copies a revision. That the boundary still has the generation after the
// revision was read says that this is the one that was committed.
//
// A collector that stands still just before the copy can make it after the
// boundary has passed. Every other collector has made the same copy then, unless
// its time was over: the next Retain deletes it.
func (s *Store) pin(ctx context.Context, revision, generation int64) error {
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
	if current != generation {
		return errMoved
	}
	if _, err := s.blobs.Create(ctx, PinKey(s.domain, revision), data); err != nil && !errors.Is(err, blob.ErrExists) {
		return fmt.Errorf("pin revision %d of %s: %w", revision, s.domain, err)
	}
	return nil
}

// raise replaces the boundary of a generation. Whether it happened is found out
// by what is stored, not by the answer.
func (s *Store) raise(ctx context.Context, next Boundary, generation int64) error {
	data, err := json.Marshal(next)
	if err != nil {
		return fmt.Errorf("encode boundary: %w", err)
	}
	_, err = s.blobs.Replace(ctx, BoundaryKey(s.domain), data, generation)
	if err == nil {
		return nil
	}
	held, current, readErr := s.Boundary(ctx)
	switch {
	case readErr == nil && held == next:
		return nil
	case readErr == nil && current != generation:
		return errMoved
	}
	return fmt.Errorf("raise boundary of %s to %d: %w", s.domain, next.DeletedThrough, err)
}

// remove deletes manifests up to one, in ascending order. It lists from the
// first, since a writer that slept may have created again what was deleted.
func (c *Collector) remove(ctx context.Context, through int64) (more bool, err error) {
	s := c.store
	var gone []int64
	for revision, err := range s.listed(ctx, Prefix(s.domain), 0) {
		if err != nil {
			return false, err
		}
		if revision > through {
			break
		}
		if more = len(gone) == maxRemoved; more {
			break
		}
		gone = append(gone, revision)
	}
	for _, revision := range gone {
		if err := s.blobs.Delete(ctx, Key(s.domain, revision)); err != nil {
			return false, fmt.Errorf("delete revision %d of %s: %w", revision, s.domain, err)
		}
	}
	if len(gone) > 0 {
		c.log.InfoContext(ctx, "revisions collected", slog.String("domain", s.domain.String()),
			slog.Int64("deleted_through", through), slog.Int("deleted", len(gone)))
	}
	return more, nil
}

// window is what Retain sees of the revisions above the boundary. They are dense,
// and published_at grows with them.
type window struct {
	ctx   context.Context //nolint:containedctx // lives as long as the call that it belongs to
	store *Store
	first int64
	seen  map[int64]*Manifest
}

// at is a revision, or nil: beyond the newest, or collected meanwhile.
func (w *window) at(revision int64) (*Manifest, error) {
	if m, ok := w.seen[revision]; ok {
		return m, nil
	}
	m, err := w.store.get(w.ctx, Key(w.store.domain, revision), revision)
	if errors.Is(err, ErrAbsent) {
		return nil, nil //nolint:nilnil // absence is no error here
	}
	if err != nil {
		return nil, err
	}
	w.seen[revision] = m
	return m, nil
}

// due is the greatest revision that another took the place of by then, or the
// one before the first.
func (w *window) due(then event.Time) (int64, error) {
	next, err := w.at(w.first + 1)
	if err != nil || next == nil || next.PublishedAt > then {
		return w.first - 1, err // the usual case costs one read
	}
	// A successor that is younger than then, or absent, ends what is due; it is not
	// due itself, so the newest revision never is.
	young, err := w.after(w.first+2, w.first+1+maxRevisions, then)
	return young - 2, err
}

// sparing is the greatest revision up to one that is none of so many newest ones.
func (w *window) sparing(through, newest int64) (int64, error) {
	if newest <= 1 || through < w.first {
		return through, nil
	}
	const end = event.Time(math.MaxInt64)
	absent, err := w.after(through+1, through+newest+1, end)
	if absent > through+newest {
		return through, err
	}
	return max(w.first-1, absent-1-newest), err
}

// after is the least revision in [from, to) that was published after t or is
// absent; to when there is none.
func (w *window) after(from, to int64, t event.Time) (int64, error) {
	for from < to {
		middle := from + (to-from)/2
		m, err := w.at(middle)
		if err != nil {
			return 0, err
		}
		if m == nil || m.PublishedAt > t {
			to = middle
		} else {
			from = middle + 1
		}
	}
	return from, nil
}
