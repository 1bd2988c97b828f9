// Package snapshot encodes a domain's state into the files that a manifest names, and
// loads it from them.
package snapshot

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/state"
	"github.com/servo-orchestration/servo/pkg/table"
)

// Snapshot is the state of one published revision.
type Snapshot struct {
	State    *state.State
	Revision int64
	// CaughtUpAt is when the whole ledger was last known to be folded.
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
}

// tables holds the codec of each table. Making one is slow: it reflects on the row type.
type tables struct {
	runs       *table.Table[state.Run]
	tasks      *table.Table[state.Task]
	deps       *table.Table[state.Dep]
	timers     *table.Table[state.Timer]
	outbox     *table.Table[state.Dispatch]
	attempts   *table.Table[state.Attempt]
	heartbeats *table.Table[state.Heartbeat]
	runKeys    *table.Table[state.RunKey]
	conflicts  *table.Table[state.RunKeyConflict]
	limits     *table.Table[state.Limit]
	partitions *table.Table[state.Partition]
	entries    *table.Table[state.Entry]
}

// Codec encodes and decodes states. It is safe for concurrent use. A process needs only
// one.
type Codec struct {
	t      tables
	memory *memory // nil: files are Parquet
	runIDs runIDCache
}

// NewCodec returns a codec that encodes files as Parquet.
func NewCodec() *Codec {
	return &Codec{t: tables{
		runs: table.Of[state.Run](), tasks: table.Of[state.Task](), deps: table.Of[state.Dep](),
		timers: table.Of[state.Timer](), outbox: table.Of[state.Dispatch](), attempts: table.Of[state.Attempt](),
		heartbeats: table.Of[state.Heartbeat](), runKeys: table.Of[state.RunKey](),
		conflicts: table.Of[state.RunKeyConflict](), limits: table.Of[state.Limit](),
		partitions: table.Of[state.Partition](), entries: table.Of[state.Entry](),
	}}
}

// Encode returns one file for each table with rows, in the order of [table.All].
func (c *Codec) Encode(rows *state.Rows) ([]File, error) {
	e := encoder{memory: c.memory}
	c.encode(&e, rows)
	return e.files, e.err
}

// Inline encodes rows as JSON to embed in a manifest. size is their total size in bytes.
func (c *Codec) Inline(rows *state.Rows) (inline []manifest.Rows, size int64, err error) {
	e := encoder{memory: c.memory, inline: true}
	c.encode(&e, rows)
	for _, f := range e.files {
		inline = append(inline, manifest.NewRows(f.Table, f.Rows, f.Data))
		size += int64(len(f.Data))
	}
	if c.memory != nil {
		size = rowBytes * int64(rows.Len())
	}
	return inline, size, e.err
}

// MergeRows merges rows as Merge does: the greatest sequence number wins.
func (c *Codec) MergeRows(all []*state.Rows) (*state.Rows, error) {
	if len(all) == 1 {
		return all[0], nil
	}
	var rows state.Rows
	err := errors.Join(
		mergeRows(c.t.runs, all, func(r *state.Rows) *[]*state.Run { return &r.Runs }, &rows),
		mergeRows(c.t.tasks, all, func(r *state.Rows) *[]*state.Task { return &r.Tasks }, &rows),
		mergeRows(c.t.deps, all, func(r *state.Rows) *[]*state.Dep { return &r.Deps }, &rows),
		mergeRows(c.t.timers, all, func(r *state.Rows) *[]*state.Timer { return &r.Timers }, &rows),
		mergeRows(c.t.outbox, all, func(r *state.Rows) *[]*state.Dispatch { return &r.Outbox }, &rows),
		mergeRows(c.t.attempts, all, func(r *state.Rows) *[]*state.Attempt { return &r.Attempts }, &rows),
		mergeRows(c.t.heartbeats, all, func(r *state.Rows) *[]*state.Heartbeat { return &r.Heartbeats }, &rows),
		mergeRows(c.t.runKeys, all, func(r *state.Rows) *[]*state.RunKey { return &r.RunKeys }, &rows),
		mergeRows(c.t.conflicts, all, func(r *state.Rows) *[]*state.RunKeyConflict { return &r.Conflicts }, &rows),
		mergeRows(c.t.limits, all, func(r *state.Rows) *[]*state.Limit { return &r.Limits }, &rows),
		mergeRows(c.t.partitions, all, func(r *state.Rows) *[]*state.Partition { return &r.Partitions }, &rows),
		mergeRows(c.t.entries, all, func(r *state.Rows) *[]*state.Entry { return &r.Entries }, &rows),
	)
	return &rows, err
}

func mergeRows[R table.Row](t *table.Table[R], all []*state.Rows, of func(*state.Rows) *[]*R, into *state.Rows) (err error) {
	var lists [][]*R
	for _, rows := range all {
		if list := *of(rows); len(list) > 0 {
			lists = append(lists, list)
		}
	}
	*of(into), err = t.MergeDeltas(lists...)
	return err
}

