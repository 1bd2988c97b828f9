package view

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
)

// Limits of a graph on a screen.
const (
	MaxGraphNodes = 400
	MaxGraphEdges = 1200
	maxGroupSize  = 200
)

// Levels of detail.
const (
	GraphAssets = 1 // the assets
	GraphGroups = 2 // groups of assets
)

// Graph is the part of the asset graph that a screen shows. It has no positions: the client lays it out.
type Graph struct {
	Nodes   []GraphNode // sorted by id
	Edges   []GraphEdge // sorted by (from, to)
	Level   int
	Hash    string // hash of nodes and edges: graphs with the same hash have the same layout
	Clipped bool   // nodes were omitted because of the limits
}

// GraphNode is an asset or a group.
type GraphNode struct {
	ID, Label string
	Group     string   // the id of the group that contains the node; "" at the top
	Assets    []string // the keys of the node's assets, sorted
	IsGroup   bool
	// MoreUpstream and MoreDownstream count the edges to assets that the graph does not show.
	MoreUpstream, MoreDownstream int
}

// GraphEdge is a dependency: To reads From.
type GraphEdge struct {
	From, To string
	Count    int  // the number of dependencies of assets in To on assets in From
	Back     bool // the edge closes a cycle of groups
}

// GraphOptions selects what a graph shows.
type GraphOptions struct {
	Level  int      // [GraphAssets], [GraphGroups], or 0: assets if they fit
	Expand []string // ids of groups to open, in this order
	Focus  string   // the key of an asset; the graph shows only its neighbourhood, as assets
	// Upstream and Downstream say in which directions the graph extends from Focus. Depth is the maximum number of steps
	// in each direction.
	Upstream, Downstream bool
	Depth                int
}

// GraphOf selects the part of the asset graph that a screen shows. The same assets and options return the same graph,
// regardless of the order of the assets.
func GraphOf(assets []GraphAsset, o GraphOptions) Graph {
	deps := make(map[string][]string, len(assets))
	for _, a := range assets {
		deps[a.Key] = a.Deps
	}
	keys := slices.Sorted(maps.Keys(deps))
	var g Graph
	switch {
	case o.Focus != "":
		g.Level = GraphAssets
		var chosen map[string]bool
		chosen, g.Clipped = neighbours(deps, keys, o)
		for _, key := range keys {
			if chosen[key] {
				g.Nodes = append(g.Nodes, GraphNode{ID: key, Label: key, Assets: []string{key}})
			}
		}
	case o.Level != GraphGroups && len(keys) <= MaxGraphNodes:
		g.Level = GraphAssets
		g.show(groupAssets(keys, MaxGraphNodes), nil, true)
	default:
		g.Level = GraphGroups
		g.Clipped = o.Level == GraphAssets
		root, expand := groupAssets(keys, maxGroupSize), o.Expand
		for g.show(root, expand, false); len(g.Nodes) > MaxGraphNodes && len(expand) > 0; g.show(root, expand, false) {
			expand, g.Clipped = expand[1:], true // close the group that was opened first
		}
	}
	slices.SortFunc(g.Nodes, func(a, b GraphNode) int { return cmp.Compare(a.ID, b.ID) })
	g.connect(deps, keys)
	g.Hash = g.hash()
	return g
}

// show sets g.Nodes to the visible nodes of a tree: every asset if all is true, and otherwise the groups. Instead of a
// group whose id is in the parameter expand, it shows the nodes in the group.
func (g *Graph) show(root *graphGroup, expand []string, all bool) {
	g.Nodes = nil
	var walk func(*graphGroup)
	walk = func(at *graphGroup) {
		for _, child := range at.children {
			open := len(child.children) > 0 && (all || slices.Contains(expand, child.id))
			if open {
				walk(child)
				continue
			}
			n := GraphNode{ID: child.id, Label: child.label, Assets: child.assets, IsGroup: len(child.children) > 0}
			if child.parent != nil {
				n.Group = child.parent.id
			}
			g.Nodes = append(g.Nodes, n)
		}
	}
	walk(root)
}

