package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/state"
)

// partitionNamed returns the asset and the partition key that a text names in the form of a task key.
// It reports false if the text is only a part of one, such as 2012-02-29.
func partitionNamed(text string, assets []plan.Asset) (*plan.Asset, string, bool) {
	name, rest, _ := strings.Cut(text, "[")
	for i := range assets {
		if assets[i].Key.String() != name {
			continue
		}
		partition := ids.Partition{}
		for pair := range strings.SplitSeq(strings.TrimSuffix(rest, "]"), ",") {
			if dimension, value, ok := strings.Cut(pair, "="); ok {
				partition[dimension] = value
			}
		}
		return &assets[i], partition.Key(), ids.TaskKey(assets[i].Key, partition) == text && (len(partition) > 0) == (assets[i].Partitions != nil)
	}
	return nil, "", false
}

// explainPartition explains a partition of an asset. It reports false if the text names none, or if
// its newest task explains more: while its run is live, and if it did not succeed.
func (a *app) explainPartition(ctx context.Context, v published, text string) (bool, error) {
	s, task, err := engine.FindTaskAnywhere(ctx, v.Snapshot, "", text)
	if err == nil && (task.TaskKey != text || task.State != state.TaskSucceeded || !s.Runs.Get(task.RunID).State.Terminal()) {
		return false, nil
	}
	if !strings.Contains(text, "/") {
		return false, nil
	}
	p, err := a.usableProject(ctx, func([]plan.Asset) ([]ids.AssetKey, error) { return nil, nil })
	if err != nil {
		return false, nil //nolint:nilerr // without a usable project, the task explains what it can
	}
	asset, key, ok := partitionNamed(text, p.Assets)
	if !ok {
		return false, nil
	}
	e, err := engine.Staleness(v.State, p.Assets, a.Clock.Now())
	if err != nil {
		return true, err
	}
	x, err := view.ExplainPartition(e, asset.Key, key)
	if err != nil {
		return true, err
	}
	return true, a.document(x, func() string { return a.partitionText(x) })
}

// partitionText formats the explanation of a partition for people.
func (a *app) partitionText(x *view.PartitionExplanation) string {
	t := &outline{style: a.style}
	fmt.Fprintf(&t.b, "%s %s\n", a.style.bold(x.Partition), x.Headline)
	t.section("holds")
	if x.Holds != nil {
		t.line("%s", holdingText(x.Holds))
		if x.Holds.Code != "" {
			t.line("code %s", x.Holds.Code)
		}
	}
	t.section("code")
	if x.CodeChanged {
		t.line("now %s", x.Code)
	}
	t.section("upstream")
	for _, up := range x.Newer {
		t.line("%s: now %s", up.Name(), holdingText(up.Holds))
	}
	for _, up := range x.Pending {
		t.line("%s: %s", up.Name(), up.Status)
	}
	t.section("next")
	if name, partition, _ := strings.Cut(x.Partition, "["); x.Status == "stale" || x.Status == "missing" {
		command := "servo run " + name + " --stale"
		if partition != "" {
			command = "servo run " + name + " -p " + strings.TrimSuffix(partition, "]")
		}
		t.line("%s", command)
	}
	if x.Holds != nil {
		t.line("the task: servo explain %s '%s'", x.Holds.RunID, x.Holds.TaskKey)
	}
	return t.b.String()
}

func holdingText(h *view.Holding) string {
	return fmt.Sprintf("%s by run %s, %s, %s", h.MaterializationID, h.RunID, stamp(h.At), plural(int(h.RowCount), "row"))
}
