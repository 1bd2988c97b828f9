package plan

import (
	"fmt"
	"maps"
	"slices"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/quality"
)

// Partitions of an upstream asset map to partitions of a downstream asset as follows:
//
//   - If both are partitioned, each day of the downstream reads the same day of the upstream.
//   - Otherwise the downstream reads all partitions of the upstream: those of this run and those
//     that earlier runs materialized.
//
// Where several tasks read all partitions, their dependencies go through one group node, so
// that N upstream and M downstream tasks have N+M edges. Only tasks with the rule all_success
// use it. Other trigger rules distinguish upstream tasks and need an edge to each.

// mapsIdentity reports whether a downstream partition reads only the same day of upstream.
func mapsIdentity(upstream, downstream *Asset) bool {
	return upstream.Partitions != nil && downstream.Partitions != nil
}

func needsAll(a *Asset) bool { return a.TriggerRule == "" || a.TriggerRule == event.RuleAllSuccess }

// shareInputs finds the upstream assets that several tasks read in full. The group nodes depend
// only on the tasks of this run, never on earlier materializations: planning the same request
// again returns the same tasks.
func (b *builder) shareInputs() {
	readers, waiters := map[ids.AssetKey]int{}, map[ids.AssetKey]int{}
	for _, n := range b.order {
		for _, dep := range n.asset.Deps {
			upstream, _ := b.graph.Asset(dep)
			if upstream.Partitions == nil || mapsIdentity(upstream, n.asset) {
				continue
			}
			readers[dep] += len(n.keys)
			if needsAll(n.asset) {
				waiters[dep] += len(n.keys)
			}
		}
	}
	for key, count := range readers {
		n := b.nodes[key]
		if n == nil {
			upstream, _ := b.graph.Asset(key)
			n = &node{asset: upstream}
			b.nodes[key] = n // read only: it has no tasks and is not in b.order
		}
		n.shared = count > 1
		n.group = len(n.keys) > 1 && waiters[key] > 1
	}
}

// made returns the materializations of an asset by earlier runs, by partition key.
func (b *builder) made(key ids.AssetKey) map[string]Input {
	if made, ok := b.earlier[key]; ok {
		return made
	}
	made := map[string]Input{}
	if b.request.Materialized != nil {
		files := b.hasFiles(key)
		for _, in := range b.request.Materialized(key) {
			if files && in.URI == "" {
				continue // materialized when the asset still had output: none
			}
			made[in.PartitionKey] = Input{PartitionKey: in.PartitionKey, MaterializationID: in.MaterializationID, URI: in.URI, Rows: in.Rows}
		}
	}
	b.earlier[key] = made
	return made
}

// previousRows returns the number of rows of a partition's visible output, or nil if it has none.
func (b *builder) previousRows(asset ids.AssetKey, partition string) *int64 {
	if in, ok := b.made(asset)[partition]; ok && in.URI != "" {
		return &in.Rows
	}
	return nil
}

// addTasks adds the tasks of an asset and its group node.
func (b *builder) addTasks(n *node) {
	b.plan.Assets[n.asset.Key.String()] = n.asset.Work
	if n.asset.Work.SQL != "" && n.asset.Query.File != "" {
		b.plan.setSource(n.asset.Key.String(), n.asset.Query)
	}
	shared := make(map[ids.AssetKey]reads, len(n.asset.Deps))
	for _, dep := range n.asset.Deps {
		if upstream, _ := b.graph.Asset(dep); !mapsIdentity(upstream, n.asset) {
			shared[dep] = b.readAll(n, dep)
		}
	}
	missing := map[ids.AssetKey][]string{}
	critical, errors := quality.Named(n.asset.Work.Checks, quality.Critical), quality.Named(n.asset.Work.Checks, quality.Error)
	for i, key := range n.keys {
		task := Task{TaskDef: taskDef(n.asset, n.tasks[i], key)}
		task.Checks, task.ErrorChecks = critical, errors
		task.DependsOn = slices.Clone(n.after)
		if len(n.asset.Work.Checks) > 0 {
			task.PreviousRows = b.previousRows(n.asset.Key, key)
		}
		b.edges += len(n.after)
		if len(n.asset.Deps) > 0 {
			task.Inputs = make(map[string]InputSet, len(n.asset.Deps))
		}
		for _, dep := range n.asset.Deps {
			r, ok := shared[dep]
			if !ok {
				if r, ok = b.readSame(dep, key); !ok {
					missing[dep] = append(missing[dep], key)
					continue
				}
			}
			if b.edges += len(r.edges); b.edges > MaxEdges {
				return // stop before the edges fill the memory
			}
			task.DependsOn = append(task.DependsOn, r.edges...)
			if b.hasFiles(dep) {
				task.Inputs[dep.String()] = r.set
			}
		}
		slices.Sort(task.DependsOn)
		b.plan.Tasks = append(b.plan.Tasks, task)
	}
	for _, dep := range slices.SortedFunc(maps.Keys(missing), CompareKeys) {
		b.errs = append(b.errs, b.missingPartitions(n, dep, missing[dep]))
	}
	if n.order {
		b.addOrderNode(n.asset.Key, n.tasks)
	}
	if n.group {
		b.edges += len(n.tasks)
		b.plan.Tasks = append(b.plan.Tasks, Task{TaskDef: event.TaskDef{
			TaskKey: ids.GroupKey(n.asset.Key), Kind: event.KindGroup, AssetKey: n.asset.Key.String(),
			DependsOn: slices.Sorted(slices.Values(n.tasks)), TriggerRule: event.RuleAllSuccess,
			WorkerQueue: "default", MaxAttempts: 1,
		}})
	}
}

