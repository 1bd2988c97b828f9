package project

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/servo-orchestration/servo/pkg/calendar"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/quality"
	"github.com/servo-orchestration/servo/pkg/space"
)

// BatchQuery is the query of an asset that sets batch. For each table that the query reads, it describes how the rows
// depend on the partitions of the batch.
type BatchQuery struct {
	SQL        string
	Dimensions []BatchDimension
	// Tables describes the assets that the query reads, by "namespace.name" in lower case. Each has an item for each
	// dimension.
	Tables map[string][]BatchTable
}

// BatchDimension is a dimension of the partitions of a batch.
type BatchDimension struct {
	Name, Type string
	// Unit is the unit with which date_trunc returns the start of a period, such as "day". Empty: there is no such unit.
	Unit string
	// Zone is the time zone in which periods begin.
	Zone string
	// WholeHours means that the clocks of Zone differ from UTC by whole hours at all times.
	WholeHours bool
}

// BatchTable describes how the rows of a table depend on one dimension of the batch.
type BatchTable struct {
	// Fixed means that every batch reads the same rows.
	Fixed bool
	// Column is the column that contains the partition of a row. If Finer is true, it contains a date or an instant
	// within the period of the partition instead.
	Column string
	Finer  bool
	// Type is the type of the column.
	Type string
	// Why is the reason why no column contains the partition of a row. Empty: a column contains it. Advice is a
	// suggestion for the user.
	Why, Advice string
}

// Mixing is an expression that may make a row depend on several partitions of a batch.
type Mixing struct {
	Offset         int // the position in the query, in bytes
	Reason, Advice string
}

// BatchChecker returns, for each query, the expressions that may mix partitions, in the order of their offsets. If a
// query has none, the rows of a partition are the same in every batch.
type BatchChecker func(ctx context.Context, queries []BatchQuery) ([][]Mixing, error)

// checkMixing reports queries for which the rows of a partition may depend on the other partitions of the batch.
func (l *loader) checkMixing(ctx context.Context) error {
	if l.options.CheckBatches == nil {
		return nil
	}
	known := make(map[ids.AssetKey]*declared, len(l.assets))
	for i := range l.assets {
		known[l.assets[i].Key] = &l.assets[i]
	}
	columns := partitionColumns{known: known, seen: map[assetColumn]columnOrigin{}}
	var of []*declared
	var queries []BatchQuery
	for i := range l.assets {
		a := &l.assets[i]
		if !a.Work.Batch || a.independent || a.Work.SQL == "" || a.Broken != "" || a.Partitions == nil || l.problems.files()[a.File] {
			continue
		}
		of, queries = append(of, a), append(queries, columns.query(a))
	}
	if len(of) == 0 {
		return nil
	}
	found, err := l.options.CheckBatches(ctx, queries)
	if err != nil {
		return fmt.Errorf("check queries with a batch: %w", err)
	}
	for i, a := range of {
		size := strconv.Itoa(a.Batch)
		if a.Batch == event.MaxBatch {
			size = batchAll
		}
		for _, m := range found[i] {
			advice := "remove batch; or, if each row depends on its own partition only, write batch: {size: " + size + ", independent: true}"
			if m.Advice != "" {
				advice = m.Advice + "; or " + advice
			}
			l.report(a.queryPlace(m.Offset), advice, "%s, so the result may depend on which partitions are in one batch", m.Reason)
		}
	}
	return nil
}

// partitionColumns finds the columns of assets that contain the partition to which a row belongs.
type partitionColumns struct {
	known map[ids.AssetKey]*declared
	seen  map[assetColumn]columnOrigin
}

// columnOrigin says what a column of an asset contains.
type columnOrigin int

const (
	columnUnknown   columnOrigin = iota
	columnAbsent                 // the output has no such column
	columnPartition              // the column contains the partition of the row
	columnRetyped                // it contains the partition, but perhaps in another type
)

// query returns the description of the query of an asset that sets batch.
func (c *partitionColumns) query(a *declared) BatchQuery {
	q := BatchQuery{SQL: a.Work.SQL, Tables: map[string][]BatchTable{}}
	for i := range a.Partitions.Dimensions {
		d := &a.Partitions.Dimensions[i]
		q.Dimensions = append(q.Dimensions, BatchDimension{
			Name: d.Name, Type: d.SQLType(), Unit: truncUnit(d), Zone: d.Zone(), WholeHours: calendar.WholeHours(d.Zone()),
		})
	}
	for _, key := range a.Deps {
		upstream := c.known[key]
		tables := make([]BatchTable, len(q.Dimensions))
		for i := range q.Dimensions {
			tables[i] = c.table(upstream, a, q.Dimensions[i].Name)
		}
		q.Tables[key.SQL()] = tables
	}
	return q
}

// truncUnit returns the unit with which date_trunc returns the start of a dimension's period, or "".
func truncUnit(d *space.Dimension) string {
	switch d.Kind {
	case space.Daily:
		return "day"
	case space.Hourly:
		if calendar.WholeHours(d.Zone()) { // date_trunc computes in UTC
			return "hour"
		}
	case space.Monthly:
		return "month"
	case space.Yearly:
		return "year"
	case space.Weekly:
		if d.Starts == "" || d.Starts == space.Weekdays[0] {
			return "week"
		}
	case space.Every, space.Static, space.Dynamic:
	}
	return ""
}

