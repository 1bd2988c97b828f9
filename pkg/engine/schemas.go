package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/quality"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

// maxSchemaChanges is the maximum number of differences between schemas, and of queries, in a report.
const maxSchemaChanges = 20

// SchemaChanges compares the columns of the partitions that a run materialized with the columns of the other
// partitions of the same asset. It compares the output of an asset without partitions with the output that it replaced,
// unless a check compares them. It describes the differences, and names the queries of the run that read partitions
// with different columns. It ignores outputs with an unknown schema. If declared is not nil, it also ignores the
// partitions for which declared returns false. It returns an error if the plan cannot be read.
func SchemaChanges(
	ctx context.Context, store blob.Store, snap *snapshot.Snapshot, run *state.Run, declared func(*state.Partition) bool,
) ([]string, error) {
	s, err := snap.WithRun(ctx, run.RunID)
	if err != nil {
		return nil, err
	}
	if s == nil {
		s = snap.State
	}
	var p *plan.Plan
	var planErr error
	if run.PlanRef != "" {
		p, planErr = readPlan(ctx, store, run)
	}
	var changes []schemaChange
	for _, key := range madeAssets(snap, s, run) {
		if p != nil && p.Assets[key].SchemaDrift == "off" {
			continue
		}
		var newest view.NewestSchemas
		own := map[*state.Partition]bool{}
		for row, err := range snap.Partitions(ctx, key, "") {
			if err != nil {
				return nil, err
			}
			if row.SchemaHash == "" || declared != nil && !declared(row) {
				continue
			}
			newest.Add(row)
			if row.RunID == run.RunID {
				own[row] = true
			}
		}
		rows := slices.DeleteFunc(newest.Rows(), func(row *state.Partition) bool { return own[row] })
		rows = slices.AppendSeq(rows, maps.Keys(own))
		found := schemaChanges(rows, func(row *state.Partition) bool { return own[row] })
		if p != nil && p.Assets[key].SchemaDrift == "" && len(found) == 0 {
			found = replaced(own, p.Schemas[key])
		}
		changes = append(changes, found...)
	}
	found := describeChanges(ctx, store, changes)
	if p == nil {
		return found, planErr
	}
	united, err := unitedSchemas(ctx, store, p, snap, s, run)
	return append(found, united...), err
}

// replaced compares the output of an asset without partitions with the output that was the newest when the run was
// planned. The parameter "own" contains the partitions that the run materialized.
func replaced(own map[*state.Partition]bool, before plan.Schema) (changes []schemaChange) {
	for row := range own {
		if row.PartitionKey == "" && before.Hash != "" && before.Hash != row.SchemaHash {
			old := &state.Partition{TaskKey: row.TaskKey, OutputURI: before.URI, SchemaHash: before.Hash}
			changes = append(changes, schemaChange{chosen: row, other: old, alike: 1})
		}
	}
	return changes
}

// madeAssets returns the assets whose partitions a run may have materialized. s is a state that has the
// run's tasks.
func madeAssets(snap *snapshot.Snapshot, s *state.State, run *state.Run) []string {
	assets := map[string]bool{}
	s.TasksOf(run.RunID, func(t *state.Task) bool {
		if t.State == state.TaskSucceeded {
			assets[t.AssetKey] = true
		}
		return true
	})
	for row := range snap.State.Partitions.All {
		if row.RunID == run.RunID {
			assets[row.AssetKey] = true
		}
	}
	return slices.Sorted(maps.Keys(assets))
}

// AssetSchemas compares the columns of an asset's newest partition with the columns of the newest partition that has a
// different schema. It describes the differences. The parameter rows contains the newest partition of each schema.
func AssetSchemas(ctx context.Context, store blob.Store, rows []*state.Partition) []string {
	if len(rows) == 0 {
		return nil
	}
	newest := slices.MaxFunc(rows, view.ByAge)
	return describeChanges(ctx, store, schemaChanges(rows, func(row *state.Partition) bool { return row == newest }))
}

