package engine

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

// Limits of watchers.
const (
	// maxChanges is the maximum number of changed rows in one message. If there are more, the watcher gets a Resync.
	maxChanges = 10_000
	// maxBehind is the maximum number of deltas that are read for one message.
	maxBehind = 256
	// watchPause is the minimum time between two messages. It limits the cost of a watcher while revisions are published
	// in quick succession.
	watchPause = 50 * time.Millisecond
)

// Position is a place in the history of a domain.
type Position struct {
	Timeline string
	Revision int64
}

// Changes are the rows that changed between two revisions, each in its newest version.
type Changes struct {
	Position

	PublishedAt event.Time
	// Resync means that any row may have changed, so the caller must read the state again.
	Resync bool
	// Alive means that nothing has changed for a while. The message only shows that the stream still works.
	Alive bool
	Rows  []state.Record
}

// Watch sends the changes after a position, until ctx ends or send fails. If the position is zero, Watch begins at the
// newest revision, and first sends the position of that revision. While nothing changes, it sends an Alive message at
// the interval aliveEvery. Changes that are published during a call of send become one message. If the changes since
// the position are unknown or too many, it sends a Resync.
//
// Only rows for which keep returns true are sent.
func (e *Engine) Watch(ctx context.Context, after Position, aliveEvery time.Duration, keep func(state.Record) bool, send func(*Changes) error) error {
	w := watcher{e: e, keep: keep, send: send}
	if err := w.start(ctx, after); err != nil {
		return err
	}
	for {
		waiting, cancel := context.WithTimeout(ctx, aliveEvery)
		snap, err := e.Await(waiting, w.last())
		cancel()
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, context.DeadlineExceeded):
			if err := send(&Changes{Position: w.position(), Alive: true}); err != nil {
				return err
			}
			continue
		case err != nil:
			return err
		}
		if err := w.advance(ctx, snap.Revision); err != nil {
			return err
		}
		if err := e.cfg.Clock.Sleep(ctx, watchPause); err != nil {
			return err
		}
	}
}

// watcher follows the revisions of a domain.
type watcher struct {
	e    *Engine
	keep func(state.Record) bool
	send func(*Changes) error
	// from is the manifest of the revision up to which changes were sent; nil if no revision had been published.
	from *manifest.Manifest
}

func (w *watcher) position() Position {
	if w.from == nil {
		return Position{}
	}
	return Position{w.from.Timeline, w.from.Revision}
}

func (w *watcher) last() int64 { return w.position().Revision }

// start sets w.from to the manifest of the position. If the position is zero or unknown, start sets it to the newest
// manifest, and sends the position of that manifest.
func (w *watcher) start(ctx context.Context, after Position) error {
	if after.Revision > 0 {
		m, err := w.e.cfg.Manifests.LoadAt(ctx, after.Revision)
		if err == nil && m.Timeline == after.Timeline {
			w.from = m
			return nil
		}
		if err != nil && !errors.Is(err, manifest.ErrAbsent) {
			return err
		}
	}
	m, err := w.e.cfg.Manifests.Load(ctx)
	if err != nil && !errors.Is(err, manifest.ErrNone) {
		return err
	}
	w.from = m
	c := &Changes{Position: w.position(), Resync: after != (Position{})}
	if m != nil {
		c.PublishedAt = m.PublishedAt
	}
	return w.send(c)
}

// advance sends the changes up to a revision. If this revision has already been deleted, it sends the changes up to
// the newest one.
func (w *watcher) advance(ctx context.Context, revision int64) error {
	m, err := w.e.cfg.Manifests.LoadAt(ctx, revision)
	if errors.Is(err, manifest.ErrAbsent) { // the revision was collected
		m, err = w.e.cfg.Manifests.Load(ctx)
	}
	if err != nil {
		return err
	}
	c := &Changes{Position: Position{m.Timeline, m.Revision}, PublishedAt: m.PublishedAt}
	if c.Rows, c.Resync, err = w.changed(ctx, m); err != nil {
		return err
	}
	w.from = m
	if len(c.Rows) == 0 && !c.Resync {
		return nil
	}
	return w.send(c)
}

// changed returns the rows that differ between the last manifest and m. resync means that these rows cannot be
// determined.
func (w *watcher) changed(ctx context.Context, m *manifest.Manifest) (changed []state.Record, resync bool, err error) {
	from := w.from
	if from == nil { // nothing had been published when Watch began
		from = &manifest.Manifest{Timeline: m.Timeline}
	}
	if m.Timeline != from.Timeline || m.Revision < from.Revision ||
		m.BaseSnapshot.ID != from.BaseSnapshot.ID && m.BaseSnapshot.After(from.Revision) {
		return nil, true, nil
	}
	var fresh []manifest.Delta
	for _, d := range slices.Concat(m.L1, m.L0) {
		if d.Revision > from.Revision {
			fresh = append(fresh, d)
		}
	}
	if len(fresh) > maxBehind {
		return nil, true, nil
	}
	rows, err := snapshot.LoadDeltas(ctx, w.e.cfg.Codec, w.e.cfg.Manifests, fresh)
	if errors.Is(err, manifest.ErrMissing) { // a file has been deleted in the meantime
		return nil, true, nil
	}
	if err != nil {
		return nil, false, err
	}
	for d, list := range rows.Lists {
		for row := range d.Each(list) {
			// A merged delta also contains rows that were already sent.
			if row.RowMeta().Seq <= from.FoldSeq || !w.keep(row) {
				continue
			}
			if len(changed) == maxChanges {
				return nil, true, nil
			}
			changed = append(changed, row)
		}
	}
	return changed, false, nil
}
