package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

// ErrNotPinned means that a command had no effect: too many revisions are pinned, or a later command has pinned or
// unpinned the revision.
var ErrNotPinned = errors.New("the command had no effect")

// Pinned is a revision that somebody has pinned, with its outputs.
type Pinned struct {
	Revision int64      `json:"revision"`
	Until    event.Time `json:"until"`
	PinnedAt event.Time `json:"pinned_at"`
	PinnedBy string     `json:"pinned_by,omitempty"`
	Reason   string     `json:"reason"`
}

// Pins returns the pins of a state that have not ended, by revision.
func Pins(s *state.State, now time.Time) []Pinned {
	found := []Pinned{}
	pinned := s.PinnedAt(event.At(now))
	for _, revision := range slices.Sorted(maps.Keys(pinned)) {
		row := pinned[revision]
		found = append(found, Pinned{revision, row.Until, row.PinnedAt, row.PinnedBy, row.Reason})
	}
	return found
}

// Pin keeps a revision, and the outputs that are visible in it, until a given time. It returns how many of these
// outputs had already been deleted when the pin took effect.
func (e *Engine) Pin(ctx context.Context, revision int64, until time.Time, reason string) (missing int, err error) {
	snap, err := e.Current(ctx)
	if err != nil {
		return 0, err
	}
	pinned := snap.State.PinnedAt(event.At(e.cfg.Clock.Now()))
	if pinned[revision] == nil && len(pinned) >= state.MaxPins {
		return 0, fmt.Errorf("pin revision %d: %w: %s", revision, ErrNotPinned, fold.PinLimit(len(pinned)))
	}
	// The copy of the revision must exist before the revision is collected.
	before, err := e.cfg.Manifests.Pin(ctx, revision)
	if err != nil {
		return 0, noRevision(revision, err)
	}
	if err := e.appendPin(ctx, snap, revision, until, reason); err != nil {
		return 0, err
	}
	// From now on, the state of every collector contains the pin. Before the pin was folded, a collector may have deleted
	// the copy, and then a delayed request of another collector may have created the copy again. While there was no copy,
	// nothing protected the outputs, so they may have been deleted. The object version of the copy shows whether the copy
	// was created again.
	after, err := e.cfg.Manifests.Pin(ctx, revision)
	if err == nil && after != before {
		err = manifest.ErrAbsent
	}
	if err != nil {
		return 0, noRevision(revision, err)
	}
	return e.collected(ctx, revision)
}

// Unpin ends the pin of a revision.
func (e *Engine) Unpin(ctx context.Context, revision int64, reason string) error {
	snap, err := e.Current(ctx)
	if err != nil {
		return err
	}
	now := e.cfg.Clock.Now()
	if snap.State.PinnedAt(event.At(now))[revision] == nil {
		return fmt.Errorf("pin of revision %d: %w: list the pinned revisions with `servo admin pin`", revision, ErrNotFound)
	}
	return e.appendPin(ctx, snap, revision, now, reason)
}

func noRevision(revision int64, err error) error {
	if errors.Is(err, manifest.ErrAbsent) {
		return fmt.Errorf("revision %d is %w: it was collected, or never published", revision, ErrNotFound)
	}
	return err
}

// appendPin appends the command and checks that it took effect.
func (e *Engine) appendPin(ctx context.Context, snap *snapshot.Snapshot, revision int64, until time.Time, reason string) error {
	for row := range snap.State.Pins.All {
		if row.Number() == revision {
			e.cfg.IDs.Observe(row.CommandID) // the new id must be greater, even if the earlier one comes from a fast clock
		}
	}
	p := &event.RevisionPinned{CommandID: e.cfg.IDs.New(), Revision: revision, Until: event.At(until), Reason: reason}
	after, group, err := e.append(ctx, "", p)
	if err != nil {
		return fmt.Errorf("pin revision %d: %w", revision, err)
	}
	for row := range after.State.Pins.All {
		if row.Number() == revision && row.CommandID == p.CommandID {
			return nil
		}
	}
	return fmt.Errorf("pin revision %d: %w: %s", revision, ErrNotPinned, cmp.Or(rejection(after, group), "a later command has pinned or released it"))
}

// collected counts the outputs of a revision that have been deleted: neither their commit marker nor their quarantine
// marker exists.
func (e *Engine) collected(ctx context.Context, revision int64) (missing int, err error) {
	shown, err := e.At(ctx, revision)
	if err != nil {
		return 0, err
	}
	asset, markers := "", map[string]bool{}
	for row, err := range shown.AllPartitions(ctx) {
		if err != nil {
			return 0, err
		}
		if row.OutputURI == "" {
			continue
		}
		if row.AssetKey != asset {
			asset = row.AssetKey
			if markers, err = e.markers(ctx, asset); err != nil {
				return 0, err
			}
		}
		if !markers[contract.CommitMarkerKeyOf(row.OutputURI)] && !markers[contract.QuarantineMarkerKeyOf(row.OutputURI)] {
			missing++
		}
	}
	return missing, nil
}

// markers returns the keys of all markers of an asset.
func (e *Engine) markers(ctx context.Context, asset string) (map[string]bool, error) {
	if _, err := ids.ParseAssetKey(asset); err != nil {
		return nil, err
	}
	found := map[string]bool{}
	for o, err := range e.cfg.Store.List(ctx, blob.ListOptions{Prefix: contract.AssetsPrefix(e.cfg.Domain) + asset + "/"}) {
		if err != nil {
			return nil, err
		}
		if contract.IsMarker(o.Key) {
			found[o.Key] = true
		}
	}
	return found, nil
}

// At reads the state of a kept revision. It loads the whole live state, so callers should cache the result.
func (e *Engine) At(ctx context.Context, revision int64) (*snapshot.Snapshot, error) {
	m, err := e.cfg.Manifests.LoadAt(ctx, revision)
	if err != nil {
		return nil, noRevision(revision, err)
	}
	s, err := snapshot.Load(ctx, e.cfg.Codec, e.cfg.Manifests, m)
	if err != nil {
		return nil, err
	}
	return &snapshot.Snapshot{
		State: s, Revision: m.Revision, Nonce: m.Nonce, Timeline: m.Timeline, CaughtUpAt: m.Watermarks.CaughtUpAt, CompleteThrough: m.Watermarks.CompleteThrough, History: snapshot.HistoryOf(e.cfg.Codec, e.cfg.Manifests, m),
	}, nil
}

// RevisionAt returns the number of the newest kept revision that was published at or before the given time.
func (e *Engine) RevisionAt(ctx context.Context, t time.Time) (int64, error) {
	m, err := e.cfg.Manifests.LoadAsOf(ctx, t)
	if errors.Is(err, manifest.ErrAbsent) || errors.Is(err, manifest.ErrNone) {
		return 0, fmt.Errorf("a revision as of %s is %w: %w", event.At(t), ErrNotFound, err)
	}
	if err != nil {
		return 0, err
	}
	return m.Revision, nil
}
