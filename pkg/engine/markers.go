package engine

import (
	"context"
	"fmt"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

// PartitionMarker is the commit marker of the visible output of a partition.
type PartitionMarker struct {
	PartitionKey string
	Marker       *contract.CommitMarker
}

// PartitionMarkers returns the commit markers of the visible outputs of an asset, in the order in which tasks read the
// outputs.
func PartitionMarkers(ctx context.Context, store blob.Store, snap *snapshot.Snapshot, asset ids.AssetKey) ([]PartitionMarker, error) {
	read, found := markers{store: store}, []PartitionMarker(nil)
	for row, err := range snap.Partitions(ctx, asset.String(), "") {
		if err != nil {
			return nil, fmt.Errorf("read the partitions of %s: %w", asset, err)
		}
		if row.OutputURI == "" {
			continue
		}
		marker, err := read.get(ctx, row)
		if err != nil {
			return nil, fmt.Errorf("read the commit marker of output %s: run `servo admin verify`: %w", row.OutputURI, err)
		}
		found = append(found, PartitionMarker{row.PartitionKey, marker})
	}
	return found, nil
}

// markers reads the commit markers of outputs. The partitions of a batch share one marker, which is read only once.
type markers struct {
	store blob.Store
	key   string
	last  *contract.CommitMarker
}

func (m *markers) get(ctx context.Context, row *state.Partition) (*contract.CommitMarker, error) {
	if key := contract.CommitMarkerKeyOf(row.OutputURI); key != m.key {
		m.key, m.last = key, nil
		if data, _, err := blob.Get(ctx, m.store, key, contract.MaxCommitMarkerBytes); err == nil {
			m.last, _ = contract.DecodeCommitMarker(data) // if m.last stays nil, ReadMarker below returns the error
		}
	}
	if m.last != nil {
		if one := m.last.Cell(row.PartitionKey); one != nil && one.URI == row.OutputURI {
			return one, nil
		}
	}
	marker, _, err := ReadMarker(ctx, m.store, row.OutputURI)
	if err != nil {
		return nil, err
	}
	if marker.URI != row.OutputURI {
		return nil, fmt.Errorf("it names %s", marker.URI)
	}
	return marker, nil
}
