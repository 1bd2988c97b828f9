package sim

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/filecheck"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/merged"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
	"github.com/servo-orchestration/servo/pkg/worker"
)

// In some worlds, small outputs of partitioned assets are merged: by workers after their tasks, and by machines that
// act like servo admin merge. Only the format of merged files is simulated: a merged file contains the files of all its
// outputs, byte for byte. So the oracle can compare the bytes that a task reads with the bytes of the outputs.

// drawMerging enables merging in some worlds. Other draws depend on values that drawMerging changes, so it runs last.
func (c *World) drawMerging() {
	if r := random(c.Seed, "merging", 0); r.IntN(6) == 0 && c.Overtaken == 0 {
		c.merge(r)
	}
}

// DrawMerging returns the world of a seed, and enables merging in it.
func DrawMerging(seed uint64) World {
	c := Draw(seed)
	if c.Merging == 0 {
		c.Overtaken = 0
		c.merge(random(seed, "merging", 1))
	}
	return c
}

// merge enables merging, and gives the partitioned asset of each project so many days that their outputs are merged:
// see [World.Chained]. In most of these worlds, outputs are also replaced and collected.
func (c *World) merge(r *rand.Rand) {
	c.Merging, c.Mergers = 2+r.IntN(3), r.IntN(3)
	c.Chained, c.Batched = max(c.Chained, 4+r.IntN(7)), 2+r.IntN(3)
	if r.IntN(6) == 0 {
		c.Batched = 0
	}
	if c.Collectors == 0 && r.IntN(4) > 0 {
		c.Collectors = 1 + r.IntN(2)
		c.KeepVersions, c.KeepOutputs, c.KeepUnseen = 1+r.IntN(2), 1+r.IntN(10), 1+r.IntN(20)
	}
	c.Alone = max(c.Alone, 100+r.IntN(600))
	if r.IntN(8) > 0 { // a short world with few other tasks
		c.Tasks, c.Requests, c.Minutes = min(c.Tasks, 1+r.IntN(3)), min(c.Requests, 2+r.IntN(4)), min(c.Minutes, 12+r.IntN(20))
		c.Domains, c.Readers, c.Schedules, c.Alerts, c.Backfills = 1, 0, 0, 0, 0
	}
}

// drawMergedReads inserts runs of a single asset, without its upstreams. Usually this is the asset that reads all
// partitions. Sometimes it is the partitioned asset, so that some partitions are replaced.
func (l *workload) drawMergedReads(span time.Duration) {
	if l.w.cfg.Merging == 0 {
		return
	}
	r := random(l.w.cfg.Seed, "merged reads", 0)
	for range 6 + r.IntN(14) {
		client := fmt.Sprintf("client%d", r.IntN(l.w.cfg.Clients))
		script := l.scripts[client]
		a := ask{after: time.Duration(r.Int64N(int64(span) + 1)), verb: askRun, project: l.projects[r.IntN(len(l.projects))], alone: true}
		if a.only = len(a.project.assets) - 1; r.IntN(3) > 0 {
			a.only = max(0, a.only-1)
		}
		l.scripts[client] = slices.Insert(script, r.IntN(len(script)+1), a)
	}
}

// merging returns the settings with which the workers of a world merge outputs. The limits are so low that a merged
// file contains few cells.
func (c World) merging() (s worker.MergeSettings) {
	if c.Merging == 0 {
		return s
	}
	r := random(c.Seed, "merge limits", 0)
	return worker.MergeSettings{
		Limits: merged.Limits{MinCells: c.Merging, MaxCells: 2*c.Merging + r.IntN(4), MinRun: 1 + r.IntN(c.Merging)},
		Age:    time.Second << r.IntN(8), Write: mergeCells,
	}
}

// mergeCells writes a merged file. It implements [worker.MergeWrite].
func mergeCells(path string, cells [][]string) error {
	contents := make([][][]byte, len(cells))
	for i, files := range cells {
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			contents[i] = append(contents[i], data)
		}
	}
	data, err := json.Marshal(contents)
	if err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o600)
}

