package cli

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/staleness"
	"github.com/servo-orchestration/servo/pkg/state"
)

// plannedPartitions are partitions of an asset: their number, and the first and the last key.
type plannedPartitions struct {
	Asset      string `json:"asset"`
	Partitions int    `json:"partitions"`
	First      string `json:"first,omitempty"`
	Last       string `json:"last,omitempty"`
}

// addStaleness adds the partitions that the deployment makes stale, and those that `servo run --stale`
// would make after it. It evaluates the state with the old and with the new definitions.
func (r *planReport) addStaleness(c *candidate, s *state.State, now time.Time) error {
	after, err := engine.Staleness(s, c.Code.Assets, now)
	if err != nil {
		return err
	}
	var before *staleness.Evaluation
	old := map[ids.AssetKey]bool{}
	if c.before != nil {
		if before, err = engine.Staleness(s, c.before.Assets, now); err != nil {
			return err
		}
		for i := range c.before.Assets {
			old[c.before.Assets[i].Key] = true
		}
	}
	selected := map[ids.AssetKey]bool{}
	for i := range c.Code.Assets {
		key := c.Code.Assets[i].Key
		selected[key] = true
		if !old[key] {
			continue // it had no partition that was fresh
		}
		keys, err := becomeStale(before, after, key)
		if err != nil {
			return err
		}
		if len(keys) > 0 {
			r.Stale = append(r.Stale, summaryOf(key, keys))
		}
	}
	toRun, _, err := after.ToRun(selected)
	if err != nil {
		return err
	}
	for _, key := range sortedAssets(toRun) {
		r.Run = append(r.Run, summaryOf(key, toRun[key]))
	}
	return nil
}

// becomeStale returns the partitions of an asset that only the new definitions make stale.
func becomeStale(before, after *staleness.Evaluation, asset ids.AssetKey) ([]string, error) {
	was, err := before.Partitions(asset)
	if err != nil {
		return nil, err
	}
	stale := map[string]bool{}
	for _, p := range was {
		stale[p.Key] = p.Status == staleness.Stale
	}
	now, err := after.Partitions(asset)
	if err != nil {
		return nil, err
	}
	var keys []string
	for _, p := range now {
		if p.Status == staleness.Stale && !stale[p.Key] {
			keys = append(keys, p.Key)
		}
	}
	return keys, nil
}

func summaryOf(asset ids.AssetKey, keys []string) plannedPartitions {
	return plannedPartitions{asset.String(), len(keys), slices.Min(keys), slices.Max(keys)}
}

func sortedAssets(of map[ids.AssetKey][]string) []ids.AssetKey {
	keys := make([]ids.AssetKey, 0, len(of))
	for key, partitions := range of {
		if len(partitions) > 0 {
			keys = append(keys, key)
		}
	}
	slices.SortFunc(keys, plan.CompareKeys)
	return keys
}

// partitionsText lists partitions of assets under a title.
func partitionsText(b *strings.Builder, title string, of []plannedPartitions) {
	if len(of) == 0 {
		return
	}
	total, width := 0, 0
	for _, p := range of {
		total += p.Partitions
		width = max(width, len(p.Asset))
	}
	fmt.Fprintf(b, "%s: %s of %s\n", title, plural(total, "partition"), plural(len(of), "asset"))
	const most = 20
	for _, p := range of[:min(len(of), most)] {
		span := ""
		switch p.First {
		case "":
		case p.Last:
			span = "  " + partitionText(p.First)
		default:
			span = "  " + partitionText(p.First) + " … " + partitionText(p.Last)
		}
		fmt.Fprintf(b, "  %s  %d%s\n", pad(p.Asset, width), p.Partitions, span)
	}
	if more := len(of) - most; more > 0 {
		fmt.Fprintf(b, "  and %s more\n", plural(more, "asset"))
	}
}

// partitionText formats a partition key for people.
func partitionText(key string) string {
	partition, err := ids.ParsePartition(key)
	if err != nil {
		return key
	}
	var parts []string
	for _, dimension := range partition.Dimensions() {
		parts = append(parts, dimension+"="+partition[dimension])
	}
	return strings.Join(parts, ",")
}
