package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/space"
	"github.com/servo-orchestration/servo/pkg/staleness"
	"github.com/servo-orchestration/servo/pkg/state"
)

// MarkRequest selects outputs of an asset to mark.
type MarkRequest struct {
	// Assets are the assets of the project. Asset is the one whose outputs are marked.
	Assets []plan.Asset
	Asset  ids.AssetKey
	// Partitions selects partitions of a partitioned asset.
	Partitions []plan.Selection
	// Mark is [event.MarkStale], [event.MarkFresh] or [event.MarkMissing].
	Mark   string
	Reason string
}

// Marked counts the outputs that a request has marked.
type Marked struct {
	Asset string `json:"asset"`
	Mark  string `json:"mark"`
	// Partitions is the number of marked partitions.
	Partitions int `json:"partitions"`
	// Stale is the number of marked partitions that stay stale, because their code has changed.
	Stale int `json:"stale,omitempty"`
}

// maxMarkBytes limits the total length of the keys in one event, because an event must fit into a line of limited
// length.
const maxMarkBytes = 256 << 10

// Mark marks the visible outputs of the selected partitions. If there are many, it appends several events. If it
// fails, call it again: it marks all of the outputs again.
func (e *Engine) Mark(ctx context.Context, r MarkRequest) (Marked, error) {
	done := Marked{Asset: r.Asset.String(), Mark: r.Mark}
	snap, err := e.Current(ctx)
	if err != nil {
		return done, err
	}
	rows, err := e.toMark(ctx, snap, r)
	if err != nil {
		return done, &InvalidError{fmt.Errorf("mark partitions of %s: %w", r.Asset, err)}
	}
	if detail := fold.MarkLimit(snap.State, newMarks(snap.State, rows)); detail != "" {
		return done, &InvalidError{fmt.Errorf("mark partitions of %s: %s", r.Asset, detail)}
	}
	on := observed{seq: snap.State.FoldSeq, at: snap.State.FoldTime}
	for chunk := range markChunks(rows) {
		if snap, err = e.appendMarks(ctx, r, chunk, on); err != nil {
			return done, fmt.Errorf("mark partitions of %s: %w: %d of %d were marked: repeat the command", r.Asset, err, done.Partitions, len(rows))
		}
		done.Partitions += len(chunk)
	}
	if r.Mark == event.MarkFresh {
		done.Stale, err = e.staleRows(ctx, snap, r, rows)
	}
	return done, err
}

// toMark returns the rows of the selected partitions that have a visible output.
func (e *Engine) toMark(ctx context.Context, snap *snapshot.Snapshot, r MarkRequest) ([]*state.Partition, error) {
	at := slices.IndexFunc(r.Assets, func(a plan.Asset) bool { return a.Key == r.Asset })
	if at < 0 {
		return nil, fmt.Errorf("asset %w", ErrNotFound)
	}
	asset := &r.Assets[at]
	selected, err := e.markFilter(ctx, snap, r, asset)
	if err != nil {
		return nil, err
	}
	var rows []*state.Partition
	for row, err := range snap.Partitions(ctx, r.Asset.String(), "") {
		if err != nil {
			return nil, err
		}
		is, err := selected(row.PartitionKey)
		if err != nil {
			return nil, err
		}
		if is {
			rows = append(rows, row)
		}
	}
	if len(rows) == 0 {
		return nil, errors.New("no selected partition has an output: list them with `servo partitions " + r.Asset.String() + "`")
	}
	return rows, nil
}

