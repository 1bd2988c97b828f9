package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/filecheck"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/merged"
	"github.com/servo-orchestration/servo/pkg/partcolumn"
	"github.com/servo-orchestration/servo/pkg/space"
)

// Merger writes merged files.
type Merger struct {
	Store blob.Store
	// NewID returns a new ULID.
	NewID func() string
	// Dir is an existing folder for temporary files.
	Dir string
	// MemoryLimit is a memory limit in DuckDB's syntax.
	MemoryLimit string
	// Checked caches the files whose checksums were verified.
	Checked *filecheck.Cache
	// Before is the time before which an output must have been committed: newer outputs are not merged, because they may
	// soon be replaced.
	Before time.Time
	// Most is the maximum number of files that one call of Merge writes. 0: no limit.
	Most int
	// Limits decide what is merged.
	Limits merged.Limits
	// Write replaces DuckDB: see [MergeSettings].
	Write MergeWrite
}

// MergeSettings determines how a worker merges small outputs.
type MergeSettings struct {
	// Limits decide which outputs are merged, and which merged files a query reads. Zero: [merged.Usual].
	Limits merged.Limits
	// Age is how old an output must be before a worker merges it. 0: 10 minutes.
	Age time.Duration
	// NewID returns a new ULID. Nil: random ULIDs.
	NewID func() string
	// Write writes merged files. Nil: DuckDB writes them.
	Write MergeWrite
}

// MergeWrite writes a merged file to a path. Each element of cells lists the Parquet files of one cell. An [Executor]
// reads the merged file.
type MergeWrite func(path string, cells [][]string) error

// complete fills in the usual settings.
func (s *MergeSettings) complete(c clock.Clock) {
	if s.Limits == (merged.Limits{}) {
		s.Limits = merged.Usual
	}
	if s.Age == 0 {
		s.Age = mergeAge
	}
	if s.NewID == nil {
		s.NewID = ids.NewSource(c.Now, nil).New
	}
}

// Merging lists outputs of one asset that may be merged, in the order in which tasks read them.
type Merging struct {
	Domain  ids.Domain
	Asset   ids.AssetKey
	Columns []space.Column // the partition columns of the asset
	Parts   []MergingPart
}

// MergingPart is the output of one partition.
type MergingPart struct {
	PartitionKey string
	Marker       *contract.CommitMarker
	paths        []string // local paths of the files, if they have been fetched
}

// Merges is the result of a [Merger].
type Merges struct {
	Files int   `json:"files"`
	Cells int   `json:"cells"`
	Bytes int64 `json:"bytes"`
}

// Merge merges the outputs that no merged file contains yet. It reads immutable outputs, and replaces only the index
// of the asset. So it can stop at any point, and several processes can run it at the same time.
func (m *Merger) Merge(ctx context.Context, g Merging) (done Merges, err error) {
	prefix := merged.Prefix(g.Domain, g.Asset)
	read := make([]merged.Candidate, len(g.Parts))
	for i := range g.Parts {
		read[i] = merged.CandidateOf(g.Parts[i].PartitionKey, g.Parts[i].Marker)
		read[i].Fixed = g.Parts[i].Marker.CommittedAt.Time().Before(m.Before)
	}
	set, err := loadMerged(ctx, m.Store, prefix, read, newCache[*merged.File](0))
	if err != nil {
		return done, fmt.Errorf("merge files of %s: %w", g.Asset, err)
	}
	usable := set.only(func(f *merged.File) bool { return hasKeys(f, g.Columns) })
	groups := m.Limits.Groups(read, usable.files)
	if m.Most > 0 && len(groups) > m.Most {
		groups = groups[:m.Most]
	}
	for _, group := range groups {
		replaced := slices.Clone(set.damaged)
		for _, at := range group.Replaces {
			replaced = append(replaced, usable.entries[at].ID)
		}
		for i, e := range set.entries {
			if !hasKeys(set.files[i], g.Columns) && e.First <= read[group.To-1].Partition && e.Last >= read[group.From].Partition {
				replaced = append(replaced, e.ID)
			}
		}
		size, err := m.group(ctx, prefix, g, read, group, replaced)
		if err != nil {
			return done, fmt.Errorf("merge files of %s: %w", g.Asset, err)
		}
		done.Files, done.Cells, done.Bytes = done.Files+1, done.Cells+group.To-group.From, done.Bytes+size
	}
	return done, nil
}

