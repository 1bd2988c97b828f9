// Package backfill divides many partitions of several assets into chunks, and stores the partitions of the
// chunks as a document. A chunk is one run. The package is pure. This package is not a stable API.
package backfill

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
)

// MaxCells is the maximum number of partitions of a backfill.
const MaxCells = 1_000_000

// DefaultSize is the number of partitions of a chunk unless the caller says otherwise. A backfill with more than
// [event.MaxChunks] such chunks gets larger ones.
const DefaultSize = 100

// oversize is the factor by which a chunk whose partitions depend on each other may exceed the chunk size.
const oversize = 4

// Options say how partitions are divided.
type Options struct {
	// Size is the number of partitions of a chunk; 0: a default.
	Size int
	// Newest puts the newest partitions, not the oldest, into the first chunks.
	Newest bool
	// Form is the form in which errors name the options of the request.
	Form plan.Form
}

// Chunks is the result of [Split]: the selected partitions, divided into chunks.
type Chunks struct {
	// Lists are the cells of each chunk, sorted by task key. Chunks start in the order of the list.
	Lists [][]Cell
	// Stages lists the number of the first chunk of each stage, except for the first stage, which starts with chunk 0.
	// The partitions of a stage read only partitions of their own chunk, or of earlier stages.
	Stages []int32
	// Ordered is an asset that reads more of its own earlier partitions than fit into a chunk. In this case, every chunk
	// is a stage. The zero key means that there is no such asset.
	Ordered ids.AssetKey
}

// Cell is one partition of an asset.
type Cell struct {
	Asset     ids.AssetKey
	Partition string // the partition key
	Task      string // the task key
}

// Split divides the selected partitions of assets into chunks, so that no partition reads a partition in another chunk
// of the same stage.
//
// If few partitions depend on each other, Split puts them into one chunk: for example, the days of a month, and the
// month itself. If many partitions depend on each other, for example because each day reads the 30 days before it,
// the reading asset belongs to a later stage than the asset that it reads. The same holds for an asset that reads all
// or the latest partitions of another asset. If an asset reads its own earlier partitions and these do not fit into
// one chunk, every chunk is a stage.
func Split(g *plan.Graph, c plan.Calendar, selected map[ids.AssetKey][]string, o Options) (*Chunks, error) {
	total := 0
	for _, keys := range selected {
		total += len(keys)
	}
	switch {
	case total == 0:
		return nil, fmt.Errorf("no partition is selected")
	case total > MaxCells:
		return nil, fmt.Errorf("%d partitions are selected: a backfill has at most %d: select fewer, or create several backfills", total, MaxCells)
	case o.Size < 0 || o.Size > event.MaxChunkCells:
		return nil, fmt.Errorf("the chunk size is %d partitions: it must be 1 to %d", o.Size, event.MaxChunkCells)
	case o.Size == 0:
		o.Size = max(DefaultSize, (2*total+event.MaxChunks-1)/event.MaxChunks) // doubled, because chunks may be half full
	}
	order, err := g.Topological()
	if err != nil {
		return nil, err
	}
	s := &splitter{
		calendar: c, readers: g.Readers(c), options: o, most: min(oversize*o.Size, event.MaxChunkCells), assets: map[ids.AssetKey]*selection{},
		cells: make([]placed, 0, total), parents: make([]int32, 0, total),
	}
	for _, key := range order {
		asset, _ := g.Asset(key)
		if len(selected[key]) == 0 {
			continue
		}
		if err := s.add(asset, selected[key]); err != nil {
			return nil, err
		}
	}
	if len(s.cells) < total {
		return nil, fmt.Errorf("a selected asset is not declared")
	}
	return s.chunks()
}

// selection is the set of selected partitions of one asset.
type selection struct {
	stage int32
	at    map[string]int32 // positions in splitter.cells, by partition key
}

// placed is a cell with its stage and the bounds of its period.
type placed struct {
	Cell
	stage      int32
	start, end int64 // bounds of the cell's period, in microseconds since 1970; for a cell without a period, the least and the greatest value
}

type splitter struct {
	calendar plan.Calendar
	readers  *plan.Readers
	options  Options
	most     int
	assets   map[ids.AssetKey]*selection
	cells    []placed
	// parents joins cells that depend on each other into trees: the entry of a cell is its parent. The entry of a root
	// is the negated number of cells in its tree.
	parents []int32
	// ordered is the first asset that reads more of its own earlier partitions than fit into a chunk. selfReads contains
	// pairs of cells of such assets: the first cell of a pair reads the second.
	ordered   ids.AssetKey
	selfReads [][2]int32
}

