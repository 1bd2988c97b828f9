package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/snapshot"
)

// ForgottenAsset describes the outputs that are hidden when a command forgets an asset.
type ForgottenAsset struct {
	Asset string `json:"asset"`
	// Partitions is the number of partitions with a visible output. For an asset without partitions, it is 1. Rows and
	// Bytes are the sums over these outputs.
	Partitions int   `json:"partitions"`
	Rows       int64 `json:"rows"`
	Bytes      int64 `json:"bytes"`
	// NewestAt is when the newest output was materialized.
	NewestAt event.Time `json:"newest_at"`
}

// ForgetRequest names assets that are no longer part of the project.
type ForgetRequest struct {
	Assets []ids.AssetKey
	// Release is the deployed release with which the caller compared the assets; empty: none.
	Release string
	Reason  string
	DryRun  bool
}

// Deployed returns the deployed release and the keys of its assets. If no release is deployed, both are empty.
func (e *Engine) Deployed(ctx context.Context) (sha string, keys []ids.AssetKey, err error) {
	current, err := e.CurrentDeployment(ctx)
	if err != nil || current.Release == "" {
		return "", nil, err
	}
	r, _, err := e.ReadRelease(ctx, current.Release)
	if err != nil {
		return "", nil, err
	}
	for i := range r.Assets {
		key, err := ids.ParseAssetKey(r.Assets[i].Key)
		if err != nil {
			return "", nil, fmt.Errorf("read release %.12s: %w", current.Release, err)
		}
		keys = append(keys, key)
	}
	return current.Release, keys, nil
}

// Forget hides the outputs of assets that the deployed release does not have, so that the collector deletes them. It
// returns the hidden outputs by asset. Outputs of runs that are triggered later are not hidden.
func (e *Engine) Forget(ctx context.Context, r ForgetRequest) ([]ForgottenAsset, error) {
	keys := slices.Clone(r.Assets)
	slices.SortFunc(keys, plan.CompareKeys)
	keys = slices.Compact(keys)
	p := &event.AssetsForgotten{Release: r.Release, Reason: r.Reason}
	snap, err := e.Current(ctx)
	if err != nil {
		return nil, err
	}
	var found []ForgottenAsset
	for _, key := range keys {
		hides, err := e.hides(ctx, snap, key.String())
		if err != nil {
			return nil, fmt.Errorf("forget %s: %w", key, err)
		}
		found = append(found, hides)
		p.Assets = append(p.Assets, key.String())
	}
	slices.Sort(p.Assets)
	if detail := fold.InUse(snap.State, p.Assets); detail != "" {
		return nil, &InvalidError{errors.New("forget assets: " + detail)}
	}
	if r.DryRun {
		return found, nil
	}
	if release := snap.State.Release(); release != r.Release {
		return nil, fmt.Errorf("forget assets: %w: release %.12s was deployed meanwhile: try again", ErrChanged, release)
	}
	p.CommandID = e.cfg.IDs.New()
	after, group, err := e.append(ctx, "", p)
	if err != nil {
		return nil, fmt.Errorf("forget assets: %w", err)
	}
	for _, asset := range p.Assets {
		if row := after.State.Forgotten.Get(asset); row == nil || row.CommandID < p.CommandID {
			return nil, fmt.Errorf("forget assets: %w: %s", ErrChanged, cmp.Or(rejection(after, group), "the command had no effect"))
		}
	}
	return found, nil
}

// hides describes the outputs of an asset that a command would hide. It also ensures that the id of the command will
// be greater than the ids of the runs that made these outputs, even if the runs were triggered by a machine with a
// fast clock: a rebuild without the recorded order compares these ids.
func (e *Engine) hides(ctx context.Context, snap *snapshot.Snapshot, asset string) (ForgottenAsset, error) {
	found := ForgottenAsset{Asset: asset}
	for row, err := range snap.Partitions(ctx, asset, "") {
		if err != nil {
			return found, err
		}
		e.cfg.IDs.Observe(row.RunID)
		found.Partitions++
		found.Rows += row.RowCount
		found.Bytes += row.ByteSize
		found.NewestAt = max(found.NewestAt, row.MaterializedAt)
	}
	if row := snap.State.Forgotten.Get(asset); row != nil {
		e.cfg.IDs.Observe(row.CommandID)
	}
	if found.Partitions == 0 {
		return found, fmt.Errorf("outputs of the asset are %w: it has no visible output", ErrNotFound)
	}
	return found, nil
}
