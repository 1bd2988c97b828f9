package worker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/filecheck"
	"github.com/servo-orchestration/servo/pkg/merged"
	"github.com/servo-orchestration/servo/pkg/partcolumn"
	"github.com/servo-orchestration/servo/pkg/space"
)

// A query that would read many small files reads merged files instead. A merged file contains copies of many outputs.
// The view of the input has the same rows in the same order, and the same columns. If this is not certain, or if
// anything goes wrong, the query reads the single files.

// mergedRun is a sequence of adjacent parts that are read from one merged file.
type mergedRun struct {
	from, to int // positions in input.parts
	first    int // the position of the first part in file.Cells
	file     *merged.File
	path     string
	// columns are the partition columns that the view of the input adds.
	columns []space.Column
}

// downloadShare limits unnecessary downloads: if the worker needs less than 1/downloadShare of a merged file, it
// downloads the single files.
const downloadShare = 4

// isMerged reports whether a part is read from a merged file.
func (in *input) isMerged(part int) bool {
	return slices.ContainsFunc(in.merged, func(r mergedRun) bool { return r.from <= part && part < r.to })
}

// useMerged returns the inputs with the merged files that the query can read. It also records which inputs should be
// merged after the task.
func (a *attempt) useMerged(ctx context.Context, d *database, t *work, inputs []input) []input {
	inputs = slices.Clone(inputs) // the checks read the single files of the original inputs
	for i := range inputs {
		in := &inputs[i]
		if slices.Contains(t.plan.NoMerge, in.asset.String()) {
			continue
		}
		candidates := in.candidates(nil)
		if countSmall(candidates) < a.w.cfg.Merging.Limits.MinCells {
			continue
		}
		m := &mergedReader{a: a, d: d, in: in, read: candidates, columns: t.plan.PartitionColumns[in.asset.String()]}
		if err := m.open(ctx); err != nil {
			a.log.DebugContext(ctx, "reading single files, not merged ones", "asset", in.asset.String(), "error", err)
			in.merged = nil
		}
	}
	return inputs
}

// candidates returns one candidate for each part of the input. The candidate is zero if no merged file may contain the
// part. The function fixed reports whether the output that a marker describes is old enough to be merged.
func (in *input) candidates(fixed func(*contract.CommitMarker) bool) []merged.Candidate {
	found := make([]merged.Candidate, len(in.parts))
	for i := range in.parts {
		if found[i] = merged.CandidateOf(in.parts[i].partitionKey, in.parts[i].marker); fixed != nil && found[i].URI != "" {
			found[i].Fixed = fixed(in.parts[i].marker)
		}
	}
	return found
}

func countSmall(candidates []merged.Candidate) (n int) {
	for i := range candidates {
		if candidates[i].URI != "" && candidates[i].Bytes < merged.SmallBytes {
			n++
		}
	}
	return n
}

// mergedReader selects the merged files for an input.
type mergedReader struct {
	a       *attempt
	d       *database // nil: an [Executor] reads the rows
	in      *input
	read    []merged.Candidate
	columns []space.Column // the partition columns of the asset
	keyed   []space.Column // the partition columns that the files do not have
}

// errOtherRows means that a view with merged files might have other rows or columns than a view of the single files.
var errOtherRows = errors.New("the columns of the files differ")

func (m *mergedReader) open(ctx context.Context) error {
	prefix := merged.Prefix(m.a.domain, m.in.asset)
	set, err := loadMerged(ctx, m.a.w.cfg.Store, prefix, m.read, m.a.w.caches.merged)
	if err != nil {
		return err
	}
	m.a.noteUnmerged(m.in, m.columns, set)
	if len(set.files) == 0 {
		return nil
	}
	if err := m.findKeyed(); err != nil {
		return err
	}
	usable := set.only(func(f *merged.File) bool { return hasKeys(f, m.columns) })
	paths := map[int]string{}
	var runs []mergedRun
	for _, run := range m.a.w.cfg.Merging.Limits.Cover(m.read, usable.files) {
		path, known := paths[run.File]
		if !known {
			path, err = m.fetch(ctx, prefix, usable.entries[run.File].ID, usable.files[run.File], m.replacedBytes(usable.files, run.File))
			if err != nil {
				m.a.log.DebugContext(ctx, "a merged file is not used", "asset", m.in.asset.String(), "error", err)
			}
			paths[run.File] = path
		}
		if path != "" {
			runs = append(runs, mergedRun{run.From, run.To, run.First, usable.files[run.File], path, m.keyed})
		}
	}
	if len(runs) == 0 {
		return nil
	}
	m.in.mergedColumns, err = m.columnNames(ctx, runs)
	if err == nil {
		m.in.merged = runs
	}
	return err
}

