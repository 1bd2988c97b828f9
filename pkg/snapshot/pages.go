package snapshot

import (
	"container/list"
	"context"
	"iter"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/state"
	"github.com/servo-orchestration/servo/pkg/table"
)

// In history, the rows of partition_status are in sorted runs: files of up to [state.PageRows] rows, sorted by key. A
// later sorted run may contain newer versions of rows in earlier sorted runs.

const partitionsTable = "partition_status"

func cellOf(row *state.Partition) manifest.Cell {
	return manifest.Cell{Asset: row.AssetKey, Partition: row.PartitionKey}
}

// pageReader returns the rows of an extent.
type pageReader func(context.Context, extent) ([]*state.Partition, error)

// SortedRuns groups the files of a paged table by the sorted runs that they belong to.
func SortedRuns(files []manifest.File) (runs [][]manifest.File) {
	first := 0 // the first file of the current sorted run
	for i := range files {
		if last := i + 1; last == len(files) || files[last].Run != files[i].Run || files[i].Run == "" {
			runs = append(runs, files[first:last:last])
			first = last
		}
	}
	return runs
}

// AbsorbedRuns decides which sorted runs are merged with new rows. It returns the index of the first one to merge; all
// later sorted runs are also merged. It goes backwards from the last sorted run, and stops as soon as a sorted run has
// more than twice as many rows as everything after it.
func AbsorbedRuns(runs [][]manifest.File, rows int64) int {
	from := len(runs)
	for from > 0 {
		size := int64(0)
		for _, f := range runs[from-1] {
			size += f.Rows
		}
		if size > 2*rows {
			break
		}
		from--
		rows += size
	}
	return from
}

// MergeRuns merges sorted runs and newer rows, and yields the newest version of each row, sorted by key. It keeps one
// file of each sorted run in memory.
func (c *Codec) MergeRuns(
	ctx context.Context, store *manifest.Store, runs [][]manifest.File, newer []*state.Partition,
) iter.Seq2[*state.Partition, error] {
	read := func(e extent) ([]*state.Partition, error) { return c.readPage(ctx, store, e.file) }
	return merge{runs: runs, newer: newer, read: read}.rows
}

// Versions is a variant of [Snapshot.Partitions] for package staleness. Rows from history have only the columns that
// staleness compares: the key, and the columns that describe how the output was made. Decoding only these columns
// takes a third of the time.
func (s *Snapshot) Versions(ctx context.Context, asset string) iter.Seq2[*state.Partition, error] {
	if s.marked(asset) { // a mark applies to one materialization, and versionColumns lacks the id of the materialization
		return s.Partitions(ctx, asset, "")
	}
	return s.partitions(ctx, manifest.Cell{Asset: asset}, asset, s.History.versions)
}

// marked reports whether an asset has a marked output or was forgotten.
func (s *Snapshot) marked(asset string) (found bool) {
	if s.State.Forgotten.Get(asset) != nil {
		return true
	}
	s.State.MarksOf(asset, func(*state.Mark) bool {
		found = true
		return false
	})
	return found
}

// versionColumns are the columns of partition_status that [Snapshot.Versions] reads.
var versionColumns = func() *table.Schema {
	names := []string{
		"asset_key", "partition_key", "run_id", "code", "version_seq", "inputs_seq", "root_run", "left_out", "quality",
		"last_materialization_at", "row_seq", "deleted",
	}
	for _, d := range state.Declarations() {
		if d.Name == partitionsTable {
			narrow := *d.Schema
			narrow.Columns = slices.DeleteFunc(slices.Clone(d.Columns), func(c table.Column) bool { return !slices.Contains(names, c.Name) })
			return &narrow
		}
	}
	panic("snapshot: no table " + partitionsTable)
}()

