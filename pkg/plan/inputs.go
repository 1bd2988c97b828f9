package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/quality"
	"github.com/servo-orchestration/servo/pkg/space"
)

// A mapping decides which upstream partitions a partition reads: see [space.Infer]. A task reads partitions that this
// run materializes, and partitions that earlier runs have materialized.
//
// If several tasks read all partitions of an asset, they depend on one group node, which depends on the tasks of the
// asset. So N upstream and M downstream tasks have N+M edges. Only tasks with the trigger rule all_success use the
// group node. Tasks with other rules distinguish between upstream tasks, so they need an edge to each.

// readsAll reports whether an asset reads all partitions of a dependency. For an edge with an error it returns false;
// addTasks reports the error.
func (b *builder) readsAll(reader, dep ids.AssetKey) bool {
	edge, err := b.readers.Of(reader, dep)
	return err == nil && edge.ReadsAll()
}

func needsAll(a *Asset) bool { return a.TriggerRule == "" || a.TriggerRule == event.RuleAllSuccess }

// shareInputs finds the upstream assets of which several tasks read all partitions, and decides which of them get a
// group node. The group nodes depend only on the tasks of this run, never on earlier materializations, so that
// planning the same request again returns the same tasks.
func (b *builder) shareInputs() {
	readers, waiters := map[ids.AssetKey]int{}, map[ids.AssetKey]int{}
	for _, n := range b.order {
		for _, dep := range n.asset.Deps {
			upstream, _ := b.graph.Asset(dep)
			if upstream.Partitions == nil || !b.readsAll(n.asset.Key, dep) {
				continue
			}
			readers[dep] += n.count()
			if needsAll(n.asset) {
				waiters[dep] += n.count()
			}
		}
	}
	for key, count := range readers {
		n := b.nodes[key]
		if n == nil {
			upstream, _ := b.graph.Asset(key)
			n = &node{asset: upstream}
			b.nodes[key] = n // the run only reads the asset: the node has no tasks and is not in b.order
		}
		n.shared = count > 1
		n.group = n.count() > 1 && waiters[key] > 1
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
				continue // made without files, when the asset had output: none
			}
			made[in.PartitionKey] = Input{PartitionKey: in.PartitionKey, MaterializationID: in.MaterializationID, URI: in.URI, Rows: in.Rows, Degraded: in.Degraded, Schema: in.Schema, Version: in.Version}
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

// setColumns records how to read the outputs of an asset and of its upstream assets: their partition columns, and
// whether merged files may replace their files.
func (b *builder) setColumns(a *Asset) {
	set := func(a *Asset) {
		if columns := a.PartitionColumns(); columns != nil {
			if b.plan.PartitionColumns == nil {
				b.plan.PartitionColumns = map[string][]space.Column{}
			}
			b.plan.PartitionColumns[a.Key.String()] = columns
		}
		if a.NoMerge && !slices.Contains(b.plan.NoMerge, a.Key.String()) {
			b.plan.NoMerge = append(b.plan.NoMerge, a.Key.String())
			slices.Sort(b.plan.NoMerge)
		}
	}
	set(a)
	for _, dep := range a.Deps {
		if upstream, ok := b.graph.Asset(dep); ok {
			set(upstream)
		}
	}
}

// addTasks adds the tasks of an asset and its group node.
func (b *builder) addTasks(n *node) {
	task := n.asset.Work
	if n.asset.Text.Version == "" { // a declared version replaces the hashes of files
		task.Files = n.asset.Text.Files
	}
	b.plan.Assets[n.asset.Key.String()] = task
	if n.asset.Work.SQL != "" && n.asset.Query.File != "" {
		b.plan.setSource(n.asset.Key.String(), n.asset.Query)
	}
	b.setColumns(n.asset)
	b.setSchema(n.asset)
	edges := b.edgesOf(n)
	windows, err := b.readers.Windows(n.asset)
	if err != nil {
		return // edgesOf has reported the error
	}
	critical, errors := quality.Named(n.asset.Work.Checks, quality.Critical), quality.Named(n.asset.Work.Checks, quality.Error)
	gather := map[ids.AssetKey]*gathered{}
	for i := range n.count() {
		cells := n.cells(i)
		task, err := b.newTask(n, cells, critical, errors)
		if err != nil {
			b.errs = append(b.errs, err)
			return
		}
		clip, err := windows.Clip(cells...)
		if err != nil {
			b.errs = append(b.errs, fmt.Errorf("asset %s: %w", n.asset.Key, err))
			return
		}
		task.Code = windows.Code(task.Code, clip)
		for _, e := range edges {
			r := e.all
			if e.images != nil {
				if gather[e.dep] == nil {
					gather[e.dep] = &gathered{}
				}
				r = b.readImages(n, e, cells, gather[e.dep])
			}
			if b.edges += len(r.edges); b.edges > MaxEdges {
				return // stop before the edges fill the memory
			}
			task.DependsOn = append(task.DependsOn, r.edges...)
			// If the asset reads itself, a first partition has the asset as an input with no partitions.
			if b.hasFiles(e.dep) && (r.set.Group != "" || len(r.set.Items) > 0 || e.dep == n.asset.Key) {
				task.Inputs[e.dep.String()] = r.set
			}
		}
		slices.Sort(task.DependsOn)
		task.DependsOn = slices.Compact(task.DependsOn)
		b.plan.Tasks = append(b.plan.Tasks, task)
	}
	for _, dep := range slices.SortedFunc(maps.Keys(gather), CompareKeys) {
		b.finish(n, dep, gather[dep])
	}
	if n.order {
		b.addOrderNode(n.asset.Key, n.distinct())
	}
	if n.group {
		members := n.distinct()
		b.edges += len(members)
		b.plan.Tasks = append(b.plan.Tasks, Task{TaskDef: event.TaskDef{
			TaskKey: ids.GroupKey(n.asset.Key), Kind: event.KindGroup, AssetKey: n.asset.Key.String(),
			DependsOn: slices.Sorted(slices.Values(members)), TriggerRule: event.RuleAllSuccess,
			WorkerQueue: "default", MaxAttempts: 1,
		}})
	}
}

// edge is a dependency of an asset.
type edge struct {
	dep ids.AssetKey
	// If images is nil, every task of the asset reads what the field "all" describes.
	all    reads
	images *space.Reader
}

// edgesOf returns the dependencies of an asset.
func (b *builder) edgesOf(n *node) []edge {
	edges := make([]edge, 0, len(n.asset.Deps))
	for _, dep := range n.asset.Deps {
		images, err := b.readers.Of(n.asset.Key, dep)
		switch {
		case err != nil:
			b.errs = append(b.errs, err)
		case images.ReadsAll():
			edges = append(edges, edge{dep: dep, all: b.readAll(n, dep)})
		default:
			if images.Warning != "" {
				b.warn("%s", zoneWarning(n.asset.Key, dep, images.Warning))
			}
			edges = append(edges, edge{dep: dep, images: images})
		}
	}
	return edges
}

// newTask returns a task of a node. It does not set the inputs of the task.
func (b *builder) newTask(n *node, cells, critical, errors []string) (Task, error) {
	task := Task{TaskDef: taskDef(n.asset, n.tasks[n.at[cells[0]]], cells[0])}
	task.Checks, task.ErrorChecks, task.Quarantine = critical, errors, n.asset.Work.Quarantine
	task.DependsOn = slices.Clone(n.waitsFor)
	if len(cells) > 1 {
		task.Partitions = cells
	}
	if b.request.Priority != nil {
		task.Priority = *b.request.Priority
	}
	task.Pool = cmp.Or(b.request.Pool, task.Pool)
	if len(n.asset.Work.Checks) > 0 {
		task.PreviousRows = b.previousRows(n.asset.Key, cells[0])
	}
	b.setPast(&task, n.asset)
	if b.request.ChecksOnly {
		b.checkTask(&task, n.asset)
	}
	b.edges += len(n.waitsFor)
	if len(n.asset.Deps) > 0 {
		task.Inputs = make(map[string]InputSet, len(n.asset.Deps))
	}
	if err := b.setPeriod(&task, n.asset, cells); err != nil {
		return Task{}, fmt.Errorf("asset %s: %w", n.asset.Key, err)
	}
	return task, nil
}

// hasFiles reports whether the outputs of an upstream asset have files.
func (b *builder) hasFiles(dep ids.AssetKey) bool {
	upstream, _ := b.graph.Asset(dep)
	return upstream.Work.HasFiles()
}

// reads describes what a task reads of one upstream asset, and which tasks of that asset it waits for.
type reads struct {
	set   InputSet
	edges []string
}

// readImage returns the partitions of an upstream asset that a partition reads through a mapping.
func (b *builder) readImage(n *node, e edge, key string, g *gathered) (r reads) {
	if e.images.ReadsSame() && b.readOne(e.dep, key, &r) {
		g.expect(key, true)
		return r
	}
	image, err := e.images.Image(key)
	if err != nil {
		b.errs = append(b.errs, fmt.Errorf("asset %s reads %s: %w", n.asset.Key, e.dep, err))
		return r
	}
	keys := image.Keys
	if image.Latest {
		keys = e.images.Newest(keys, func(k string) bool { return b.exists(e.dep, k) })
	}
	for _, k := range keys {
		exists := b.readOne(e.dep, k, &r)
		if exists || e.images.Expects(k) || e.images.ReadsSame() {
			g.expect(k, exists)
		}
	}
	switch {
	case len(r.edges)+len(r.set.Items) > 0 || e.dep == n.asset.Key:
	case len(image.Keys) == 0 && image.Undeclared > 0:
		g.undeclared = append(g.undeclared, key)
	default:
		g.unread = append(g.unread, key)
	}
	return r
}

// exists reports whether a partition is materialized, or will be materialized by this run.
func (b *builder) exists(dep ids.AssetKey, key string) bool {
	if up := b.nodes[dep]; up != nil {
		if _, ok := up.at[key]; ok {
			return true
		}
	}
	_, ok := b.made(dep)[key]
	return ok
}

// readOne adds one partition of an upstream asset. It reports whether the partition exists.
func (b *builder) readOne(dep ids.AssetKey, key string, r *reads) bool {
	if up := b.nodes[dep]; up != nil {
		if i, ok := up.at[key]; ok {
			r.set.Items = append(r.set.Items, Input{PartitionKey: key, TaskKey: up.tasks[i]})
			r.edges = append(r.edges, up.tasks[i])
			return true
		}
	}
	in, ok := b.made(dep)[key]
	if ok {
		r.set.Items = append(r.set.Items, in)
	}
	return ok
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
		r.edges = up.distinct()
	}
	if up.shared && upstream.Work.HasFiles() {
		r.set.Group = ids.GroupKey(dep)
		if items, done := b.plan.Groups[r.set.Group]; done {
			b.noteIncomplete(n.asset.Key, upstream, items)
			return r
		}
	}
	items := b.allInputs(up)
	if set := b.request.Calendar.EmptySet(upstream.Partitions); set != "" && len(items) == 0 {
		b.errs = append(b.errs, fmt.Errorf("asset %s needs %s, which %s", n.asset.Key, dep, withoutKeys(set)))
		return r
	}
	if len(items) == 0 {
		b.errs = append(b.errs, fmt.Errorf("asset %s needs %s, which has never been materialized: %s", n.asset.Key, dep, b.upstreamAdvice()))
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

// allInputs returns all partitions of an upstream asset: those that this run materializes, and those of earlier runs
// that this run does not replace. They are sorted by partition key.
func (b *builder) allInputs(up *node) []Input {
	items := make([]Input, 0, len(up.keys))
	for i, key := range up.keys {
		items = append(items, Input{PartitionKey: key, TaskKey: up.tasks[i]})
	}
	members, err := b.request.Calendar.Members(up.asset.Partitions)
	if err != nil {
		b.errs = append(b.errs, fmt.Errorf("asset %s: %w", up.asset.Key, err))
		return nil
	}
	for key, in := range b.made(up.asset.Key) {
		if _, ours := up.at[key]; !ours && members.Has(key) {
			items = append(items, in)
		}
	}
	sortInputs(items)
	return items
}
