package compactor

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync/atomic"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

// Rows move up through tiers, which are merged concurrently with folding. So the cost of a publish
// depends on what it changes, a reader opens a bounded number of files, and a row is rewritten a
// number of times that grows with the logarithm of the state:
//
//   - a small delta is inline in the manifest;
//   - inline deltas are merged into an L0 delta, in files;
//   - L0 deltas are merged into one L1 delta, together with the preceding L1 deltas if several of
//     them are no larger;
//   - a new base is written when the deltas are larger than half of the base.
const (
	maxDeltas = 16
	maxInline = 64 << 10
	minBase   = 8 << 20
	// rowBytes is the approximate length of a row as JSON.
	rowBytes = 400
	// taskBytes is approximately what an ended task takes in memory, with all its rows. baseDue
	// uses it to convert MinBase to a number of tasks.
	taskBytes = 3000
	// inlineSlack limits the inline rows of a manifest while a merge writes them to files: it is a
	// multiple of MaxInline.
	inlineSlack = 4
	// fanIn is the minimum number of L1 deltas that are merged. When there are more than maxL1, all
	// of them are.
	fanIn, maxL1 = 4, 64
	// manyDeltas is the number of deltas above which a new base is written. It is far more than
	// usual, and far less than a manifest may contain.
	manyDeltas = 1024
)

// merge writes deltas, or the whole state, to files, concurrently with folding. A later manifest
// includes the result if it still contains those deltas, or that base; the result then replaces the
// deltas, or the base and all deltas up to source. Otherwise the result is dropped.
type merge struct {
	source *manifest.Manifest // the current manifest when the merge began
	tier   string             // of the result
	id     string             // of the result; the names of its files contain it
	parts  []manifest.Delta   // deltas that the result replaces, oldest first; none for a base
	cached cachedRows         // of source

	result atomic.Pointer[merged]
	done   atomic.Bool
}

// merged is the result of a merge.
type merged struct {
	manifest.Delta

	rows *state.Rows // of an L0 delta that is small enough to be cached; else nil

	// The history cutoff of a base, and the new indexes of history.
	cutoff  state.Cutoff
	history map[string]manifest.File
	files   []manifest.File // new files of history
}

// delta stores changed rows. Few rows are stored inline, in the delta itself.
func (c *Compactor) delta(ctx context.Context, changed *state.Rows) (manifest.Delta, error) {
	id := c.IDs.New()
	if int64(changed.Len())*rowBytes > c.MaxInline {
		return c.deltaFiles(ctx, id, changed)
	}
	rows, size, err := c.Codec.Inline(changed)
	if err != nil {
		return manifest.Delta{}, err
	}
	inline := size
	if c.manifest != nil {
		inline += inlineBytes(c.manifest.L0)
	}
	if inline > inlineSlack*c.MaxInline {
		return c.deltaFiles(ctx, id, changed)
	}
	return manifest.Delta{ID: id, Inline: rows, Rows: int64(changed.Len()), Bytes: size}, nil
}

func (c *Compactor) deltaFiles(ctx context.Context, id string, changed *state.Rows) (manifest.Delta, error) {
	began := c.Clock.Now()
	files, err := c.Codec.Encode(changed)
	c.encodingTime += c.Clock.Now().Sub(began)
	if err != nil {
		return manifest.Delta{}, err
	}
	return c.store(ctx, id, files, manifest.TierL0)
}

func inlineBytes(deltas []manifest.Delta) int64 {
	size := int64(0)
	for _, d := range deltas {
		if d.IsInline() {
			size += d.Bytes
		}
	}
	return size
}

