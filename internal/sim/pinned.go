package sim

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/manifest"
)

// drawPins inserts pins of revisions into the scripts of half of the worlds with collectors.
func (l *workload) drawPins(span time.Duration) {
	r := random(l.w.cfg.Seed, "pins", 0)
	if l.w.cfg.Collectors == 0 || r.IntN(2) == 0 {
		return
	}
	for range 1 + r.IntN(8) {
		client := fmt.Sprintf("client%d", r.IntN(l.w.cfg.Clients))
		script := l.scripts[client]
		a := ask{after: time.Duration(r.Int64N(int64(span) + 1)), verb: askPin, project: l.projects[r.IntN(len(l.projects))], force: r.IntN(4) == 0}
		l.scripts[client] = slices.Insert(script, r.IntN(len(script)+1), a)
	}
}

// pin pins a recent revision for a while, or removes the first pin.
func (c *client) pin(ctx context.Context, e *engine.Engine, release bool) error {
	snap, err := e.Current(ctx)
	if err != nil {
		return err
	}
	now := machineClock{c.p}.Now()
	if pinned := engine.Pins(snap.State, now); release && len(pinned) > 0 {
		err = e.Unpin(ctx, pinned[0].Revision, "because")
	} else {
		revision := max(1, snap.Revision-int64(c.rng.IntN(40)))
		_, err = e.Pin(ctx, revision, now.Add(time.Duration(1+c.rng.IntN(120))*time.Minute), "because")
		if err == nil {
			c.p.machine.w.fault("revision pinned")
		}
	}
	if errors.Is(err, engine.ErrNotFound) || errors.Is(err, engine.ErrNotPinned) {
		return nil
	}
	return err
}

// heldRevision is a pinned revision with the materializations that it shows.
type heldRevision struct {
	since   time.Time         // when the pin was committed
	outputs map[string]string // URIs by materialization
}

// notePins handles the pins in the newest revision: for each pinned revision, it records the outputs that this revision
// shows.
func (o *oracle) notePins(f *followed) {
	for row := range f.state.Pins.All {
		past, known := f.past[row.Number()]
		if _, held := f.pinnedRevisions[row.Number()]; held || !known {
			continue
		}
		h := heldRevision{since: o.w.now(), outputs: map[string]string{}}
		if _, err := f.manifests.LoadAt(context.Background(), row.Number()); errors.Is(err, manifest.ErrAbsent) {
			f.pinnedRevisions[row.Number()] = h // the revision was collected before the pin took effect: the pin command fails
			continue
		}
		for p := range past.whole.Partitions.All {
			if !past.whole.Hidden(p) {
				h.outputs[p.MaterializationID] = p.OutputURI
			}
		}
		f.pinnedRevisions[row.Number()] = h
	}
}

// deletingPin records that the copy of a pinned revision is deleted: the outputs of this revision need no longer be
// kept. A collector may delete the copy before it knows of the pin. Then the pin command fails, even if a delayed
// request creates the copy again.
func (o *oracle) deletingPin(key string) {
	for _, f := range o.domains {
		name, ours := strings.CutPrefix(key, manifest.PinPrefix(f.domain))
		revision, err := strconv.ParseInt(strings.TrimSuffix(name, path.Ext(name)), 10, 64)
		if h, held := f.pinnedRevisions[revision]; ours && err == nil && held {
			f.pinnedRevisions[revision] = heldRevision{since: h.since}
		}
	}
}

// deletingPinned checks an output that is about to be deleted: no revision that was pinned when the pass began may show
// the output. A revision does not show the files of executions that lost. The parameter name is the path of the object
// within the output.
func (o *oracle) deletingPinned(p *process, f *followed, key, materialization, name string) {
	for revision, h := range f.pinnedRevisions {
		row := f.state.Pins.Get(strconv.FormatInt(revision, 10))
		ends := event.At(o.w.now().Add(time.Duration(o.w.cfg.Faults.MaxSkew) * time.Second))
		if row == nil || row.Until <= ends || !h.since.Before(p.began) {
			continue
		}
		if uri, shown := h.outputs[materialization]; !shown || strings.Contains(name, "/") && !strings.HasPrefix(key, uri) {
			continue
		}
		if _, _, err := o.w.blobs.Get(context.Background(), manifest.PinKey(f.domain, revision)); errors.Is(err, blob.ErrNotFound) {
			continue // the copy was deleted together with all manifests
		}
		o.violation("collection", "%s deletes %s, which the pinned revision %d shows", p.id, key, revision)
	}
	if len(f.pinnedRevisions) > 0 {
		o.w.fault("output collected beside a pin")
	}
}
