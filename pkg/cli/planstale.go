package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/space"
	"github.com/servo-orchestration/servo/pkg/staleness"
)

// plannedPartitions are partitions of an asset: their number, and the first and the last key. The field Before is the
// number of these partitions that are already missing or stale before the deployment.
type plannedPartitions struct {
	Asset      string `json:"asset"`
	Partitions int    `json:"partitions"`
	Before     int    `json:"before,omitempty"`
	First      string `json:"first,omitempty"`
	Last       string `json:"last,omitempty"`
}

// addStaleness adds two sets of partitions to the report: the partitions that the deployment makes stale, and the
// partitions that `servo run --stale` would materialize after the deployment. It returns the second set. It evaluates
// the state with the old and with the new definitions.
func (r *planReport) addStaleness(
	ctx context.Context, c *candidate, snap *snapshot.Snapshot, now time.Time,
) (toRun map[ids.AssetKey][]string, err error) {
	after, err := engine.Staleness(ctx, snap, c.Code.Assets, now)
	if err != nil {
		return nil, err
	}
	var before *staleness.Evaluation
	old := map[ids.AssetKey]bool{}
	if c.before != nil {
		if before, err = engine.Staleness(ctx, snap, c.before.Assets, now); err != nil {
			return nil, err
		}
		for i := range c.before.Assets {
			old[c.before.Assets[i].Key] = true
		}
	}
	selected, needed := map[ids.AssetKey]bool{}, map[ids.AssetKey]map[string]bool{}
	for i := range c.Code.Assets {
		key := c.Code.Assets[i].Key
		selected[key] = true
		if !old[key] {
			continue // the asset is new, so the deployment makes no partition stale
		}
		keys, needy, err := becomeStale(before, after, key)
		if tooMany := new(space.TooManyError); errors.As(err, &tooMany) {
			continue // the loop over after.Unlisted below reports the asset
		}
		if err != nil {
			return nil, err
		}
		needed[key] = needy
		if len(keys) > 0 {
			r.Stale = append(r.Stale, summaryOf(key, keys))
		}
	}
	if toRun, _, err = after.ToRun(selected); err != nil {
		return nil, err
	}
	for _, err := range after.Unlisted() {
		r.Facts = append(r.Facts, "not counted: "+err.Error())
	}
	for _, key := range sortedAssets(toRun) {
		of := summaryOf(key, toRun[key])
		for _, partition := range toRun[key] {
			if needed[key][partition] {
				of.Before++
			}
		}
		r.Run = append(r.Run, of)
	}
	return toRun, nil
}

// becomeStale returns the keys of the partitions of an asset that are stale under the new definitions, but not under
// the old ones. The second result contains the partitions that are already stale or missing under the old definitions.
func becomeStale(before, after *staleness.Evaluation, asset ids.AssetKey) (keys []string, needed map[string]bool, err error) {
	was, err := before.Partitions(asset)
	if err != nil {
		return nil, nil, err
	}
	stale := map[string]bool{}
	needed = map[string]bool{}
	for _, p := range was {
		stale[p.Key] = p.Status == staleness.Stale
		needed[p.Key] = p.Status == staleness.Stale || p.Status == staleness.Missing
	}
	now, err := after.Partitions(asset)
	if err != nil {
		return nil, nil, err
	}
	for _, p := range now {
		if p.Status == staleness.Stale && !stale[p.Key] {
			keys = append(keys, p.Key)
		}
	}
	return keys, needed, nil
}

func summaryOf(asset ids.AssetKey, keys []string) plannedPartitions {
	return plannedPartitions{Asset: asset.String(), Partitions: len(keys), First: slices.Min(keys), Last: slices.Max(keys)}
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
	total, before, width := 0, 0, 0
	for _, p := range of {
		total, before = total+p.Partitions, before+p.Before
		width = max(width, len(p.Asset))
	}
	fmt.Fprintf(b, "%s: %s of %s", title, plural(total, "partition"), plural(len(of), "asset"))
	if before > 0 {
		fmt.Fprintf(b, ", %d of them missing or stale before the deployment", before)
	}
	b.WriteByte('\n')
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
	return partition.Text()
}
