package plan

import (
	"fmt"
	"maps"
	"slices"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
)

// How partitions map from an upstream to a downstream:
//
//   - both partitioned: the same day of one is read by the same day of the other;
//   - else: all partitions of the upstream are read, those of this run and those
//     that earlier runs made.
//
// A mapping of all partitions to several tasks goes through one group node, so
// that N upstreams and M downstreams have N+M edges. Only tasks that need every
// upstream's success go through it: the other trigger rules tell upstreams
// apart, and keep their edges to each.

// mapsIdentity reports whether a downstream reads only the same day of upstream.
func mapsIdentity(upstream, downstream *Asset) bool {
	return upstream.Partitions != nil && downstream.Partitions != nil
}

func needsAll(a *Asset) bool { return a.TriggerRule == "" || a.TriggerRule == event.RuleAllSuccess }

// shareInputs finds the upstreams whose partitions several tasks read in full.
// Whether there is a group node depends on the tasks of this run alone, never on
// what was made earlier: a run that is planned again has the same tasks.
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
			b.nodes[key] = n // only read: it has no tasks, and is not in order
		}
		n.shared = count > 1
		n.group = len(n.keys) > 1 && waiters[key] > 1
	}
}

// made is what earlier runs have made of an asset, by partition key.
func (b *builder) made(key ids.AssetKey) map[string]Input {
	if made, ok := b.earlier[key]; ok {
		return made
	}
	made := map[string]Input{}
	if b.request.Materialized != nil {
		files := b.hasFiles(key)
		for _, in := range b.request.Materialized(key) {
			if files && in.URI == "" {
				continue // when it was made, its asset had no files yet
			}
			made[in.PartitionKey] = Input{PartitionKey: in.PartitionKey, MaterializationID: in.MaterializationID, URI: in.URI}
		}
	}
	b.earlier[key] = made
	return made
}

// addTasks adds the tasks of an asset, and its group node.
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
	for i, key := range n.keys {
		task := Task{TaskDef: taskDef(n.asset, n.tasks[i], key)}
		task.DependsOn = slices.Clone(n.after)
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
				return // before there is memory for them
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

// hasFiles reports whether there is something to read of an upstream.
func (b *builder) hasFiles(dep ids.AssetKey) bool {
	upstream, _ := b.graph.Asset(dep)
	return upstream.Work.HasFiles()
}

// reads is what a task reads of one upstream, and the tasks that it waits for.
type reads struct {
	set   InputSet
	edges []string
}

// readSame is the partition of the same key of an upstream.
func (b *builder) readSame(dep ids.AssetKey, key string) (reads, bool) {
	if up := b.nodes[dep]; up != nil {
		if i, ok := up.at[key]; ok {
			return reads{InputSet{Items: []Input{{PartitionKey: key, TaskKey: up.tasks[i]}}}, up.tasks[i : i+1]}, true
		}
	}
	in, ok := b.made(dep)[key]
	return reads{set: InputSet{Items: []Input{in}}}, ok
}

// readAll is all partitions of an upstream.
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

// allInputs are the partitions that this run makes, and those that earlier runs
// made and this one does not, by partition key.
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