// Pages yields the newest version of each row of a paged table in the history of a manifest, in batches of rows.
func Pages(ctx context.Context, c *Codec, store *manifest.Store, m *manifest.Manifest) iter.Seq2[*state.Rows, error] {
	return func(yield func(*state.Rows, error) bool) {
		runs, err := HistoryOf(c, store, m).partitionRuns(ctx)
		if err != nil {
			yield(nil, err)
			return
		}
		var page []*state.Partition
		for row, err := range c.MergeRuns(ctx, store, runs, nil) {
			if err != nil {
				yield(nil, err)
				return
			}
			if page = append(page, row); len(page) == state.PageRows {
				if !yield(state.Set(&state.Rows{}, page), nil) {
					return
				}
				page = nil
			}
		}
		if len(page) > 0 {
			yield(state.Set(&state.Rows{}, page), nil)
		}
	}
}

// merge merges sorted runs with newer rows.
type merge struct {
	runs  [][]manifest.File
	newer []*state.Partition
	read  func(extent) ([]*state.Partition, error)
	// divide returns the extents of a file that may contain rows to yield. If divide is nil, each file is read as a
	// whole.
	divide func(manifest.File) ([]extent, error)
	// from is the least key to yield. asset, if not empty, restricts the rows to an asset.
	from  manifest.Cell
	asset string
	// parallel means that the first extents of the sorted runs are read concurrently: see openAll.
	parallel bool
}

// cursor is the position in a sorted run, or in the newer rows. The next rows are those in page. After these come the
// rows in extents, and then those in files.
type cursor struct {
	page    []*state.Partition
	extents []extent
	files   []manifest.File
}

// next returns a lower bound on the key of the next row, or false at the end.
func (c *cursor) next() (manifest.Cell, bool) {
	switch {
	case len(c.page) > 0:
		return cellOf(c.page[0]), true
	case len(c.extents) > 0:
		return c.extents[0].min, true
	case len(c.files) > 0:
		return c.files[0].Min, true
	}
	return manifest.Cell{}, false
}

// rows yields the merged rows. It reads an extent only when the extent's lower bound is the least key.
func (m merge) rows(yield func(*state.Partition, error) bool) {
	cursors := []*cursor{{page: m.skip(m.newer)}}
	for _, files := range m.runs {
		first, _ := slices.BinarySearchFunc(files, m.from, func(f manifest.File, from manifest.Cell) int { return f.Max.Compare(from) })
		cursors = append(cursors, &cursor{files: files[first:]})
	}
	if m.parallel {
		if err := m.openAll(cursors); err != nil {
			yield(nil, err)
			return
		}
	}
	for {
		least, more := m.least(cursors)
		if !more || m.asset != "" && least.Asset > m.asset {
			return
		}
		var newest *state.Partition
		opened := false
		for _, c := range cursors {
			if key, has := c.next(); !has || key != least {
				continue
			}
			if len(c.page) == 0 {
				if err := m.fill(c); err != nil {
					yield(nil, err)
					return
				}
				opened = true
				continue
			}
			if row := c.page[0]; newest == nil || row.Seq > newest.Seq {
				newest = row
			}
		}
		if opened {
			continue // the key of the extent's first row may be greater than its lower bound
		}
		for _, c := range cursors {
			if len(c.page) > 0 && cellOf(c.page[0]) == least {
				c.page = c.page[1:]
			}
		}
		if (m.asset == "" || least.Asset == m.asset) && !yield(newest, nil) {
			return
		}
	}
}

// fill reads the next extent of a sorted run.
func (m merge) fill(c *cursor) (err error) {
	if len(c.extents) == 0 {
		f := c.files[0]
		c.files = c.files[1:]
		if c.extents = wholeFile(f); m.divide != nil {
			c.extents, err = m.divide(f)
		}
		if err != nil || len(c.extents) == 0 {
			return err
		}
	}
	next := c.extents[0]
	c.extents = c.extents[1:]
	page, err := m.read(next)
	c.page = m.skip(page)
	return err
}

// openAll reads the first extent of each sorted run concurrently, because the merge needs all of them first. It skips
// a sorted run whose first file begins after m.from.
func (m merge) openAll(cursors []*cursor) error {
	var group errgroup.Group
	group.SetLimit(parallelPages)
	for _, c := range cursors {
		if len(c.files) == 0 || c.files[0].Min.Compare(m.from) > 0 {
			continue
		}
		group.Go(func() error { return m.fill(c) })
	}
	return group.Wait()
}

