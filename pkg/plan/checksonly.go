package plan

import (
	"fmt"
	"slices"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/quality"
)

// A run that only checks has one task for each partition with a visible output. There are no edges between its tasks,
// because all of them read outputs of earlier runs, even if the run also checks the assets that they read.

// OnlyChecks reports whether the tasks of a plan check outputs and materialize nothing.
func (p *Plan) OnlyChecks() bool {
	return slices.ContainsFunc(p.Tasks, func(t Task) bool { return t.Kind == event.KindCheck })
}

// chooseChecked adds the node of an asset whose outputs are checked.
func (c *chooser) chooseChecked(a *Asset) error {
	if len(a.Work.Checks) == 0 {
		if c.asked[a.Key] {
			return fmt.Errorf("asset %s declares no checks: add `checks` or `columns` to it", a.Key)
		}
		return nil
	}
	if a.Partitions == nil || len(c.request.Partitions) > 0 || c.request.Only != nil {
		return c.chooseAny(a)
	}
	members, err := c.request.Calendar.Members(a.Partitions)
	if err != nil {
		return fmt.Errorf("asset %s: %w", a.Key, err)
	}
	var keys []string
	for key := range c.made(a.Key) {
		if members.Has(key) {
			keys = append(keys, key)
		}
	}
	if len(keys) == 0 && c.asked[a.Key] {
		return errNoOutput(a)
	}
	slices.Sort(keys)
	return c.add(&node{asset: a}, keys)
}

func errNoOutput(a *Asset) error {
	return fmt.Errorf("asset %s has no output to check: run it first", a.Key)
}

// withOutput returns a node that checks an asset. It also returns those of the given keys whose partitions have an
// output to check. The node has only the dependencies that the checks may read.
func (c *chooser) withOutput(n *node, keys []string) (*node, []string, error) {
	made := c.made(n.asset.Key)
	has := make([]string, 0, len(keys))
	for _, key := range keys {
		if _, ok := made[key]; ok {
			has = append(has, key)
		}
	}
	switch missing := len(keys) - len(has); {
	case missing == 0:
	case len(has) == 0 && c.asked[n.asset.Key]:
		return nil, nil, errNoOutput(n.asset)
	case n.asset.Partitions == nil:
		c.warn("skipped %s: it has no output", n.asset.Key)
	default:
		c.warn("skipped partitions of %s that have no output: %s", n.asset.Key, n.asset.Partitions.Describe(keys, without(keys, has)))
	}
	checked := *n.asset
	checked.Deps = readByChecks(n.asset)
	return &node{asset: &checked}, has, nil
}

// without returns the keys that are not in the list "some". Both lists are sorted.
func without(keys, some []string) []string {
	return slices.DeleteFunc(slices.Clone(keys), func(key string) bool {
		_, found := slices.BinarySearch(some, key)
		return found
	})
}

// readByChecks returns the dependencies that the checks of an asset may read. A check that is a query or a command
// may read all of them.
func readByChecks(a *Asset) []ids.AssetKey {
	to := map[string]bool{}
	for i := range a.Work.Checks {
		switch c := &a.Work.Checks[i]; c.Kind {
		case quality.SQL, quality.Command:
			return a.Deps
		case quality.Relationships:
			to[c.Params.To] = true
		}
	}
	return slices.DeleteFunc(slices.Clone(a.Deps), func(dep ids.AssetKey) bool { return !to[dep.String()] })
}

// dropDeferred removes the deferred assets from the run, because the selections do not determine their partitions. It
// adds a warning about each of them.
func (c *chooser) dropDeferred() {
	for _, n := range c.deferred {
		c.warn("skipped %s: it is partitioned by %s, which %s does not select", n.asset.Key, dimensionNames(n.asset.Partitions), c.request.Form.Name(OptionPartitions))
	}
	c.deferred = nil
}

// checkTask turns a task that would materialize a partition into a task that checks the partition's
// output.
func (b *builder) checkTask(t *Task, a *Asset) {
	t.Kind, t.Output, t.Code, t.TriggerRule = event.KindCheck, event.OutputNone, "", event.RuleAllSuccess
	t.Quarantine, t.PreviousRows = nil, nil
	if in, ok := b.made(a.Key)[t.PartitionKey]; ok && a.Work.HasFiles() {
		t.Checked = &in
	}
}

// upstreamAdvice returns the advice for an error about a missing upstream partition.
func (b *builder) upstreamAdvice() string {
	if b.request.ChecksOnly {
		return "run it first"
	}
	return "add " + b.request.Form.Name(OptionUpstream)
}
