package api

import (
	"context"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/selector"
	"github.com/servo-orchestration/servo/pkg/servov1"
	"github.com/servo-orchestration/servo/pkg/snapshot"
)

// ListAssets implements the call.
func (s *server) ListAssets(ctx context.Context, r *servov1.ListAssetsRequest) (*servov1.ListAssetsResponse, error) {
	p, err := s.project()
	if err != nil {
		return nil, err
	}
	opened, err := s.page(ctx, r, largePage)
	if err != nil {
		return nil, err
	}
	chosen := map[ids.AssetKey]bool{}
	if r.GetSelect() != "" {
		var q selector.Query
		if q.Include, err = selector.ParseAll([]string{r.GetSelect()}); err != nil {
			return nil, invalid("select", "%w", err)
		}
		found, err := selector.NewCatalog(p.Assets).Select(q)
		if err != nil {
			return nil, invalid("select", "%w", err)
		}
		for _, key := range slices.Concat(found.Named, found.Matched) {
			chosen[key] = true
		}
	}
	list := &servov1.ListAssetsResponse{Project: p.Name, Revision: opened.snap.Revision}
	judged := s.memo.assetsAt(momentOf(opened.snap, p, opened.now))
	var shown []*plan.Asset
	for _, one := range judged.projectIndex(p).sorted {
		if r.GetSelect() != "" && !chosen[one.asset.Key] || opened.after != "" && one.key <= opened.after {
			continue
		}
		if len(shown) == opened.size {
			list.NextPageToken = opened.next(shown[opened.size-1].Key.String())
			break
		}
		shown = append(shown, one.asset)
	}
	list.Assets, err = judged.list(ctx, opened, p, shown)
	return list, opened.failed(err)
}

// GetAsset implements the call.
func (s *server) GetAsset(ctx context.Context, r *servov1.GetAssetRequest) (*servov1.Asset, error) {
	p, snap, asset, err := s.findAsset(ctx, r)
	if err != nil {
		return nil, err
	}
	at := &page{snap: snap, now: s.now(ctx, snap)}
	j := s.memo.assetsAt(momentOf(snap, p, at.now))
	found, err := j.list(ctx, at, p, []*plan.Asset{asset})
	if err != nil {
		return nil, err
	}
	one := proto.CloneOf(found[0])
	failed, output := j.detail(asset.Key)
	s.fillDetail(ctx, one, at, asset, failed, output)
	return one, nil
}

// ofAsset is a request about an asset.
type ofAsset interface {
	GetNamespace() string
	GetName() string
}

// findAsset returns the project, the snapshot that the call reads, and the asset that the request names.
func (s *server) findAsset(ctx context.Context, r ofAsset) (*Project, *snapshot.Snapshot, *plan.Asset, error) {
	p, err := s.project()
	if err != nil {
		return nil, nil, nil, err
	}
	snap, err := s.current(ctx)
	if err != nil {
		return nil, nil, nil, err
	}
	asset, err := assetNamed(p, r)
	return p, snap, asset, err
}

func assetNamed(p *Project, r ofAsset) (*plan.Asset, error) {
	key := ids.AssetKey{Namespace: r.GetNamespace(), Name: r.GetName()}
	for i := range p.Assets {
		if p.Assets[i].Key == key {
			return &p.Assets[i], nil
		}
	}
	names := make([]string, len(p.Assets))
	for i := range p.Assets {
		names[i] = p.Assets[i].Key.String()
	}
	if near := plan.Suggest(key.String(), names); near != "" {
		return nil, refuse(notFound, "asset %s: %w: did you mean %s?", key, engine.ErrNotFound, near)
	}
	return nil, refuse(notFound, "asset %s: %w: GET /v1/assets lists the assets", key, engine.ErrNotFound)
}

// readersOf returns, for each asset, the keys of the assets that read it.
func readersOf(assets []plan.Asset) map[ids.AssetKey][]string {
	readers := map[ids.AssetKey][]string{}
	for i := range assets {
		for _, dep := range assets[i].Deps {
			readers[dep] = append(readers[dep], assets[i].Key.String())
		}
	}
	for _, keys := range readers {
		slices.Sort(keys)
	}
	return readers
}

// assetOf returns an asset with the totals of its outputs, and the location of its newest output.
func assetOf(ctx context.Context, p *page, asset *plan.Asset, readers map[ids.AssetKey][]string) (*servov1.Asset, string, error) {
	a, err := view.AssetOf(p.snap.Partitions(ctx, asset.Key.String(), ""), asset, view.Calendar(p.snap.State, p.now))
	if err != nil {
		return nil, "", err
	}
	one := &servov1.Asset{
		AssetKey: a.Key.String(), Description: a.Description, Owners: a.Owners, Tags: a.Tags, DependsOn: a.DependsOn(),
		Partitions: a.Partitioning(), File: a.File, Materialized: int32(a.Stored), RowCount: a.Rows, ByteSize: a.Bytes, //nolint:gosec // at most space.MaxListed
		Schemas: int32(len(a.Schemas)), LastMaterializedAt: timestamp(a.MaterializedAt), LastRunId: a.LastRun, //nolint:gosec // at most one for each partition
		ReadBy: readers[a.Key], Kind: a.Kind(),
	}
	if a.Partitions != nil {
		for i := range a.Partitions.Dimensions {
			one.Dimensions = append(one.Dimensions, a.Partitions.Dimensions[i].Name)
		}
	}
	return one, a.LastOutput, nil
}
