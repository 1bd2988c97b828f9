package view

import (
	"cmp"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/state"
)

// Asset is a declared asset with the totals of its outputs.
type Asset struct {
	*plan.Asset
	// Stored is how many of the declared partitions are materialized.
	Stored int
	// Rows and Bytes are the totals of the outputs.
	Rows, Bytes int64
	// Schemas contains the newest partition of each known schema of the outputs.
	Schemas []*state.Partition
	// MaterializedAt and LastRun are the time and the run of the newest output.
	MaterializedAt event.Time
	LastRun        string
	// LastOutput is the URI of the newest output that has files. It is empty if no output has files.
	LastOutput string
}

// PartitionRows are rows of partition_status in the order of their keys.
type PartitionRows = iter.Seq2[*state.Partition, error]

// AssetOf returns an asset with the totals of its outputs. The calendar determines the partitions that the asset
// declares.
func AssetOf(rows PartitionRows, asset *plan.Asset, c plan.Calendar) (Asset, error) {
	a := Asset{Asset: asset}
	var newest NewestSchemas
	var outputAt event.Time
	for row, err := range declared(rows, asset, c) {
		if err != nil {
			return a, err
		}
		a.Rows += row.RowCount
		a.Bytes += row.ByteSize
		a.Stored++
		newest.Add(row)
		if row.MaterializedAt > a.MaterializedAt {
			a.MaterializedAt, a.LastRun = row.MaterializedAt, row.RunID
		}
		if row.OutputURI != "" && row.MaterializedAt > outputAt {
			outputAt, a.LastOutput = row.MaterializedAt, row.OutputURI
		}
	}
	a.Schemas = newest.Rows()
	return a, nil
}

// declared yields those rows whose partitions the asset declares. If the asset has problems, what it declares may be
// unknown, so declared yields all rows.
func declared(rows PartitionRows, asset *plan.Asset, c plan.Calendar) PartitionRows {
	return func(yield func(*state.Partition, error) bool) {
		members, err := c.Members(asset.Partitions)
		if err != nil {
			return // the time zone is unknown on this machine
		}
		for row, err := range rows {
			if err != nil {
				yield(nil, err)
				return
			}
			if row.Status == state.Materialized && (asset.Broken != "" || members.Has(row.PartitionKey)) && !yield(row, nil) {
				return
			}
		}
	}
}

// PartitionCount returns the number of partitions of an asset that are expected at the calendar's time. A period that
// has not ended does not count.
func PartitionCount(asset *plan.Asset, c plan.Calendar) int {
	count, err := c.Count(asset.Partitions)
	if err != nil {
		return 0 // there are more periods than can be listed
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

// NewestSchemas collects, for each schema, the newest partition that has it.
type NewestSchemas struct{ rows map[string]*state.Partition }

// Add adds a partition. It ignores a partition with an unknown schema.
func (n *NewestSchemas) Add(row *state.Partition) {
	if row.SchemaHash == "" {
		return
	}
	if n.rows == nil {
		n.rows = map[string]*state.Partition{}
	}
	if old := n.rows[row.SchemaHash]; old == nil || ByAge(old, row) < 0 {
		n.rows[row.SchemaHash] = row
	}
}

// Rows returns the newest partition of each schema, oldest first.
func (n *NewestSchemas) Rows() []*state.Partition {
	return slices.SortedFunc(maps.Values(n.rows), ByAge)
}

// ByAge orders partitions by the time of their materialization.
func ByAge(a, b *state.Partition) int {
	return cmp.Or(cmp.Compare(a.MaterializedAt, b.MaterializedAt), strings.Compare(a.PartitionKey, b.PartitionKey))
}