// hasKeys reports whether a merged file contains all partition columns of the asset: the single files had them, or
// the merge has added them. A file that was merged before the partitions of the asset changed may lack some.
func hasKeys(f *merged.File, columns []space.Column) bool {
	names := make([]string, len(f.Columns))
	for i := range f.Columns {
		names[i] = f.Columns[i].Name
	}
	return !slices.ContainsFunc(partcolumn.Missing(columns, names), func(c space.Column) bool { return !slices.Contains(f.Keys, c) })
}

// replacedBytes returns the total size of the single files that a merged file replaces for this input.
func (m *mergedReader) replacedBytes(files []*merged.File, file int) (bytes int64) {
	for _, run := range m.a.w.cfg.Merging.Limits.Cover(m.read, files) {
		if run.File == file {
			for i := run.From; i < run.To; i++ {
				bytes += m.read[i].Bytes
			}
		}
	}
	return bytes
}

// findKeyed finds the partition columns whose values come from the partition keys. These columns must be the same for
// all parts. If the files of a part themselves have a partition column, its values come from the files.
func (m *mergedReader) findKeyed() error {
	var keys []string
	for i := range m.in.parts {
		p := &m.in.parts[i]
		if !slices.ContainsFunc(p.marker.Files, func(f contract.CommitMarkerFile) bool { return isParquet(f.Name) }) {
			continue
		}
		if m.read[i].URI == "" {
			return errOtherRows // the columns of the part are not known
		}
		paths := make([]string, len(p.marker.Columns))
		for j := range p.marker.Columns {
			paths[j] = p.marker.Columns[j].Name
		}
		names, known := partcolumn.Names(paths, m.columns)
		keyed := partcolumn.Missing(m.columns, names)
		if !known || len(keys) > 0 && !slices.Equal(keyed, m.keyed) {
			return errOtherRows
		}
		m.keyed = keyed
		keys = append(keys, p.partitionKey)
	}
	ordered, known := partcolumn.Order(m.keyed, keys, m.a.dir)
	if !known {
		return errOtherRows
	}
	m.keyed = ordered
	return nil
}

// fetch stores a merged file in the attempt's folder, and verifies its size and checksum. From a local store, it links
// the file, so that the query can read the file even if the collector deletes it in the meantime. From other stores, it
// downloads the file.
func (m *mergedReader) fetch(ctx context.Context, prefix, id string, f *merged.File, used int64) (string, error) {
	folder, err := m.a.folder("merged")
	if err != nil {
		return "", err
	}
	path, key := filepath.Join(folder, strconv.Itoa(m.a.staged.fetched)+".parquet"), merged.DataKey(prefix, id)
	m.a.staged.fetched++
	if local, ok := m.a.w.cfg.Store.(blob.Local); ok {
		if err := os.Link(local.Path(key), path); err != nil {
			return "", fmt.Errorf("link a merged file: %w", err)
		}
		if err := m.a.w.caches.files.Check(ctx, filecheck.File{Path: path, Size: f.Size, CRC32C: f.CRC32C}); err != nil {
			return "", fmt.Errorf("check a merged file: %w", err)
		}
		return path, nil
	}
	if used*downloadShare < f.Size {
		return "", fmt.Errorf("this query needs only %d of the file's %d bytes", used, f.Size)
	}
	return path, m.a.download(ctx, path, key, contract.CommitMarkerFile{Size: f.Size, CRC32C: f.CRC32C})
}

// columnNames returns the columns of the input, in the order in which they appear in a query over the single files.
// It fails if a column has different types in different files, because only a query over the single files determines
// the resulting type.
func (m *mergedReader) columnNames(ctx context.Context, runs []mergedRun) ([]string, error) {
	known := map[string][]merged.Column{}
	for i := range runs {
		known[runs[i].file.Schema] = runs[i].file.Columns
	}
	var names []string
	at, done := map[string]merged.Column{}, map[string]bool{}
	for i := range m.read {
		schema := m.read[i].Schema
		if m.read[i].URI == "" || done[schema] {
			continue
		}
		done[schema] = true
		columns, ok := known[schema]
		if !ok {
			var err error
			if columns, err = m.describe(ctx, i); err != nil {
				return nil, err
			}
		}
		for _, c := range columns {
			earlier, seen := at[strings.ToLower(c.Name)]
			if seen && earlier != c {
				return nil, errOtherRows
			}
			if !seen {
				at[strings.ToLower(c.Name)] = c
				names = append(names, c.Name)
			}
		}
	}
	for _, c := range m.keyed {
		names = append(names, c.Name)
	}
	return names, nil
}