// add adds the partitions of an asset. The assets that it reads must be added first.
func (s *splitter) add(asset *plan.Asset, keys []string) error {
	own := &selection{at: make(map[string]int32, len(keys))}
	first := int32(len(s.cells)) //nolint:gosec // at most MaxCells
	for i, key := range keys {
		cell, err := s.place(asset, key)
		if err != nil {
			return err
		}
		own.at[key] = first + int32(i) //nolint:gosec // as above
		s.cells = append(s.cells, cell)
		s.parents = append(s.parents, -1)
	}
	joins, lastRead, err := s.reads(asset, keys, own)
	if err != nil {
		return err
	}
	if len(joins) > 0 && !s.join(joins) {
		own.stage = lastRead + 1
	}
	for i := range s.cells[first:] {
		s.cells[int(first)+i].stage = own.stage
	}
	s.assets[asset.Key] = own
	if !asset.ReadsItself() {
		return nil
	}
	if joins, _, err = s.pairs(asset, asset.Key, keys, own, own); err != nil || s.join(joins) {
		return err
	}
	s.selfReads = append(s.selfReads, joins...)
	if s.ordered == (ids.AssetKey{}) {
		s.ordered = asset.Key
	}
	return nil
}

// place returns the cell of a partition, with the bounds of its period.
func (s *splitter) place(asset *plan.Asset, key string) (placed, error) {
	partition, err := ids.ParsePartition(key)
	if err != nil {
		return placed{}, fmt.Errorf("asset %s: %w", asset.Key, err)
	}
	p := placed{Cell: Cell{asset.Key, key, ids.TaskKey(asset.Key, partition)}, start: math.MinInt64, end: math.MaxInt64}
	if asset.Partitions == nil || asset.Partitions.Time() == nil {
		return p, nil
	}
	d := asset.Partitions.Time()
	start, end, err := s.calendar.Interval(d, partition[d.Name])
	if err != nil {
		return p, fmt.Errorf("partition %s of asset %s: %w", key, asset.Key, err)
	}
	p.start, p.end = start.UnixMicro(), end.UnixMicro()
	return p, nil
}

// reads finds the selected partitions that each partition of an asset reads. It sets the stage of the asset, and
// returns the pairs of cells within this stage. The result lastRead is the greatest stage of a dependency for which the
// method pairs returns pairs.
func (s *splitter) reads(asset *plan.Asset, keys []string, own *selection) (joins [][2]int32, lastRead int32, err error) {
	type narrow struct {
		stage int32
		pairs [][2]int32
	}
	var edges []narrow
	for _, dep := range asset.Deps {
		up := s.assets[dep]
		if up == nil {
			continue
		}
		pairs, wide, err := s.pairs(asset, dep, keys, own, up)
		switch {
		case err != nil:
			return nil, 0, err
		case wide:
			own.stage = max(own.stage, up.stage+1)
		case len(pairs) > 0:
			own.stage, lastRead = max(own.stage, up.stage), max(lastRead, up.stage)
			edges = append(edges, narrow{up.stage, pairs})
		}
	}
	for _, edge := range edges {
		if edge.stage == own.stage {
			joins = append(joins, edge.pairs...)
		}
	}
	return joins, lastRead, nil
}

// pairs returns which cells of an asset read which cells of a dependency: the first cell of a pair reads the second.
// If the asset reads all or the latest partitions of the dependency, wide is true, and pairs is nil.
func (s *splitter) pairs(asset *plan.Asset, dep ids.AssetKey, keys []string, own, up *selection) (pairs [][2]int32, wide bool, err error) {
	edge, err := s.readers.Of(asset.Key, dep)
	if err != nil {
		return nil, false, err
	}
	if edge.ReadsAll() || edge.ReadsLatest() {
		if len(keys) > 1 || len(up.at) > 1 {
			return nil, true, nil
		}
		for _, to := range up.at {
			return [][2]int32{{own.at[keys[0]], to}}, false, nil
		}
	}
	for _, key := range keys {
		image, err := edge.Image(key)
		if err != nil {
			return nil, false, fmt.Errorf("partition %s of asset %s: %w", key, asset.Key, err)
		}
		if image.All {
			return nil, true, nil
		}
		for _, k := range image.Keys {
			if to, ok := up.at[k]; ok {
				pairs = append(pairs, [2]int32{own.at[key], to})
			}
		}
	}
	return pairs, false, nil
}

// join connects the cells of each pair. If a tree of connected cells would become larger than a chunk may be, join
// connects no cells and returns false.
func (s *splitter) join(pairs [][2]int32) bool {
	before := slices.Clone(s.parents)
	for _, pair := range pairs {
		a, b := s.root(pair[0]), s.root(pair[1])
		if a == b {
			continue
		}
		if s.parents[a] > s.parents[b] { // b has more cells
			a, b = b, a
		}
		s.parents[a] += s.parents[b]
		s.parents[b] = a
		if int(-s.parents[a]) > s.most {
			s.parents = before
			return false
		}
	}
	return true
}

