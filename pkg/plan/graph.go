package plan

import (
	"cmp"
	"container/heap"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/servo-orchestration/servo/pkg/ids"
)

// Graph is a set of assets and their dependencies. Its keys are unique, and every dependency is an asset of the
// graph. It may have cycles; see [Graph.Cycles]. The graph has no edge from an asset to itself, even if the asset
// reads its own earlier partitions.
type Graph struct {
	assets     []Asset // sorted by key
	index      map[ids.AssetKey]int
	upstream   [][]int
	downstream [][]int

	// Each of these functions computes its result in its first call, and caches it. They are safe for concurrent use,
	// because several goroutines may plan on one graph.
	topological func() (*topology, error)
	secrets     func() []string
}

// NewGraph returns the graph of assets, which may be in any order. Its error names every duplicate key and every unknown
// dependency. The caller must not change the assets afterwards.
func NewGraph(assets []Asset) (*Graph, error) {
	g := &Graph{
		assets:     sortedByKey(assets),
		index:      make(map[ids.AssetKey]int, len(assets)),
		upstream:   make([][]int, len(assets)),
		downstream: make([][]int, len(assets)),
	}
	g.topological = sync.OnceValues(g.sort)
	g.secrets = sync.OnceValue(func() []string { return secretVariables(g.assets) })
	var errs []error
	for i := range g.assets {
		key := g.assets[i].Key
		if first, ok := g.index[key]; ok {
			errs = append(errs, fmt.Errorf("asset %s is declared twice: in %s and in %s", key, g.assets[first].File, g.assets[i].File))
			continue
		}
		g.index[key] = i
	}
	for i := range g.assets {
		for _, dep := range g.assets[i].Deps {
			j, ok := g.index[dep]
			if !ok {
				errs = append(errs, fmt.Errorf("asset %s depends on %s, which is not an asset", g.assets[i].Key, dep))
				continue
			}
			if i == j && g.assets[i].backward() == nil {
				continue // an asset that reads earlier partitions of itself is not a cycle
			}
			g.upstream[i] = append(g.upstream[i], j)
			g.downstream[j] = append(g.downstream[j], i)
		}
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return g, nil
}

// sortedByKey returns the assets themselves if they are sorted, or a sorted copy. It sorts indices, because assets
// are large.
func sortedByKey(assets []Asset) []Asset {
	order := make([]int, len(assets))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int { return CompareKeys(assets[i].Key, assets[j].Key) })
	if slices.IsSorted(order) {
		return assets
	}
	sorted := make([]Asset, len(assets))
	for to, from := range order {
		sorted[to] = assets[from]
	}
	return sorted
}

// CompareKeys orders asset keys by namespace, then name.
func CompareKeys(a, b ids.AssetKey) int {
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
}

// Asset returns the asset with a key.
func (g *Graph) Asset(key ids.AssetKey) (*Asset, bool) {
	i, ok := g.index[key]
	if !ok {
		return nil, false
	}
	return &g.assets[i], true
}

// Keys returns all asset keys, sorted.
func (g *Graph) Keys() []ids.AssetKey {
	keys := make([]ids.AssetKey, len(g.assets))
	for i := range g.assets {
		keys[i] = g.assets[i].Key
	}
	return keys
}

// topology is the topological order of a graph.
type topology struct {
	keys []ids.AssetKey
	rank []int // for each asset of the graph, its position in keys
}

// Topological returns all asset keys, each after its dependencies. Among the keys whose dependencies are already
// listed, the least key comes next. The error names the cycles. The caller must not change the slice.
func (g *Graph) Topological() ([]ids.AssetKey, error) {
	t, err := g.topological()
	if err != nil {
		return nil, err
	}
	return t.keys, nil
}

// upstreamOrder returns the given assets and their direct and indirect dependencies in topological order. The graph must
// have no cycle, and the keys must be known.
func (g *Graph) upstreamOrder(keys []ids.AssetKey) []ids.AssetKey {
	t, err := g.topological()
	if err != nil {
		panic("plan: order a graph that has cycles") // the planner rejects a graph with cycles
	}
	closed := g.closure(g.upstream, keys)
	slices.SortFunc(closed, func(i, j int) int { return cmp.Compare(t.rank[i], t.rank[j]) })
	return g.keys(closed)
}

func (g *Graph) sort() (*topology, error) {
	waiting := make([]int, len(g.assets))
	var free intHeap
	for i := range g.assets {
		waiting[i] = len(g.upstream[i])
		if waiting[i] == 0 {
			free = append(free, i) // free is in ascending order, so it is already a heap
		}
	}
	t := &topology{keys: make([]ids.AssetKey, 0, len(g.assets)), rank: make([]int, len(g.assets))}
	for len(free) > 0 {
		i, _ := heap.Pop(&free).(int)
		t.rank[i] = len(t.keys)
		t.keys = append(t.keys, g.assets[i].Key)
		for _, j := range g.downstream[i] {
			if waiting[j]--; waiting[j] == 0 {
				heap.Push(&free, j)
			}
		}
	}
	if len(t.keys) == len(g.assets) {
		return t, nil
	}
	var errs []error
	for _, cycle := range g.Cycles() {
		errs = append(errs, fmt.Errorf("dependency cycle: %s", CyclePath(cycle)))
	}
	return nil, errors.Join(errs...)
}

// intHeap is a min-heap of ints, for package heap.
type intHeap []int

func (h intHeap) Len() int           { return len(h) }
func (h intHeap) Less(i, j int) bool { return h[i] < h[j] }
func (h intHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }

func (h *intHeap) Push(x any) {
	i, _ := x.(int)
	*h = append(*h, i)
}

func (h *intHeap) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}

// Upstream returns the given keys and their direct and indirect dependencies, sorted. It ignores unknown keys.
func (g *Graph) Upstream(keys ...ids.AssetKey) []ids.AssetKey {
	return g.keys(g.closure(g.upstream, keys))
}

// Downstream returns the given keys and everything that depends on them directly or indirectly, sorted.
func (g *Graph) Downstream(keys ...ids.AssetKey) []ids.AssetKey {
	return g.keys(g.closure(g.downstream, keys))
}

func (g *Graph) keys(assets []int) []ids.AssetKey {
	keys := make([]ids.AssetKey, len(assets))
	for i, at := range assets {
		keys[i] = g.assets[at].Key
	}
	return keys
}

// closure returns the positions, in ascending order, of the known keys and of all assets that can be reached from them.
// The parameter "next" contains the edges of each asset.
func (g *Graph) closure(next [][]int, keys []ids.AssetKey) []int {
	seen := make([]bool, len(g.assets))
	var todo []int
	add := func(i int) {
		if !seen[i] {
			seen[i] = true
			todo = append(todo, i)
		}
	}
	for _, key := range keys {
		if i, ok := g.index[key]; ok {
			add(i)
		}
	}
	for len(todo) > 0 {
		i := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for _, j := range next[i] {
			add(j)
		}
	}
	var closed []int
	for i, in := range seen {
		if in {
			closed = append(closed, i)
		}
	}
	return closed
}

// CyclePath formats a cycle for people: "a/x → b/y → a/x".
func CyclePath(cycle []ids.AssetKey) string {
	var b strings.Builder
	for _, key := range cycle {
		b.WriteString(key.String())
		b.WriteString(" → ")
	}
	return b.String() + cycle[0].String()
}
