package view

import (
	"slices"
	"strings"

	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/space"
	"github.com/servo-orchestration/servo/pkg/state"
)

// Statuses of a partition.
const (
	PartitionMissing      = "missing"      // expected, and never materialized
	PartitionMaterialized = "materialized" // it has an output
)

// Partition is a partition that an asset declares and that is expected or materialized.
type Partition struct {
	Key    string
	Status string
	// Row is nil for a missing partition.
	Row *state.Partition
}

// Name formats the partition: "date=2025-01-15,region=eu".
func (p *Partition) Name() string {
	partition, err := ids.ParsePartition(p.Key)
	if err != nil {
		return p.Key
	}
	texts := make([]string, 0, len(partition))
	for _, dimension := range partition.Dimensions() {
		texts = append(texts, dimension+"="+partition[dimension])
	}
	return strings.Join(texts, ",")
}

// PartitionsOf returns the partitions of an asset that are expected at the time of a calendar, and
// those that are materialized, by key. It fails if more than [space.MaxPeriods] are expected.
func PartitionsOf(s *state.State, asset *plan.Asset, c plan.Calendar) ([]Partition, error) {
	expected, err := c.Expected(asset.Partitions, space.MaxPeriods)
	if err != nil {
		return nil, err
	}
	rows := map[string]*state.Partition{}
	stored := AssetOf(s, asset, c).Stored
	for _, row := range stored {
		rows[row.PartitionKey] = row
		expected = append(expected, row.PartitionKey)
	}
	slices.Sort(expected)
	all := make([]Partition, 0, len(expected))
	for _, key := range slices.Compact(expected) {
		p := Partition{Key: key, Status: PartitionMissing, Row: rows[key]}
		if p.Row != nil {
			p.Status = PartitionMaterialized
		}
		all = append(all, p)
	}
	return all, nil
}

// PartitionRanges describes the partitions with a status as ranges, or returns "" if there are none.
func PartitionRanges(asset *plan.Asset, all []Partition, status string) string {
	var keys, some []string
	for _, p := range all {
		keys = append(keys, p.Key)
		if p.Status == status {
			some = append(some, p.Key)
		}
	}
	return asset.Partitions.Describe(keys, some)
}

// stripLength is the number of periods in a strip.
const stripLength = 60

// Strip draws the newest periods, oldest first: "█" if all their partitions are materialized, "▒" if
// some are, and "·" if none is. It returns "" for an asset that is not partitioned by time.
func Strip(asset *plan.Asset, all []Partition) string {
	time := asset.Partitions.Time()
	if time == nil {
		return ""
	}
	var periods []string
	made, count := map[string]int{}, map[string]int{}
	for _, p := range all {
		partition, err := ids.ParsePartition(p.Key)
		if err != nil {
			continue
		}
		period := partition[time.Name]
		if count[period]++; count[period] == 1 {
			periods = append(periods, period)
		}
		if p.Row != nil {
			made[period]++
		}
	}
	slices.Sort(periods)
	var b strings.Builder
	for _, period := range periods[max(0, len(periods)-stripLength):] {
		switch made[period] {
		case 0:
			b.WriteRune('·')
		case count[period]:
			b.WriteRune('█')
		default:
			b.WriteRune('▒')
		}
	}
	return b.String()
}