// startMerges starts the merges that are due and not running.
func (c *Compactor) startMerges(ctx context.Context) {
	m := c.manifest
	c.merges = slices.DeleteFunc(c.merges, func(r *merge) bool { return !r.pending(m) })
	if !c.merging(manifest.TierL1) && !c.merging(manifest.TierBase) {
		switch _, files := manifest.SplitInline(m.L0); {
		case c.baseDue(m):
			c.start(ctx, manifest.TierBase, nil)
		case len(files) >= c.MaxDeltas && !c.merging(manifest.TierL0):
			last := files[len(files)-1].ID // inline deltas between them are merged, too
			end := slices.IndexFunc(m.L0, func(d manifest.Delta) bool { return d.ID == last }) + 1
			c.start(ctx, manifest.TierL1, intoL1(m.L1, m.L0[:end]))
		}
	}
	free := c.unmerged(m.L0)
	if inlineBytes(free) > max(c.MaxInline, 0) && !c.merging(manifest.TierL0) {
		c.start(ctx, manifest.TierL0, firstInline(free))
	}
}

// unmerged returns the deltas of L0 that a running merge to L1 does not include. That merge
// includes the oldest ones.
func (c *Compactor) unmerged(l0 []manifest.Delta) []manifest.Delta {
	for _, r := range c.merges {
		if r.tier != manifest.TierL1 {
			continue
		}
		last := r.parts[len(r.parts)-1].ID
		if i := slices.IndexFunc(l0, func(d manifest.Delta) bool { return d.ID == last }); i >= 0 {
			l0 = l0[i+1:]
		}
	}
	return l0
}

func (c *Compactor) merging(tier string) bool {
	return slices.ContainsFunc(c.merges, func(r *merge) bool { return r.tier == tier })
}

// baseDue reports whether a new base is due: the deltas are larger than half of the base, too many,
// or cannot be merged, or most tasks in memory may be closed by now. A base is written from memory,
// so damaged files of the current state do not matter.
func (c *Compactor) baseDue(m *manifest.Manifest) bool {
	if c.unmergeable.Load() || len(m.L1)+len(m.L0) > manyDeltas {
		return true
	}
	var base, deltas, tasks int64
	for _, f := range m.BaseSnapshot.Files {
		base += f.Size
		if f.Table == "tasks" {
			tasks = f.Rows
		}
	}
	if int64(c.state.Tasks.Len()) > 2*tasks+c.MinBase/taskBytes {
		return true
	}
	for _, d := range slices.Concat(m.L1, m.L0) {
		for _, f := range d.Files {
			deltas += f.Size
		}
	}
	return deltas > max(base/2, c.MinBase)
}

// firstInline returns the first run of adjacent inline deltas. A merge must not skip a delta in
// between: its result replaces its parts at one position, so that newer rows stay newer.
func firstInline(l0 []manifest.Delta) []manifest.Delta {
	l0 = l0[slices.IndexFunc(l0, manifest.Delta.IsInline):]
	if end := slices.IndexFunc(l0, func(d manifest.Delta) bool { return !d.IsInline() }); end >= 0 {
		l0 = l0[:end]
	}
	return l0
}

// intoL1 returns the deltas to merge into one L1 delta: those of l0, and the preceding ones of l1
// if at least fanIn of them are no larger than what follows them.
func intoL1(l1, l0 []manifest.Delta) []manifest.Delta {
	size := int64(0)
	for _, d := range l0 {
		size += d.Bytes
	}
	from := len(l1)
	if from > maxL1 {
		from = 0
	}
	for {
		similar, sum := from, int64(0)
		for similar > 0 && l1[similar-1].Bytes <= size {
			similar--
			sum += l1[similar].Bytes
		}
		if from-similar < fanIn {
			return slices.Concat(l1[from:], l0)
		}
		from, size = similar, size+sum
	}
}

// start starts a merge of deltas, or of the whole state for a base.
func (c *Compactor) start(ctx context.Context, tier string, parts []manifest.Delta) {
	if tier == manifest.TierBase {
		c.unmergeable.Store(false)
	}
	r := &merge{source: c.manifest, tier: tier, id: c.IDs.New(), parts: slices.Clone(parts), cached: c.cached}
	c.merges = append(c.merges, r)
	var whole *state.State
	if tier == manifest.TierBase {
		whole = c.state.Copy()
	}
	c.wg.Go(func() {
		defer r.done.Store(true)
		err := c.merge(ctx, r, whole)
		if err == nil || ctx.Err() != nil { // an ending process is not worth a warning
			return
		}
		c.Logger.WarnContext(ctx, "merging state files failed; it is retried later",
			slog.String("domain", c.Domain.String()), slog.String("tier", tier), slog.Any("error", err))
	})
}

