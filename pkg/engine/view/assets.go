package view

import (
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/state"
)

// Asset is a declared asset with totals of its outputs.
type Asset struct {
	*plan.Asset
	// Stored are the materialized partitions that the asset declares.
	Stored []*state.Partition
	// Rows and Bytes are the totals of the outputs. Schemas is the number of different schemas that
	// they are known to have.
	Rows, Bytes int64
	Schemas     int
	// MaterializedAt and LastRun are the time and the run of the newest output.
	MaterializedAt event.Time
	LastRun        string
}

// AssetOf returns an asset with the totals of its outputs. The calendar decides which partitions it
// declares.
func AssetOf(s *state.State, asset *plan.Asset, c plan.Calendar) Asset {
	a := Asset{Asset: asset}
	key := asset.Key.String()
	members, err := c.Members(asset.Partitions)
	if err != nil {
		return a // a zone that this machine does not know
	}
	s.Partitions.Ascend(state.Key2{A: key}, func(row *state.Partition) bool {
		if row.AssetKey != key {
			return false
		}
		if row.Status == state.Materialized && members.Has(row.PartitionKey) {
			a.Rows += row.RowCount
			a.Bytes += row.ByteSize
			a.Stored = append(a.Stored, row)
			if row.MaterializedAt > a.MaterializedAt {
				a.MaterializedAt, a.LastRun = row.MaterializedAt, row.RunID
			}
		}
		return true
	})
	a.Schemas = Schemas(a.Stored)
	return a
}

// PartitionCount returns the number of partitions that an asset has at the calendar's time. Without
// an end it counts the partitions that have begun.
func PartitionCount(asset *plan.Asset, c plan.Calendar) int {
	count, err := c.Count(asset.Partitions)
	if err != nil {
		return 0 // more periods than can be listed
	}
	return count
}

// Kind returns how the asset is computed: "command" or "sql".
func (a *Asset) Kind() string {
	if len(a.Work.Command) > 0 {
		return "command"
	}
	return "sql"
}

// Partitioning describes the partitions: "date 2025-01-01 to 2025-01-31", or "" without partitions.
func (a *Asset) Partitioning() string {
	if a.Partitions == nil {
		return ""
	}
	return a.Partitions.Range()
}

// DependsOn returns the keys of the assets that the asset reads.
func (a *Asset) DependsOn() []string {
	deps := []string{}
	for _, dep := range a.Deps {
		deps = append(deps, dep.String())
	}
	return deps
}

// Schemas returns the number of different schemas that partitions are known to have.
func Schemas(rows []*state.Partition) int {
	hashes := map[string]bool{}
	for _, row := range rows {
		if row.SchemaHash != "" {
			hashes[row.SchemaHash] = true
		}
	}
	return len(hashes)
}
