package snapshot

import (
	"container/list"
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/state"
	"github.com/servo-orchestration/servo/pkg/table"
)

// Files of history are large. To read one run or one page, a reader opens the file's index of parts, and decodes only
// the parts that it needs. The files never change, so their bytes and indexes are cached.

const (
	// maxOpen limits the total size of the cached parts of files, in bytes.
	maxOpen = 128 << 20
	// maxHeads is the maximum number of elements in the cache of run heads, and in the cache of stretches (see
	// [stretch]). The cache of task heads has half as many.
	maxHeads = 1 << 18
	// maxFailed is the maximum number of cached failed tasks of closed runs. maxCells is the maximum number of cached
	// partitions.
	maxFailed, maxCells = 1 << 14, 1 << 14
)

// divided reports whether files have parts. Files of the simulator have none.
func (h History) divided() bool {
	if h.codec == nil {
		return false
	}
	_, divided := table.Divide(h.codec.files)
	return divided
}

// open returns the parts of a file.
func (h History) open(ctx context.Context, f manifest.File) (table.Parts, error) {
	if known, has := h.codec.opened.get(f.Key); has {
		return known, nil
	}
	data, err := h.store.LoadFile(ctx, f)
	if err != nil {
		return nil, err
	}
	format, _ := table.Divide(h.codec.files) // callers have checked that files have parts
	parts, err := format.Open(data)
	if err != nil {
		return nil, unreadable(f, err)
	}
	h.codec.opened.put(f.Key, parts, len(data))
	return parts, nil
}

func unreadable(f manifest.File, err error) error {
	return fmt.Errorf("read %s: %w; run `servo admin rebuild` to rebuild the state from the ledger", f.Key, err)
}

// runIDOnly has only the column with the id of a row's run. The files of a table whose rows belong to runs are sorted
// by this column.
type runIDOnly struct {
	RunID string `col:"run_id,key"`
}

// stretch is a sequence of adjacent rows of one run in a part.
type stretch struct {
	run  string
	rows table.Range
}

// stretches returns the stretches of a part of a file, sorted by run.
func (h History) stretches(d *state.Declaration, f manifest.File, parts table.Parts, part int) ([]stretch, error) {
	key := fmt.Sprintf("%s#%d", f.Key, part)
	if known, has := h.codec.stretches.get(key); has {
		return known, nil
	}
	var rows []runIDOnly
	rows, err := decodeRows[runIDOnly](runIDSchema(d.Name), parts, part)
	if err != nil {
		return nil, unreadable(f, err)
	}
	var found []stretch
	for i := range rows {
		if last := len(found) - 1; last >= 0 && found[last].run == rows[i].RunID {
			found[last].rows.To++
			continue
		}
		found = append(found, stretch{rows[i].RunID, table.Range{From: i, To: i + 1}})
	}
	if !slices.IsSortedFunc(found, func(a, b stretch) int { return strings.Compare(a.run, b.run) }) {
		return nil, unreadable(f, fmt.Errorf("part %d is not in ascending order", part))
	}
	h.codec.stretches.put(key, found, len(found))
	return found, nil
}

// runIDSchema returns the schema with which runIDOnly is decoded from a table.
func runIDSchema(name string) *table.Schema {
	schema := *unnamedRunIDSchema
	schema.Name = name
	return &schema
}

var unnamedRunIDSchema = &table.Of[runIDOnly]("").Schema

// decodeRows returns the rows of a part.
func decodeRows[R any](s *table.Schema, parts table.Parts, part int) ([]R, error) {
	return decodeWithin[R](s, parts, part, table.Range{From: 0, To: parts.Rows(part)})
}

// decodeWithin returns a range of the rows of a part.
func decodeWithin[R any](s *table.Schema, parts table.Parts, part int, within table.Range) ([]R, error) {
	rows := make([]R, 0, within.To-within.From)
	err := parts.Decode(s, part, []table.Range{within}, func() reflect.Value {
		rows = append(rows, *new(R))
		return reflect.ValueOf(&rows[len(rows)-1]).Elem() // rows has enough capacity, so the address stays valid
	})
	return rows, err
}

// rangesOf converts positions of rows, in ascending order, to ranges.
func rangesOf(places []int) (within []table.Range) {
	for _, at := range places {
		if last := len(within) - 1; last >= 0 && within[last].To == at {
			within[last].To++
			continue
		}
		within = append(within, table.Range{From: at, To: at + 1})
	}
	return within
}

