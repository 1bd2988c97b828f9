package compactor

import (
	"context"
	"log/slog"
	"sync/atomic"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/manifest"
)

// A base is rewritten when the deltas on it hold more than half of it, and more
// than minRewrite, so that a row is rewritten a bounded number of times however
// long the history; or when there are more deltas than a reader should open.
const (
	minRewrite = 8 << 20
	maxDeltas  = 64
)

// rewrite is a new base being written beside the folding. It stands for the
// state at a revision, and replaces that revision's base and deltas if the
// manifest still names all of them when it is done; else it is dropped.
type rewrite struct {
	of   *manifest.Manifest
	id   string // of the new base, and in the names of its files
	base atomic.Pointer[manifest.BaseSnapshot]
	done atomic.Bool
}

// due reports whether the manifest's deltas are to be merged into a new base.
func (c *Compactor) due(m *manifest.Manifest) bool {
	var base, deltas int64
	for _, f := range m.BaseSnapshot.Files {
		base += f.Size
	}
	for _, d := range m.L0 {
		deltas += d.Bytes
	}
	return deltas > max(base/2, minRewrite) || len(m.L0) >= c.MaxDeltas
}

// startRewrite begins a new base if one is due and none is being written.
func (c *Compactor) startRewrite(ctx context.Context) {
	if c.rewrite.pending(c.manifest) || !c.due(c.manifest) {
		return
	}
	r := &rewrite{of: c.manifest, id: c.IDs.New()}
	c.rewrite = r
	rows := c.state.Copy()
	c.wg.Go(func() {
		defer r.done.Store(true)
		delta, err := c.write(ctx, r.id, rows.All(), manifest.TierBase)
		if err != nil {
			c.Logger.WarnContext(ctx, "base rewrite failed; it is tried again later",
				slog.String("domain", c.Domain.String()), slog.Any("error", err))
			return
		}
		r.base.Store(&manifest.BaseSnapshot{ID: delta.ID, PublishedAt: event.At(c.Clock.Now()), Files: delta.Files})
	})
}

// pending reports whether a manifest after m may still take up the base: not if it
// failed, nor if m has gone another way.
func (r *rewrite) pending(m *manifest.Manifest) bool {
	return r != nil && (!r.done.Load() || r.ready(m) != nil)
}

// ready gives the swap, if the base is written, m still names everything that it
// stands for, and none of its files may have been collected under m's floor.
func (r *rewrite) ready(m *manifest.Manifest) *swap {
	if r == nil || m == nil {
		return nil
	}
	base := r.base.Load()
	if base == nil || m.BaseSnapshot.ID != r.of.BaseSnapshot.ID || len(m.L0) < len(r.of.L0) {
		return nil
	}
	if !manifest.NamedFrom(m.OrphanFloor, base.Files) {
		return nil
	}
	for i, d := range r.of.L0 {
		if m.L0[i].ID != d.ID {
			return nil
		}
	}
	return &swap{base: base, covered: len(r.of.L0)}
}

// swap replaces a manifest's base and the first of its deltas.
type swap struct {
	base    *manifest.BaseSnapshot
	covered int
}

func (s *swap) apply(m *manifest.Manifest) {
	m.BaseSnapshot = *s.base
	m.L0 = m.L0[s.covered:]
}

// AwaitRewrite waits until no base is being written: for whoever must have the
// store to itself, and for tests.
func (c *Compactor) AwaitRewrite() { c.wg.Wait() }
