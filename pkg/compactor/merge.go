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

// Rows rise through tiers, each merged beside the folding when it has enough of
// them, so that a publish costs what it changes, a reader opens a bounded number
// of files, and a row is written again a number of times that grows with the
// logarithm of the state only:
//
//   - a small delta is in the manifest itself;
//   - of what is there an L0 delta is made, in files;
//   - L0 deltas merge into one in L1, together with those before it in L1 of which
//     there are several that are no larger;
//   - a new base is written when the deltas hold more than half of it.
const (
	maxDeltas = 16
	maxInline = 64 << 10
	minBase   = 8 << 20
	// rowBytes is about how long a row is as JSON.
	rowBytes = 400
	// taskBytes is about what a task that has ended takes in memory, with all its rows:
	// so much of what may be closed is no reason yet to look.
	taskBytes = 3000
	// inlineSlack is how many times MaxInline a manifest holds while what is in it is
	// being written to files.
	inlineSlack = 4
	// fanIn is how many deltas of L1 merge at least, and maxL1 how many there are
	// before all of them do.
	fanIn, maxL1 = 4, 64
	// manyDeltas is far more than there should be, and far less than a manifest may
	// have.
	manyDeltas = 1024
)

// merge is deltas, or the whole state, being written to files beside the folding.
// A manifest takes up the result in place of those deltas, or of the base and all
// deltas up to that state, if it still has them; else the result is dropped.
type merge struct {
	of    *manifest.Manifest
	tier  string           // of the result
	id    string           // of the result, and in the names of its files
	parts []manifest.Delta // that it replaces, oldest first; none for a base
	// atHand is of the manifest.
	atHand atHand

	result atomic.Pointer[merged]
	done   atomic.Bool
}

// merged is what a merge made.
type merged struct {
	manifest.Delta

	rows *state.Rows // of one in L0, to be kept at hand; else nil

	// Of a base: what it leaves to history, and the new indexes of that.
	cut     state.Cut
	history map[string]manifest.File
	files   []manifest.File // that are new in history
}

// delta stores what changed: few rows in the delta itself, and so in the manifest.
func (c *Compactor) delta(ctx context.Context, changed *state.Rows) (manifest.Delta, error) {
	id := c.IDs.New()
	if int64(changed.Len())*rowBytes > c.MaxInline {
		return c.deltaFiles(ctx, id, changed)
	}
	rows, size, err := c.Codec.Inline(changed)
	if err != nil {
		return manifest.Delta{}, err
	}
	held := size
	if c.manifest != nil {
		held += inlineBytes(c.manifest.L0)
	}
	if held > inlineSlack*c.MaxInline {
		return c.deltaFiles(ctx, id, changed)
	}
	return manifest.Delta{ID: id, Inline: rows, Rows: int64(changed.Len()), Bytes: size}, nil
}

