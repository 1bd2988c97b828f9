package plan

import (
	"errors"
	"fmt"
	"slices"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
)

// CodeUpstreamDegraded is the error code of a task that is skipped because its asset sets require_quality and it
// would read a degraded output.
const CodeUpstreamDegraded = "UPSTREAM_DEGRADED"

// leaveOut removes partitions from the run. First, it removes partitions that would read a degraded output of an
// earlier run, if their assets set require_quality. Then it also removes the partitions that read a removed partition
// or a selected asset with problems, just as a run skips the tasks after a failed task. It keeps such a reader in two
// cases: the run only checks, or the trigger rule of the reader is all_done. leaveOut ignores the outputs of this run:
// whether they are degraded is known only after their checks.
func (b *builder) leaveOut() error {
	var reports []string
	left := b.order[:0]
	for _, n := range b.order {
		omissions, err := b.omit(n)
		if err != nil {
			return err
		}
		for _, o := range omissions {
			name := n.asset.Key.String()
			if n.asset.Partitions != nil {
				name += " " + n.asset.Partitions.Describe(o.keys, o.keys)
			}
			reports = append(reports, fmt.Sprintf("left out %s: %s", name, o.why))
		}
		if len(n.keys) == 0 {
			delete(b.nodes, n.asset.Key)
			continue
		}
		left = append(left, n)
	}
	b.order = left
	if len(left) == 0 && len(reports) > 0 {
		return errors.New(someOf(reports))
	}
	for _, text := range reports {
		b.warn("%s", text)
	}
	return nil
}

// omission contains those partitions of an asset that the run leaves out for one reason.
type omission struct {
	why  string
	keys []string
}

// omit removes from a node the partitions that the run leaves out.
func (b *builder) omit(n *node) ([]omission, error) {
	var strict, partial []ids.AssetKey
	for _, d := range n.asset.Reads {
		if d.RequireQuality {
			strict = append(strict, d.Asset)
		}
	}
	for _, dep := range n.asset.Deps {
		if _, some := b.omitted[dep]; some && n.asset.TriggerRule != event.RuleAllDone && !b.request.ChecksOnly {
			partial = append(partial, dep)
		}
	}
	if len(strict) == 0 && len(partial) == 0 {
		return nil, nil
	}
	all, tasks := n.keys, n.tasks
	n.keys, n.tasks, n.at = nil, nil, map[string]int{}
	var found []omission
	for i, key := range all {
		why, err := b.reasonToOmit(n, key, strict, partial)
		if err != nil {
			return nil, fmt.Errorf("asset %s: %w", n.asset.Key, err)
		}
		if why == "" {
			n.at[key] = len(n.keys)
			n.keys, n.tasks = append(n.keys, key), append(n.tasks, tasks[i])
			continue
		}
		b.omitPartition(n.asset.Key, key)
		at := slices.IndexFunc(found, func(o omission) bool { return o.why == why })
		if at < 0 {
			at = len(found)
			found = append(found, omission{why: why})
		}
		found[at].keys = append(found[at].keys, key)
	}
	return found, nil
}

func (b *builder) omitPartition(asset ids.AssetKey, key string) {
	if b.omitted[asset] == nil {
		b.omitted[asset] = map[string]bool{}
	}
	b.omitted[asset][key] = true
}

// reasonToOmit returns the reason why the run leaves out a partition, or "" if the run contains it. The list strict
// contains the dependencies whose outputs the partition must not read if they are degraded. The list partial contains
// the dependencies that have partitions which the run leaves out.
func (b *builder) reasonToOmit(n *node, key string, strict, partial []ids.AssetKey) (string, error) {
	for _, dep := range strict {
		if input, err := b.degradedInput(n, dep, key); input != "" || err != nil {
			return fmt.Sprintf("%s: the output of %s is degraded: make it again, or remove require_quality", CodeUpstreamDegraded, input), err
		}
	}
	for _, dep := range partial {
		if b.readsOmitted(n, dep, key) {
			if upstream, _ := b.graph.Asset(dep); upstream.Broken != "" {
				return fmt.Sprintf("it reads %s, whose file has problems", dep), nil
			}
			return fmt.Sprintf("it reads %s, which is left out", dep), nil
		}
	}
	return "", nil
}

// readsOmitted reports whether a partition reads a partition of a dependency that the run leaves out.
func (b *builder) readsOmitted(n *node, dep ids.AssetKey, key string) bool {
	upstream, _ := b.graph.Asset(dep)
	if upstream.Broken != "" {
		return true
	}
	edge, err := b.readers.Of(n.asset.Key, dep)
	if err != nil {
		return false // addTasks reports the error
	}
	if edge.ReadsAll() {
		return true
	}
	image, err := edge.Image(key)
	if err == nil && image.Latest {
		image.Keys = edge.Newest(image.Keys, func(k string) bool { return b.omitted[dep][k] || b.exists(dep, k) })
	}
	return err == nil && slices.ContainsFunc(image.Keys, func(k string) bool { return b.omitted[dep][k] })
}

// degradedInput returns a degraded output of an earlier run that a partition would read, or "".
func (b *builder) degradedInput(n *node, dep ids.AssetKey, key string) (string, error) {
	edge, err := b.readers.Of(n.asset.Key, dep)
	if err != nil {
		return "", nil //nolint:nilerr // addTasks reports the error
	}
	if edge.ReadsAll() {
		return b.degradedOfAll(dep)
	}
	image, err := edge.Image(key)
	if err != nil {
		return "", err
	}
	if image.Latest {
		image.Keys = edge.Newest(image.Keys, func(k string) bool { return b.exists(dep, k) })
	}
	var r reads
	for _, k := range image.Keys {
		b.readOne(dep, k, &r)
	}
	return degradedOf(dep, r.set.Items)
}

// degradedOfAll is [builder.degradedInput] for a partition that reads all partitions of a dependency. The result is the
// same for all such partitions, so degradedOfAll caches it.
func (b *builder) degradedOfAll(dep ids.AssetKey) (string, error) {
	if found, known := b.degraded[dep]; known {
		return found, nil
	}
	up := b.nodes[dep]
	if up == nil {
		upstream, _ := b.graph.Asset(dep)
		up = &node{asset: upstream}
	}
	found, err := degradedOf(dep, b.allInputs(up))
	if err == nil {
		b.degraded[dep] = found
	}
	return found, err
}

// degradedOf returns the first degraded output of an earlier run in a list of inputs, or "".
func degradedOf(dep ids.AssetKey, read []Input) (string, error) {
	at := slices.IndexFunc(read, func(in Input) bool { return in.TaskKey == "" && in.Degraded })
	if at < 0 {
		return "", nil
	}
	partition, err := ids.ParsePartition(read[at].PartitionKey)
	return ids.TaskKey(dep, partition), err
}
