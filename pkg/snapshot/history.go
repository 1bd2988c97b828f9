package snapshot

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/state"
	"github.com/servo-orchestration/servo/pkg/table"
)

// History reads what a revision has beyond its live state: runs that are closed.
// The zero History has none.
type History struct {
	codec   *Codec
	store   *manifest.Store
	domain  ids.Domain
	indexes map[string]manifest.File
	// from is the id below which runs are not kept; entries, that below which entries of
	// the ledger are here.
	from, entries string
}

// HistoryOf is that of a manifest.
func HistoryOf(c *Codec, store *manifest.Store, m *manifest.Manifest) History {
	if m == nil {
		return History{}
	}
	return History{
		codec: c, store: store, domain: m.Domain(), indexes: m.History, from: m.BaseSnapshot.RunsFrom, entries: m.BaseSnapshot.EntriesFrom,
	}
}

// Tables whose rows belong to runs, and that of the runs.
const runsTable = "runs"

var runTables = []string{runsTable, "tasks", "dep_satisfaction", "attempts"}

// Run gives the rows of a closed run, as a state of its own; nil if there is no
// such run.
func (h History) Run(ctx context.Context, runID string) (*state.State, error) {
	if !h.Kept(runID) {
		return nil, nil
	}
	if has, err := h.Has(ctx, runID); err != nil || !has {
		return nil, err
	}
	var files []manifest.File
	for _, name := range runTables {
		found, err := h.segments(ctx, name, runID)
		if err != nil {
			return nil, err
		}
		files = append(files, found...)
	}
	rows, err := h.codec.Merge(ctx, fileSources(h.store, files))
	if err != nil {
		return nil, err
	}
	st := state.New(h.domain)
	st.Load(rows.OfRun(runID))
	return st, nil
}

// Kept reports whether a run of that id would still be in history if it was closed.
func (h History) Kept(runID string) bool { return runID >= h.from }

// Since is the time from which runs are kept; zero: from the first.
func (h History) Since() event.Time {
	if h.from == "" {
		return 0
	}
	return event.At(ids.Time(h.from))
}

// Has reports whether a run, which the live state does not have, is closed: it is in
// history, or was for as long as runs are kept.
func (h History) Has(ctx context.Context, runID string) (bool, error) {
	if !h.Kept(runID) {
		return true, nil
	}
	files, err := h.segments(ctx, runsTable, runID)
	if err != nil {
		return false, err
	}
	for _, f := range files {
		ids := h.codec.seen.get(f.Key)
		if ids == nil {
			runs, err := h.runs(ctx, []manifest.File{f})
			if err != nil {
				return false, err
			}
			ids = make([]string, len(runs))
			for i, run := range runs {
				ids[i] = run.RunID
			}
			h.codec.seen.put(f.Key, ids)
		}
		if _, has := slices.BinarySearch(ids, runID); has {
			return true, nil
		}
	}
	return false, nil
}

// seen are the run ids of segments that were asked for lately: a burst of reports
// that come late is about few of them.
type seen struct {
	mu       sync.Mutex
	segments []seenSegment
}

type seenSegment struct {
	key string
	ids []string // sorted
}

const maxSeen = 4

func (s *seen) get(key string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, segment := range s.segments {
		if segment.key == key {
			return segment.ids
		}
	}
	return nil
}

func (s *seen) put(key string, ids []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.segments = append(s.segments, seenSegment{key, ids})
	if len(s.segments) > maxSeen {
		s.segments = s.segments[1:]
	}
}

func (h History) segments(ctx context.Context, table, runID string) ([]manifest.File, error) {
	index, ok := h.indexes[table]
	if !ok {
		return nil, nil
	}
	files, err := h.store.RunSegments(ctx, index, runID)
	if err != nil {
		return nil, fmt.Errorf("look for run %s in history: %w", runID, err)
	}
	return files, nil
}

func (h History) runs(ctx context.Context, files []manifest.File) ([]*state.Run, error) {
	rows, err := h.codec.Merge(ctx, fileSources(h.store, files))
	if err != nil {
		return nil, err
	}
	return rows.Runs, nil
}

// newest are the closed runs with the greatest ids, greatest first: up to limit of
// those that ok accepts.
func (h History) newest(ctx context.Context, limit int, found []*state.Run, ok func(*state.Run) bool) ([]*state.Run, error) {
	index, has := h.indexes[runsTable]
	if !has || len(found) == limit && index.MaxRun < found[limit-1].RunID {
		return found, nil
	}
	files, err := h.store.Segments(ctx, index)
	if err != nil {
		return nil, err
	}
	files = slices.SortedFunc(slices.Values(files), func(a, b manifest.File) int { return strings.Compare(b.MaxRun, a.MaxRun) })
	for _, f := range files {
		if len(found) == limit && f.MaxRun < found[limit-1].RunID {
			break
		}
		runs, err := h.runs(ctx, []manifest.File{f})
		if err != nil {
			return nil, err
		}
		found = append(found, slices.DeleteFunc(runs, func(r *state.Run) bool { return !h.Kept(r.RunID) || !ok(r) })...)
		slices.SortFunc(found, func(a, b *state.Run) int { return strings.Compare(b.RunID, a.RunID) })
		found = found[:min(limit, len(found))]
	}
	return found, nil
}