func (c *Compactor) merge(ctx context.Context, r *merge, whole *state.State) error {
	if whole != nil {
		return c.rebase(ctx, r, whole)
	}
	rows, err := c.load(ctx, r)
	if err != nil {
		c.unmergeable.Store(true)
		return err
	}
	delta, err := c.write(ctx, r.id, rows, r.tier)
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

// rebase writes a base of the live rows and moves closed rows to history.
func (c *Compactor) rebase(ctx context.Context, r *merge, whole *state.State) error {
	result := &merged{cutoff: c.cutoffOf(r.source)}
	closed := whole.Evict(result.cutoff)
	var err error
	if result.history, result.files, err = c.moveToHistory(ctx, r.source, closed, result.cutoff.Runs); manifest.Damaged(err) {
		c.Logger.ErrorContext(ctx, "history cannot be extended: closed rows stay in the live state",
			slog.String("domain", c.Domain.String()), slog.Any("error", err))
		whole.Load(closed)
		result.cutoff, result.history, result.files, err = snapshot.CutoffOf(r.source), nil, nil, nil
	}
	if err != nil {
		return err
	}
	if result.Delta, err = c.write(ctx, r.id, whole.All(), r.tier); err != nil {
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

// ready reports whether m can include the result: the merge has finished, m contains the deltas
// that the result replaces, and no file of the result is below the floor of m, where it may have
// been collected.
func (r *merge) ready(m *manifest.Manifest) bool {
	result := r.result.Load()
	if result == nil || m == nil || m.Timeline != r.source.Timeline ||
		!manifest.NamedFrom(m.OrphanFloor, slices.Concat(result.Files, result.files)) {
		return false
	}
	if r.tier == manifest.TierBase { // another base may have moved other rows to history
		return m.BaseSnapshot.ID == r.source.BaseSnapshot.ID && r.through() <= m.Revision
	}
	// A base may have replaced the older parts meanwhile.
	last := r.parts[len(r.parts)-1]
	for _, part := range r.parts {
		named := slices.ContainsFunc(slices.Concat(m.L1, m.L0), func(d manifest.Delta) bool { return d.ID == part.ID })
		if !named && (part.ID == last.ID || part.Revision > m.BaseSnapshot.Revision) {
			return false
		}
	}
	return true
}

// apply changes m to contain the result of a merge that is ready.
func (r *merge) apply(m *manifest.Manifest, now event.Time) {
	result := r.result.Load()
	if r.tier == manifest.TierBase {
		m.BaseSnapshot = manifest.BaseSnapshot{
			ID: result.ID, Revision: result.Revision, PublishedAt: now, Files: result.Files,
			FoldSeq: result.cutoff.Seq, FoldTime: result.cutoff.Time, EntriesFrom: result.cutoff.Entries, RunsFrom: result.cutoff.Runs,
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

// flushRounds limits the rounds of a flush: publishing a merge may start another one.
const flushRounds = 3

// flush waits for running merges and publishes their results.
func (c *Compactor) flush(ctx context.Context) error {
	for range flushRounds {
		c.AwaitMerges()
		published := false
		err := c.commit(ctx, func() (*state.State, publication, error) {
			ready := func(r *merge) bool { return r.ready(c.manifest) }
			if published = slices.ContainsFunc(c.merges, ready); !published {
				return nil, publication{}, ctx.Err()
			}
			return c.state.Copy(), publication{}, ctx.Err()
		})
		if errors.Is(err, errStateChanged) {
			err = nil // the merges belong to another timeline, and are dropped
		}
		if err != nil || !published {
			return err
		}
	}
	return nil
}

// AwaitMerges waits until no merge runs. Callers that need the store for themselves, and tests, use
// it.
func (c *Compactor) AwaitMerges() { c.wg.Wait() }