// covers reports whether a part may contain values of a column that are within bounds. An empty bound does not limit
// the values.
func covers(parts table.Parts, part int, column, least, greatest string) bool {
	from, to, known := parts.Bounds(part, column)
	return !known || to >= least && (greatest == "" || from <= greatest)
}

// ofRun returns the rows of a closed run in one table.
func (h History) ofRun(ctx context.Context, d *state.Declaration, runID string) (any, error) {
	files, err := h.segments(ctx, d.Name, runID)
	if err != nil {
		return nil, err
	}
	var lists []any
	for _, f := range files {
		parts, err := h.open(ctx, f)
		if err != nil {
			return nil, err
		}
		for part := range parts.Len() {
			if !covers(parts, part, runIDColumn, runID, runID) {
				continue
			}
			found, err := h.stretches(d, f, parts, part)
			if err != nil {
				return nil, err
			}
			at, has := slices.BinarySearchFunc(found, runID, func(s stretch, id string) int { return strings.Compare(s.run, id) })
			if !has {
				continue
			}
			rows, err := d.DecodePart(parts, part, []table.Range{found[at].rows})
			if err != nil {
				return nil, unreadable(f, err)
			}
			lists = append(lists, rows)
		}
	}
	if len(lists) == 0 {
		return nil, nil
	}
	return d.Merge(lists)
}

const runIDColumn = "run_id"

// runRows returns the rows of a closed run in all tables, or nil if history does not contain the run.
func (h History) runRows(ctx context.Context, runID string) (*state.Rows, error) {
	declarations := state.Declarations()
	lists := make([]any, len(declarations))
	group, ctx := errgroup.WithContext(ctx)
	for i, d := range declarations {
		if d.OfRun() {
			group.Go(func() (err error) {
				lists[i], err = h.ofRun(ctx, d, runID)
				return err
			})
		}
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	rows := state.NewRows(lists)
	if len(state.List[state.Run](rows)) == 0 {
		return nil, nil
	}
	return rows, nil
}

// hasRun reports whether one of the given segments of the table "runs" contains a run.
func (h History) hasRun(ctx context.Context, files []manifest.File, runID string) (bool, error) {
	for _, f := range files {
		parts, err := h.open(ctx, f)
		if err != nil {
			return false, err
		}
		for part := range parts.Len() {
			if !covers(parts, part, runIDColumn, runID, runID) {
				continue
			}
			found, err := h.stretches(runsDeclaration, f, parts, part)
			if err != nil {
				return false, err
			}
			if _, has := slices.BinarySearchFunc(found, runID, func(s stretch, id string) int { return strings.Compare(s.run, id) }); has {
				return true, nil
			}
		}
	}
	return false, nil
}

// declarationOf returns the declaration of a table.
func declarationOf(name string) *state.Declaration {
	for _, d := range state.Declarations() {
		if d.Name == name {
			return d
		}
	}
	panic("snapshot: no table " + name)
}

var runsDeclaration, tasksDeclaration, batchesDeclaration = declarationOf(runsTable), declarationOf("tasks"), declarationOf("task_partitions")

// cache holds the most recently used values. Its zero value is empty; max limits the total size of the values.
type cache[V any] struct {
	max int

	mu     sync.Mutex
	values map[string]*list.Element
	used   list.List // of *cached[V], the most recently used first
	size   int
}

type cached[V any] struct {
	key   string
	value V
	size  int
}

func (c *cache[V]) get(key string) (value V, has bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at, has := c.values[key]
	if !has {
		return value, false
	}
	c.used.MoveToFront(at)
	return at.Value.(*cached[V]).value, true //nolint:errcheck // put adds only values of this type
}

func (c *cache[V]) put(key string, value V, size int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, has := c.values[key]; has {
		return
	}
	if c.values == nil {
		c.values = map[string]*list.Element{}
	}
	c.values[key] = c.used.PushFront(&cached[V]{key, value, size})
	for c.size += size; c.size > c.max && c.used.Len() > 1; {
		last := c.used.Remove(c.used.Back()).(*cached[V]) //nolint:errcheck // as above
		delete(c.values, last.key)
		c.size -= last.size
	}
}