// Without returns the rows whose keys do not occur in newer.
func (c *Codec) Without(rows, newer *state.Rows) *state.Rows {
	return &state.Rows{
		Runs: c.t.runs.Without(rows.Runs, newer.Runs), Tasks: c.t.tasks.Without(rows.Tasks, newer.Tasks),
		Deps: c.t.deps.Without(rows.Deps, newer.Deps), Timers: c.t.timers.Without(rows.Timers, newer.Timers),
		Outbox: c.t.outbox.Without(rows.Outbox, newer.Outbox), Attempts: c.t.attempts.Without(rows.Attempts, newer.Attempts),
		Heartbeats: c.t.heartbeats.Without(rows.Heartbeats, newer.Heartbeats), RunKeys: c.t.runKeys.Without(rows.RunKeys, newer.RunKeys),
		Conflicts: c.t.conflicts.Without(rows.Conflicts, newer.Conflicts), Limits: c.t.limits.Without(rows.Limits, newer.Limits),
		Partitions: c.t.partitions.Without(rows.Partitions, newer.Partitions), Entries: c.t.entries.Without(rows.Entries, newer.Entries),
	}
}

func (c *Codec) encode(e *encoder, rows *state.Rows) {
	encode(e, c.t.runs, rows.Runs, func(r *state.Run) string { return r.RunID })
	encode(e, c.t.tasks, rows.Tasks, func(r *state.Task) string { return r.RunID })
	encode(e, c.t.deps, rows.Deps, func(r *state.Dep) string { return r.RunID })
	encode(e, c.t.timers, rows.Timers, nil)
	encode(e, c.t.outbox, rows.Outbox, nil)
	encode(e, c.t.attempts, rows.Attempts, func(r *state.Attempt) string { return r.RunID })
	encode(e, c.t.heartbeats, rows.Heartbeats, func(r *state.Heartbeat) string { return r.RunID })
	encode(e, c.t.runKeys, rows.RunKeys, nil)
	encode(e, c.t.conflicts, rows.Conflicts, func(r *state.RunKeyConflict) string { return r.RunID })
	encode(e, c.t.limits, rows.Limits, nil)
	encode(e, c.t.partitions, rows.Partitions, nil)
	encode(e, c.t.entries, rows.Entries, nil)
	if len(rows.Entries) > 0 && e.err == nil {
		f := &e.files[len(e.files)-1]
		f.MinEntry, f.MaxEntry = bounds(rows.Entries, func(r *state.Entry) string { return r.Entry })
	}
}

// bounds returns the least and the greatest id of rows, which must not be empty. Not all
// tables are sorted by that id.
func bounds[R any](rows []*R, id func(*R) string) (least, greatest string) {
	least, greatest = id(rows[0]), id(rows[0])
	for _, row := range rows {
		least, greatest = min(least, id(row)), max(greatest, id(row))
	}
	return least, greatest
}

type encoder struct {
	memory *memory
	inline bool // encode as JSON
	files  []File
	err    error
}

func encode[R table.Row](e *encoder, t *table.Table[R], rows []*R, run func(*R) string) {
	if len(rows) == 0 || e.err != nil {
		return
	}
	data, err := encodeRows(e, t, rows)
	if err != nil {
		e.err = fmt.Errorf("encode table %s: %w", t.Name(), err)
		return
	}
	f := File{Table: t.Name(), Data: data, Rows: int64(len(rows))}
	if run != nil {
		f.MinRun, f.MaxRun = bounds(rows, run)
	}
	e.files = append(e.files, f)
}

func encodeRows[R table.Row](e *encoder, t *table.Table[R], rows []*R) ([]byte, error) {
	switch {
	case e.memory != nil:
		return store(e.memory, t.Name(), rows), nil
	case e.inline:
		return t.AppendJSON(nil, rows)
	}
	return t.Encode(rows)
}

func decodeRows[R table.Row](m *memory, t *table.Table[R], s Source, data []byte) ([]*R, error) {
	if m != nil {
		return fetch[R](m, t.Name(), data)
	}
	decode := t.Decode
	if s.inline {
		decode = t.DecodeJSON
	}
	rows, err := decode(data)
	if runs, ok := any(rows).([]*state.Run); ok {
		for _, run := range runs {
			run.Upgrade()
		}
	}
	return rows, err
}

// Source is an encoded file for Merge to read.
type Source struct {
	Table string
	// Name identifies the file in errors.
	Name string
	Read func(context.Context) ([]byte, error)

	inline bool // Read returns JSON
}