func (c *Compactor) deltaFiles(ctx context.Context, id string, changed *state.Rows) (manifest.Delta, error) {
	began := c.Clock.Now()
	files, err := c.Codec.Encode(changed)
	c.encoding += c.Clock.Now().Sub(began)
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

// startMerges begins what is due and not being done.
func (c *Compactor) startMerges(ctx context.Context) {
	m := c.manifest
	c.merges = slices.DeleteFunc(c.merges, func(r *merge) bool { return !r.pending(m) })
	if !c.merging(manifest.TierL1) && !c.merging(manifest.TierBase) {
		switch _, files := manifest.SplitInline(m.L0); {
		case c.baseDue(m):
			c.start(ctx, manifest.TierBase, nil)
		case len(files) >= c.MaxDeltas && !c.merging(manifest.TierL0):
			last := files[len(files)-1].ID // and with it what is in the manifest between them
			end := slices.IndexFunc(m.L0, func(d manifest.Delta) bool { return d.ID == last }) + 1
			c.start(ctx, manifest.TierL1, intoL1(m.L1, m.L0[:end]))
		}
	}
	free := c.unmerged(m.L0)
	if inlineBytes(free) > max(c.MaxInline, 0) && !c.merging(manifest.TierL0) {
		c.start(ctx, manifest.TierL0, firstInline(free))
	}
}

// unmerged are the deltas that are no part of a merge to L1 under way, which takes
// up the first of them.
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

// baseDue reports whether the deltas hold more than half of the base, or are too
// many, or could not be merged, or most of what is in memory may be closed by now.
// A base is made of what is in memory, whatever of its files is damaged.
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

// firstInline are the first deltas that are in the manifest, up to one that is
// not: a merge leaves no gap, so that what it holds of a row is the last of it.
func firstInline(l0 []manifest.Delta) []manifest.Delta {
	l0 = l0[slices.IndexFunc(l0, manifest.Delta.IsInline):]
	if end := slices.IndexFunc(l0, func(d manifest.Delta) bool { return !d.IsInline() }); end >= 0 {
		l0 = l0[:end]
	}
	return l0
}

// intoL1 are the deltas that merge into one: those of L0, and before them those of
// L1 of which there are several that are no larger than what follows them.
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

// start begins a merge of deltas, or of the whole state.
func (c *Compactor) start(ctx context.Context, tier string, parts []manifest.Delta) {
	if tier == manifest.TierBase {
		c.unmergeable.Store(false)
	}
	r := &merge{of: c.manifest, tier: tier, id: c.IDs.New(), parts: slices.Clone(parts), atHand: c.atHand}
	c.merges = append(c.merges, r)
	var whole *state.State
	if tier == manifest.TierBase {
		whole = c.state.Copy()
	}
	c.wg.Go(func() {
		defer r.done.Store(true)
		err := c.merge(ctx, r, whole)
		if err == nil || ctx.Err() != nil { // or the process ends
			return
		}
		c.Logger.WarnContext(ctx, "a merge of state files failed; it is tried again later",
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
	if r.tier != manifest.TierL0 || rows.Len() > maxAtHand {
		rows = nil
	}
	r.result.Store(&merged{Delta: delta, rows: rows})
	return nil
}

// rebase writes a base of what lives, and adds to history what is closed.
func (c *Compactor) rebase(ctx context.Context, r *merge, whole *state.State) error {
	result := &merged{cut: c.cutOf(r.of)}
	closed := whole.Evict(result.cut)
	var err error
	if result.history, result.files, err = c.bury(ctx, r.of, closed, result.cut.Runs); manifest.Damaged(err) {
		c.Logger.ErrorContext(ctx, "history cannot be added to: what is closed stays in the live state",
			slog.String("domain", c.Domain.String()), slog.Any("error", err))
		whole.Load(closed)
		result.cut, result.history, result.files, err = snapshot.CutOf(r.of), nil, nil, nil
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

// through is the last revision whose changes the result holds.
func (r *merge) through() int64 {
	if r.tier == manifest.TierBase {
		return r.of.Revision
	}
	return r.parts[len(r.parts)-1].Revision
}

// pending reports whether a manifest after m may still take up the result: not if
// the merge failed, nor if m has gone another way.
func (r *merge) pending(m *manifest.Manifest) bool { return !r.done.Load() || r.ready(m) }

// ready reports whether m may take up the result: if it is there, m has what it
// stands for, and none of its files may have been collected under m's floor.
func (r *merge) ready(m *manifest.Manifest) bool {
	result := r.result.Load()
	if result == nil || m == nil || m.Lineage != r.of.Lineage ||
		!manifest.NamedFrom(m.OrphanFloor, slices.Concat(result.Files, result.files)) {
		return false
	}
	if r.tier == manifest.TierBase { // another base may have put other things into history
		return m.BaseSnapshot.ID == r.of.BaseSnapshot.ID && r.through() <= m.Revision
	}
	// A base may have taken up the older ones meanwhile.
	last := r.parts[len(r.parts)-1]
	for _, part := range r.parts {
		held := slices.ContainsFunc(slices.Concat(m.L1, m.L0), func(d manifest.Delta) bool { return d.ID == part.ID })
		if !held && (part.ID == last.ID || part.Revision > m.BaseSnapshot.Revision) {
			return false
		}
	}
	return true
}

// apply puts the result of a merge that is ready in its place in m.
func (r *merge) apply(m *manifest.Manifest, now event.Time) {
	result := r.result.Load()
	if r.tier == manifest.TierBase {
		m.BaseSnapshot = manifest.BaseSnapshot{
			ID: result.ID, Revision: result.Revision, PublishedAt: now, Files: result.Files,
			FoldSeq: result.cut.Seq, FoldTime: result.cut.Time, EntriesFrom: result.cut.Entries, RunsFrom: result.cut.Runs,
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

// settleRounds bounds what one end of a process waits for: a merge may lead to another.
const settleRounds = 3

// settle publishes what is merged, once it is.
func (c *Compactor) settle(ctx context.Context) error {
	for range settleRounds {
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

// AwaitMerges waits until nothing is being merged: for whoever must have the store
// to itself, and for tests.
func (c *Compactor) AwaitMerges() { c.wg.Wait() }
