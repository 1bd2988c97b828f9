package api

import (
	"context"
	"slices"

	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/servov1"
	"github.com/servo-orchestration/servo/pkg/snapshot"
)

// healths lists the possible values of the health of an asset, worst first.
var healths = []string{"failed", "stale", "missing", "unknown", "fresh"}

// GetAssetGraph implements the call.
func (s *server) GetAssetGraph(ctx context.Context, r *servov1.GetAssetGraphRequest) (*servov1.AssetGraph, error) {
	p, err := s.project()
	if err != nil {
		return nil, err
	}
	snap, err := s.current(ctx)
	if err != nil {
		return nil, err
	}
	assets, byKey := make([]view.GraphAsset, len(p.Assets)), make(map[string]*plan.Asset, len(p.Assets))
	for i := range p.Assets {
		a := view.Asset{Asset: &p.Assets[i]}
		assets[i] = view.GraphAsset{Key: a.Key.String(), Deps: a.DependsOn()}
		byKey[assets[i].Key] = a.Asset
	}
	if focus := r.GetFocus(); focus != "" && byKey[focus] == nil {
		return nil, refuse(notFound, "asset %s: %w: GET /v1/assets lists the assets", focus, engine.ErrNotFound)
	}
	g := view.GraphOf(assets, view.GraphOptions{
		Level: int(r.GetLevel()), Expand: r.GetExpand(), Focus: r.GetFocus(), Depth: orDefault(r.GetDepth(), 1),
		Upstream: r.GetDirection() != "downstream", Downstream: r.GetDirection() != "upstream",
	})
	judged, err := s.judgedOf(ctx, p, snap, g.Nodes, byKey)
	if err != nil {
		return nil, err
	}
	into := &servov1.AssetGraph{
		Level: int32(g.Level), GraphHash: g.Hash, Clipped: g.Clipped, Revision: snap.Revision, AssetsTotal: int32(len(assets)), //nolint:gosec // small
	}
	for i := range g.Nodes {
		into.Nodes = append(into.Nodes, graphNode(&g.Nodes[i], byKey, judged))
	}
	for _, e := range g.Edges {
		into.Edges = append(into.Edges, &servov1.AssetGraph_Edge{From: e.From, To: e.To, Count: int32(e.Count), Back: e.Back}) //nolint:gosec // small
	}
	return into, nil
}

// judgedOf returns, by key, the assets of the graph's nodes, with the status of their partitions.
func (s *server) judgedOf(
	ctx context.Context, p *Project, snap *snapshot.Snapshot, nodes []view.GraphNode, assets map[string]*plan.Asset,
) (map[string]*servov1.Asset, error) {
	var shown []*plan.Asset
	for i := range nodes {
		for _, key := range nodes[i].Assets {
			shown = append(shown, assets[key])
		}
	}
	at := &page{snap: snap, now: s.now(ctx, snap)}
	found, err := s.memo.assetsAt(momentOf(snap, p, at.now)).list(ctx, at, p, shown)
	if err != nil {
		return nil, err
	}
	byKey := make(map[string]*servov1.Asset, len(found))
	for _, one := range found {
		byKey[one.GetAssetKey()] = one
	}
	return byKey, nil
}

func graphNode(n *view.GraphNode, assets map[string]*plan.Asset, judged map[string]*servov1.Asset) *servov1.AssetGraph_Node {
	into := &servov1.AssetGraph_Node{
		Id: n.ID, Kind: "group", Label: n.Label, Group: n.Group, Assets: int32(len(n.Assets)), //nolint:gosec // small
		MoreUpstream: int32(n.MoreUpstream), MoreDownstream: int32(n.MoreDownstream), //nolint:gosec // small
	}
	counts := map[string]int32{}
	for _, key := range n.Assets {
		one := judged[key]
		counts[healthOf(one)]++
		if !n.IsGroup {
			into.Kind, into.Partitions, into.Expected = "asset", one.GetStatus(), one.GetExpected()
			into.Work = (&view.Asset{Asset: assets[key]}).Kind()
		}
	}
	into.Health = healths[slices.IndexFunc(healths, func(h string) bool { return counts[h] > 0 })]
	if n.IsGroup {
		into.HealthCounts = counts
	}
	return into
}

// healthOf returns the health of an asset. If several values apply, it returns the one whose case comes first below.
// States that need a person come before the others.
func healthOf(a *servov1.Asset) string {
	switch status := a.GetStatus(); {
	case a.GetProblem() != "" || status.GetFailed() > 0:
		return "failed"
	case status == nil:
		return "unknown"
	case status.GetStale() > 0:
		return "stale"
	case status.GetMissing() > 0:
		return "missing"
	}
	return "fresh"
}
