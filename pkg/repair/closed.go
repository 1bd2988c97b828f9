package repair

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

// leaving takes out of a state that is being replayed what a cut leaves to history, as
// soon as it is closed: nothing of it changes any more.
type leaving struct {
	cut    state.Cut
	take   func(ctx context.Context, closed *state.Rows) error
	runs   map[ulid.ULID]struct{}
	groups int // since the last time
}

// leavingEvery is after how many groups, at least: it looks at all runs that are there.
const leavingEvery = 256

func newLeaving(cut state.Cut, take func(context.Context, *state.Rows) error) *leaving {
	return &leaving{cut: cut, take: take, runs: map[ulid.ULID]struct{}{}}
}

// some takes out what is closed by now, now and then. What comes after the cut is not in
// history whatever becomes of it.
func (l *leaving) some(ctx context.Context, st *state.State) error {
	if l.groups++; l.groups < max(leavingEvery, st.Runs.Len()) || st.FoldSeq > l.cut.Seq {
		return nil
	}
	l.groups = 0
	return l.evict(ctx, st, state.Cut{Seq: st.FoldSeq, Time: min(st.FoldTime, l.cut.Time), Entries: l.cut.Entries, Runs: l.cut.Runs})
}

// rest takes out what is left of it in the end.
func (l *leaving) rest(ctx context.Context, st *state.State) error { return l.evict(ctx, st, l.cut) }

func (l *leaving) evict(ctx context.Context, st *state.State, cut state.Cut) error {
	closed := st.Evict(cut)
	for _, run := range state.List[state.Run](closed) {
		if id, err := ulid.ParseStrict(run.RunID); err == nil {
			l.runs[id] = struct{}{}
		}
	}
	st.Drain() // or it would keep them as changes
	return l.take(ctx, closed)
}

// among are those of some runs that have left.
func (l *leaving) among(runs []string) (left []string) {
	for _, run := range runs {
		if id, err := ulid.ParseStrict(run); err == nil {
			if _, has := l.runs[id]; has {
				left = append(left, run)
			}
		}
	}
	return left
}

const (
	// maxClosed is how many closed rows are in memory before they become segments.
	maxClosed = snapshot.MaxSegment / 2
	// refreshAge is how old the name of a file may become that no revision refers to.
	// Collectors of the live timeline delete such files an hour after they were named.
	refreshAge = 30 * time.Minute
)

// segments writes closed rows to history while a replay goes on, so that few of them are
// in memory.
type segments struct {
	cfg   Config
	from  string        // rows of runs below are not kept
	parts []*state.Rows // not written yet
	held  int           // rows in parts
	rows  int64         // written
	files map[string][]manifest.File
	max   int // of rows in parts
}

func (cfg Config) newSegments(from string) *segments {
	return &segments{cfg: cfg, from: from, files: map[string][]manifest.File{}, max: maxClosed}
}

// add takes closed rows, and writes segments when there are enough.
func (s *segments) add(ctx context.Context, closed *state.Rows) error {
	kept := closed.KeptFrom(s.from)
	if kept.Len() == 0 {
		return nil
	}
	s.parts = append(s.parts, kept)
	if s.held += kept.Len(); s.held < s.max {
		return nil
	}
	return s.flush(ctx)
}

// flush writes what is in memory.
func (s *segments) flush(ctx context.Context) error {
	if len(s.parts) == 0 {
		return nil
	}
	rows, err := state.Merge(s.parts)
	if err != nil {
		return err
	}
	s.parts, s.held = nil, 0
	for portion := range rows.Chunks(snapshot.MaxSegment) {
		files, err := s.cfg.Codec.Encode(portion)
		if err != nil {
			return err
		}
		for _, f := range files {
			stored, err := s.cfg.store(ctx, f, manifest.TierHistory, s.cfg.IDs.New())
			if err != nil {
				return err
			}
			stored.MinEntry, stored.MaxEntry = f.MinEntry, f.MaxEntry
			s.files[f.Table] = append(s.files[f.Table], stored)
			s.rows += f.Rows
		}
	}
	return s.refresh(ctx, ids.AtTime(ids.Time(s.cfg.IDs.New()).Add(-refreshAge)))
}

// refresh copies the segments that are named below a floor, under new names.
func (s *segments) refresh(ctx context.Context, floor string) error {
	for _, table := range slices.Sorted(maps.Keys(s.files)) {
		if err := s.cfg.refresh(ctx, floor, manifest.TierHistory, s.files[table]); err != nil {
			return err
		}
	}
	return nil
}

// refresh copies, in place, files that are named below a floor, and may be collected.
func (cfg Config) refresh(ctx context.Context, floor, tier string, files []manifest.File) error {
	for i := range files {
		f := &files[i]
		if manifest.NamedFrom(floor, files[i:i+1]) {
			continue
		}
		data, err := cfg.Manifests.LoadFile(ctx, *f)
		if err != nil {
			return fmt.Errorf("copy a state file that may be collected: %w", err)
		}
		key := manifest.StateKey(cfg.Domain, f.Table, tier, cfg.IDs.New())
		if err := cfg.create(ctx, key, data); err != nil {
			return err
		}
		f.Key = key
	}
	return nil
}

// indexes writes an index of each table's segments, under new names.
func (s *segments) indexes(ctx context.Context) (map[string]manifest.File, error) {
	var indexes map[string]manifest.File
	for _, table := range slices.Sorted(maps.Keys(s.files)) { // in one order: each takes an id
		data, index, err := manifest.EncodeIndex(manifest.IndexKey(s.cfg.Domain, table, s.cfg.IDs.New()), table, s.files[table])
		if err == nil {
			err = s.cfg.create(ctx, index.Key, data)
		}
		if err != nil {
			return nil, err
		}
		if indexes == nil {
			indexes = map[string]manifest.File{}
		}
		indexes[table] = index
	}
	return indexes, nil
}

func (cfg Config) store(ctx context.Context, f snapshot.File, tier, id string) (manifest.File, error) {
	key := manifest.StateKey(cfg.Domain, f.Table, tier, id)
	return manifest.File{
		Table: f.Table, Key: key, Size: int64(len(f.Data)), Rows: f.Rows, CRC32C: blob.CRC32C(f.Data),
		MinRun: f.MinRun, MaxRun: f.MaxRun,
	}, cfg.create(ctx, key, f.Data)
}

func (cfg Config) create(ctx context.Context, key string, data []byte) error {
	if _, err := cfg.Store.Create(ctx, key, data); err != nil {
		return fmt.Errorf("write rebuilt state: %w", err)
	}
	return nil
}
