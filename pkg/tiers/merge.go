package tiers

import (
	"context"
	"log/slog"
	"slices"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

// merge is a merge of several deltas, or of the whole state, into new files. It runs concurrently with folding. If the
// next manifest still contains everything that was merged, it includes the result. Otherwise, the result is dropped. In
// the manifest, the result replaces the merged deltas or, if the whole state was written, the base and all deltas up to
// the revision of source.
type merge struct {
	job
	source *manifest.Manifest // the current manifest when the merge began
	id     string             // the id of the result, which is part of the names of its files
	cached rowCache           // row cache of source

	result atomic.Pointer[merged]
	done   atomic.Bool
}

// merged is the result of a merge.
type merged struct {
	manifest.Delta

	rows *state.Rows // the rows of an L0 delta, if they are few enough to be cached

	// The history cutoff and the new indexes of history. They are set only if the result is a base.
	cutoff  state.Cutoff
	history map[string]manifest.File
	files   []manifest.File // the new files of history
}

// start starts a merge. st is the state as of the current manifest.
func (t *Tiers) start(ctx context.Context, j job, st *state.State) {
	j.parts = slices.Clone(j.parts)
	r := &merge{job: j, source: t.manifest, id: t.cfg.IDs.New(), cached: t.cached}
	t.merges = append(t.merges, r)
	var whole *state.State
	if j.tier == manifest.TierBase {
		t.unmergeable.Store(false)
		whole = st.Copy()
	}
	t.running.Go(func() {
		defer r.done.Store(true)
		err := t.merge(ctx, r, whole)
		if err == nil || ctx.Err() != nil { // if ctx has ended, the process is ending
			return
		}
		t.cfg.Logger.WarnContext(ctx, "could not merge state files; trying again later",
			slog.String("domain", t.cfg.Domain.String()), slog.String("tier", r.tier), slog.Any("error", err))
	})
}

func (t *Tiers) merge(ctx context.Context, r *merge, whole *state.State) error {
	if whole != nil {
		return t.cfg.rebase(ctx, r, whole)
	}
	rows, err := t.cfg.load(ctx, r)
	if err != nil {
		t.unmergeable.Store(true)
		return err
	}
	delta, err := t.cfg.write(ctx, r.id, rows, r.tier)
	if err != nil {
		return err
	}
	delta.Revision = r.through()
	if r.tier != manifest.TierL0 || rows.Len() > maxCachedRows {
		rows = nil
	}
	r.result.Store(&merged{Delta: delta, rows: rows})
	return nil
}

// rebase writes the live rows as a base, and moves closed rows to history.
func (cfg *Config) rebase(ctx context.Context, r *merge, whole *state.State) error {
	result := &merged{cutoff: cfg.cutoff(r.source)}
	if result.cutoff.Entries != "" {
		result.cutoff.Partitions = max(result.cutoff.Partitions, whole.PartitionsBelow(result.cutoff.Entries))
	}
	closed := whole.Evict(result.cutoff)
	var err error
	if result.history, result.files, err = cfg.moveToHistory(ctx, r.source, closed, result.cutoff.Runs); manifest.Damaged(err) {
		cfg.Logger.ErrorContext(ctx, "history cannot be extended: closed rows stay in the live state",
			slog.String("domain", cfg.Domain.String()), slog.Any("error", err))
		whole.Load(closed)
		result.cutoff, result.history, result.files, err = snapshot.CutoffOf(r.source), nil, nil, nil
	}
	if err != nil {
		return err
	}
	if result.Delta, err = cfg.write(ctx, r.id, whole.All(), r.tier); err != nil {
		return err
	}
	result.Revision = r.through()
	r.result.Store(result)
	return nil
}

// through returns the last revision whose changes the result contains.
func (r *merge) through() int64 {
	if r.tier == manifest.TierBase {
		return r.source.Revision
	}
	return r.parts[len(r.parts)-1].Revision
}

// pending reports whether m or a later manifest may still include the result. This is impossible if
// the merge has failed, or if m no longer contains the deltas that the result replaces.
func (r *merge) pending(m *manifest.Manifest) bool { return !r.done.Load() || r.ready(m) }

// ready reports whether m can include the result. The merge must have finished, and m must contain the deltas that the
// result replaces. No file of the result may be below the orphan floor of m, because a collector may have deleted such
// a file.
func (r *merge) ready(m *manifest.Manifest) bool {
	result := r.result.Load()
	if result == nil || m == nil || m.Timeline != r.source.Timeline ||
		!manifest.NamedFrom(m.OrphanFloor, slices.Concat(result.Files, result.files)) {
		return false
	}
	if r.tier == manifest.TierBase { // a base of another merge may have moved other rows to history
		return m.BaseSnapshot.ID == r.source.BaseSnapshot.ID && r.through() <= m.Revision
	}
	// A base that was published during the merge may have replaced the older parts, so m need not contain these.
	last := r.parts[len(r.parts)-1]
	for _, part := range r.parts {
		named := slices.ContainsFunc(slices.Concat(m.L1, m.L0), func(d manifest.Delta) bool { return d.ID == part.ID })
		if !named && (part.ID == last.ID || part.Revision > m.BaseSnapshot.Revision) {
			return false
		}
	}
	return true
}

// apply changes m so that it contains the result of the merge, which must be ready.
func (r *merge) apply(m *manifest.Manifest, now event.Time) {
	result := r.result.Load()
	if r.tier == manifest.TierBase {
		m.BaseSnapshot = manifest.BaseSnapshot{
			ID: result.ID, Revision: result.Revision, PublishedAt: now, Files: result.Files,
			FoldSeq: result.cutoff.Seq, FoldTime: result.cutoff.Time, EntriesFrom: result.cutoff.Entries, RunsFrom: result.cutoff.Runs,
			PartitionsFrom: result.cutoff.Partitions,
		}
		for table, index := range result.history {
			if m.History == nil {
				m.History = map[string]manifest.File{}
			}
			if m.History[table] = index; index.Key == "" {
				delete(m.History, table)
			}
		}
		within := func(d manifest.Delta) bool { return d.Revision <= result.Revision }
		m.L1, m.L0 = slices.DeleteFunc(m.L1, within), slices.DeleteFunc(m.L0, within)
		return
	}
	replaced := func(d manifest.Delta) bool {
		return slices.ContainsFunc(r.parts, func(part manifest.Delta) bool { return part.ID == d.ID })
	}
	if r.tier == manifest.TierL1 {
		m.L1 = append(slices.DeleteFunc(m.L1, replaced), result.Delta)
		m.L0 = slices.DeleteFunc(m.L0, replaced)
		return
	}
	at := slices.IndexFunc(m.L0, replaced)
	m.L0 = slices.Insert(slices.DeleteFunc(m.L0, replaced), at, result.Delta)
}

// write encodes rows and stores them in files.
func (cfg *Config) write(ctx context.Context, id string, rows *state.Rows, tier string) (manifest.Delta, error) {
	files, err := cfg.Codec.Encode(rows)
	if err != nil {
		return manifest.Delta{}, err
	}
	return cfg.store(ctx, id, files, tier)
}

// store stores one file for each table, in parallel. The id must be new. To try again after an error, the caller must
// use another id, because files with this id may exist. Nothing refers to these files.
func (cfg *Config) store(ctx context.Context, id string, files []snapshot.File, tier string) (manifest.Delta, error) {
	d := manifest.Delta{ID: id, Files: make([]manifest.File, len(files))}
	g, gctx := errgroup.WithContext(ctx)
	for i, f := range files {
		d.Files[i] = f.Named(cfg.Domain, tier, id)
		d.Rows += f.Rows
		d.Bytes += int64(len(f.Data))
		key := d.Files[i].Key
		g.Go(func() error {
			return cfg.create(gctx, key, f.Data)
		})
	}
	return d, g.Wait()
}

func (cfg *Config) create(ctx context.Context, key string, data []byte) error {
	object, err := cfg.Store.Create(ctx, key, data)
	if err == nil {
		cfg.OnStored(object.Updated)
	}
	return err
}