// markFilter returns a function that reports whether a request selects a partition.
func (e *Engine) markFilter(
	ctx context.Context, snap *snapshot.Snapshot, r MarkRequest, asset *plan.Asset,
) (func(key string) (bool, error), error) {
	if asset.Partitions == nil {
		if len(r.Partitions) > 0 {
			return nil, errors.New("the asset has no partitions: remove -p")
		}
		return func(key string) (bool, error) { return key == "", nil }, nil
	}
	if len(r.Partitions) == 0 {
		return nil, errors.New("select partitions with -p, or all of them with -p all")
	}
	calendar := view.Calendar(snap.State, e.cfg.Clock.Now())
	calendar.Future = true
	members, err := calendar.Members(asset.Partitions)
	if err != nil {
		return nil, err
	}
	evaluation, err := Staleness(ctx, snap, r.Assets, calendar.Now)
	if err != nil {
		return nil, err
	}
	var filters []func(string) (bool, error)
	for _, s := range r.Partitions {
		if s.Status != "" && s.Status != space.Stale {
			return nil, fmt.Errorf("-p %s selects no outputs: select partitions by their values, or with -p stale", s)
		}
		inside, err := calendar.Filter(asset.Partitions, s)
		if err != nil {
			return nil, err
		}
		filters = append(filters, func(key string) (bool, error) {
			if !members.Has(key) || !inside(key) || s.Status == "" {
				return members.Has(key) && inside(key), nil
			}
			statuses, err := evaluation.Statuses(asset.Key, []string{key})
			return err == nil && statuses[0] == staleness.Stale, err
		})
	}
	return func(key string) (bool, error) {
		for _, f := range filters {
			if is, err := f(key); is || err != nil {
				return is, err
			}
		}
		return false, nil
	}, nil
}

// newMarks counts the outputs that have no mark yet.
func newMarks(s *state.State, rows []*state.Partition) (n int) {
	for _, row := range rows {
		if s.MarkOf(row) == nil {
			n++
		}
	}
	return n
}

// markChunks divides rows into chunks that fit into one event each.
func markChunks(rows []*state.Partition) func(yield func([]*state.Partition) bool) {
	return func(yield func([]*state.Partition) bool) {
		for len(rows) > 0 {
			n, size := 0, 0
			for n < min(len(rows), event.MaxMarked) && (n == 0 || size+len(rows[n].PartitionKey) <= maxMarkBytes) {
				size += len(rows[n].PartitionKey)
				n++
			}
			if !yield(rows[:n]) {
				return
			}
			rows = rows[n:]
		}
	}
}

// appendMarks appends one event, and checks that it took effect. The event's id is greater than the ids of earlier
// reports and marks of these outputs, even if a machine with a fast clock wrote them.
func (e *Engine) appendMarks(ctx context.Context, r MarkRequest, rows []*state.Partition, on observed) (*snapshot.Snapshot, error) {
	p := &event.PartitionsMarked{
		Asset: r.Asset.String(), Mark: r.Mark, Reason: r.Reason, ObservedSeq: on.seq, ObservedTime: on.at,
	}
	snap, err := e.Current(ctx)
	if err != nil {
		return nil, err
	}
	for _, row := range rows {
		p.Partitions = append(p.Partitions, event.MarkedPartition{Partition: row.PartitionKey, MaterializationID: row.MaterializationID, RunID: row.RunID})
		e.cfg.IDs.Observe(row.Version)
		if m := snap.State.MarkOf(row); m != nil {
			e.cfg.IDs.Observe(m.CommandID)
		}
	}
	p.CommandID = e.cfg.IDs.New()
	after, group, err := e.append(ctx, "", p)
	if err != nil {
		return nil, err
	}
	for _, row := range rows {
		if m := after.State.MarkOf(row); m == nil || m.CommandID != p.CommandID && m.Mark != event.MarkMissing {
			now, err := after.Partition(ctx, row.AssetKey, row.PartitionKey)
			if err != nil || now != nil && now.MaterializationID != row.MaterializationID {
				continue // a run has replaced the output in the meantime
			}
			return nil, fmt.Errorf("%w: %s", ErrChanged, cmp.Or(rejection(after, group), "a later command has marked it"))
		}
	}
	return after, nil
}

// staleRows counts the partitions that are still stale although they were marked fresh.
func (e *Engine) staleRows(ctx context.Context, snap *snapshot.Snapshot, r MarkRequest, rows []*state.Partition) (n int, err error) {
	evaluation, err := Staleness(ctx, snap, r.Assets, e.cfg.Clock.Now())
	if err != nil {
		return 0, err
	}
	keys := make([]string, len(rows))
	for i, row := range rows {
		keys[i] = row.PartitionKey
	}
	statuses, err := evaluation.Statuses(r.Asset, keys)
	for _, s := range statuses {
		if s == staleness.Stale {
			n++
		}
	}
	return n, err
}