func (merge) least(cursors []*cursor) (least manifest.Cell, found bool) {
	for _, c := range cursors {
		if key, has := c.next(); has && (!found || key.Compare(least) < 0) {
			least, found = key, true
		}
	}
	return least, found
}

// skip returns the rows whose keys are not less than m.from.
func (m merge) skip(rows []*state.Partition) []*state.Partition {
	first, _ := slices.BinarySearchFunc(rows, m.from, func(row *state.Partition, from manifest.Cell) int { return cellOf(row).Compare(from) })
	return rows[first:]
}

// readPage reads a file of partition_status.
func (c *Codec) readPage(ctx context.Context, store *manifest.Store, f manifest.File) ([]*state.Partition, error) {
	rows, err := c.Merge(ctx, fileSources(store, []manifest.File{f}))
	if err != nil {
		return nil, err
	}
	return state.List[state.Partition](rows), nil
}

// Partitions yields the rows of an asset's partitions with a visible output, live and in history, in the order of their
// keys. It starts at the first key that is not less than the parameter "from". Callers must not modify the rows.
func (s *Snapshot) Partitions(ctx context.Context, asset, from string) iter.Seq2[*state.Partition, error] {
	return s.visible(s.partitions(ctx, manifest.Cell{Asset: asset, Partition: from}, asset, s.History.page))
}

// WithHidden is like [Snapshot.Partitions], but includes the outputs that a person has marked as missing.
func (s *Snapshot) WithHidden(ctx context.Context, asset string) iter.Seq2[*state.Partition, error] {
	return s.partitions(ctx, manifest.Cell{Asset: asset}, asset, s.History.page)
}

// visible yields the rows whose outputs are not hidden, and all errors.
func (s *Snapshot) visible(rows iter.Seq2[*state.Partition, error]) iter.Seq2[*state.Partition, error] {
	if s.State.Marks.Len() == 0 && s.State.Forgotten.Len() == 0 {
		return rows
	}
	return func(yield func(*state.Partition, error) bool) {
		for row, err := range rows {
			if (err != nil || !s.State.Hidden(row)) && !yield(row, err) {
				return
			}
		}
	}
}

// MarksOf yields the marks of the outputs of an asset. If the asset was forgotten, its older outputs are hidden, and
// for each of them MarksOf also yields a mark that says "missing". If a row cannot be read, the sequence ends without
// an error: callers also read the rows of the asset, and get the error there.
func (s *Snapshot) MarksOf(ctx context.Context, asset string) iter.Seq[*state.Mark] {
	return func(yield func(*state.Mark) bool) {
		if s.State.Forgotten.Get(asset) == nil {
			s.State.MarksOf(asset, yield)
			return
		}
		for row, err := range s.WithHidden(ctx, asset) {
			if err != nil {
				return
			}
			if m := s.State.MarkOf(row); m != nil && !yield(m) {
				return
			}
		}
	}
}

// AllPartitions yields the rows of all partitions, live and in history, in the order of their keys. It includes the
// rows of hidden outputs.
func (s *Snapshot) AllPartitions(ctx context.Context) iter.Seq2[*state.Partition, error] {
	return s.partitions(ctx, manifest.Cell{}, "", s.History.page)
}

// Partition returns the row of a partition, live or in history. It returns nil if the partition has no visible
// output.
func (s *Snapshot) Partition(ctx context.Context, asset, partition string) (*state.Partition, error) {
	return s.partition(ctx, asset, partition, s.History.row)
}

// Version is like [Snapshot.Partition], but a row from history has only the columns of [Snapshot.Versions].
func (s *Snapshot) Version(ctx context.Context, asset, partition string) (*state.Partition, error) {
	if s.marked(asset) {
		return s.Partition(ctx, asset, partition)
	}
	return s.partition(ctx, asset, partition, s.History.rowReaderOf(s.History.versions))
}