// neighbours returns the assets within o.Depth steps of o.Focus. It stops before a step that would exceed the limit
// of nodes, and then clipped is true.
func neighbours(deps map[string][]string, keys []string, o GraphOptions) (chosen map[string]bool, clipped bool) {
	if _, ok := deps[o.Focus]; !ok {
		return nil, false
	}
	readers := map[string][]string{}
	for _, key := range keys {
		for _, dep := range deps[key] {
			readers[dep] = append(readers[dep], key)
		}
	}
	chosen = map[string]bool{o.Focus: true}
	up, down := []string{o.Focus}, []string{o.Focus}
	for range o.Depth {
		next := map[string]bool{}
		step := func(from []string, edges map[string][]string) (reached []string) {
			for _, key := range from {
				for _, to := range edges[key] {
					if _, declared := deps[to]; declared && !chosen[to] && !next[to] {
						next[to] = true
						reached = append(reached, to)
					}
				}
			}
			return reached
		}
		if o.Upstream {
			up = step(up, deps)
		}
		if o.Downstream {
			down = step(down, readers)
		}
		if len(chosen)+len(next) > MaxGraphNodes {
			return chosen, true
		}
		maps.Copy(chosen, next)
	}
	return chosen, false
}

// connect sets the edges between visible nodes. It combines all edges between two nodes into one edge with a count.
func (g *Graph) connect(deps map[string][]string, keys []string) {
	at := map[string]int{}
	for i := range g.Nodes {
		for _, key := range g.Nodes[i].Assets {
			at[key] = i
		}
	}
	type pair struct{ from, to int }
	counts := map[pair]int{}
	for _, key := range keys {
		to, visible := at[key]
		for _, dep := range deps[key] {
			if _, declared := deps[dep]; !declared {
				continue
			}
			switch from, ok := at[dep]; {
			case ok && visible && from != to:
				counts[pair{from, to}]++
			case visible && !ok:
				g.Nodes[to].MoreUpstream++
			case ok && !visible:
				g.Nodes[from].MoreDownstream++
			}
		}
	}
	pairs := slices.SortedFunc(maps.Keys(counts), func(a, b pair) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a.from, b.from), cmp.Compare(a.to, b.to))
	})
	if len(pairs) > MaxGraphEdges {
		g.Clipped = true
		for _, p := range pairs[MaxGraphEdges:] {
			g.Nodes[p.from].MoreDownstream += counts[p]
			g.Nodes[p.to].MoreUpstream += counts[p]
		}
		pairs = pairs[:MaxGraphEdges]
	}
	slices.SortFunc(pairs, func(a, b pair) int { return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(a.to, b.to)) })
	for _, p := range pairs {
		g.Edges = append(g.Edges, GraphEdge{From: g.Nodes[p.from].ID, To: g.Nodes[p.to].ID, Count: counts[p]})
	}
	g.markCycles()
}

// markCycles marks the edges that close a cycle. It walks along the edges, in the order of ids. An edge closes a
// cycle if it leads back to a node on the path of the walk. Groups can form cycles although assets cannot.
func (g *Graph) markCycles() {
	out := map[string][]int{}
	for i := range g.Edges {
		out[g.Edges[i].From] = append(out[g.Edges[i].From], i)
	}
	const onPath, done = 1, 2
	seen := map[string]int{}
	var walk func(string)
	walk = func(id string) {
		seen[id] = onPath
		for _, i := range out[id] {
			switch seen[g.Edges[i].To] {
			case onPath:
				g.Edges[i].Back = true
			case 0:
				walk(g.Edges[i].To)
			}
		}
		seen[id] = done
	}
	for i := range g.Nodes {
		if seen[g.Nodes[i].ID] == 0 {
			walk(g.Nodes[i].ID)
		}
	}
}

func (g *Graph) hash() string {
	sum := sha256.New()
	for i := range g.Nodes {
		fmt.Fprintf(sum, "n%q\n", g.Nodes[i].ID)
	}
	for _, e := range g.Edges {
		fmt.Fprintf(sum, "e%q %q\n", e.From, e.To)
	}
	return hex.EncodeToString(sum.Sum(nil)[:8])
}
