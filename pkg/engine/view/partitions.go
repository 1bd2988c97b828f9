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
	PartitionFailed       = "failed"       // its newest task failed, and no later run has materialized it
	PartitionMaterialized = "materialized" // it has an output; the row does not say whether the partition is fresh or stale
)

// Partition is a partition that an asset declares and that is expected or materialized.
type Partition struct {
	Key    string
	Status string
	// Row is nil for a missing partition. It is also nil if the caller did not request rows.
	Row *state.Partition
}

// Name formats the partition: "date=2025-01-15;region=eu".
func (p *Partition) Name() string {
	partition, err := ids.ParsePartition(p.Key)
	if err != nil {
		return p.Key
	}
	return partition.Text()
}

// PartitionsOf returns the expected and the materialized partitions of an asset at the time of a calendar, sorted by
// key. rows yields the asset's rows. If withRows is true, the result contains the rows, which need much memory if
// there are many. PartitionsOf returns an error if more than [space.MaxListed] partitions are expected.
func PartitionsOf(rows PartitionRows, asset *plan.Asset, c plan.Calendar, withRows bool) ([]Partition, error) {
	expected, err := c.Expected(asset.Partitions, space.MaxListed)
	if err != nil {
		return nil, err
	}
	slices.Sort(expected)
	all := make([]Partition, 0, len(expected))
	missingTo := func(key string, last bool) {
		for len(expected) > 0 && (last || expected[0] < key) {
			all = append(all, Partition{Key: expected[0], Status: PartitionMissing})
			expected = expected[1:]
		}
	}
	for row, err := range declared(rows, asset, c) {
		if err != nil {
			return nil, err
		}
		missingTo(row.PartitionKey, false)
		if len(expected) > 0 && expected[0] == row.PartitionKey {
			expected = expected[1:]
		}
		p := Partition{Key: row.PartitionKey, Status: PartitionMaterialized}
		if withRows {
			p.Row = row
		}
		all = append(all, p)
	}
	missingTo("", true)
	return all, nil
}

// PartitionPage is like [PartitionsOf], but returns at most limit partitions, beginning after a given key. It always
// includes their rows. rows yields the asset's rows from that key on.
func PartitionPage(rows PartitionRows, asset *plan.Asset, c plan.Calendar, after string, limit int) ([]Partition, error) {
	expected, err := c.ExpectedAfter(asset.Partitions, after, limit)
	if err != nil {
		return nil, err
	}
	var page []Partition
	for row, err := range declared(rows, asset, c) {
		switch {
		case err != nil:
			return nil, err
		case row.PartitionKey <= after:
			continue
		}
		for len(expected) > 0 && expected[0] < row.PartitionKey && len(page) < limit {
			page = append(page, Partition{Key: expected[0], Status: PartitionMissing})
			expected = expected[1:]
		}
		if len(page) == limit {
			return page, nil
		}
		if len(expected) > 0 && expected[0] == row.PartitionKey {
			expected = expected[1:]
		}
		page = append(page, Partition{Key: row.PartitionKey, Status: PartitionMaterialized, Row: row})
	}
	for _, key := range expected[:min(len(expected), limit-len(page))] {
		page = append(page, Partition{Key: key, Status: PartitionMissing})
	}
	return page, nil
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

// Strip draws the newest periods, oldest first. It draws "×" if a partition of the period failed, "█" if all
// partitions are materialized, "▒" if some are, and "·" if none is. It returns "" for an asset that is not
// partitioned by time.
func Strip(asset *plan.Asset, all []Partition) string {
	time := asset.Partitions.Time()
	if time == nil {
		return ""
	}
	var periods []string
	made, count, failed := map[string]int{}, map[string]int{}, map[string]bool{}
	for _, p := range all {
		partition, err := ids.ParsePartition(p.Key)
		if err != nil {
			continue
		}
		period := partition[time.Name]
		if count[period]++; count[period] == 1 {
			periods = append(periods, period)
		}
		switch p.Status {
		case PartitionFailed:
			failed[period] = true
		case PartitionMissing:
		default:
			made[period]++
		}
	}
	slices.Sort(periods)
	var b strings.Builder
	for _, period := range periods[max(0, len(periods)-stripLength):] {
		switch {
		case failed[period]:
			b.WriteRune('×')
		case made[period] == 0:
			b.WriteRune('·')
		case made[period] == count[period]:
			b.WriteRune('█')
		default:
			b.WriteRune('▒')
		}
	}
	return b.String()
}
