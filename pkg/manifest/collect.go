package manifest

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/ids"
)

const (
	// maxSwept is how many state files one call of Collect looks at.
	maxSwept = 4096
	// deleters is how many files are deleted at once.
	deleters = 16
)

// NamedFrom reports whether all files are named at or above a floor.
func NamedFrom(floor string, files []File) bool {
	for _, f := range files {
		if fileID(f.Key) < floor {
			return false
		}
	}
	return true
}

// Collect deletes state files that no revision refers to, nor ever will. It does
// a bounded amount of work and reports whether there is more to do. It may end
// anywhere, by an error too.
//
// Let o be the oldest revision above the boundary, and f its orphan floor. A file
// is deleted if it is named below f, and neither o nor a pin refers to it. This
// is safe:
//
//   - A later revision q of the lineage follows from o, one by one, and what each
//     of these refers to beyond its parent is named at or above the parent's floor
//     (that is asked of whoever publishes), which never falls, and so not below f.
//     What q refers to below f, o refers to as well. It does not matter whether q
//     is there, is being written, or is written next year.
//   - A revision before o does not exist any more. Its pin, if it was to have one,
//     was made before the boundary passed it: before the pins are listed here.
//     A pin of a later revision is in the case above.
//   - The first revision of a later lineage carries the floor of the last one of
//     this lineage, and refers to no file below it ([Store.NewLineage]).
//
// That o is committed, and in force, the boundary says after o was read.
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
	c.oldest = Oldest{oldest.Lineage, oldest.Revision, oldest.BaseSnapshot.EntriesFrom}
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
		return true, err // another collector, or a rebuild, was faster
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

// Oldest is what a collector knows of the oldest revision that exists.
type Oldest struct {
	Lineage  string
	Revision int64
	// EntriesFrom is below which entry of the ledger it knows all by name: so does every
	// later revision of the lineage, present or future.
	EntriesFrom string
}

// Oldest is the oldest revision as the last Collect found it, for whoever does more
// with what no revision needs any more; zero: there is none.
func (c *Collector) Oldest() Oldest { return c.oldest }

// Exists reports whether a revision that Oldest gave is committed, and not collected
// since.
func (c *Collector) Exists(ctx context.Context, o Oldest) (bool, error) {
	b, _, err := c.store.Boundary(ctx)
	return err == nil && !b.Covers(o.Lineage, o.Revision), err
}

// InForce reports whether the lineage of a revision that Oldest gave has not ended.
func (c *Collector) InForce(ctx context.Context, o Oldest) (bool, error) {
	b, _, err := c.store.Boundary(ctx)
	return err == nil && !b.Covers(o.Lineage, math.MaxInt64), err
}

// begin reports whether there is anything to do at a floor.
//
// All files are looked at again when the floor has risen by as much as it lags.
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

// oldest is the oldest revision that exists, or nil.
func (s *Store) oldest(ctx context.Context) (*Manifest, error) {
	b, _, err := s.Boundary(ctx)
	if err != nil {
		return nil, err
	}
	w := window{ctx: ctx, store: s, seen: map[int64]*Manifest{}}
	m, err := w.at(b.DeletedThrough + 1)
	if err != nil || m == nil || b.Covers(m.Lineage, m.Revision) {
		return nil, err
	}
	return m, nil
}

// sweep lists state files named below a floor, and where to go on; "" at the end.
// Files are sorted by folder and then by name: at the first one above the floor it
// goes on with the next folder, so that young files are not listed.
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
			case !ids.Valid(id): // a stray object is not ours to delete
			case id < floor:
				found = append(found, object.Key)
			default:
				folder := object.Key[:strings.LastIndexByte(object.Key, '/')+1]
				position, ended = folder+"~", false // greater than every name in the folder
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

// unreferenced are those of the files that neither a manifest nor a pin refers to.
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

func without(keys []string, referenced map[string]bool) []string {
	var left []string
	for _, key := range keys {
		if !referenced[fileID(key)] {
			left = append(left, key)
		}
	}
	return left
}