func (s *Snapshot) partition(ctx context.Context, asset, partition string, read rowReader) (*state.Partition, error) {
	row, err := s.newest(ctx, asset, partition, read)
	if row != nil && s.State.Hidden(row) {
		return nil, err
	}
	return row, err
}

// Stored is like [Snapshot.Partition], but also returns an output that a person has hidden.
func (s *Snapshot) Stored(ctx context.Context, asset, partition string) (*state.Partition, error) {
	return s.newest(ctx, asset, partition, s.History.row)
}

// newest returns the newest row of a partition, even if its output is hidden.
func (s *Snapshot) newest(ctx context.Context, asset, partition string, read rowReader) (*state.Partition, error) {
	if row := s.State.Partitions.Get(state.Key2{A: asset, B: partition}); row != nil {
		return row, nil // the live row is newer than any version in history
	}
	var newest *state.Partition
	key := manifest.Cell{Asset: asset, Partition: partition}
	runs, err := s.History.partitionRuns(ctx)
	if err != nil {
		return nil, err
	}
	for _, files := range runs {
		at, _ := slices.BinarySearchFunc(files, key, func(f manifest.File, key manifest.Cell) int { return f.Max.Compare(key) })
		if at == len(files) || files[at].Min.Compare(key) > 0 {
			continue
		}
		row, err := read(ctx, files[at], key)
		if err != nil {
			return nil, err
		}
		if row != nil && (newest == nil || row.Seq > newest.Seq) {
			newest = row
		}
	}
	return newest, nil
}

// rowReader returns the row with the given key from a file of partition_status. It returns nil if the file does not
// contain the key.
type rowReader func(context.Context, manifest.File, manifest.Cell) (*state.Partition, error)

// rowReaderOf returns a function that returns single rows. For each row, the function reads the whole extent of the
// row. This is fast if the caller reads adjacent rows, because extents are cached.
func (h History) rowReaderOf(read pageReader) rowReader {
	return func(ctx context.Context, f manifest.File, key manifest.Cell) (*state.Partition, error) {
		extents, err := h.divide(ctx, f, key, key.Asset)
		if err != nil {
			return nil, err
		}
		for _, e := range extents {
			if key.Compare(e.min) < 0 {
				break
			}
			page, err := read(ctx, e)
			if err != nil {
				return nil, err
			}
			if row := rowOf(page, key); row != nil {
				return row, nil
			}
		}
		return nil, nil
	}
}

func rowOf(page []*state.Partition, key manifest.Cell) *state.Partition {
	i, found := slices.BinarySearchFunc(page, key, func(row *state.Partition, key manifest.Cell) int { return cellOf(row).Compare(key) })
	if !found {
		return nil
	}
	return page[i]
}

// row returns the row with the given key from a file. If the file is not cached, row decodes only the keys of one part,
// and one row.
func (h History) row(ctx context.Context, f manifest.File, key manifest.Cell) (*state.Partition, error) {
	if !h.divided() {
		return h.rowReaderOf(h.page)(ctx, f, key)
	}
	name := f.Key + " " + key.Asset + " " + key.Partition
	if row, has := h.codec.cells.get(name); has {
		return row, nil
	}
	extents, err := h.divide(ctx, f, key, key.Asset)
	if err != nil {
		return nil, err
	}
	var found *state.Partition
	for _, e := range extents {
		if found != nil || key.Compare(e.min) < 0 {
			break
		}
		if found, err = h.cell(e, key); err != nil {
			return nil, err
		}
	}
	h.codec.cells.put(name, found, 1)
	return found, nil
}

// cell returns the row with the given key from a part of a file. It returns nil if the part does not contain the key.
// It decodes only the keys of the part, and one row.
func (h History) cell(e extent, key manifest.Cell) (*state.Partition, error) {
	if page, has := h.codec.pages.get(e.name()); has {
		return rowOf(page, key), nil
	}
	rows, err := decodeRows[partitionKey](partitionKeys, e.parts, e.part)
	if err != nil {
		return nil, unreadable(e.file, err)
	}
	at, has := slices.BinarySearchFunc(rows, key, func(row partitionKey, key manifest.Cell) int {
		return manifest.Cell{Asset: row.AssetKey, Partition: row.PartitionKey}.Compare(key)
	})
	if !has {
		return nil, nil
	}
	list, err := partitionsDeclaration.DecodePart(e.parts, e.part, []table.Range{{From: at, To: at + 1}})
	if err != nil {
		return nil, unreadable(e.file, err)
	}
	return list.([]*state.Partition)[0], nil //nolint:errcheck // the table has this row type
}