// schemaChange is a difference between the schemas of two partitions of an asset.
type schemaChange struct {
	chosen, other *state.Partition // a chosen partition, and one with a different schema
	alike         int              // how many chosen partitions have the same schema as the field chosen
}

// schemaChanges describes how the schemas of the chosen partitions differ from the schemas of the other partitions of
// the asset. For each schema of a chosen partition, it finds the newest partition that has a different schema. It
// returns each pair of schemas only once. The schemas of all rows must be known.
func schemaChanges(rows []*state.Partition, chosen func(*state.Partition) bool) (changes []schemaChange) {
	rows = slices.SortedFunc(slices.Values(rows), func(a, b *state.Partition) int { return view.ByAge(b, a) }) // the newest first
	if len(rows) == 0 {
		return nil
	}
	second := slices.IndexFunc(rows, func(row *state.Partition) bool { return row.SchemaHash != rows[0].SchemaHash })
	if second < 0 {
		return nil
	}
	alike, pairs := map[string]int{}, map[[2]string]bool{}
	for _, row := range rows {
		if chosen(row) {
			alike[row.SchemaHash]++
		}
	}
	for _, row := range rows {
		n := alike[row.SchemaHash]
		if n == 0 || !chosen(row) {
			continue
		}
		delete(alike, row.SchemaHash)
		other := rows[0]
		if other.SchemaHash == row.SchemaHash {
			other = rows[second]
		}
		pair := [2]string{min(row.SchemaHash, other.SchemaHash), max(row.SchemaHash, other.SchemaHash)}
		if !pairs[pair] {
			pairs[pair] = true
			changes = append(changes, schemaChange{chosen: row, other: other, alike: n})
		}
	}
	return changes
}

// describeChanges describes the first differences in words, and counts the others.
func describeChanges(ctx context.Context, store blob.Store, changes []schemaChange) (found []string) {
	for i, c := range changes {
		if i == maxSchemaChanges {
			return append(found, fmt.Sprintf("and %s between schemas", view.Count(len(changes)-i, "more difference")))
		}
		also := ""
		if c.alike > 1 {
			also = fmt.Sprintf(" (and %s like it)", view.Count(c.alike-1, "partition"))
		}
		other := c.other.TaskKey
		if other == c.chosen.TaskKey {
			other = "its previous output"
		}
		found = append(found, fmt.Sprintf("the schema of %s%s differs from that of %s: %s",
			c.chosen.TaskKey, also, other, difference(ctx, store, c.other, c.chosen)))
	}
	return found
}

// difference describes how the columns of two outputs differ, according to their commit markers.
func difference(ctx context.Context, store blob.Store, old, chosen *state.Partition) string {
	before, err := markerColumns(ctx, store, old)
	after, err2 := markerColumns(ctx, store, chosen)
	switch {
	case errors.Join(err, err2) != nil:
		return "the columns are not known: " + oneLine(errors.Join(err, err2).Error())
	case len(before) == 0 || len(after) == 0:
		return "the columns are not recorded"
	}
	changes := quality.Differences(columnTypes(before), columnTypes(after))
	if len(changes) == 0 {
		return "the same columns, in another order or stored in another form"
	}
	return view.Some(changes)
}

