package plan

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/space"
)

// Calendar holds the time, the zone data and the key sets on which partitions depend.
type Calendar = space.Calendar

// Selection selects partitions.
type Selection = space.Selection

// ParseSelection parses a selection such as "date=2025-01-15": see [space.ParseSelection].
func ParseSelection(text string) (Selection, error) { return space.ParseSelection(text) }

// Values of [Dep.Requires] and [Asset.Requires].
const (
	// RequiresComplete rejects a run if an expected partition of an upstream asset is missing. It is
	// the default.
	RequiresComplete = "complete"
	// RequiresAvailable lets a run read the partitions that exist, and warns of missing ones.
	RequiresAvailable = "available"
)

// Dep contains what the project declares about how an asset reads one of its dependencies.
type Dep struct {
	Asset ids.AssetKey `json:"asset"`
	// Map is the mapping from a partition of the asset to the partitions that it reads. If it is zero,
	// the mapping is inferred from the dimensions of both assets.
	Map space.Map `json:"map"`
	// Requires is [RequiresComplete] or [RequiresAvailable]. "": the setting of the asset applies.
	Requires string `json:"requires,omitempty"`
	// RequireQuality means that the asset must not read degraded outputs of the dependency.
	RequireQuality bool `json:"require_quality,omitempty"`
}

// dep returns the declared settings of a dependency.
func (a *Asset) dep(key ids.AssetKey) Dep {
	for _, d := range a.Reads {
		if d.Asset == key {
			return d
		}
	}
	return Dep{Asset: key}
}

// RequiresComplete reports whether every expected partition of a dependency must exist.
func (a *Asset) RequiresComplete(key ids.AssetKey) bool {
	return cmp.Or(a.dep(key).Requires, a.Requires, RequiresComplete) == RequiresComplete
}

// Mapping returns the mapping from the partitions of a reader to the upstream partitions that they read.
func Mapping(upstream, reader *Asset) (*space.Mapping, error) {
	m, err := space.Infer(upstream.Partitions, reader.Partitions, reader.dep(upstream.Key).Map)
	if err != nil {
		return nil, fmt.Errorf("asset %s reads %s: %w", reader.Key, upstream.Key, err)
	}
	return m, nil
}

// Readers computes which partitions of one asset read which partitions of another. It caches its results. Only one
// goroutine may use it.
type Readers struct {
	graph    *Graph
	calendar Calendar
	known    map[[2]ids.AssetKey]*space.Reader
}

// Readers returns a [Readers] for the assets of the graph. c determines which periods have begun.
func (g *Graph) Readers(c Calendar) *Readers {
	return &Readers{graph: g, calendar: c, known: map[[2]ids.AssetKey]*space.Reader{}}
}

// Of returns the [space.Reader] of an edge, which computes the upstream partitions that each partition of the reader
// reads. Both parameters are keys of assets.
func (r *Readers) Of(reader, upstream ids.AssetKey) (*space.Reader, error) {
	edge := [2]ids.AssetKey{reader, upstream}
	if found, ok := r.known[edge]; ok {
		return found, nil
	}
	down, ok := r.graph.Asset(reader)
	if !ok {
		return nil, fmt.Errorf("unknown asset %s", reader)
	}
	up, ok := r.graph.Asset(upstream)
	if !ok {
		return nil, fmt.Errorf("unknown asset %s", upstream)
	}
	m, err := Mapping(up, down)
	if err != nil {
		return nil, err
	}
	found, err := r.calendar.Reader(m)
	if err != nil {
		return nil, fmt.Errorf("asset %s reads %s: %w", reader, upstream, err)
	}
	r.known[edge] = found
	return found, nil
}

// Reads returns the upstream partitions that one partition of the reader reads. The planner and the evaluation of
// staleness both use it.
func (r *Readers) Reads(reader, upstream ids.AssetKey, partitionKey string) (space.Image, error) {
	edge, err := r.Of(reader, upstream)
	if err != nil {
		return space.Image{}, err
	}
	return edge.Image(partitionKey)
}

// Period is the time interval of a partition. Its end is exclusive.
type Period struct {
	Start time.Time `json:"start"`
	End   time.Time `json:"end"`
}

// period returns the interval of a partition, or nil if the asset has no dimension of time.
func period(c Calendar, s *space.Space, partition ids.Partition) (*Period, error) {
	d := s.Time()
	if d == nil {
		return nil, nil
	}
	start, end, err := c.Interval(d, partition[d.Name])
	if err != nil {
		return nil, err
	}
	return &Period{Start: start.UTC(), End: end.UTC()}, nil
}

// SQLLiteral converts a value of a partition key to a text that SQL can cast to the type of the dimension: a month or
// a year to its first day, and an hour to its start in UTC.
func SQLLiteral(sqlType, value string) string {
	switch {
	case sqlType == "DATE" && len(value) == len("2006"):
		return value + "-01-01"
	case sqlType == "DATE" && len(value) == len("2006-01"):
		return value + "-01"
	case sqlType != "TIMESTAMPTZ":
		return value
	}
	for _, layout := range []string{"2006-01-02T15:04Z07:00", "2006-01-02T15:04", time.DateOnly} {
		if t, err := time.Parse(layout, value); err == nil {
			return strings.Replace(t.UTC().Format("2006-01-02 15:04:05Z07:00"), "Z", "+00", 1)
		}
	}
	return value
}
