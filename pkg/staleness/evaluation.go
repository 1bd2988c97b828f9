package staleness

import (
	"fmt"
	"slices"
	"strings"

	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/space"
	"github.com/servo-orchestration/servo/pkg/state"
)

// Status is the state of a partition.
type Status string

// Statuses.
const (
	Missing Status = "missing" // expected, and never materialized
	Fresh   Status = "fresh"
	Stale   Status = "stale"
	// Unexpected is a partition that is neither materialized nor expected: its period has not ended,
	// or the asset does not declare it.
	Unexpected Status = "unexpected"
)

// Data is what an evaluation reads.
type Data struct {
	// Rows returns the rows of an asset's partitions in the order of their keys.
	Rows func(asset ids.AssetKey) []*state.Partition
	// Accepted returns the codes of an asset that count as a code; nil: there are none.
	Accepted func(asset ids.AssetKey, code string) ([]string, error)
	// Calendar decides which partitions are expected.
	Calendar plan.Calendar
}

// Partition is a partition of an asset with its status.
type Partition struct {
	Key    string
	Status Status
	Row    *state.Partition // nil: not materialized
}

// Counts counts the partitions of an asset by status.
type Counts struct {
	Fresh   int `json:"fresh"`
	Stale   int `json:"stale"`
	Missing int `json:"missing"`
}

// Evaluation evaluates the partitions of assets at one state. It reads the rows of an asset once. It
// is not safe for concurrent use.
type Evaluation struct {
	graph   *plan.Graph
	data    Data
	readers *plan.Readers
	assets  map[ids.AssetKey]*evaluated
}

// evaluated is an asset with the rows of the partitions that it declares.
type evaluated struct {
	asset  *plan.Asset
	rows   map[string]*state.Partition
	keys   []string // sorted
	newest newest
	// codes are the codes that count as the current code; nil: the current code is unknown.
	codes map[string]bool
}

// New returns an evaluation of the assets of a graph.
func New(g *plan.Graph, d Data) *Evaluation {
	return &Evaluation{graph: g, data: d, readers: g.Readers(d.Calendar), assets: map[ids.AssetKey]*evaluated{}}
}

func (e *Evaluation) asset(key ids.AssetKey) (*evaluated, error) {
	if known := e.assets[key]; known != nil {
		return known, nil
	}
	asset, ok := e.graph.Asset(key)
	if !ok {
		return nil, fmt.Errorf("evaluate asset %s: it is not declared", key)
	}
	members, err := e.data.Calendar.Members(asset.Partitions)
	if err != nil {
		return nil, fmt.Errorf("evaluate asset %s: %w", key, err)
	}
	a := &evaluated{asset: asset, rows: map[string]*state.Partition{}}
	for _, row := range e.data.Rows(key) {
		if !members.Has(row.PartitionKey) {
			continue
		}
		a.rows[row.PartitionKey] = row
		a.keys = append(a.keys, row.PartitionKey)
		a.newest.add(row)
	}
	if asset.Code != "" {
		a.codes = map[string]bool{asset.Code: true}
		if e.data.Accepted != nil {
			codes, err := e.data.Accepted(key, asset.Code)
			if err != nil {
				return nil, err
			}
			for _, code := range codes {
				a.codes[code] = true
			}
		}
	}
	e.assets[key] = a
	return a, nil
}

// changed reports whether a row was made by code that is not current. Unknown code counts as current.
func (a *evaluated) changed(row *state.Partition) bool {
	return a.codes != nil && row.Code != "" && !a.codes[row.Code]
}

// status returns the status of a materialized partition.
func (e *Evaluation) status(a *evaluated, row *state.Partition) (Status, error) {
	if a.changed(row) {
		return Stale, nil
	}
	for _, dep := range a.asset.Deps {
		up, err := e.asset(dep)
		if err != nil {
			return "", err
		}
		keys, all, err := e.image(a.asset, row.PartitionKey, up, nil)
		if err != nil {
			return "", err
		}
		if all && up.newest.newerThan(row) {
			return Stale, nil
		}
		for _, key := range keys {
			if q := up.rows[key]; q != nil && newer(row, q) {
				return Stale, nil
			}
		}
	}
	return Fresh, nil
}

// image returns the partitions of an upstream asset that a partition reads, if those in chosen existed,
// too. all means every partition that the upstream declares.
func (e *Evaluation) image(reader *plan.Asset, partition string, up *evaluated, chosen []string) (keys []string, all bool, err error) {
	images, err := e.readers.Of(reader.Key, up.asset.Key)
	if err != nil {
		return nil, false, err
	}
	image, err := images.Image(partition)
	switch {
	case err != nil:
		return nil, false, fmt.Errorf("partition %s of asset %s: %w", partition, reader.Key, err)
	case !image.Latest:
		return image.Keys, image.All, nil
	}
	return images.Newest(image.Keys, func(key string) bool { return up.rows[key] != nil || has(chosen, key) }), false, nil
}