// Runs are the newest runs, live and closed, newest first: up to limit of those
// that ok accepts.
func (s *Snapshot) Runs(ctx context.Context, limit int, ok func(*state.Run) bool) ([]*state.Run, error) {
	var runs []*state.Run
	for run := range s.State.Runs.All {
		if ok(run) {
			runs = append(runs, run)
		}
	}
	slices.Reverse(runs)
	return s.History.newest(ctx, limit, runs[:min(limit, len(runs))], ok)
}

// RunCount is how many runs there are, live and closed, at most: some of the oldest may
// not be kept any more.
func (s *Snapshot) RunCount() int { return s.State.Runs.Len() + int(s.History.indexes[runsTable].Rows) }

// WithRun is the live state if that has a run, or a state of the run alone if it is
// closed; nil if there is no such run.
func (s *Snapshot) WithRun(ctx context.Context, runID string) (*state.State, error) {
	if s.State.Runs.Get(runID) != nil {
		return s.State, nil
	}
	closed, err := s.History.Run(ctx, runID)
	if closed != nil {
		closed.Load(&state.Rows{Limits: s.State.Limits.Rows()}) // they are not the run's, and explain it
	}
	return closed, err
}

// Recorded reports whether an entry of the ledger is dealt with. Those that history has are
// known by their names: what is named below it and is not known appeared when no
// listing could find it any more, and its writer has given it up.
func (s *Snapshot) Recorded(entry string) bool {
	return s.State.Recorded(entry) || entry < s.History.entries
}

// Groups are the rows of ledger_entries that groups have, live or in history. With an
// error it gives those that it could read.
func (s *Snapshot) Groups(ctx context.Context, keys []state.Key2) (map[state.Key2]*state.Entry, error) {
	found := map[state.Key2]*state.Entry{}
	asked := map[state.Key2]bool{}
	var entries []string
	for _, key := range keys {
		if row := s.State.Entries.Get(key); row != nil {
			found[key] = row
		} else if key.A < s.History.entries {
			asked[key] = true
			entries = append(entries, key.A)
		}
	}
	index, has := s.History.indexes["ledger_entries"]
	if len(asked) == 0 || !has {
		return found, nil
	}
	slices.Sort(entries)
	files, err := s.History.store.EntrySegments(ctx, index, entries)
	if err != nil {
		return found, fmt.Errorf("look for entries in history: %w", err)
	}
	var damaged []error
	for _, f := range files { // one at a time: all of it is in memory
		rows, err := s.History.codec.Merge(ctx, fileSources(s.History.store, []manifest.File{f}))
		if manifest.Damaged(err) {
			damaged = append(damaged, err)
			continue
		}
		if err != nil {
			return found, err
		}
		for _, row := range rows.Entries {
			if asked[row.Key()] {
				found[row.Key()] = row
			}
		}
	}
	return found, errors.Join(damaged...)
}

// LoadHistory reads all that a manifest has in history.
func LoadHistory(ctx context.Context, c *Codec, store *manifest.Store, m *manifest.Manifest) (*state.Rows, error) {
	files, err := historyFiles(ctx, store, m, "")
	if err != nil {
		return nil, err
	}
	return c.Merge(ctx, fileSources(store, files))
}

// Segments reads what a manifest has in history, or only of one table, a segment at a
// time.
func Segments(ctx context.Context, c *Codec, store *manifest.Store, m *manifest.Manifest, only string) iter.Seq2[*state.Rows, error] {
	return func(yield func(*state.Rows, error) bool) {
		files, err := historyFiles(ctx, store, m, only)
		if err != nil {
			yield(nil, err)
			return
		}
		for _, f := range files {
			if rows, err := c.Merge(ctx, fileSources(store, []manifest.File{f})); !yield(rows, err) || err != nil {
				return
			}
		}
	}
}

func historyFiles(ctx context.Context, store *manifest.Store, m *manifest.Manifest, only string) (files []manifest.File, err error) {
	for _, d := range table.All() {
		index, ok := m.History[d.Name]
		if !ok || only != "" && d.Name != only {
			continue
		}
		found, err := store.Segments(ctx, index)
		if err != nil {
			return nil, err
		}
		files = append(files, found...)
	}
	return files, nil
}

// MaxSegment is how many rows a segment has at most: some megabytes, which are in
// memory while it is made of several.
const MaxSegment = 1 << 18

// Absorbed are the last segments that a new one with so many rows is to be merged
// with: those that are not much greater, so that a row is written again as often
// as the logarithm of the history is great.
func Absorbed(segments []manifest.File, rows int64) []manifest.File {
	from := len(segments)
	for from > 0 && segments[from-1].Rows <= 2*rows && rows+segments[from-1].Rows <= MaxSegment {
		from--
		rows += segments[from].Rows
	}
	return segments[from:]
}

// Expired reports whether a segment has rows of runs only that are not kept any more.
func Expired(f manifest.File, from string) bool { return f.MaxRun != "" && f.MaxRun < from }

// Combine is a file of the rows of stored files of a table, and of one that is not
// stored, without those of runs below an id.
func (c *Codec) Combine(ctx context.Context, store *manifest.Store, stored []manifest.File, f File, from string) (File, error) {
	sources := append(fileSources(store, stored), Source{
		Table: f.Table, Name: "what is added to the history of " + f.Table,
		Read: func(context.Context) ([]byte, error) { return f.Data, nil },
	})
	rows, err := c.Merge(ctx, sources)
	if err != nil {
		return File{}, err
	}
	files, err := c.Encode(rows.KeptFrom(from))
	if err != nil {
		return File{}, err
	}
	return files[0], nil
}
