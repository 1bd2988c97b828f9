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
)

// History reads the closed runs and the folded entries that are in the history of a revision, and not in its live
// state. The zero History is empty.
type History struct {
	codec   *Codec
	store   *manifest.Store
	domain  ids.Domain
	indexes map[string]manifest.File // the index of each table
	// runsFrom is the id below which runs are no longer kept.
	runsFrom string
	// entriesFrom is the id below which the rows of ledger entries are in history.
	entriesFrom string
}

// HistoryOf returns the history of a manifest.
func HistoryOf(c *Codec, store *manifest.Store, m *manifest.Manifest) History {
	if m == nil {
		return History{}
	}
	return History{
		codec: c, store: store, domain: m.Domain(), indexes: m.History,
		runsFrom: m.BaseSnapshot.RunsFrom, entriesFrom: m.BaseSnapshot.EntriesFrom,
	}
}

const runsTable = "runs"

// Run returns a state that contains only the rows of a closed run. It returns nil if history does not contain the
// run.
func (h History) Run(ctx context.Context, runID string) (*state.State, error) {
	if !h.Kept(runID) {
		return nil, nil
	}
	if h.divided() {
		rows, err := h.runRows(ctx, runID)
		if rows == nil || err != nil {
			return nil, err
		}
		st := state.New(h.domain)
		st.Load(rows)
		return st, nil
	}
	if has, err := h.Has(ctx, runID); err != nil || !has {
		return nil, err
	}
	var files []manifest.File
	for _, d := range state.Declarations() {
		if !d.OfRun() {
			continue
		}
		found, err := h.segments(ctx, d.Name, runID)
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

// Kept reports whether history still keeps closed runs with a given id.
func (h History) Kept(runID string) bool { return runID >= h.runsFrom }

// Since returns the time from which runs are kept, or zero if all runs are kept.
func (h History) Since() event.Time {
	if h.runsFrom == "" {
		return 0
	}
	return event.At(ids.Time(h.runsFrom))
}

// Has reports whether a run that is not in the live state is closed: history contains the run, or runs with such old
// ids are no longer kept.
func (h History) Has(ctx context.Context, runID string) (bool, error) {
	if !h.Kept(runID) {
		return true, nil
	}
	files, err := h.segments(ctx, runsTable, runID)
	if err != nil {
		return false, err
	}
	if h.divided() {
		return h.hasRun(ctx, files, runID)
	}
	for _, f := range files {
		ids := h.codec.runIDs.get(f.Key)
		if ids == nil {
			runs, err := h.runs(ctx, []manifest.File{f})
			if err != nil {
				return false, err
			}
			ids = make([]string, len(runs))
			for i, run := range runs {
				ids[i] = run.RunID
			}
			h.codec.runIDs.put(f.Key, ids)
		}
		if _, has := slices.BinarySearch(ids, runID); has {
			return true, nil
		}
	}
	return false, nil
}

// runIDCache caches the run ids of some segments of the table "runs": those that [History.Has] has read most recently.
// A few segments are enough, because late reports usually arrive in bursts, and the runs of a burst are in few
// segments.
type runIDCache struct {
	mu       sync.Mutex
	segments []cachedSegment
}

type cachedSegment struct {
	key string
	ids []string // sorted
}

const maxCachedSegments = 4

func (c *runIDCache) get(key string) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, segment := range c.segments {
		if segment.key == key {
			return segment.ids
		}
	}
	return nil
}

func (c *runIDCache) put(key string, ids []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.segments = append(c.segments, cachedSegment{key, ids})
	if len(c.segments) > maxCachedSegments {
		c.segments = c.segments[1:]
	}
}

func (h History) segments(ctx context.Context, table, runID string) ([]manifest.File, error) {
	index, ok := h.indexes[table]
	if !ok {
		return nil, nil
	}
	files, err := h.store.RunSegments(ctx, index, runID)
	if err != nil {
		return nil, fmt.Errorf("find run %s in history: %w", runID, err)
	}
	return files, nil
}

func (h History) runs(ctx context.Context, files []manifest.File) ([]*state.Run, error) {
	rows, err := h.codec.Merge(ctx, fileSources(h.store, files))
	if err != nil {
		return nil, err
	}
	return state.List[state.Run](rows), nil
}

// Runs returns the newest runs, live and closed, that the function ok accepts, newest first. The parameter limit is the
// maximum number of these runs.
func (s *Snapshot) Runs(ctx context.Context, limit int, ok func(*state.Run) bool) ([]*state.Run, error) {
	return s.RunsSince(ctx, "", limit, ok)
}

// RunsSince is like Runs, but returns only runs whose ids are not less than the parameter "since". It does not read
// older files of history.
func (s *Snapshot) RunsSince(ctx context.Context, since string, limit int, ok func(*state.Run) bool) ([]*state.Run, error) {
	var runs []*state.Run
	atOnce := min(limit, runsAtOnce) // begin with a small page: the function ok often accepts the newest runs, which are not in history
	for before := ""; len(runs) < limit; atOnce = min(2*atOnce, runsAtOnce) {
		page, err := s.FindRuns(ctx, RunQuery{Since: since, Before: before, Limit: atOnce})
		if err != nil {
			return nil, err
		}
		for _, run := range page.Runs {
			if len(runs) < limit && ok(run) {
				runs = append(runs, run)
			}
		}
		if before = page.Next; before == "" {
			break
		}
	}
	return runs, nil
}

// runsAtOnce is the maximum number of runs whose whole rows are decoded at once.
const runsAtOnce = 1000

// Deployments returns all deployments that are live or in history, newest first.
func (s *Snapshot) Deployments(ctx context.Context) ([]*state.Deployment, error) {
	deployments := s.State.Deployments.Rows()
	if index, has := s.History.indexes["deployments"]; has {
		files, err := s.History.store.Segments(ctx, index)
		if err != nil {
			return nil, err
		}
		rows, err := s.History.codec.Merge(ctx, fileSources(s.History.store, files))
		if err != nil {
			return nil, err
		}
		closed := slices.DeleteFunc(state.List[state.Deployment](rows), func(d *state.Deployment) bool { return !s.History.Kept(d.DeployID) })
		deployments = append(deployments, closed...)
	}
	slices.SortFunc(deployments, func(a, b *state.Deployment) int { return strings.Compare(b.DeployID, a.DeployID) })
	return deployments, nil
}

// RunCount returns an upper bound on the number of runs, live and closed. It may count old runs that are no longer
// kept.
func (s *Snapshot) RunCount() int { return s.State.Runs.Len() + int(s.History.indexes[runsTable].Rows) }

// WithRun returns a state that contains a run: the live state, or a state with only the rows of the closed run, its
// live candidates and the limits. It returns nil if the run does not exist.
func (s *Snapshot) WithRun(ctx context.Context, runID string) (*state.State, error) {
	if s.State.Runs.Get(runID) != nil {
		return s.State, nil
	}
	closed, err := s.History.Run(ctx, runID)
	if closed != nil {
		closed.Load(state.Set(&state.Rows{}, s.State.Limits.Rows())) // explanations of a run refer to limits
		closed.Load(state.Set(&state.Rows{}, s.candidates(runID)))   // candidates can stay live long after their run closes
	}
	return closed, err
}

// candidates returns the live candidates of a run.
func (s *Snapshot) candidates(runID string) (found []*state.Candidate) {
	for row := range s.State.Candidates.All {
		if row.RunID == runID {
			found = append(found, row)
		}
	}
	return found
}

// Recorded reports whether an entry of the ledger needs no folding. Every entry below the
// history cutoff is folded, or was abandoned by its writer and is never folded (ADR 055).
func (s *Snapshot) Recorded(entry string) bool {
	return s.State.HasEntry(entry) || entry < s.History.entriesFrom
}

// Groups returns the rows of ledger_entries for the groups with the given keys, live or in history. If a part of the
// history is damaged, it returns an error and the rows that it could read.
func (s *Snapshot) Groups(ctx context.Context, keys []state.Key2) (map[state.Key2]*state.Entry, error) {
	found := map[state.Key2]*state.Entry{}
	asked := map[state.Key2]bool{}
	var entries []string
	for _, key := range keys {
		if row := s.State.Entries.Get(key); row != nil {
			found[key] = row
		} else if key.A < s.History.entriesFrom {
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
		return found, fmt.Errorf("find entries in history: %w", err)
	}
	var damaged []error
	for _, f := range files { // one at a time, to limit memory
		rows, err := s.History.codec.Merge(ctx, fileSources(s.History.store, []manifest.File{f}))
		if manifest.Damaged(err) {
			damaged = append(damaged, err)
			continue
		}
		if err != nil {
			return found, err
		}
		for _, row := range state.List[state.Entry](rows) {
			if asked[row.Key()] {
				found[row.Key()] = row
			}
		}
	}
	return found, errors.Join(damaged...)
}

// LoadHistory returns all rows in the history of a manifest.
func LoadHistory(ctx context.Context, c *Codec, store *manifest.Store, m *manifest.Manifest) (*state.Rows, error) {
	files, err := historyFiles(ctx, store, m, "")
	if err != nil {
		return nil, err
	}
	return c.Merge(ctx, fileSources(store, files))
}

// Segments yields the rows in the history of a manifest, one segment at a time. If a table is given by its name,
// Segments yields the rows of this table only. Segments does not yield paged tables.
func Segments(ctx context.Context, c *Codec, store *manifest.Store, m *manifest.Manifest, only string) iter.Seq2[*state.Rows, error] {
	return func(yield func(*state.Rows, error) bool) {
		files, err := historyFiles(ctx, store, m, only)
		if err != nil {
			yield(nil, err)
			return
		}
		files = slices.DeleteFunc(files, func(f manifest.File) bool { return f.Table == partitionsTable })
		for _, f := range files {
			if rows, err := c.Merge(ctx, fileSources(store, []manifest.File{f})); !yield(rows, err) || err != nil {
				return
			}
		}
	}
}

func historyFiles(ctx context.Context, store *manifest.Store, m *manifest.Manifest, only string) (files []manifest.File, err error) {
	for _, d := range state.Declarations() {
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

// MaxSegment is the maximum number of rows in a segment: a few megabytes, which a merge
// holds in memory.
const MaxSegment = 1 << 18

// Absorbed returns the segments to merge with a new segment, which has the given number of rows. It goes backwards from
// the last segment. It stops at a segment that has more than twice as many rows as the new segment and all later ones
// together. It also stops at a segment that would make the result larger than MaxSegment rows. So a row is rewritten a
// logarithmic number of times.
func Absorbed(segments []manifest.File, rows int64) []manifest.File {
	from := len(segments)
	for from > 0 && segments[from-1].Rows <= 2*rows && rows+segments[from-1].Rows <= MaxSegment {
		from--
		rows += segments[from].Rows
	}
	return segments[from:]
}

// Expired reports whether all rows of a segment belong to runs that are no longer kept, because their ids are less than
// runsFrom.
func Expired(f manifest.File, runsFrom string) bool { return f.MaxRun != "" && f.MaxRun < runsFrom }

// Combine merges stored files of a table with f, which is not stored yet, and drops the rows of runs whose ids are less
// than runsFrom.
func (c *Codec) Combine(ctx context.Context, store *manifest.Store, stored []manifest.File, f File, runsFrom string) (File, error) {
	sources := append(fileSources(store, stored), Source{
		Table: f.Table, Name: "new history rows of " + f.Table,
		Read: func(context.Context) ([]byte, error) { return f.Data, nil },
	})
	rows, err := c.Merge(ctx, sources)
	if err != nil {
		return File{}, err
	}
	files, err := c.Encode(rows.KeptFrom(runsFrom))
	if err != nil {
		return File{}, err
	}
	return files[0], nil
}
