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
	var live []*state.Tick
	s.State.TicksOf(schedule, func(t *state.Tick) bool {
		live = append(live, t)
		return len(live) < limit
	})
	return newestRows(ctx, s, "ticks", live, limit, func(t *state.Tick) bool { return t.ScheduleID == schedule })
}

// Notifications returns the newest notifications, live and closed: at most limit, newest first.
func (s *Snapshot) Notifications(ctx context.Context, limit int) ([]*state.Notification, error) {
	live := slices.Clone(s.State.Notifications.Rows())
	slices.Reverse(live)
	return newestRows(ctx, s, "notifications", live[:min(limit, len(live))], limit, func(*state.Notification) bool { return true })
}

// newestRows returns the newest rows, live and closed, of a table whose key is a ULID. The parameter found contains the
// newest live rows.
func newestRows[R any, P interface {
	*R
	Key() string
}](ctx context.Context, s *Snapshot, table string, found []*R, limit int, match func(*R) bool) ([]*R, error) {
	key := func(row *R) string { return P(row).Key() }
	index, has := s.History.indexes[table]
	if !has || len(found) == limit && index.MaxRun < key(found[limit-1]) {
		return found, nil
	}
	files, err := s.History.store.Segments(ctx, index)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", table, err)
	}
	files = slices.SortedFunc(slices.Values(files), func(a, b manifest.File) int { return strings.Compare(b.MaxRun, a.MaxRun) })
	for _, f := range files {
		if len(found) == limit && f.MaxRun < key(found[limit-1]) {
			break
		}
		rows, err := s.History.codec.Merge(ctx, fileSources(s.History.store, []manifest.File{f}))
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", table, err)
		}
		for _, row := range state.List[R](rows) {
			if match(row) && s.History.Kept(key(row)) {
				found = append(found, row)
			}
		}
		slices.SortFunc(found, func(a, b *R) int { return strings.Compare(key(b), key(a)) })
		found = found[:min(limit, len(found))]
	}
	return found, nil
}
