package plan

import (
	"fmt"
	"slices"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
)

// A selection has a gap if an asset that is not selected lies between two selected assets: for example, if A and C of A
// → B → C are selected. C then reads the existing output of B, but still waits until every task of A has ended.
//
// Order nodes enforce this order. An order node is a group node with the trigger rule all_done: it succeeds as soon as
// its upstream tasks have ended, whatever their outcome. Each asset in a gap has one order node. An asset of the run
// has one, too, if it has several tasks and an asset in a gap depends on it. Without these nodes, each task after a gap
// would need an edge from each task before it. With them, the number of edges is proportional to the number of tasks
// plus the number of dependencies between assets.

// addOrder decides which order nodes to add and which tasks wait for them. It adds a warning if an asset of the run
// reads an asset in a gap.
func (b *builder) addOrder() {
	b.findGaps()
	for _, key := range b.involved {
		asset, _ := b.graph.Asset(key)
		n := b.nodes[key]
		if g := b.gaps[key]; g != nil {
			g.waitsFor = b.orderBefore(asset, true)
			continue
		}
		if n == nil {
			continue
		}
		n.waitsFor = b.orderBefore(asset, false)
		for _, dep := range asset.Deps {
			if b.gaps[dep] != nil && !b.chosen[dep] {
				b.warnOfGap(key, dep)
			}
		}
	}
}

// gap is an asset that the run does not materialize, but that lies on a path between two assets of the run.
type gap struct {
	// from is the dependency through which the gap was found: an asset of the run, or another gap.
	from ids.AssetKey
	// waitsFor lists the nodes that the gap's order node waits for.
	waitsFor []string
}

// findGaps finds the assets that the run does not materialize, but that lie on a path between two assets of the run.
func (b *builder) findGaps() {
	b.gaps = map[ids.AssetKey]*gap{}
	for _, key := range b.involved {
		if b.nodes[key] != nil {
			continue
		}
		asset, _ := b.graph.Asset(key)
		for _, dep := range asset.Deps {
			if b.nodes[dep] != nil || b.gaps[dep] != nil {
				b.gaps[key] = &gap{from: dep}
				break
			}
		}
	}
	read := make(map[ids.AssetKey]bool, len(b.gaps))
	for _, key := range slices.Backward(b.involved) {
		if b.nodes[key] == nil && !read[key] {
			delete(b.gaps, key)
			continue
		}
		asset, _ := b.graph.Asset(key)
		for _, dep := range asset.Deps {
			read[dep] = true
		}
	}
}

// orderBefore returns the nodes that an asset must wait for because of gaps: the order nodes of the gaps among its
// dependencies. If the asset is itself a gap (inGap), its order node also waits for each dependency in the run: for
// the only task of the dependency or, if it has several tasks, for the dependency's order node.
func (b *builder) orderBefore(asset *Asset, inGap bool) []string {
	var before []string
	for _, dep := range withoutItself(asset) {
		up := b.nodes[dep]
		switch {
		case b.gaps[dep] != nil:
			before = append(before, ids.OrderKey(dep))
		case up == nil || !inGap:
		case up.count() == 1:
			before = append(before, up.tasks[0])
		default:
			up.order = true
			before = append(before, ids.OrderKey(dep))
		}
	}
	return before
}

// addOrderNode adds a group node that succeeds as soon as the tasks before it have ended.
func (b *builder) addOrderNode(key ids.AssetKey, before []string) {
	b.edges += len(before)
	b.plan.Tasks = append(b.plan.Tasks, Task{TaskDef: event.TaskDef{
		TaskKey: ids.OrderKey(key), Kind: event.KindGroup, AssetKey: key.String(),
		DependsOn: slices.Sorted(slices.Values(before)), TriggerRule: event.RuleAllDone,
		WorkerQueue: "default", MaxAttempts: 1,
	}})
}

// warnOfGap warns that a reader uses the existing output of an asset in a gap.
func (b *builder) warnOfGap(reader, read ids.AssetKey) {
	between := []string{read.String()}
	from := b.gaps[read].from
	for b.gaps[from] != nil {
		between = append(between, from.String())
		from = b.gaps[from].from
	}
	slices.Reverse(between)
	lies, is := "lies", "is"
	if len(between) > 1 {
		lies, is = "lie", "are"
	}
	names := someOf(between)
	b.warn("%s %s between %s and %s, but %s not selected: %s reads the existing output of %s: add %s",
		names, lies, from, reader, is, reader, read, names)
}

// warnOfExternal warns that Servo does not see changes of external data.
func (b *builder) warnOfExternal() {
	var names []string
	for _, n := range b.order {
		if len(n.tasks) > 0 && len(n.asset.Work.External) > 0 && !b.request.ChecksOnly {
			names = append(names, n.asset.Key.String())
		}
	}
	if len(names) > 0 {
		b.warn("Servo does not notice when the external data of %s changes: run these assets again, or set a schedule", someOf(names))
	}
}

// warn adds a warning to the plan, unless the plan already has maxErrors warnings.
func (b *builder) warn(format string, args ...any) {
	if b.warnings++; b.warnings <= maxErrors {
		b.plan.Warnings = append(b.plan.Warnings, fmt.Sprintf(format, args...))
	}
}