// group writes one merged file, and publishes it in the index.
func (m *Merger) group(ctx context.Context, prefix string, g Merging, read []merged.Candidate, group merged.Group, replaced []string) (size int64, err error) {
	dir, err := os.MkdirTemp(m.Dir, "merge-*")
	if err != nil {
		return 0, fmt.Errorf("create a scratch folder: %w", err)
	}
	defer func() { err = errors.Join(err, removeAll(dir)) }()
	w := &mergeWriter{Merger: m, dir: dir, path: filepath.Join(dir, "merged.parquet"), parts: g.Parts[group.From:group.To], read: read[group.From:group.To]}
	if err := w.fetch(ctx); err != nil {
		return 0, err
	}
	if err := w.writeFile(ctx, g.Columns); err != nil {
		return 0, err
	}
	id := m.NewID()
	if err := w.store(ctx, prefix, id, replaced); err != nil {
		return 0, errors.Join(err, removeMerged(ctx, m.Store, prefix, id))
	}
	return w.file.Size, removeMerged(ctx, m.Store, prefix, replaced...)
}

// removeMerged deletes the merged files with the given ids. The index must not name them. A reader may still look for
// such a file, because it has read an earlier index. If the file no longer exists, it reads the single files instead.
func removeMerged(ctx context.Context, store blob.Store, prefix string, gone ...string) error {
	for _, id := range gone {
		for _, key := range []string{merged.DataKey(prefix, id), merged.CellsKey(prefix, id)} {
			if err := store.Delete(ctx, key); err != nil {
				return fmt.Errorf("delete a replaced merged file: %w", err) // the collector deletes the files later
			}
		}
	}
	return nil
}

// mergeWriter writes one merged file.
type mergeWriter struct {
	*Merger

	dir, path string
	parts     []MergingPart
	read      []merged.Candidate
	paths     [][]string // the local Parquet files of each part
	file      merged.File
}

// fetch sets the local paths of the files, and verifies their checksums.
func (w *mergeWriter) fetch(ctx context.Context) error {
	w.paths = make([][]string, len(w.parts))
	local, _ := w.Store.(blob.Local)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallelReads)
	n := 0
	for i, part := range w.parts {
		for k, f := range part.Marker.Files {
			if !isParquet(f.Name) {
				continue
			}
			if part.paths != nil {
				w.paths[i] = append(w.paths[i], part.paths[k]) // the task has already verified this file
				continue
			}
			key := part.Marker.URI + f.Name
			if local != nil {
				path := local.Path(key)
				w.paths[i] = append(w.paths[i], path)
				group.Go(func() error { return w.Checked.Check(ctx, filecheck.File{Path: path, Size: f.Size, CRC32C: f.CRC32C}) })
				continue
			}
			path := filepath.Join(w.dir, strconv.Itoa(n)+".parquet")
			n++
			w.paths[i] = append(w.paths[i], path)
			group.Go(func() error { return downloadFile(ctx, w.Store, path, key, f) })
		}
	}
	return group.Wait()
}

// writeFile writes the merged file and sets its description, except the cells.
func (w *mergeWriter) writeFile(ctx context.Context, columns []space.Column) error {
	if w.Write == nil {
		return w.write(ctx, columns)
	}
	found := markerColumns(w.parts[0].Marker)
	names := make([]string, len(found))
	for i := range found {
		names[i] = found[i].Name
	}
	w.file = merged.File{Schema: w.read[0].Schema, Columns: found, Keys: partcolumn.Missing(columns, names)}
	return w.Write(w.path, w.paths)
}

