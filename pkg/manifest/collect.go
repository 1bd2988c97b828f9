package manifest

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/ids"
)

const (
	// maxSwept is how many state files one call of Collect lists.
	maxSwept = 4096
	// deleters is how many files are deleted in parallel.
	deleters = 16
)

// NamedFrom reports whether the names of all files are at or above floor.
func NamedFrom(floor string, files []File) bool {
	for _, f := range files {
		if fileID(f.Key) < floor {
			return false
		}
	}
	return true
}

// Collect deletes state files that no revision references, and that no later revision can reference. It does a bounded
// amount of work and reports whether more remains. It may be interrupted at any point.
//
// Let o be the oldest revision above the boundary, and f its orphan floor. Collect deletes a file if its id is below f,
// and neither o nor a pin references the file. This is safe:
//
//   - A later revision q of the timeline descends from o. Each revision after o, up to q, adds only references to files
//     whose ids are at or above the floor of its parent (publishers must ensure this). Floors never fall, so no added
//     reference is below f. Thus every file below f that q references is also referenced by o. It does not matter when
//     q is written.
//   - A revision before o does not exist. Its pin, if the policy requires one, was
//     created before the boundary passed the revision, and so before Collect lists the
//     pins. A pin of a revision after o is covered by the first case.
//   - The first revision of a later timeline carries the floor of the last revision of this timeline, and references no
//     file below it ([Manifest.Rebuilt], [Store.NewTimeline]).
//
// Collect reads the boundary after o, which confirms that o is committed and current.
func (c *Collector) Collect(ctx context.Context) (more bool, err error) {
	s := c.store
	oldest, err := s.oldest(ctx)
	if err != nil {
		return false, err
	}
	c.oldest = Oldest{}
	if oldest == nil {
		return false, nil
	}
	c.oldest = Oldest{oldest.Timeline, oldest.Revision, oldest.BaseSnapshot.EntriesFrom}
	if !c.begin(oldest.OrphanFloor) {
		return false, nil
	}
	found, position, err := s.sweep(ctx, c.position, oldest.OrphanFloor)
	if err != nil {
		return false, err
	}
	orphans, err := c.unreferenced(ctx, oldest, found)
	if err != nil {
		return false, err
	}
	if live, err := s.Live(ctx, oldest); err != nil || !live {
		return true, err // another collector has collected the revision, or a rebuild has replaced it
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(deleters)
	for _, key := range orphans {
		g.Go(func() error { return s.blobs.Delete(gctx, key) })
	}
	if err := g.Wait(); err != nil {
		return false, fmt.Errorf("delete unreferenced state files of %s: %w", s.domain, err)
	}
	if len(orphans) > 0 {
		c.log.InfoContext(ctx, "state files collected", slog.String("domain", s.domain.String()),
			slog.String("orphan_floor", oldest.OrphanFloor), slog.Int("deleted", len(orphans)))
	}
	c.position, c.sweeping = position, position != ""
	return c.sweeping, nil
}

// Oldest describes the oldest revision that exists.
type Oldest struct {
	Timeline string
	Revision int64
	// EntriesFrom is the revision's history cutoff: in this and in every later revision
	// of the timeline, a ledger entry below it is folded or abandoned.
	EntriesFrom string
}

// Oldest returns the oldest revision that the last Collect found, or zero. Callers use
// it to delete other data that no revision needs.
func (c *Collector) Oldest() Oldest { return c.oldest }

// Exists reports whether o is committed and has not been collected since.
func (c *Collector) Exists(ctx context.Context, o Oldest) (bool, error) {
	b, _, err := c.store.Boundary(ctx)
	return err == nil && !b.Covers(o.Revision), err
}

// InForce reports whether writers may still use the revision numbers that follow o. A rebuild that could not read the
// revisions raises the boundary by timelineGap, and so gives up these numbers. A collector never raises the boundary
// by so much.
func (c *Collector) InForce(ctx context.Context, o Oldest) (bool, error) {
	b, _, err := c.store.Boundary(ctx)
	return err == nil && b.DeletedThrough < o.Revision+timelineGap, err
}

// begin reports whether a pass is already running, or a new pass starts at this floor. A new pass starts when the floor
// has risen by Policy.Orphans since the last pass began.
func (c *Collector) begin(floor string) bool {
	if c.sweeping || floor == "" {
		return c.sweeping
	}
	if c.swept != "" && ids.Time(floor).Sub(ids.Time(c.swept)) < c.policy.Orphans {
		return false
	}
	c.swept, c.sweeping = floor, true
	return true
}

// oldest returns the oldest revision that exists, or nil.
func (s *Store) oldest(ctx context.Context) (*Manifest, error) {
	b, _, err := s.Boundary(ctx)
	if err != nil {
		return nil, err
	}
	w := window{ctx: ctx, store: s, seen: map[int64]*Manifest{}}
	m, err := w.at(b.DeletedThrough + 1)
	if err != nil || m == nil || b.Covers(m.Revision) {
		return nil, err
	}
	return m, nil
}

// sweep lists state files in the order of their keys, beginning after position, and returns those whose names are below
// floor, which is an id. It also returns the position at which to continue, or "" at the end. Keys are sorted by folder
// and then by name: at the first name above the floor, sweep skips to the next folder.
func (s *Store) sweep(ctx context.Context, position, floor string) (found []string, next string, err error) {
	prefix := StatePrefix(s.domain)
	for looked := 0; ; {
		ended := true
		for object, err := range s.blobs.List(ctx, blob.ListOptions{Prefix: prefix, StartAfter: position}) {
			if err != nil {
				return nil, "", fmt.Errorf("list state files of %s: %w", s.domain, err)
			}
			position = object.Key
			id := fileID(object.Key)
			if looked++; looked >= maxSwept {
				ended = false
			}
			switch {
			case !ids.Valid(id): // not a state file: keep it
			case id < floor:
				found = append(found, object.Key)
			default:
				folder := object.Key[:strings.LastIndexByte(object.Key, '/')+1]
				position, ended = folder+"~", false // sorts after every name in the folder
			}
			if !ended {
				break
			}
		}
		switch {
		case ended:
			return found, "", nil
		case looked >= maxSwept:
			return found, position, nil
		}
	}
}

// unreferenced returns the keys that neither m nor a pin references.
func (c *Collector) unreferenced(ctx context.Context, m *Manifest, keys []string) ([]string, error) {
	if len(keys) == 0 {
		return nil, nil
	}
	files, err := c.store.AllFiles(ctx, m)
	if err != nil {
		return nil, err
	}
	referenced := map[string]bool{}
	for _, f := range files {
		referenced[fileID(f.Key)] = true
	}
	left := without(keys, referenced)
	if len(left) == 0 {
		return nil, nil
	}
	pinned, err := c.listPins(ctx)
	if err != nil {
		return nil, err
	}
	clear(referenced)
	for _, revision := range pinned {
		p, err := c.pin(ctx, revision)
		if err != nil {
			return nil, err
		}
		if p == nil {
			continue
		}
		for _, id := range p.files {
			referenced[id] = true
		}
	}
	return without(left, referenced), nil
}

// without returns keys, except those of the files whose ids are in excluded.
func without(keys []string, excluded map[string]bool) []string {
	var left []string
	for _, key := range keys {
		if !excluded[fileID(key)] {
			left = append(left, key)
		}
	}
	return left
}