// has reports whether a sorted list contains a key.
func has(sorted []string, key string) bool {
	_, found := slices.BinarySearch(sorted, key)
	return found
}

// maxExpected is the greatest number of partitions of an asset that are listed.
const maxExpected = 10 * space.MaxPeriods

// expected returns the keys of the partitions that an asset should have.
func (e *Evaluation) expected(a *plan.Asset) ([]string, error) {
	keys, err := e.data.Calendar.Expected(a.Partitions, maxExpected)
	if err != nil {
		return nil, fmt.Errorf("list partitions of asset %s: %w", a.Key, err)
	}
	return keys, nil
}

// Partitions returns the expected and the materialized partitions of an asset, sorted by key.
func (e *Evaluation) Partitions(key ids.AssetKey) ([]Partition, error) {
	a, err := e.asset(key)
	if err != nil {
		return nil, err
	}
	expected, err := e.expected(a.asset)
	if err != nil {
		return nil, err
	}
	found := make([]Partition, 0, len(expected)+len(a.keys))
	for _, partition := range expected {
		if a.rows[partition] == nil {
			found = append(found, Partition{Key: partition, Status: Missing})
		}
	}
	for _, partition := range a.keys {
		row := a.rows[partition]
		status, err := e.status(a, row)
		if err != nil {
			return nil, err
		}
		found = append(found, Partition{partition, status, row})
	}
	slices.SortFunc(found, func(x, y Partition) int { return strings.Compare(x.Key, y.Key) })
	return found, nil
}

// Count counts the partitions of an asset by status.
func (e *Evaluation) Count(key ids.AssetKey) (Counts, error) {
	partitions, err := e.Partitions(key)
	var c Counts
	for _, p := range partitions {
		switch p.Status {
		case Fresh:
			c.Fresh++
		case Stale:
			c.Stale++
		case Missing:
			c.Missing++
		case Unexpected:
		}
	}
	return c, err
}

// ToRun returns the partitions of the selected assets to materialize: those that are missing or
// stale, and those that read one of them. It leaves out partitions that read a partition which neither
// exists nor is to be materialized, and counts them as blocked.
func (e *Evaluation) ToRun(selected map[ids.AssetKey]bool) (chosen map[ids.AssetKey][]string, blocked int, err error) {
	return e.choose(selected, func(p Partition, rereads bool) bool { return p.Status != Fresh || rereads })
}

// ToMake is ToRun for the partitions that are missing.
func (e *Evaluation) ToMake(selected map[ids.AssetKey]bool) (chosen map[ids.AssetKey][]string, blocked int, err error) {
	return e.choose(selected, func(p Partition, _ bool) bool { return p.Status == Missing })
}

func (e *Evaluation) choose(
	selected map[ids.AssetKey]bool, needs func(p Partition, rereads bool) bool,
) (chosen map[ids.AssetKey][]string, blocked int, err error) {
	order, err := e.graph.Topological()
	if err != nil {
		return nil, 0, err
	}
	chosen = map[ids.AssetKey][]string{}
	for _, key := range order {
		a, _ := e.graph.Asset(key)
		if !selected[key] || a.Broken != "" {
			continue
		}
		partitions, err := e.Partitions(key)
		if err != nil {
			return nil, 0, err
		}
		for _, p := range partitions {
			rereads, complete, err := e.inputs(a, p.Key, chosen)
			switch {
			case err != nil:
				return nil, 0, err
			case !needs(p, rereads):
			case !complete:
				blocked++
			default:
				chosen[key] = append(chosen[key], p.Key)
			}
		}
	}
	return chosen, blocked, nil
}

// inputs reports whether a partition reads one of the chosen partitions, and whether it reads something
// of each upstream asset that exists or is chosen. Lists of chosen partitions are sorted.
func (e *Evaluation) inputs(a *plan.Asset, partition string, chosen map[ids.AssetKey][]string) (rereads, complete bool, err error) {
	complete = true
	for _, dep := range a.Deps {
		up, err := e.asset(dep)
		if err != nil {
			return false, false, err
		}
		keys, all, err := e.image(a, partition, up, chosen[dep])
		if err != nil {
			return false, false, err
		}
		reads := all && len(chosen[dep])+len(up.keys) > 0
		rereads = rereads || all && len(chosen[dep]) > 0
		for _, key := range keys {
			is := has(chosen[dep], key)
			rereads = rereads || is
			reads = reads || is || up.rows[key] != nil
		}
		complete = complete && reads
	}
	return rereads, complete, nil
}