// describe returns the columns of a part, as DuckDB reads them.
func (m *mergedReader) describe(ctx context.Context, part int) ([]merged.Column, error) {
	if m.d == nil {
		return markerColumns(m.in.parts[part].marker), nil
	}
	one := input{asset: m.in.asset, parts: m.in.parts[part : part+1]}
	if err := m.a.fetch(ctx, []input{one}); err != nil {
		return nil, err
	}
	columns, err := m.d.describe(ctx, statement{text: "DESCRIBE SELECT * FROM " + readParquet(one.parquet())})
	return mergedColumns(columns), err
}

// markerColumns returns the columns of an output as its marker names them.
func markerColumns(m *contract.CommitMarker) []merged.Column {
	list := make([]merged.Column, len(m.Columns))
	for i, c := range m.Columns {
		list[i] = merged.Column{Name: c.Name, Type: c.Type}
	}
	return list
}

func mergedColumns(columns []resultColumn) []merged.Column {
	list := make([]merged.Column, len(columns))
	for i, c := range columns {
		list[i] = merged.Column{Name: c.name, Type: c.kind}
	}
	return list
}

// mergedView returns a query that reads the rows of an input from its merged files and its other files. It also
// returns these files. The rows keep the order of the parts.
func (a *attempt) mergedView(ctx context.Context, d *database, t *work, in *input) (query string, files []string, err error) {
	var queries []string
	single := func(from, to int) error {
		some := input{asset: in.asset, parts: in.parts[from:to]}
		if len(some.parquet()) == 0 {
			return nil
		}
		query, read, err := a.inputView(ctx, d, t, &some)
		queries, files = append(queries, "("+query+")"), append(files, read...)
		return err
	}
	next := 0
	for i := range in.merged {
		run := &in.merged[i]
		if err := single(next, run.from); err != nil {
			return "", nil, err
		}
		queries, files, next = append(queries, "("+run.query()+")"), append(files, run.path), run.to
	}
	if err := single(next, len(in.parts)); err != nil {
		return "", nil, err
	}
	names := make([]string, len(in.mergedColumns))
	for i, name := range in.mergedColumns {
		names[i] = quoteName(name)
	}
	return "SELECT " + strings.Join(names, ", ") + " FROM (" + strings.Join(queries, "\nUNION ALL BY NAME\n") + ")", files, nil
}

// query returns a query for the rows of the sequence.
func (r *mergedRun) query() string {
	columns := make([]string, 0, len(r.file.Columns)+len(r.columns))
	for _, c := range r.file.Columns {
		columns = append(columns, quoteName(c.Name))
	}
	for _, c := range r.columns {
		columns = append(columns, quoteName(merged.KeyColumn(slices.Index(r.file.Keys, c)))+" AS "+quoteName(c.Name))
	}
	query := "SELECT " + strings.Join(columns, ", ") + " FROM read_parquet(" + quote(r.path) + ", hive_partitioning = false)"
	if last := r.first + r.to - r.from - 1; r.first > 0 || last < len(r.file.Cells)-1 {
		query += " WHERE " + quoteName(merged.CellColumn) + " BETWEEN " + strconv.Itoa(r.first) + " AND " + strconv.Itoa(last)
	}
	return query
}

// mergedSet contains merged files with their descriptions.
type mergedSet struct {
	entries []merged.Entry
	files   []*merged.File
	// damaged are the ids of files without a readable description.
	damaged []string
}

func (s *mergedSet) only(keep func(*merged.File) bool) *mergedSet {
	some := &mergedSet{}
	for i, f := range s.files {
		if keep(f) {
			some.entries, some.files = append(some.entries, s.entries[i]), append(some.files, f)
		}
	}
	return some
}

// loadMerged loads the descriptions of the merged files that may contain some of the outputs. It caches the
// descriptions in the parameter known.
func loadMerged(ctx context.Context, store blob.Store, prefix string, read []merged.Candidate, known *cache[*merged.File]) (*mergedSet, error) {
	index, _, _, err := merged.Load(ctx, store, prefix)
	if err != nil {
		return nil, err
	}
	first, last := "", ""
	for i := range read {
		if p := read[i].Partition; read[i].URI != "" {
			if first == "" || p < first {
				first = p
			}
			last = max(last, p)
		}
	}
	set := &mergedSet{}
	for i := range index.Files {
		e := &index.Files[i]
		if e.Last < first || e.First > last {
			continue
		}
		key := merged.CellsKey(prefix, e.ID)
		f, ok := known.get(key)
		if !ok {
			f, err = merged.Describe(ctx, store, prefix, e)
			switch {
			case errors.Is(err, merged.ErrDamaged):
				set.damaged = append(set.damaged, e.ID)
				continue
			case err != nil:
				return nil, err
			}
			known.put(key, f, 2*e.Size) //nolint:mnd // decoded text takes about twice the space
		}
		set.entries, set.files = append(set.entries, *e), append(set.files, f)
	}
	return set, nil
}
