package plan

import (
	"slices"

	"github.com/servo-orchestration/servo/pkg/ids"
)

// Cycles returns one cycle for each strongly connected component: the shortest cycle through the component's asset with
// the least key. In a cycle, each asset depends on the next, and the last depends on the first.
func (g *Graph) Cycles() [][]ids.AssetKey {
	var cycles [][]ids.AssetKey
	for _, knot := range g.knots() {
		cycle := g.shortestCycle(slices.Min(knot), knot)
		keys := make([]ids.AssetKey, len(cycle))
		for i, n := range cycle {
			keys[i] = g.assets[n].Key
		}
		cycles = append(cycles, keys)
	}
	slices.SortFunc(cycles, func(a, b []ids.AssetKey) int { return CompareKeys(a[0], b[0]) })
	return cycles
}

// shortestCycle makes a breadth-first search of the dependencies within the component, until the search reaches the
// asset "start" again.
func (g *Graph) shortestCycle(start int, knot []int) []int {
	inside := make(map[int]bool, len(knot))
	for _, i := range knot {
		inside[i] = true
	}
	from := map[int]int{}
	for queue := []int{start}; len(queue) > 0; queue = queue[1:] {
		i := queue[0]
		for _, j := range g.upstream[i] {
			if j == start {
				cycle := []int{i}
				for cycle[len(cycle)-1] != start {
					cycle = append(cycle, from[cycle[len(cycle)-1]])
				}
				slices.Reverse(cycle)
				return cycle
			}
			if _, seen := from[j]; !seen && inside[j] {
				from[j] = i
				queue = append(queue, j)
			}
		}
	}
	panic("plan: a strongly connected component without a cycle")
}

// knots returns the strongly connected components that contain a cycle. This implementation of Tarjan's algorithm
// does not recurse, because chains of assets can be long.
func (g *Graph) knots() [][]int {
	t := tarjan{g: g, order: make([]int, len(g.assets)), low: make([]int, len(g.assets)), onStack: make([]bool, len(g.assets))}
	for i := range g.assets {
		if t.order[i] == 0 {
			t.visit(i)
		}
	}
	return t.knots
}

type tarjan struct {
	g          *Graph
	next       int
	order, low []int // 0: not visited
	onStack    []bool
	stack      []int
	knots      [][]int
}

// frame is a visit in progress: a node, and the number of its edges that were already followed.
type frame struct{ node, edge int }

func (t *tarjan) visit(root int) {
	calls := []frame{t.enter(root)}
	for len(calls) > 0 {
		top := &calls[len(calls)-1]
		i := top.node
		if top.edge < len(t.g.upstream[i]) {
			j := t.g.upstream[i][top.edge]
			top.edge++
			switch {
			case t.order[j] == 0:
				calls = append(calls, t.enter(j))
			case t.onStack[j]:
				t.low[i] = min(t.low[i], t.order[j])
			}
			continue
		}
		calls = calls[:len(calls)-1]
		if len(calls) > 0 {
			parent := calls[len(calls)-1].node
			t.low[parent] = min(t.low[parent], t.low[i])
		}
		if t.low[i] == t.order[i] {
			t.leave(i)
		}
	}
}

func (t *tarjan) enter(i int) frame {
	t.next++
	t.order[i], t.low[i] = t.next, t.next
	t.stack = append(t.stack, i)
	t.onStack[i] = true
	return frame{node: i}
}

// leave pops the component with root i off the stack.
func (t *tarjan) leave(i int) {
	at := slices.Index(t.stack, i)
	component := slices.Clone(t.stack[at:])
	t.stack = t.stack[:at]
	for _, j := range component {
		t.onStack[j] = false
	}
	if len(component) > 1 || slices.Contains(t.g.upstream[i], i) {
		t.knots = append(t.knots, component)
	}
}