// partitionKey is the key of a row of partition_status.
type partitionKey struct {
	AssetKey     string `col:"asset_key,key,dict"`
	PartitionKey string `col:"partition_key,key"`
}

var (
	partitionKeys         = &table.Of[partitionKey](partitionsTable).Schema
	partitionsDeclaration = declarationOf(partitionsTable)
)

// PartitionCount returns an upper bound on the number of rows of partition_status: it includes superseded versions.
func (s *Snapshot) PartitionCount() int64 {
	return int64(s.State.Partitions.Len()) + s.History.indexes[partitionsTable].Rows
}

func (s *Snapshot) partitions(
	ctx context.Context, from manifest.Cell, asset string, page pageReader,
) iter.Seq2[*state.Partition, error] {
	return func(yield func(*state.Partition, error) bool) {
		runs, err := s.History.partitionRuns(ctx)
		if err != nil {
			yield(nil, err)
			return
		}
		var live []*state.Partition
		s.State.Partitions.Ascend(state.Key2{A: from.Asset, B: from.Partition}, func(row *state.Partition) bool {
			if asset != "" && row.AssetKey != asset {
				return false
			}
			live = append(live, row)
			return true
		})
		m := merge{runs: runs, newer: live, from: from, asset: asset}
		m.read = func(e extent) ([]*state.Partition, error) { return page(ctx, e) }
		if asset != "" {
			m.divide = func(f manifest.File) ([]extent, error) { return s.History.divide(ctx, f, from, asset) }
		}
		m.parallel = len(runs) > 1 && !s.History.simulated() // in a simulation, the order of reads must be deterministic
		m.rows(yield)
	}
}

func (h History) partitionRuns(ctx context.Context) ([][]manifest.File, error) {
	index, has := h.indexes[partitionsTable]
	if !has {
		return nil, nil
	}
	files, err := h.store.Segments(ctx, index)
	return SortedRuns(files), err
}

// simulated reports whether the files come from the simulator.
func (h History) simulated() bool {
	_, simulated := h.codec.files.(*memory)
	return simulated
}

const (
	// parallelPages is the number of files that are read at once.
	parallelPages = 8
	// maxPages limits the memory of cached pages, in bytes.
	maxPages = 64 << 20
	// partitionBytes is the approximate memory of a row of partition_status, in bytes.
	partitionBytes = 600
)

// pageCache caches the rows of the most recently used extents. Files never change, so cached rows stay valid.
type pageCache struct {
	mu    sync.Mutex
	pages map[string]*list.Element
	used  list.List // a list of *cachedPage, the most recently used first
	rows  int
}

type cachedPage struct {
	key  string
	rows []*state.Partition
}

func (c *pageCache) get(key string) ([]*state.Partition, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at, has := c.pages[key]
	if !has {
		return nil, false
	}
	c.used.MoveToFront(at)
	return at.Value.(*cachedPage).rows, true //nolint:errcheck // put adds only values of this type
}

func (c *pageCache) put(key string, rows []*state.Partition) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, has := c.pages[key]; has {
		return
	}
	if c.pages == nil {
		c.pages = map[string]*list.Element{}
	}
	c.pages[key] = c.used.PushFront(&cachedPage{key, rows})
	for c.rows += len(rows); c.rows*partitionBytes > maxPages && c.used.Len() > 1; {
		oldest := c.used.Back()
		page := c.used.Remove(oldest).(*cachedPage) //nolint:errcheck // put adds only values of this type
		delete(c.pages, page.key)
		c.rows -= len(page.rows)
	}
}