// hasFiles reports whether an upstream asset has files to read.
func (b *builder) hasFiles(dep ids.AssetKey) bool {
	upstream, _ := b.graph.Asset(dep)
	return upstream.Work.HasFiles()
}

// reads holds what a task reads of one upstream asset and the tasks that it waits for.
type reads struct {
	set   InputSet
	edges []string
}

// readSame returns the partition of an upstream asset with the same key.
func (b *builder) readSame(dep ids.AssetKey, key string) (reads, bool) {
	if up := b.nodes[dep]; up != nil {
		if i, ok := up.at[key]; ok {
			return reads{InputSet{Items: []Input{{PartitionKey: key, TaskKey: up.tasks[i]}}}, up.tasks[i : i+1]}, true
		}
	}
	in, ok := b.made(dep)[key]
	return reads{set: InputSet{Items: []Input{in}}}, ok
}

// readAll returns all partitions of an upstream asset.
func (b *builder) readAll(n *node, dep ids.AssetKey) reads {
	upstream, _ := b.graph.Asset(dep)
	up := b.nodes[dep]
	if up == nil {
		up = &node{asset: upstream}
	}
	var r reads
	switch {
	case up.group && needsAll(n.asset):
		r.edges = []string{ids.GroupKey(dep)}
	default:
		r.edges = up.tasks
	}
	if up.shared && upstream.Work.HasFiles() {
		r.set.Group = ids.GroupKey(dep)
		if items, done := b.plan.Groups[r.set.Group]; done {
			b.noteIncomplete(n.asset.Key, upstream, items)
			return r
		}
	}
	items := b.allInputs(up)
	if len(items) == 0 {
		b.errs = append(b.errs, fmt.Errorf("asset %s needs %s, which has never been materialized: add --upstream", n.asset.Key, dep))
		return r
	}
	b.noteIncomplete(n.asset.Key, upstream, items)
	if r.set.Group == "" {
		r.set.Items = items
		return r
	}
	if b.plan.Groups == nil {
		b.plan.Groups = map[string][]Input{}
	}
	b.plan.Groups[r.set.Group] = items
	return r
}

// allInputs returns the partitions of this run, and those of earlier runs that this run does
// not replace, sorted by partition key.
func (b *builder) allInputs(up *node) []Input {
	items := make([]Input, 0, len(up.keys))
	for i, key := range up.keys {
		items = append(items, Input{PartitionKey: key, TaskKey: up.tasks[i]})
	}
	for key, in := range b.made(up.asset.Key) {
		declared := key == ""
		if up.asset.Partitions != nil {
			declared = up.asset.Partitions.has(key)
		}
		if _, ours := up.at[key]; declared && !ours {
			items = append(items, in)
		}
	}
	sortInputs(items)
	return items
}

func (b *builder) missingPartitions(n *node, dep ids.AssetKey, keys []string) error {
	upstream, _ := b.graph.Asset(dep)
	p := upstream.Partitions
	var unmade, undeclared []string
	for _, key := range keys {
		if day := p.dayOf(key); p.Contains(day) {
			unmade = append(unmade, day)
		} else {
			undeclared = append(undeclared, day)
		}
	}
	if len(undeclared) > 0 {
		return fmt.Errorf("asset %s reads the same partitions of %s, which has %s but not %s: select fewer partitions",
			n.asset.Key, dep, p, someOf(undeclared))
	}
	return fmt.Errorf("asset %s needs partitions of %s that have never been materialized: %s: add --upstream",
		n.asset.Key, dep, someOf(unmade))
}
