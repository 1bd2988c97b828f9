package snapshot

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/state"
)

// Ticks returns the newest ticks of a schedule, live and closed: at most limit, newest first.
func (s *Snapshot) Ticks(ctx context.Context, schedule string, limit int) ([]*state.Tick, error) {
	var found []*state.Tick
	s.State.TicksOf(schedule, func(t *state.Tick) bool {
		found = append(found, t)
		return len(found) < limit
	})
	index, has := s.History.indexes["ticks"]
	if !has || len(found) == limit && index.MaxRun < found[limit-1].TickID {
		return found, nil
	}
	files, err := s.History.store.Segments(ctx, index)
	if err != nil {
		return nil, fmt.Errorf("read ticks: %w", err)
	}
	files = slices.SortedFunc(slices.Values(files), func(a, b manifest.File) int { return strings.Compare(b.MaxRun, a.MaxRun) })
	for _, f := range files {
		if len(found) == limit && f.MaxRun < found[limit-1].TickID {
			break
		}
		rows, err := s.History.codec.Merge(ctx, fileSources(s.History.store, []manifest.File{f}))
		if err != nil {
			return nil, fmt.Errorf("read ticks: %w", err)
		}
		for _, t := range state.List[state.Tick](rows) {
			if t.ScheduleID == schedule && s.History.Kept(t.TickID) {
				found = append(found, t)
			}
		}
		slices.SortFunc(found, func(a, b *state.Tick) int { return strings.Compare(b.TickID, a.TickID) })
		found = found[:min(limit, len(found))]
	}
	return found, nil
}