// cellsOf returns the contents of the files in some cells of a merged file.
func cellsOf(data []byte, first, n int) ([][]byte, error) {
	var contents [][][]byte
	if err := json.Unmarshal(data, &contents); err != nil {
		return nil, err
	}
	if first < 0 || first+n > len(contents) {
		return nil, fmt.Errorf("cells %d to %d of %d", first, first+n-1, len(contents))
	}
	return slices.Concat(contents[first : first+n]...), nil
}

// maxMergeWait is the longest time between two merges by the same machine.
const maxMergeWait = 2 * time.Minute

// runMerger merges the visible outputs of partitioned assets at random times, like servo admin merge.
func runMerger(ctx context.Context, p *process) {
	w := p.machine.w
	r := random(w.cfg.Seed, "merge "+p.id, 0)
	readers := map[ids.Domain]*snapshot.Reader{}
	for _, d := range w.domains {
		readers[d] = p.handle(d).Reader()
	}
	settings, until := w.cfg.merging(), time.Duration(0) // how long this machine merges; 0: as long as the world
	if r.IntN(3) > 0 {
		until = time.Duration(r.Int64N(int64(w.cfg.horizon())))
	}
	m := worker.Merger{
		Store: store{p}, NewID: ids.NewSource(p.now, p.entropy).New, Dir: filepath.Join(w.scratch, p.id), Checked: filecheck.New(),
		Limits: settings.Limits, Write: settings.Write,
	}
	if err := os.MkdirAll(m.Dir, 0o700); err != nil {
		panic(fmt.Sprintf("sim: %v", err))
	}
	for {
		if (machineClock{p}).Sleep(ctx, time.Second+time.Duration(r.Int64N(int64(maxMergeWait)))) != nil {
			return
		}
		if until > 0 && p.now().Sub(w.start) > until {
			continue
		}
		project := w.load.projects[r.IntN(len(w.load.projects))]
		snap, err := readers[project.domain].Current(ctx)
		if err != nil {
			continue
		}
		m.Before = p.now().Add(-time.Duration(r.IntN(60)) * time.Second)
		for i := range project.assets {
			if project.assets[i].Partitions != nil {
				_ = mergeOutputs(ctx, &m, snap, project.domain, &project.assets[i]) // a later merge tries again
			}
		}
	}
}

// mergeOutputs merges the visible outputs of an asset.
func mergeOutputs(ctx context.Context, m *worker.Merger, snap *snapshot.Snapshot, d ids.Domain, asset *plan.Asset) error {
	found, err := engine.PartitionMarkers(ctx, m.Store, snap, asset.Key)
	if err != nil {
		return err
	}
	g := worker.Merging{Domain: d, Asset: asset.Key, Columns: asset.PartitionColumns()}
	for _, f := range found {
		g.Parts = append(g.Parts, worker.MergingPart{PartitionKey: f.PartitionKey, Marker: f.Marker})
	}
	_, err = m.Merge(ctx, g)
	return err
}

// writeRows writes a Parquet file that contains the text into the folder of a partition, if the world merges outputs.
// Most of the files of an asset have the same columns, and some partitions get no file.
func (w *world) writeRows(folder, text string) error {
	if w.cfg.Merging == 0 {
		return nil
	}
	draw := hashOf(text)
	if draw%16 == 0 {
		return nil
	}
	footer := footers()[min(1, draw/16%8)]
	const magic = 4 // length of the magic number; in a file without rows, any bytes may follow it
	return os.WriteFile(filepath.Join(folder, rowsName), slices.Concat(footer[:magic], []byte(text), footer[magic:]), 0o600)
}

// rowsName is the name of the Parquet file of an output.
const rowsName = "made.parquet"

// readRows reads the rows of a task's inputs, as a query would, and lets the oracle compare them with the written
// files.
func (w *world) readRows(p *process, e worker.Execution) error {
	if w.cfg.Merging == 0 {
		return nil
	}
	rows, err := e.Rows()
	if err != nil {
		return err
	}
	contents := make([][][]byte, len(rows))
	for i := range rows {
		if contents[i], err = readOne(&rows[i]); err != nil {
			return err
		}
	}
	k := &call{proc: p, label: fmt.Sprintf("rows of %s %s/%d", e.RunID, e.TaskKey, e.Attempt)}
	k.begin = func() {
		w.oracle.checkRows(e, rows, contents)
		close(k.done)
	}
	return w.park(context.Background(), k)
}

