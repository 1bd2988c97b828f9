package view_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/engine/view"
)

var shop = []view.GraphAsset{
	{Key: "raw/orders"},
	{Key: "raw/users"},
	{Key: "clean/orders", Deps: []string{"raw/orders"}},
	{Key: "clean/users", Deps: []string{"raw/users"}},
	{Key: "mart/sales", Deps: []string{"clean/orders", "clean/users"}},
	{Key: "raw/export", Deps: []string{"mart/sales"}},
}

func idsOf(g view.Graph) []string {
	var ids []string
	for _, n := range g.Nodes {
		ids = append(ids, n.ID)
	}
	return ids
}

// connected returns the edges as text.
func connected(g view.Graph) []string {
	var edges []string
	for _, e := range g.Edges {
		text := fmt.Sprintf("%s > %s (%d)", e.From, e.To, e.Count)
		if e.Back {
			text += " back"
		}
		edges = append(edges, text)
	}
	return edges
}

func TestGraphShowsAssetsIfTheyFit(t *testing.T) {
	g := view.GraphOf(shop, view.GraphOptions{})
	require.Equal(t, view.GraphAssets, g.Level)
	require.Equal(t, []string{"clean/orders", "clean/users", "mart/sales", "raw/export", "raw/orders", "raw/users"}, idsOf(g))
	require.Equal(t, []string{
		"clean/orders > mart/sales (1)", "clean/users > mart/sales (1)", "mart/sales > raw/export (1)",
		"raw/orders > clean/orders (1)", "raw/users > clean/users (1)",
	}, connected(g))
	require.False(t, g.Clipped)
	require.Equal(t, "clean/*", g.Nodes[0].Group)
	require.Equal(t, "orders", g.Nodes[0].Label)
}

func TestGraphBundlesEdgesOfGroups(t *testing.T) {
	g := view.GraphOf(shop, view.GraphOptions{Level: view.GraphGroups})
	require.Equal(t, []string{"clean/*", "mart/*", "raw/*"}, idsOf(g))
	require.Equal(t, []string{"clean/* > mart/* (2)", "mart/* > raw/* (1)", "raw/* > clean/* (2) back"}, connected(g))
	require.Equal(t, []string{"raw/export", "raw/orders", "raw/users"}, g.Nodes[2].Assets)

	g = view.GraphOf(shop, view.GraphOptions{Level: view.GraphGroups, Expand: []string{"raw/*"}})
	require.Equal(t, []string{"clean/*", "mart/*", "raw/export", "raw/orders", "raw/users"}, idsOf(g))
	require.NotContains(t, fmt.Sprint(connected(g)), "back")
}

func TestGraphFocusHasDirectionAndDepth(t *testing.T) {
	focus := func(up, down bool, depth int) view.Graph {
		return view.GraphOf(shop, view.GraphOptions{Focus: "clean/orders", Upstream: up, Downstream: down, Depth: depth})
	}
	require.Equal(t, []string{"clean/orders", "mart/sales", "raw/orders"}, idsOf(focus(true, true, 1)))
	require.Equal(t, []string{"clean/orders", "raw/orders"}, idsOf(focus(true, false, 9)))
	require.Equal(t, []string{"clean/orders", "mart/sales", "raw/export"}, idsOf(focus(false, true, 2)), "not users, which sales reads")
	g := focus(true, true, 1)
	require.Equal(t, 1, g.Nodes[1].MoreUpstream, "clean/users")
	require.Equal(t, 1, g.Nodes[1].MoreDownstream, "raw/export")
	require.Empty(t, view.GraphOf(shop, view.GraphOptions{Focus: "no/such", Depth: 1, Upstream: true}).Nodes)
}

// many returns assets in several namespaces. Each asset reads some of the earlier assets.
func many(namespaces, each, reads int) (all []view.GraphAsset) {
	for n := range namespaces {
		for i := range each {
			a := view.GraphAsset{Key: fmt.Sprintf("n%03d/%s_%05d", n, []string{"orders", "users", "events"}[i%3], i)}
			for r := range min(reads, len(all)) {
				a.Deps = append(a.Deps, all[(len(all)*7+r*13)%len(all)].Key)
			}
			slices.Sort(a.Deps)
			a.Deps = slices.Compact(a.Deps)
			all = append(all, a)
		}
	}
	return all
}

func TestGraphStaysWithinItsLimits(t *testing.T) {
	for _, size := range [][3]int{{1, 10_000, 3}, {300, 10, 10}, {1000, 20, 2}, {3, 500, 2}} {
		assets := many(size[0], size[1], size[2])
		opened := []string{}
		for range 6 {
			g := view.GraphOf(assets, view.GraphOptions{Level: view.GraphGroups, Expand: opened})
			require.LessOrEqual(t, len(g.Nodes), view.MaxGraphNodes, "%v", size)
			require.LessOrEqual(t, len(g.Edges), view.MaxGraphEdges)
			total, next := 0, ""
			for _, n := range g.Nodes {
				total += len(n.Assets)
				if n.IsGroup {
					next = n.ID
				}
			}
			require.Equal(t, len(assets), total, "every asset is in exactly one node")
			if next == "" {
				break
			}
			opened = append(opened, next)
		}
	}
	g := view.GraphOf(many(1, 10_000, 3), view.GraphOptions{Level: view.GraphAssets})
	require.True(t, g.Clipped)
	require.Equal(t, view.GraphGroups, g.Level)
}

func TestGraphExpandedGroupReachesEveryAsset(t *testing.T) {
	assets := many(2, 1300, 1)
	opened, shown := []string{}, map[string]bool{}
	queue := idsOf(view.GraphOf(assets, view.GraphOptions{Level: view.GraphGroups}))
	for len(queue) > 0 {
		id := queue[0]
		queue = queue[1:]
		before := view.GraphOf(assets, view.GraphOptions{Level: view.GraphGroups, Expand: opened})
		g := view.GraphOf(assets, view.GraphOptions{Level: view.GraphGroups, Expand: append(slices.Clone(opened), id)})
		for _, n := range g.Nodes {
			switch {
			case !n.IsGroup:
				shown[n.ID] = true
			case !slices.Contains(idsOf(before), n.ID):
				queue = append(queue, n.ID)
			}
		}
		if len(g.Nodes) < 100 {
			opened = append(opened, id) // the groups in this group are visible only while it is open
		}
	}
	require.Len(t, shown, len(assets))
}

func TestGraphIsTheSameInEveryOrder(t *testing.T) {
	assets := many(5, 300, 4)
	want := view.GraphOf(assets, view.GraphOptions{Level: view.GraphGroups, Expand: []string{"n001/*"}})
	random := rand.New(rand.NewPCG(1, 2))
	for range 5 {
		random.Shuffle(len(assets), func(i, j int) { assets[i], assets[j] = assets[j], assets[i] })
		require.Equal(t, want, view.GraphOf(assets, view.GraphOptions{Level: view.GraphGroups, Expand: []string{"n001/*"}}))
	}
}

func BenchmarkGraphOf400(b *testing.B) {
	assets := many(4, 100, 3)
	for b.Loop() {
		view.GraphOf(assets, view.GraphOptions{})
	}
}
