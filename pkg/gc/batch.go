package gc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

// batch is a stored materialization of several partitions. Its objects are below the prefix of the first partition.
type batch struct {
	asset string
	of    Materialization
	// cells contains one cell for each partition, with the partition's prefix.
	cells []*cell
}

// batches removes the materializations of batches from the listed cells, and returns them. The marker of a batch names
// its partitions. A batch without a marker remains in the cell of its first partition, and is judged like any other
// output without a marker. A batch whose marker cannot be read is kept.
func (p *pass) batches(ctx context.Context, cells []*cell) ([]*batch, error) {
	var found []*batch
	for _, c := range cells {
		kept := c.stored[:0]
		for i := range c.stored {
			m := c.stored[i]
			marker := cmp.Or(m.Marker.Key, m.Blocked.Key)
			if marker == "" || !m.isBatch(c.prefix) {
				kept = append(kept, m)
				continue
			}
			b, err := p.readBatch(ctx, c, m, marker)
			if err != nil {
				return nil, err
			}
			if b != nil {
				found = append(found, b)
			}
		}
		c.stored = kept
	}
	return found, nil
}

// isBatch reports whether an execution of the materialization wrote several partitions.
func (m *Materialization) isBatch(prefix string) bool {
	return slices.ContainsFunc(m.Files, func(f Object) bool {
		execution, _, _ := strings.Cut(strings.TrimPrefix(f.Key, prefix+m.ID+"/"), "/")
		return contract.IsBatchURI(execution + "/")
	})
}

// readBatch reads the partitions of a batch from its marker. It returns nil if the batch must be kept.
func (p *pass) readBatch(ctx context.Context, c *cell, m Materialization, key string) (*batch, error) {
	data, _, err := blob.Get(ctx, p.Store, key, contract.MaxCommitMarkerBytes)
	if errors.Is(err, blob.ErrNotFound) {
		return nil, nil // another collector has deleted the marker; the next pass finds the files
	}
	if err != nil {
		return nil, p.noteFailure(ctx, fmt.Errorf("read commit marker %s: %w", key, err))
	}
	marker, err := contract.DecodeCommitMarker(data)
	if err != nil {
		return nil, nil //nolint:nilerr // keep the batch: `servo admin verify` reports the unreadable marker
	}
	b := &batch{asset: p.assetOf(c.prefix), of: m}
	for _, one := range marker.Cells {
		b.cells = append(b.cells, &cell{prefix: prefixOf(p.Domain, b.asset, one.PartitionKey), stored: []Materialization{m}})
	}
	if len(b.cells) == 0 {
		return nil, nil
	}
	return b, nil
}

// collectBatch deletes the garbage of a batch.
func (p *pass) collectBatch(ctx context.Context, now event.Time, b *batch) error {
	keep, ok := p.keep(b.asset)
	if !ok {
		return nil
	}
	if err := p.winner(ctx, &b.of); err != nil {
		return err
	}
	rows := make([]Rows, len(b.cells))
	for i, c := range b.cells {
		settled, err := p.settled(ctx, keep, c)
		if err != nil {
			return err
		}
		rows[i] = p.known.rows(c, settled)
	}
	for _, g := range DecideBatch(keep, now, rows, b.of) {
		if err := p.delete(ctx, b.asset, g); err != nil {
			return err
		}
	}
	return nil
}

// batchesInHistory returns the partitions of those tasks in history that materialized a batch.
func (k *known) batchesInHistory(ctx context.Context, p *pass) (map[state.Key2][]string, error) {
	found := map[state.Key2][]string{}
	for rows, err := range snapshot.Segments(ctx, p.Codec, p.Manifests, k.manifest, "task_partitions") {
		if err != nil {
			return nil, err
		}
		for _, row := range state.List[state.Batch](rows) {
			found[row.Key()] = row.List()
		}
	}
	return found, nil
}
