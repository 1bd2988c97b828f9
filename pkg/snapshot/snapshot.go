// Package snapshot encodes a domain's state into the files that a manifest names, and loads the state from these
// files. This package is not a stable API.
package snapshot

import (
	"context"
	"fmt"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/state"
	"github.com/servo-orchestration/servo/pkg/table"
	"github.com/servo-orchestration/servo/pkg/table/parquetfile"
)

// Snapshot is the state of one published revision.
type Snapshot struct {
	State    *state.State
	Revision int64
	// Nonce identifies the manifest of the revision; "": nothing was published.
	Nonce string
	// Timeline is the id of the history of revisions between two rebuilds of the domain. Revisions of different
	// timelines may have the same number. "": nothing was published.
	Timeline string
	// CompleteThrough is a ULID: every ledger entry below it is folded.
	CompleteThrough string
	// CaughtUpAt is the last time at which the whole ledger was known to be folded.
	CaughtUpAt event.Time
	// History reads the closed runs, which State does not contain.
	History History
}

// File holds rows of one table, encoded as Parquet.
type File struct {
	Table string
	Data  []byte
	Rows  int64
	// MinRun and MaxRun are the least and greatest run id; empty for tables without runs.
	MinRun, MaxRun string
	// MinEntry and MaxEntry are the least and greatest ledger entry; empty except for
	// ledger_entries.
	MinEntry, MaxEntry string
	// Min and Max are the least and greatest key in a file of a paged table.
	Min, Max manifest.Cell
}

// Named returns the reference with which a manifest names the file. The file's name contains the given id, which must
// be new.
func (f File) Named(d ids.Domain, tier, id string) manifest.File {
	named := manifest.File{
		Table: f.Table, Key: manifest.StateKey(d, f.Table, tier, id), Size: int64(len(f.Data)), Rows: f.Rows,
		CRC32C: blob.CRC32C(f.Data), MinRun: f.MinRun, MaxRun: f.MaxRun,
	}
	if tier == manifest.TierHistory {
		named.MinEntry, named.MaxEntry, named.Min, named.Max = f.MinEntry, f.MaxEntry, f.Min, f.Max
	}
	return named
}

// Codec encodes and decodes states. It is safe for concurrent use. A process should use a single codec, because the
// codec caches parts of files.
type Codec struct {
	files  table.Format // the format of files
	inline table.Format // the format of the rows that a manifest contains
	runIDs runIDCache
	pages  pageCache

	opened    cache[table.Parts]
	stretches cache[[]stretch]
	heads     cache[[]RunHead]
	taskHeads cache[[]TaskHead]
	failed    cache[[]FailedTask]
	cells     cache[*state.Partition]
}

// NewCodec returns a codec that encodes files as Parquet.
func NewCodec() *Codec {
	c := &Codec{files: &parquetfile.Format{}, inline: table.JSON{}}
	c.opened.max, c.stretches.max, c.heads.max, c.taskHeads.max = maxOpen, maxHeads, maxHeads, maxHeads/2
	c.failed.max, c.cells.max = maxFailed, maxCells
	return c
}

// Encode returns one file for each table with rows, in the order of [state.Declarations].
func (c *Codec) Encode(rows *state.Rows) ([]File, error) { return encode(c.files, rows) }

// Inline encodes rows as JSON to embed in a manifest. It also returns the total size of the encoded rows in bytes.
func (c *Codec) Inline(rows *state.Rows) (inline []manifest.Rows, size int64, err error) {
	files, err := encode(c.inline, rows)
	for _, f := range files {
		inline = append(inline, manifest.NewRows(f.Table, f.Rows, f.Data))
		size += int64(len(f.Data))
	}
	if _, ok := c.inline.(*memory); ok {
		size = rowBytes * int64(rows.Len())
	}
	return inline, size, err
}

func encode(format table.Format, rows *state.Rows) ([]File, error) {
	var files []File
	for d, list := range rows.Lists {
		data, err := d.Encode(format, list)
		if err != nil {
			return nil, fmt.Errorf("encode table %s: %w", d.Name, err)
		}
		f := File{Table: d.Name, Data: data, Rows: int64(d.Len(list))}
		f.MinRun, f.MaxRun = d.Bounds(d.Run, list)
		f.MinEntry, f.MaxEntry = d.Bounds(d.Entry, list)
		if rows, paged := list.([]*state.Partition); paged {
			f.Min, f.Max = cellOf(rows[0]), cellOf(rows[len(rows)-1])
		}
		files = append(files, f)
	}
	return files, nil
}

// Source is an encoded file that [Codec.Merge] reads.
type Source struct {
	Table string
	// Name identifies the file in errors.
	Name string
	Read func(context.Context) ([]byte, error)

	inline bool // Read returns JSON
}

// Merge merges the rows of files. For each key, the row with the greatest sequence number
// wins, so the order of sources does not matter. Tombstones are kept. Merge ignores tables that
// only newer builds know.
func (c *Codec) Merge(ctx context.Context, sources []Source) (*state.Rows, error) {
	byTable := map[string][]Source{}
	for _, s := range sources {
		byTable[s.Table] = append(byTable[s.Table], s)
	}
	declarations := state.Declarations()
	lists := make([]any, len(declarations))
	g, ctx := errgroup.WithContext(ctx)
	for i, d := range declarations {
		sources := byTable[d.Name]
		if len(sources) == 0 {
			continue
		}
		g.Go(func() error {
			files, err := c.readAll(ctx, d, sources)
			if err != nil {
				return err
			}
			lists[i], err = d.Merge(files)
			return err
		})
	}
	err := g.Wait()
	return state.NewRows(lists), err
}

// readers is how many files of one table are read at the same time.
const readers = 8

func (c *Codec) readAll(ctx context.Context, d *state.Declaration, sources []Source) ([]any, error) {
	files := make([]any, len(sources))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(readers)
	for i, s := range sources {
		g.Go(func() error {
			data, err := s.Read(ctx)
			if err != nil {
				return err
			}
			format := c.files
			if s.inline {
				format = c.inline
			}
			files[i], err = d.Decode(format, data)
			if err != nil {
				return fmt.Errorf("read %s: %w; run `servo admin rebuild` to rebuild the state from the ledger", s.Name, err)
			}
			return nil
		})
	}
	return files, g.Wait()
}

// Latest contains the newest snapshot, and lets readers wait for the next one. Its zero value is ready for use.
type Latest struct {
	mu   sync.Mutex
	snap *Snapshot
	next chan struct{}
}

// Set makes snap the newest snapshot.
func (l *Latest) Set(snap *Snapshot) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.snap = snap
	if l.next != nil {
		close(l.next)
		l.next = nil
	}
}

// Get returns the newest snapshot, and a channel that the next call of Set closes. Before the first Set, the snapshot
// is nil.
func (l *Latest) Get() (*Snapshot, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.next == nil {
		l.next = make(chan struct{})
	}
	return l.snap, l.next
}

// Await waits until the function ok accepts the newest snapshot, and returns this snapshot.
func (l *Latest) Await(ctx context.Context, ok func(*Snapshot) bool) (*Snapshot, error) {
	for {
		snap, next := l.Get()
		if snap != nil && ok(snap) {
			return snap, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-next:
		}
	}
}
