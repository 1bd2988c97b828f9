package snapshot

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/servo-orchestration/servo/pkg/state"
)

const backfillsTable, chunksTable = "backfills", "backfill_chunks"

// Backfills returns all backfills that are live or in history, newest first.
func (s *Snapshot) Backfills(ctx context.Context) ([]*state.Backfill, error) {
	found := slices.Clone(s.State.Backfills.Rows())
	if index, has := s.History.indexes[backfillsTable]; has {
		files, err := s.History.store.Segments(ctx, index)
		if err != nil {
			return nil, fmt.Errorf("read backfills: %w", err)
		}
		rows, err := s.History.codec.Merge(ctx, fileSources(s.History.store, files))
		if err != nil {
			return nil, fmt.Errorf("read backfills: %w", err)
		}
		for _, row := range state.List[state.Backfill](rows) {
			if s.History.Kept(row.BackfillID) {
				found = append(found, row)
			}
		}
	}
	slices.SortFunc(found, func(a, b *state.Backfill) int { return strings.Compare(b.BackfillID, a.BackfillID) })
	return found, nil
}

// Chunks returns the chunks of a backfill, live or in history, in their order.
func (s *Snapshot) Chunks(ctx context.Context, backfill string) ([]*state.Chunk, error) {
	var found []*state.Chunk
	if s.State.Backfills.Get(backfill) != nil {
		s.State.ChunksOf(backfill, func(row *state.Chunk) bool {
			found = append(found, row)
			return true
		})
		return found, nil
	}
	files, err := s.History.segments(ctx, chunksTable, backfill)
	if err != nil {
		return nil, fmt.Errorf("read the chunks of backfill %s: %w", backfill, err)
	}
	if len(files) == 0 {
		return nil, nil
	}
	rows, err := s.History.codec.Merge(ctx, fileSources(s.History.store, files))
	if err != nil {
		return nil, fmt.Errorf("read the chunks of backfill %s: %w", backfill, err)
	}
	for _, row := range state.List[state.Chunk](rows) {
		if row.BackfillID == backfill {
			found = append(found, row)
		}
	}
	return found, nil
}
