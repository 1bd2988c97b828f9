package repair

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

// evictor removes closed rows below a history cutoff from a state during a replay. These rows are final.
type evictor struct {
	cut    state.Cutoff
	take   func(ctx context.Context, closed *state.Rows) error
	runs   map[ulid.ULID]struct{}
	groups int // the number of groups since the last eviction
}

// evictEvery is the minimum number of groups between two evictions. Each eviction scans all runs.
const evictEvery = 256

func newEvictor(cut state.Cutoff, take func(context.Context, *state.Rows) error) *evictor {
	return &evictor{cut: cut, take: take, runs: map[ulid.ULID]struct{}{}}
}

// afterGroup is called after each group of the replay. It evicts closed rows, at most once per evictEvery groups. It
// evicts none after the replay has passed the history cutoff, because rows above the cutoff do not move to history.
func (l *evictor) afterGroup(ctx context.Context, st *state.State) error {
	if l.groups++; l.groups < max(evictEvery, st.Runs.Len()) || st.FoldSeq > l.cut.Seq {
		return nil
	}
	l.groups = 0
	return l.evict(ctx, st, state.Cutoff{Seq: st.FoldSeq, Time: min(st.FoldTime, l.cut.Time), Entries: l.cut.Entries, Runs: l.cut.Runs})
}

// evictRest evicts the remaining closed rows. It is called at the end of the replay.
func (l *evictor) evictRest(ctx context.Context, st *state.State) error {
	return l.evict(ctx, st, l.cut)
}

func (l *evictor) evict(ctx context.Context, st *state.State, cut state.Cutoff) error {
	closed := st.Evict(cut)
	for _, run := range state.List[state.Run](closed) {
		if id, err := ulid.ParseStrict(run.RunID); err == nil {
			l.runs[id] = struct{}{}
		}
	}
	st.Drain() // drop the recorded changes, which would keep the evicted rows in memory
	return l.take(ctx, closed)
}

// evicted returns those of the given runs whose rows have been evicted.
func (l *evictor) evicted(runs []string) (left []string) {
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
	// maxClosed is how many closed rows are buffered before they are written as segments.
	maxClosed = snapshot.MaxSegment / 2
	// A file that this rebuild has written, and that no revision refers to yet, is copied to a new name when it is older
	// than refreshAge. Otherwise, collectors of the live timeline could delete the file: they delete such files an hour
	// after the time in their names.
	refreshAge = 30 * time.Minute
)

// segments writes closed rows to history during a replay, so that few closed rows are in memory at any time.
type segments struct {
	cfg      Config
	from     string        // rows of runs below this id are dropped
	parts    []*state.Rows // not yet written
	buffered int           // number of rows in parts
	rows     int64         // number of rows written as segments
	files    map[string][]manifest.File
	max      int // the value of buffered at which rows are written
}

func (cfg Config) newSegments(from string) *segments {
	return &segments{cfg: cfg, from: from, files: map[string][]manifest.File{}, max: maxClosed}
}

// add buffers closed rows, and writes segments when the buffer is full.
func (s *segments) add(ctx context.Context, closed *state.Rows) error {
	kept := closed.KeptFrom(s.from)
	if kept.Len() == 0 {
		return nil
	}
	s.parts = append(s.parts, kept)
	if s.buffered += kept.Len(); s.buffered < s.max {
		return nil
	}
	return s.flush(ctx)
}

// flush writes the buffered rows as segments.
func (s *segments) flush(ctx context.Context) error {
	if len(s.parts) == 0 {
		return nil
	}
	rows, err := state.Merge(s.parts)
	if err != nil {
		return err
	}
	s.parts, s.buffered = nil, 0
	run := "" // the id of the sorted run of paged rows; there is only one, because these rows are evicted together
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
			if f.Max.Asset != "" {
				if run == "" {
					run = s.cfg.IDs.New()
				}
				stored.Run = run
			}
			s.files[f.Table] = append(s.files[f.Table], stored)
			s.rows += f.Rows
		}
	}
	return s.refresh(ctx, ids.AtTime(ids.Time(s.cfg.IDs.New()).Add(-refreshAge)))
}

// refresh copies the segments whose names are below a floor to new names.
func (s *segments) refresh(ctx context.Context, floor string) error {
	for _, table := range slices.Sorted(maps.Keys(s.files)) {
		if err := s.cfg.refresh(ctx, floor, manifest.TierHistory, s.files[table]); err != nil {
			return err
		}
	}
	return nil
}

// refresh copies the files whose names are below a floor, because a collector may delete them, and updates their keys
// in place.
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

// indexes writes an index of each table's segments.
func (s *segments) indexes(ctx context.Context) (map[string]manifest.File, error) {
	var indexes map[string]manifest.File
	for _, table := range slices.Sorted(maps.Keys(s.files)) { // a fixed order, because each index takes an id
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
	named := f.Named(cfg.Domain, tier, id)
	return named, cfg.create(ctx, named.Key, f.Data)
}

func (cfg Config) create(ctx context.Context, key string, data []byte) error {
	if _, err := cfg.Store.Create(ctx, key, data); err != nil {
		return fmt.Errorf("write rebuilt state: %w", err)
	}
	return nil
}