// table describes how the rows that a reader reads from an upstream asset depend on one dimension of the reader.
func (c *partitionColumns) table(upstream, reader *declared, dimension string) BatchTable {
	m, err := plan.Mapping(&upstream.Asset, &reader.Asset)
	if err != nil || upstream.Partitions == nil {
		return BatchTable{Fixed: true} // an error has already been reported
	}
	t := BatchTable{Fixed: true}
	for i := range upstream.Partitions.Dimensions {
		d := &upstream.Partitions.Dimensions[i]
		op, _ := m.Of(d.Name)
		if op.Op == space.All || op.Op == space.Latest || op.Dimension != dimension {
			continue
		}
		switch {
		case op.Op != space.Identity && op.Op != space.Coarsen:
			return BatchTable{
				Why:    fmt.Sprintf("several partitions of a batch read the same partitions of %s (%s)", upstream.Key, m),
				Advice: "filter the rows of each partition, for example by a join with unnest(getvariable('" + dimension + "_keys'))",
			}
		case c.origin(upstream, d.Name) < columnPartition:
			why := fmt.Sprintf("%s may have a column %s of its own, with other values than the partition", upstream.Key, d.Name)
			advice := "declare its columns under `columns`, or compute " + d.Name + " from getvariable('" + d.Name + "') in its query, before any *"
			if upstream.NoPartitionColumns {
				why, advice = fmt.Sprintf("%s does not offer its partition as a column", upstream.Key), "remove partition_columns: false"
			}
			return BatchTable{Why: why, Advice: advice}
		case op.Op == space.Coarsen && d.SQLType() == "TIMESTAMPTZ" && d.Zone() != "UTC" && c.origin(upstream, d.Name) == columnRetyped:
			return BatchTable{
				Why:    fmt.Sprintf("the column %s of %s may have another type than TIMESTAMPTZ", d.Name, upstream.Key),
				Advice: "cast it to TIMESTAMPTZ in the query of " + upstream.Key.String(),
			}
		}
		t = BatchTable{Column: d.Name, Finer: op.Op == space.Coarsen, Type: d.SQLType()}
	}
	return t
}

// origin says what the column with the name of a dimension contains, for readers of an asset.
func (c *partitionColumns) origin(a *declared, dimension string) columnOrigin {
	found := c.column(a, dimension, dimension)
	if found == columnAbsent && !a.NoPartitionColumns {
		return columnPartition // readers get the column from the key of the partition
	}
	return found
}

// column says what a column in the output of an asset contains.
func (c *partitionColumns) column(a *declared, column, dimension string) columnOrigin {
	at := assetColumn{a.Key, dimension, column}
	if found, ok := c.seen[at]; ok {
		return found
	}
	c.seen[at] = columnUnknown // ends the search if the asset reads itself through other assets
	found := c.find(a, column, dimension)
	c.seen[at] = found
	return found
}

func (c *partitionColumns) find(a *declared, column, dimension string) columnOrigin {
	if a.Partitions.Dimension(dimension) == nil {
		return columnUnknown
	}
	o, named := a.output.Named[column]
	isDate := a.Partitions.Dimension(dimension).SQLType() == "DATE"
	switch {
	case a.Work.SQL != "" && a.Work.Batch && column == dimension:
		return columnPartition // the worker rejects rows with other values
	case a.Work.SQL == "" || !named && !a.output.Complete:
		return c.declaredAbsent(a, column)
	case o.Change == Hidden || o.Change == Rewritten && !isDate:
		return columnUnknown
	case named && o.Variable == dimension && o.Change == Retyped:
		return columnRetyped
	case named && o.Variable == dimension:
		return columnPartition
	case named && len(o.Columns) == 0:
		return columnUnknown
	case !named:
		for _, ref := range a.output.Rest {
			o.Columns = append(o.Columns, Column{Ref: ref, Name: column})
		}
	}
	found := c.common(a, o.Columns, dimension, named)
	if found == columnPartition && o.Change == Retyped {
		return columnRetyped
	}
	return found
}

// declaredAbsent returns columnAbsent if the asset declares its columns and the column is not among them. Otherwise,
// it returns columnUnknown.
func (c *partitionColumns) declaredAbsent(a *declared, column string) columnOrigin {
	contract := quality.DeclaredColumns(a.Work.Checks)
	if contract != nil && !slices.ContainsFunc(contract, func(t quality.ColumnType) bool { return strings.EqualFold(t.Name, column) }) {
		return columnAbsent
	}
	return columnUnknown
}

// common says what a column of an asset contains if its values come from one of the given columns of tables that the
// asset reads.
func (c *partitionColumns) common(a *declared, columns []Column, dimension string, named bool) columnOrigin {
	found := columnAbsent
	for _, column := range columns {
		key, what := column.classify()
		upstream := c.known[key]
		if what != refAsset || upstream == nil {
			return columnUnknown
		}
		origin := c.upstream(a, upstream, column.Name, dimension)
		if origin == columnUnknown {
			return columnUnknown
		}
		found = max(found, origin)
	}
	if named && found == columnAbsent {
		return columnUnknown
	}
	return found
}

// upstream says what a column of an upstream asset contains for the asset a, whose query returns the column unchanged.
func (c *partitionColumns) upstream(a, upstream *declared, column, dimension string) columnOrigin {
	m, err := plan.Mapping(&upstream.Asset, &a.Asset)
	if err != nil || upstream.Partitions == nil {
		return columnUnknown
	}
	found := c.column(upstream, column, dimension)
	if column == dimension && upstream.Partitions.Dimension(dimension) != nil {
		found = c.origin(upstream, dimension)
	}
	if op, ok := m.Of(dimension); found >= columnPartition && (!ok || op.Op != space.Identity || op.Dimension != dimension) {
		return columnUnknown // it contains the partition of the upstream asset, which may differ from the reader's
	}
	return found
}