// readOne returns the contents of single files, read one by one or from a merged file.
func readOne(rows *worker.InputRows) (contents [][]byte, err error) {
	if rows.Merged != "" {
		data, err := os.ReadFile(rows.Merged)
		if err != nil {
			return nil, err
		}
		return cellsOf(data, rows.First, rows.Cells)
	}
	for _, f := range rows.Files {
		data, err := os.ReadFile(f.Path)
		if err != nil {
			return nil, err
		}
		contents = append(contents, data)
	}
	return contents, nil
}

// checkRows checks that a task reads exactly the committed rows of its inputs, in the order of the inputs.
func (o *oracle) checkRows(e worker.Execution, rows []worker.InputRows, contents [][][]byte) {
	var want, got []string
	for _, uri := range e.Inputs {
		if key := uri + rowsName; o.w.made[key] != nil {
			want = append(want, key)
		}
	}
	for i := range rows {
		if rows[i].Merged != "" {
			o.w.fault("rows read from a merged file")
		}
		if len(rows[i].Files) != len(contents[i]) {
			o.violation("merged files", "attempt %d of task %s of run %s reads %d of %d files from a merged file", e.Attempt, e.TaskKey, e.RunID, len(contents[i]), len(rows[i].Files))
			return
		}
		for j, f := range rows[i].Files {
			got = append(got, f.Key)
			if !bytes.Equal(contents[i][j], o.w.made[f.Key]) {
				o.violation("merged files", "attempt %d of task %s of run %s reads rows that differ from those of %s (merged: %t)", e.Attempt, e.TaskKey, e.RunID, f.Key, rows[i].Merged != "")
			}
		}
	}
	if !slices.Equal(want, got) {
		o.violation("merged files", "attempt %d of task %s of run %s reads %v, want %v", e.Attempt, e.TaskKey, e.RunID, got, want)
	}
}

// mergedFile describes a merged file that an index has named.
type mergedFile struct {
	prefix string
	since  time.Time
	cells  []merged.Cell
}

// mergedWritten handles a new or changed object of merged files: it lets the oracle check a changed index, and may
// damage the object later.
func (w *world) mergedWritten(d ids.Domain, prefix, key string) {
	if key == merged.IndexKey(prefix) {
		w.oracle.checkIndex(d, prefix)
	}
	r := random(w.cfg.Seed, "damage "+key, w.steps)
	if r.IntN(1000) < w.cfg.Faults.Damaged {
		w.callAfter(time.Duration(r.Int64N(int64(maxUndamaged))), nil, func() { w.damageMerged(r, key) })
	}
}

// damageMerged damages an object of merged files.
func (w *world) damageMerged(r *rand.Rand, key string) {
	data, _, err := w.blobs.Get(context.Background(), key)
	if err != nil || len(data) == 0 || w.faults.over() { // the object was deleted or emptied, or faults have stopped
		return
	}
	w.damageObject(r, key, data)
	w.fault("merged file damaged")
}

// checkIndex checks the merged files that an index names for the first time: they must contain the files of their
// outputs, byte for byte.
func (o *oracle) checkIndex(d ids.Domain, prefix string) {
	ctx := context.Background()
	index, _, _, err := merged.Load(ctx, o.w.blobs, prefix)
	if err != nil {
		o.violation("merged files", "%v", err)
		return
	}
	for i := range index.Files {
		e := &index.Files[i]
		if o.merged[e.ID] != nil {
			continue
		}
		f, err := merged.Describe(ctx, o.w.blobs, prefix, e)
		if err != nil {
			continue // the file was damaged, or deleted by a writer that did not learn that the index names the file
		}
		o.merged[e.ID] = &mergedFile{prefix: prefix, since: o.w.now(), cells: f.Cells}
		o.w.fault("merged file published")
		o.checkMergedContent(d, prefix, e.ID, f)
	}
}

// checkMergedContent compares a new merged file with the files of the outputs that it contains.
func (o *oracle) checkMergedContent(d ids.Domain, prefix, id string, f *merged.File) {
	data, _, err := o.w.blobs.Get(context.Background(), merged.DataKey(prefix, id))
	if err != nil || int64(len(data)) != f.Size || blob.CRC32C(data) != f.CRC32C {
		return // the merged file was damaged or deleted
	}
	for i, c := range f.Cells {
		contents, err := cellsOf(data, i, 1)
		if err != nil || len(contents) != 1 || !bytes.Equal(contents[0], o.w.made[c.URI+rowsName]) || !strings.HasPrefix(c.URI, contract.AssetsPrefix(d)) {
			o.violation("merged files", "merged file %s has rows that differ from those of %s (%v)", id, c.URI, err)
		}
	}
}