// Merge merges the rows of files. For each key, the row with the greatest sequence number
// wins, so the order of sources does not matter. Tombstones are kept.
func (c *Codec) Merge(ctx context.Context, sources []Source) (*state.Rows, error) {
	byTable := map[string][]Source{}
	known := map[string]bool{}
	for _, t := range table.All() {
		known[t.Name] = true
	}
	for _, s := range sources {
		if !known[s.Table] {
			continue // a table of a newer build, which this one does not need
		}
		byTable[s.Table] = append(byTable[s.Table], s)
	}
	var rows state.Rows
	g, ctx := errgroup.WithContext(ctx)
	decode(ctx, g, c.memory, c.t.runs, byTable, &rows.Runs)
	decode(ctx, g, c.memory, c.t.tasks, byTable, &rows.Tasks)
	decode(ctx, g, c.memory, c.t.deps, byTable, &rows.Deps)
	decode(ctx, g, c.memory, c.t.timers, byTable, &rows.Timers)
	decode(ctx, g, c.memory, c.t.outbox, byTable, &rows.Outbox)
	decode(ctx, g, c.memory, c.t.attempts, byTable, &rows.Attempts)
	decode(ctx, g, c.memory, c.t.heartbeats, byTable, &rows.Heartbeats)
	decode(ctx, g, c.memory, c.t.runKeys, byTable, &rows.RunKeys)
	decode(ctx, g, c.memory, c.t.conflicts, byTable, &rows.Conflicts)
	decode(ctx, g, c.memory, c.t.limits, byTable, &rows.Limits)
	decode(ctx, g, c.memory, c.t.partitions, byTable, &rows.Partitions)
	decode(ctx, g, c.memory, c.t.entries, byTable, &rows.Entries)
	return &rows, g.Wait()
}

func decode[R table.Row](
	ctx context.Context, g *errgroup.Group, m *memory, t *table.Table[R], byTable map[string][]Source, into *[]*R,
) {
	sources := byTable[t.Name()]
	if len(sources) == 0 {
		return
	}
	g.Go(func() error {
		files, err := readAll(ctx, m, t, sources)
		if err != nil {
			return err
		}
		*into, err = t.MergeDeltas(files...)
		return err
	})
}

// readers is how many files of one table are read in parallel.
const readers = 8

func readAll[R table.Row](ctx context.Context, m *memory, t *table.Table[R], sources []Source) ([][]*R, error) {
	files := make([][]*R, len(sources))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(readers)
	for i, s := range sources {
		g.Go(func() error {
			data, err := s.Read(ctx)
			if err != nil {
				return err
			}
			files[i], err = decodeRows(m, t, s, data)
			if err != nil {
				return fmt.Errorf("read %s: %w; run `servo admin rebuild` to rebuild the state from the ledger", s.Name, err)
			}
			return nil
		})
	}
	return files, g.Wait()
}

// Diff compares two states row by row and describes each difference in a line, up to
// limit lines. It returns no lines if the states are equal.
func (c *Codec) Diff(want, got *state.State, limit int) []string {
	d := differ{limit: limit}
	diff(&d, c.t.runs, want.Runs.Rows(), got.Runs.Rows())
	diff(&d, c.t.tasks, want.Tasks.Rows(), got.Tasks.Rows())
	diff(&d, c.t.deps, want.Deps.Rows(), got.Deps.Rows())
	diff(&d, c.t.timers, want.Timers.Rows(), got.Timers.Rows())
	diff(&d, c.t.outbox, want.Outbox.Rows(), got.Outbox.Rows())
	diff(&d, c.t.attempts, want.Attempts.Rows(), got.Attempts.Rows())
	diff(&d, c.t.heartbeats, want.Heartbeats.Rows(), got.Heartbeats.Rows())
	diff(&d, c.t.runKeys, want.RunKeys.Rows(), got.RunKeys.Rows())
	diff(&d, c.t.conflicts, want.Conflicts.Rows(), got.Conflicts.Rows())
	diff(&d, c.t.limits, want.Limits.Rows(), got.Limits.Rows())
	diff(&d, c.t.partitions, want.Partitions.Rows(), got.Partitions.Rows())
	diff(&d, c.t.entries, want.Entries.Rows(), got.Entries.Rows())
	return d.lines
}

type differ struct {
	limit int
	lines []string
}

func diff[R table.Row](d *differ, t *table.Table[R], want, got []*R) {
	for line := range t.Diff(want, got) {
		if len(d.lines) == d.limit {
			return
		}
		d.lines = append(d.lines, t.Name()+": "+line)
	}
}

// Latest holds the newest snapshot and lets readers wait for the next. Its zero value is
// ready for use.
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

// Get returns the newest snapshot, or nil before the first, and a channel that is closed
// by the next Set.
func (l *Latest) Get() (*Snapshot, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.next == nil {
		l.next = make(chan struct{})
	}
	return l.snap, l.next
}

// Await waits until ok accepts the newest snapshot, and returns it.
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
