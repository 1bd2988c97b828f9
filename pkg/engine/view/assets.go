package view

import "github.com/servo-orchestration/servo/pkg/state"

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