// isNamed reports whether the index names a merged file, and the file itself exists.
func (o *oracle) isNamed(blobs blob.Store, prefix, id string) bool {
	index, _, _, err := merged.Load(context.Background(), blobs, prefix)
	if err != nil || !slices.ContainsFunc(index.Files, func(e merged.Entry) bool { return e.ID == id }) {
		return false
	}
	_, err = blobs.Head(context.Background(), merged.DataKey(prefix, id))
	return err == nil
}

// deletingCopied checks an output that a collector is about to delete. The output may be in a merged file that was
// published before the pass began. If so, the merged file must be deleted already, or its index must no longer name it.
func (o *oracle) deletingCopied(p *process, key string) {
	isPart := func(c merged.Cell) bool {
		return strings.HasPrefix(key, c.URI) || key == contract.CommitMarkerKeyOf(c.URI)
	}
	for id, file := range o.merged {
		if !file.since.Before(p.began) || !slices.ContainsFunc(file.cells, isPart) {
			continue
		}
		if o.isNamed(o.w.blobs, file.prefix, id) {
			o.violation("merged files", "%s deletes %s before merged file %s, which contains it", p.id, key, id)
		}
	}
}

// deletingMerged checks an object of a merged file that a collector is about to delete. One of these conditions must
// hold: the object is more than an hour old, and the index does not name the merged file; the merged file contains an
// output that no partition shows, or that the collector may delete; or an object of the merged file is already absent.
func (o *oracle) deletingMerged(p *process, f *followed, prefix, key string) {
	id := merged.IDOf(prefix, key)
	file := o.merged[id]
	if p.machine.kind != "gc" || file == nil || o.w.cfg.Faults.Damaged > 0 {
		return
	}
	o.w.fault("merged file collected")
	object, err := o.w.blobs.Head(context.Background(), key)
	if err == nil && !o.isNamed(o.w.blobs, prefix, id) && o.w.now().Sub(object.Updated) > time.Hour {
		return
	}
	for _, c := range file.cells {
		kept := slices.ContainsFunc(f.shows(c.Materialization), func(row *state.Partition) bool { return row.PartitionKey == c.Partition && !o.deletable(f, row) })
		if !kept {
			return
		}
	}
	if !f.broken && !o.absent(prefix, id) {
		o.violation("merged files", "%s deletes %s, although partitions show all of its outputs", p.id, key)
	}
}

// absent reports whether at least one object of a merged file does not exist.
func (o *oracle) absent(prefix, id string) bool {
	for _, key := range []string{merged.DataKey(prefix, id), merged.CellsKey(prefix, id)} {
		if _, err := o.w.blobs.Head(context.Background(), key); errors.Is(err, blob.ErrNotFound) {
			return true
		}
	}
	return false
}

// leftMerged reports whether an object in the folder of merged files may still exist at the end of a world, after the
// last collection. The index may always exist. An object of a merged file may exist if the index names the merged file,
// and every output in the merged file still exists.
func (o *oracle) leftMerged(blobs blob.Store, prefix, key string) (ok bool) {
	if key == merged.IndexKey(prefix) {
		return true
	}
	ctx, id := context.Background(), merged.IDOf(prefix, key)
	index, _, damaged, err := merged.Load(ctx, blobs, prefix)
	at := slices.IndexFunc(index.Files, func(e merged.Entry) bool { return e.ID == id })
	if err != nil || damaged || at < 0 {
		return false
	}
	f, err := merged.Describe(ctx, blobs, prefix, &index.Files[at])
	if err != nil {
		return false
	}
	for _, c := range f.Cells {
		_, commitErr := blobs.Head(ctx, contract.CommitMarkerKeyOf(c.URI))
		_, otherErr := blobs.Head(ctx, contract.QuarantineMarkerKeyOf(c.URI))
		if commitErr != nil && otherErr != nil {
			return false
		}
	}
	o.w.fault("merged file left in the end")
	return true
}