// root returns the root of the tree that contains a cell, and shortens the path to it.
func (s *splitter) root(i int32) int32 {
	for s.parents[i] >= 0 {
		if next := s.parents[s.parents[i]]; next >= 0 {
			s.parents[i] = next
		}
		i = s.parents[i]
	}
	return i
}

// component is a set of cells that depend on each other.
type component struct {
	cells      []int32
	stage      int32
	start, end int64
	first      string // the least task key
}

// chunks packs the components of each stage into chunks.
func (s *splitter) chunks() (*Chunks, error) {
	found := map[int32]*component{}
	for i := range s.cells {
		cell, root := &s.cells[i], s.root(int32(i)) //nolint:gosec // at most MaxCells
		c := found[root]
		if c == nil {
			c = &component{stage: cell.stage, start: cell.start, end: cell.end, first: cell.Task}
			found[root] = c
		}
		c.cells = append(c.cells, int32(i)) //nolint:gosec // as above
		c.start, c.end, c.first = min(c.start, cell.start), max(c.end, cell.end), min(c.first, cell.Task)
	}
	components := make([]*component, 0, len(found))
	for _, c := range found {
		components = append(components, c)
	}
	slices.SortFunc(components, func(a, b *component) int {
		inTime := cmp.Or(cmp.Compare(a.start, b.start), cmp.Compare(a.end, b.end))
		if s.options.Newest {
			inTime = cmp.Or(cmp.Compare(b.end, a.end), cmp.Compare(b.start, a.start))
		}
		return cmp.Or(cmp.Compare(a.stage, b.stage), inTime, strings.Compare(a.first, b.first))
	})
	out := &Chunks{}
	stage := int32(-1)
	for _, c := range components {
		last := len(out.Lists) - 1
		if c.stage != stage || len(out.Lists[last])+len(c.cells) > s.options.Size {
			out.Lists = append(out.Lists, nil)
			if last++; c.stage != stage && last > 0 {
				out.Stages = append(out.Stages, int32(last)) //nolint:gosec // at most MaxCells
			}
			stage = c.stage
		}
		for _, i := range c.cells {
			out.Lists[last] = append(out.Lists[last], s.cells[i].Cell)
		}
	}
	if n := len(out.Lists); n > event.MaxChunks {
		return nil, fmt.Errorf("the backfill has %d chunks: at most %d are allowed: make them larger with %s %d", n, event.MaxChunks,
			s.options.Form.Name(plan.OptionChunk), min(event.MaxChunkCells, 2*s.options.Size*(n/event.MaxChunks+1)))
	}
	if out.Ordered = s.ordered; s.ordered != (ids.AssetKey{}) {
		if err := s.checkOrder(components, out); err != nil {
			return nil, err
		}
	}
	for _, list := range out.Lists {
		sortCells(list)
	}
	return out, nil
}

// checkOrder makes every chunk a stage. It returns an error if an asset reads one of its own partitions from a later
// chunk.
func (s *splitter) checkOrder(components []*component, out *Chunks) error {
	if s.options.Newest {
		return fmt.Errorf("asset %s reads its own earlier partitions, so the oldest partitions must be materialized first: remove %s", s.ordered, s.options.Form.Name(plan.OptionNewest))
	}
	chunkOf := make([]int32, len(s.cells))
	placed, chunk := 0, int32(0)
	for _, c := range components {
		if placed == len(out.Lists[chunk]) {
			placed, chunk = 0, chunk+1
		}
		for _, i := range c.cells {
			chunkOf[i] = chunk
		}
		placed += len(c.cells)
	}
	for _, pair := range s.selfReads {
		if chunkOf[pair[1]] > chunkOf[pair[0]] {
			return fmt.Errorf("%s reads %s, which belongs to a later chunk: create a backfill of asset %s alone, or make the chunks larger with %s",
				s.cells[pair[0]].Task, s.cells[pair[1]].Task, s.cells[pair[0]].Asset, s.options.Form.Name(plan.OptionChunk))
		}
	}
	out.Stages = nil
	for i := range out.Lists[1:] {
		out.Stages = append(out.Stages, int32(i+1)) //nolint:gosec // at most event.MaxChunks
	}
	return nil
}

// sortCells sorts cells by task key, the order of the positions in a chunk.
func sortCells(list []Cell) {
	slices.SortFunc(list, func(a, b Cell) int { return strings.Compare(a.Task, b.Task) })
}
