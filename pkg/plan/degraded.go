package plan

import (
	"errors"
	"fmt"
	"slices"

	"github.com/servo-orchestration/servo/pkg/ids"
)

// CodeUpstreamDegraded is the error code of a task that is skipped because it requires quality and would read a
// degraded output.
const CodeUpstreamDegraded = "UPSTREAM_DEGRADED"

// dropDegraded leaves out the partitions that would read a degraded output of an earlier run although their assets
// require quality. Whether outputs of this run are degraded is known only after their checks.
func (b *builder) dropDegraded() error {
	var reports []string
	left := b.order[:0]
	for _, n := range b.order {
		dropped, input, err := b.dropFrom(n)
		if err != nil {
			return err
		}
		if len(dropped) > 0 {
			name := n.asset.Key.String()
			if n.asset.Partitions != nil {
				name += " " + n.asset.Partitions.Describe(dropped, dropped)
			}
			reports = append(reports, fmt.Sprintf("left out %s: %s: the output of %s is degraded: make it again, or remove require_quality",
				name, CodeUpstreamDegraded, input))
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

// dropFrom removes the partitions of a node that would read a degraded output. input is one of these outputs.
func (b *builder) dropFrom(n *node) (dropped []string, input string, err error) {
	var deps []ids.AssetKey
	for _, d := range n.asset.Reads {
		if d.RequireQuality {
			deps = append(deps, d.Asset)
		}
	}
	if len(deps) == 0 {
		return nil, "", nil
	}
	keys := n.keys
	n.keys, n.at = nil, map[string]int{}
	tasks := n.tasks
	n.tasks = nil
	for i, key := range keys {
		found := ""
		for _, dep := range deps {
			if found, err = b.degradedInput(n, dep, key); found != "" || err != nil {
				break
			}
		}
		if err != nil {
			return nil, "", fmt.Errorf("asset %s: %w", n.asset.Key, err)
		}
		if found != "" {
			dropped, input = append(dropped, key), found
			continue
		}
		n.at[key] = len(n.keys)
		n.keys, n.tasks = append(n.keys, key), append(n.tasks, tasks[i])
	}
	return dropped, input, nil
}

// degradedInput returns a degraded output of an earlier run that a partition would read, or "".
func (b *builder) degradedInput(n *node, dep ids.AssetKey, key string) (string, error) {
	edge, err := b.readers.Of(n.asset.Key, dep)
	if err != nil {
		return "", nil //nolint:nilerr // addTasks reports the error
	}
	up := b.nodes[dep]
	var read []Input
	if edge.ReadsAll() {
		upstream, _ := b.graph.Asset(dep)
		if up == nil {
			up = &node{asset: upstream}
		}
		read = b.allInputs(up)
	} else {
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
		read = r.set.Items
	}
	at := slices.IndexFunc(read, func(in Input) bool { return in.TaskKey == "" && in.Degraded })
	if at < 0 {
		return "", nil
	}
	partition, err := ids.ParsePartition(read[at].PartitionKey)
	return ids.TaskKey(dep, partition), err
}