// write writes the merged file: the rows of the single files in their order, and for each row its cell and the values
// of the partition columns.
func (w *mergeWriter) write(ctx context.Context, columns []space.Column) (err error) {
	d, err := openDatabase(ctx, w.dir, w.MemoryLimit, 1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	var files, cells []string
	for i, paths := range w.paths {
		for _, path := range paths {
			files, cells = append(files, path), append(cells, strconv.Itoa(i))
		}
	}
	// According to their markers, all outputs have the same columns.
	rows := "read_parquet(" + quoteList(files) + ", union_by_name = false, hive_partitioning = false)"
	found, err := d.describe(ctx, statement{text: "DESCRIBE SELECT * FROM " + rows})
	if err != nil {
		return err
	}
	w.file = merged.File{Schema: w.read[0].Schema, Columns: mergedColumns(found)}
	names := make([]string, len(found))
	for i, c := range found {
		if names[i] = c.name; merged.Reserved(c.name) || unmergeable(c.kind) || refuseUnstorable(found[i:i+1]) != nil {
			return fmt.Errorf("column %s of type %s cannot be in a merged file", c.name, c.kind)
		}
	}
	w.file.Keys = partcolumn.Missing(columns, names)
	list := []string{"*", "CAST([" + strings.Join(cells, ", ") + "] AS INTEGER[])[CAST(file_index AS INTEGER) + 1] AS " + quoteName(merged.CellColumn)}
	expected := append(slices.Clone(w.file.Columns), merged.Column{Name: merged.CellColumn, Type: "INTEGER"})
	for i, c := range w.file.Keys {
		values := make([]string, 0, len(cells))
		for j, paths := range w.paths {
			value, err := partcolumn.Value(w.parts[j].PartitionKey, c)
			if err != nil {
				return err
			}
			for range paths {
				values = append(values, value)
			}
		}
		list = append(list, "["+strings.Join(values, ", ")+"][CAST(file_index AS INTEGER) + 1] AS "+quoteName(merged.KeyColumn(i)))
		expected = append(expected, merged.Column{Name: merged.KeyColumn(i), Type: c.Type})
	}
	if _, err := d.exec(ctx, "COPY (SELECT "+strings.Join(list, ", ")+" FROM "+rows+") TO "+quote(w.path)+" (FORMAT parquet, COMPRESSION zstd)"); err != nil {
		return err
	}
	return w.verify(ctx, d, expected)
}

// unmergeable reports whether a value of this type may change when it is written to a file and read again.
func unmergeable(kind string) bool {
	for _, name := range []string{"GEOMETRY", "VARIANT", "UNION(", "BIT", "INT128", "HUGEINT"} {
		if strings.Contains(kind, name) {
			return true
		}
	}
	return false
}

// verify compares the columns and the numbers of rows of the merged file with those of the single files.
func (w *mergeWriter) verify(ctx context.Context, d *database, expected []merged.Column) error {
	rows := readParquet([]string{w.path})
	found, err := d.describe(ctx, statement{text: "DESCRIBE SELECT * FROM " + rows})
	if err != nil {
		return err
	}
	for i, c := range mergedColumns(found) {
		if i < len(expected) && expected[i].Type == "TIMESTAMPTZ" {
			expected[i].Type = "TIMESTAMP WITH TIME ZONE"
		}
		if i >= len(expected) || c != expected[i] {
			return fmt.Errorf("column %s has type %s in a merged file, but another type in the single files", c.Name, c.Type)
		}
	}
	counts, err := d.conn.QueryContext(ctx, "SELECT "+quoteName(merged.CellColumn)+", count(*) FROM "+rows+" GROUP BY 1")
	if err != nil {
		return err
	}
	defer counts.Close()
	left := make([]int64, len(w.read))
	for i := range w.read {
		left[i] = w.read[i].Rows
	}
	for counts.Next() {
		var cell int
		var n int64
		if err := counts.Scan(&cell, &n); err != nil {
			return err
		}
		if cell < 0 || cell >= len(left) {
			return fmt.Errorf("a merged file has rows of cell %d", cell)
		}
		left[cell] -= n
	}
	for i := range left {
		if left[i] != 0 {
			return fmt.Errorf("a merged file lacks %d rows of partition %q", left[i], w.read[i].Partition)
		}
	}
	return counts.Err()
}

// store uploads the file and its description, and publishes them in the index. It fails if another process has merged
// files of the same partitions in the meantime.
func (w *mergeWriter) store(ctx context.Context, prefix, id string, replaced []string) error {
	file, err := os.Open(w.path)
	if err != nil {
		return fmt.Errorf("read a merged file: %w", err)
	}
	defer file.Close()
	if w.file.CRC32C, w.file.Size, err = filecheck.Sum(ctx, file); err != nil {
		return fmt.Errorf("read a merged file: %w", err)
	}
	for i := range w.read {
		w.file.Cells = append(w.file.Cells, w.read[i].Cell)
		w.file.Bytes += w.read[i].Bytes
	}
	description, err := json.Marshal(&w.file)
	if err != nil {
		return fmt.Errorf("describe a merged file: %w", err)
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("read a merged file: %w", err)
	}
	if _, err := w.Store.CreateFrom(ctx, merged.DataKey(prefix, id), file); err != nil {
		return fmt.Errorf("store a merged file: %w", err)
	}
	if _, err := w.Store.Create(ctx, merged.CellsKey(prefix, id), description); err != nil {
		return fmt.Errorf("store a merged file: %w", err)
	}
	e := merged.EntryOf(id, &w.file, description)
	conflict := false
	err = merged.Update(ctx, w.Store, prefix, func(x *merged.Index) bool {
		// A write may report a failure although it succeeded, so the index may already contain the file.
		if slices.ContainsFunc(x.Files, func(o merged.Entry) bool { return o.ID == id }) {
			return false
		}
		x.Remove(replaced...)
		conflict = len(x.Files) >= merged.MaxFiles || slices.ContainsFunc(x.Files, func(o merged.Entry) bool { return o.First == e.First && o.Last == e.Last })
		x.Files = append(x.Files, e)
		return !conflict
	})
	if conflict {
		return errors.New("another process has merged these outputs, or the asset has too many merged files")
	}
	return err
}

// downloadFile copies an object to a new file, and verifies its size and checksum.
func downloadFile(ctx context.Context, store blob.Store, path, key string, want contract.CommitMarkerFile) (err error) {
	from, _, err := store.Open(ctx, key)
	if err != nil {
		return fmt.Errorf("read %s: %w", key, err)
	}
	defer from.Close()
	to, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("copy %s: %w", key, err)
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	if _, err = io.Copy(to, io.LimitReader(from, want.Size+1)); err == nil {
		_, err = to.Seek(0, io.SeekStart)
	}
	if err != nil {
		return fmt.Errorf("copy %s: %w", key, err)
	}
	sum, size, err := filecheck.Sum(ctx, to)
	if err == nil && (size != want.Size || sum != want.CRC32C) {
		err = damaged(key, size, sum, want)
	}
	return err
}

// merging is an input from which a query read many small files.
type merging struct {
	asset   ids.AssetKey
	columns []space.Column
	parts   []part
}

const (
	// mergeAge is how old an output must be before a worker merges it.
	mergeAge = 10 * time.Minute
	// mergeMost is the maximum number of merged files that a worker writes after one task.
	mergeMost = 4
	// mergeGrace is how long a worker that is closing continues to write a merged file. Without this time, a process
	// that exits as soon as its run has ended would never finish a merge.
	mergeGrace = 4 * time.Second
	// mergeRetry is how long a worker waits after a failed merge before it merges outputs of the same asset again.
	mergeRetry = time.Hour
)

// noteUnmerged records an input if it has enough small files that no merged file contains yet.
func (a *attempt) noteUnmerged(in *input, columns []space.Column, set *mergedSet) {
	before := a.w.cfg.Clock.Now().Add(-a.w.cfg.Merging.Age)
	read := in.candidates(func(m *contract.CommitMarker) bool { return m.CommittedAt.Time().Before(before) })
	usable := set.only(func(f *merged.File) bool { return hasKeys(f, columns) })
	if len(a.w.cfg.Merging.Limits.Groups(read, usable.files)) > 0 {
		a.staged.unmerged = append(a.staged.unmerged, merging{in.asset, columns, in.parts})
	}
}

// mergeInputs merges small files that the task has read, if the worker has a free slot. It runs after the report, so
// nothing waits for it, and its errors do not affect the task.
func (a *attempt) mergeInputs() {
	w := a.w
	if len(a.staged.unmerged) == 0 {
		return
	}
	select {
	case w.slots <- struct{}{}:
	default:
		return // a later task that reads these files merges them
	}
	defer func() { <-w.slots }()
	ctx, cancel := context.WithCancel(w.life.ctx)
	defer cancel()
	stop := background(ctx, func(ctx context.Context) {
		select {
		case <-w.life.drain:
			if w.cfg.Clock.Sleep(ctx, mergeGrace) == nil {
				cancel()
			}
		case <-ctx.Done():
		}
	})
	defer stop()
	limit, _ := w.share()
	r := &reservation{bytes: w.machine.memoryShare(w.cfg.MaxConcurrent)}
	if bytes, known := bytesOf(limit); known {
		r.bytes = bytes
	}
	if w.memory.reserve(ctx, r, w.cfg.Clock.Now) != nil {
		return
	}
	defer func() { w.memory.release(r, w.cfg.Clock.Now()) }()
	for _, g := range a.staged.unmerged {
		if release := w.startMerge(domainAsset{a.domain, g.asset}); release != nil {
			err := a.mergeOne(ctx, g, limit)
			release(err)
			if err != nil && ctx.Err() == nil {
				a.log.WarnContext(ctx, "could not merge small files; reading them stays slow", "asset", g.asset.String(), "error", a.masked(err))
			}
		}
	}
}

func (a *attempt) mergeOne(ctx context.Context, in merging, limit string) error {
	dir, err := a.folder("merging")
	if err != nil {
		return err
	}
	m := Merger{
		Store: a.w.cfg.Store, NewID: a.w.cfg.Merging.NewID, Dir: dir, MemoryLimit: limit, Checked: a.w.caches.files,
		Before: a.w.cfg.Clock.Now().Add(-a.w.cfg.Merging.Age), Most: mergeMost,
		Limits: a.w.cfg.Merging.Limits, Write: a.w.cfg.Merging.Write,
	}
	g := Merging{Domain: a.domain, Asset: in.asset, Columns: in.columns, Parts: make([]MergingPart, len(in.parts))}
	for i := range in.parts {
		g.Parts[i] = MergingPart{in.parts[i].partitionKey, in.parts[i].marker, in.parts[i].paths}
	}
	done, err := m.Merge(ctx, g)
	if done.Files > 0 {
		a.log.InfoContext(ctx, "merged small files", "asset", in.asset.String(), "files", done.Files, "cells", done.Cells, "bytes", done.Bytes)
	}
	return err
}

// domainAsset is an asset of a domain. Several domains may have assets with the same key.
type domainAsset struct {
	domain ids.Domain
	asset  ids.AssetKey
}

// startMerge registers a merge of the outputs of an asset. It returns nil if this process already merges outputs of
// the asset, or failed to do so recently. Otherwise, the caller must call release when the merge has ended.
func (w *Worker) startMerge(asset domainAsset) (release func(error)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if until, known := w.mergeAfter[asset]; known && (until.IsZero() || w.cfg.Clock.Now().Before(until)) {
		return nil
	}
	w.mergeAfter[asset] = time.Time{} // the zero time marks a running merge
	return func(err error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.mergeAfter, asset)
		if err != nil {
			w.mergeAfter[asset] = w.cfg.Clock.Now().Add(mergeRetry)
		}
	}
}