func columnTypes(columns []contract.CommitMarkerColumn) []quality.ColumnType {
	types := make([]quality.ColumnType, len(columns))
	for i, c := range columns {
		types[i] = quality.ColumnType{Name: c.Name, Type: c.Type}
	}
	return types
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// markerColumns returns the columns of an output. It returns none if the output's marker does not list them.
func markerColumns(ctx context.Context, store blob.Store, row *state.Partition) ([]contract.CommitMarkerColumn, error) {
	marker, _, err := ReadMarker(ctx, store, row.OutputURI)
	if err != nil {
		return nil, err
	}
	return marker.Columns, nil
}

// unitedSchemas lists the queries of a run that read, as one table, partitions of an upstream asset that have
// different schemas. Each pair of a query and an upstream asset is listed once.
func unitedSchemas(
	ctx context.Context, store blob.Store, p *plan.Plan, snap *snapshot.Snapshot, s *state.State, run *state.Run,
) (found []string, err error) {
	told := map[[2]string]bool{}
	groups := map[string][]*state.Partition{}
	for i := range p.Tasks {
		t := &p.Tasks[i]
		row := s.Tasks.Get(state.Key2{A: run.RunID, B: t.TaskKey})
		if t.Kind == event.KindGroup || p.Assets[t.AssetKey].SQL == "" || row == nil || row.State != state.TaskSucceeded {
			continue
		}
		for _, upstream := range slices.Sorted(maps.Keys(t.Inputs)) {
			pair, set := [2]string{t.AssetKey, upstream}, t.Inputs[upstream]
			if told[pair] {
				continue
			}
			schemas, ok := groups[set.Group]
			if !ok || set.Group == "" {
				if schemas, err = inputSchemas(ctx, p, upstream, set, snap, s, run); err != nil {
					return found, err
				}
				if set.Group != "" {
					groups[set.Group] = schemas
				}
			}
			if len(schemas) > 1 {
				told[pair] = true
				if len(told) > maxSchemaChanges {
					continue
				}
				found = append(found, fmt.Sprintf("%s reads partitions of %s with %d different schemas as one table: %s",
					t.TaskKey, upstream, len(schemas), mixture(ctx, store, upstream, schemas)))
			}
		}
	}
	if more := len(told) - maxSchemaChanges; more > 0 {
		found = append(found, fmt.Sprintf("and %s of partitions with different schemas", view.Count(more, "more reader")))
	}
	return found, nil
}

// mixture says what happens to the columns of partitions with different schemas that a query reads as one table.
// It compares at most [maxSchemaChanges] schemas.
func mixture(ctx context.Context, store blob.Store, asset string, schemas []*state.Partition) string {
	const null, converted = "a column that a partition lacks is NULL in its rows", "columns of different types are converted to one type, which can change values"
	var columns [][]quality.ColumnType
	for _, row := range schemas[:min(len(schemas), maxSchemaChanges)] {
		listed, err := markerColumns(ctx, store, row)
		if err != nil || len(listed) == 0 {
			return null + ", and " + converted
		}
		columns = append(columns, columnTypes(listed))
	}
	var parts []string
	retyped, lacking := quality.Mixed(columns...)
	if len(retyped) > 0 {
		parts = append(parts, fmt.Sprintf("%s: %s: declare `columns` in %s", converted, view.Some(retyped), asset))
	}
	if len(lacking) > 0 {
		parts = append(parts, null+": "+view.Some(lacking))
	}
	if len(parts) == 0 {
		return "the same columns, in another order or stored in another form"
	}
	return strings.Join(parts, "; ")
}

// inputSchemas returns one input from an upstream asset for each of their schemas, as a partition that has only the
// URI and the schema of the output. It ignores inputs whose schemas are unknown.
func inputSchemas(
	ctx context.Context, p *plan.Plan, upstream string, set plan.InputSet, snap *snapshot.Snapshot, s *state.State, run *state.Run,
) (schemas []*state.Partition, err error) {
	items := set.Items
	if set.Group != "" {
		items = p.Groups[set.Group]
	}
	known := map[string]bool{"": true}
	for _, in := range items {
		var uri, hash string
		if in.TaskKey != "" {
			if row := s.Tasks.Get(state.Key2{A: run.RunID, B: in.TaskKey}); row != nil && row.State == state.TaskSucceeded {
				uri, hash = row.OutputURI, row.SchemaHash
			}
		} else {
			row, err := snap.Partition(ctx, upstream, in.PartitionKey)
			if err != nil {
				return nil, err
			}
			if row != nil && row.OutputURI == in.URI {
				uri, hash = row.OutputURI, row.SchemaHash
			}
		}
		if !known[hash] {
			known[hash] = true
			schemas = append(schemas, &state.Partition{OutputURI: uri, SchemaHash: hash})
		}
	}
	return schemas, nil
}
