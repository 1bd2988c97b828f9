package project

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/space"
)

// lookbackCheck checks the queries of daily assets. It reports an expression that needs rows of several days from an
// upstream asset, if the upstream asset is partitioned by days or shorter periods. From such an asset, a task reads
// only the day of its own partition, so the expression would find too few rows.
type lookbackCheck struct {
	loader  *loader
	known   map[ids.AssetKey]*declared
	origins map[assetColumn]origin
}

type assetColumn struct {
	key       ids.AssetKey
	dimension string
	column    string
}

// origin is the origin of the values in an asset's column.
type origin int

const (
	originUnknown origin = iota
	originAbsent         // the asset has no such column
	originDay            // the column contains the day of the partition in all rows
)

func (c *lookbackCheck) check(a *declared) {
	day := a.Partitions.Time()
	if day == nil || day.Kind != space.Daily {
		return
	}
	dimension := day.Name
	for _, b := range a.lookbacks {
		switch b.Variable {
		case "", dimension, dimension + "_start":
		case dimension + "_end": // the start of the next day
			if b.From++; b.From >= 0 {
				continue
			}
		default:
			continue
		}
		if b.Count != "" && c.loader.project.Vars[strings.TrimPrefix(b.Count, plan.VarPrefix)].Type != plan.VarInteger {
			continue
		}
		sets := [][]Column{b.Columns}
		certain := slices.IndexFunc(b.Days, func(columns []Column) bool { return !c.day(columns, dimension) }) < 0
		var upstreams []string
		for _, columns := range append(sets, b.Days...) {
			names := c.upstreams(columns, dimension)
			certain = certain && len(names) > 0
			upstreams = append(upstreams, names...)
		}
		slices.Sort(upstreams)
		upstreams = slices.DeleteFunc(slices.Compact(upstreams), func(name string) bool { return c.covered(a, b, name) })
		if certain && len(upstreams) > 0 {
			c.report(a, b, upstreams)
		}
	}
}

// covered reports whether the mapping that the asset declares for an upstream asset includes the days that a lookback
// needs. It also returns true if the mapping says that the query reads only one day.
func (c *lookbackCheck) covered(a *declared, b Lookback, upstream string) bool {
	for _, d := range a.Reads {
		if d.Asset.String() != upstream {
			continue
		}
		if d.Map.Op != "" {
			return true
		}
		m, err := plan.Mapping(&c.known[d.Asset].Asset, &a.Asset)
		if err != nil {
			return true // the problem was already reported
		}
		at := c.known[d.Asset].Partitions.Time()
		if at == nil || len(d.Map.Dimensions) == 0 {
			return false
		}
		op, _ := m.Of(at.Name)
		declared := slices.ContainsFunc(d.Map.Dimensions, func(x space.DimensionMap) bool { return x.Dimension == op.Dimension })
		return declared && (op.Op != space.Window || b.From == 0 || op.From <= b.From)
	}
	return false
}

func (c *lookbackCheck) report(a *declared, b Lookback, names []string) {
	dimension, upstreams := a.Partitions.Time().Name, strings.Join(names, ", ")
	variable := "getvariable('" + dimension + "')"
	days := "-N"
	if b.From < 0 {
		days = strconv.FormatInt(b.From, 10)
	}
	last := 0
	if names[0] == a.Key.String() {
		last = -1 // a partition cannot read itself
	}
	what := "filter on " + b.Column + " needs days before " + variable
	suggestion := fmt.Sprintf("add deps: [{asset: %s, map: {%s: {window: [%s, %d]}}}], or remove partitions from the asset, so that it reads every day",
		names[0], dimension, days, last)
	switch {
	case b.Window:
		what = "window over " + b.Column + " needs several days"
	case len(b.Days) > 0:
		what = "filter on " + b.Column + " needs days other than " + variable
	default:
		suggestion += fmt.Sprintf("; or, if %s is not the day of the partition, compare date_diff('day', %s, %s) instead",
			b.Column, b.Column, variable)
	}
	c.loader.report(a.queryPlace(b.Offset), suggestion, "the %s, but a task of a daily asset reads only the same day of %s",
		what, upstreams)
}

// upstreams returns the assets that have one of the columns and are partitioned by days or shorter periods. It
// returns none if the name in the query may also refer to a column of another table.
func (c *lookbackCheck) upstreams(columns []Column, dimension string) (names []string) {
	for _, column := range columns {
		key, what := column.classify()
		upstream := c.known[key]
		switch {
		case what != refAsset || upstream == nil:
			return nil
		case c.origin(key, column.Name, dimension) == originAbsent:
		case upstream.Partitions.Time() == nil || upstream.Partitions.Time().PeriodsExceedDay():
			return nil
		default:
			names = append(names, key.String())
		}
	}
	return names
}

// day reports whether the value of a column name in the query is always the day of the partition. The name may refer
// to any of the given columns.
func (c *lookbackCheck) day(columns []Column, dimension string) bool {
	return c.common(columns, dimension) == originDay
}

// common returns the origin of a name that may refer to any of the given columns. If the origin of one of the columns
// is unknown, it returns originUnknown.
func (c *lookbackCheck) common(columns []Column, dimension string) origin {
	found := originAbsent
	for _, column := range columns {
		key, what := column.classify()
		if what != refAsset {
			return originUnknown
		}
		switch c.origin(key, column.Name, dimension) {
		case originUnknown:
			return originUnknown
		case originAbsent:
		case originDay:
			found = originDay
		}
	}
	return found
}

// origin returns the origin of a column of an asset.
func (c *lookbackCheck) origin(key ids.AssetKey, column, dimension string) origin {
	at := assetColumn{key, dimension, column}
	if found, ok := c.origins[at]; ok {
		return found
	}
	c.origins[at] = originUnknown // ends the search if the asset reads itself through other assets
	found := originUnknown
	if a := c.known[key]; a != nil {
		found = c.find(a, column, dimension)
	}
	c.origins[at] = found
	return found
}

func (c *lookbackCheck) find(a *declared, column, dimension string) origin {
	d := a.Partitions.Dimension(dimension)
	daily := d != nil && d.Kind == space.Daily
	o, named := a.output.Named[column]
	switch {
	case named && o.Variable != "" && o.Variable == dimension && daily:
		return originDay
	case !named && !a.output.Complete:
		return originUnknown
	case !named:
		for _, ref := range a.output.Rest {
			o.Columns = append(o.Columns, Column{Ref: ref, Name: column})
		}
	case len(o.Columns) == 0:
		return originUnknown
	}
	found := c.common(o.Columns, dimension)
	if found == originAbsent && !named && daily && column == dimension && !a.NoPartitionColumns {
		return originDay // this is the partition column
	}
	if found == originDay && !daily || found == originAbsent && named {
		return originUnknown
	}
	return found
}
