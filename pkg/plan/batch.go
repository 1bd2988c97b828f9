package plan

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/quality"
	"github.com/servo-orchestration/servo/pkg/space"
)

// An asset with a batch has tasks that materialize several partitions at once. The partitions of a batch are all
// combinations of some values of each dimension, so one list of values per dimension describes the batch exactly. If
// the selected partitions are all combinations of their values and fit into one batch, the batch contains all of them.
// Otherwise, the partitions of a batch differ in one dimension only. In both cases, a gap in time may end a batch: see
// batchSize.

// CheckBatch returns an error if an asset declares a batch, but must not have one.
func (a *Asset) CheckBatch() error {
	switch {
	case !a.Work.Batch:
		return nil
	case a.Partitions == nil:
		return errors.New("the asset has no partitions")
	case a.ReadsItself():
		return errors.New("the asset reads itself, so its partitions must be materialized one after the other")
	case a.Work.Text != nil && a.Work.Text.Format != TextNone:
		return errors.New("its text files become a table, which works only for one partition per task: write Parquet files")
	}
	for i := range a.Work.Checks {
		c := &a.Work.Checks[i]
		if c.Kind == quality.Command {
			return fmt.Errorf("check %s is a command, which can check only one partition per task", c.Name)
		}
		if c.Kind == quality.Anomaly || c.Params.MinOfPrevious > 0 || c.Params.MaxOfPrevious > 0 {
			return fmt.Errorf("check %s compares with earlier outputs, which works only for one partition per task", c.Name)
		}
	}
	return nil
}

// batchAssets divides partitions into batches, for each asset that declares a batch.
func (b *builder) batchAssets() error {
	for _, n := range b.order {
		if n.asset.Batch < 2 || b.request.ChecksOnly {
			continue
		}
		if err := b.batch(n); err != nil {
			return fmt.Errorf("asset %s: %w", n.asset.Key, err)
		}
	}
	return nil
}

// batch divides the partitions of a node into batches.
func (b *builder) batch(n *node) error {
	keys := n.asset.Partitions.ByTime(n.keys)
	cells := make([]ids.Partition, len(keys))
	for i, key := range keys {
		var err error
		if cells[i], err = ids.ParsePartition(key); err != nil {
			return err
		}
	}
	along := batchDimension(n.asset.Partitions)
	lists, bytes := [][]int{nil}, 0
	for i := range cells {
		lists[0], bytes = append(lists[0], i), bytes+len(keys[i])
	}
	if len(cells) > n.asset.Batch || bytes > event.MaxBatchBytes || !isProduct(cells) {
		lists = byOthers(cells, along)
	}
	for _, list := range lists {
		for len(list) > 0 {
			size, err := b.batchSize(n.asset, keys, cells, list, along)
			if err != nil {
				return err
			}
			n.addBatch(keys, cells, list[:size])
			list = list[size:]
		}
	}
	slices.SortFunc(n.batches, func(x, y []string) int { return strings.Compare(x[0], y[0]) })
	return nil
}

// batchDimension returns the dimension along which partitions are divided into batches: the dimension of time or, if
// there is none, the first dimension.
func batchDimension(s *space.Space) string {
	if d := s.Time(); d != nil {
		return d.Name
	}
	return s.Dimensions[0].Name
}

// isProduct reports whether the partitions are all combinations of the values that occur in each dimension.
func isProduct(cells []ids.Partition) bool {
	values := map[string]map[string]bool{}
	for _, cell := range cells {
		for dimension, value := range cell {
			if values[dimension] == nil {
				values[dimension] = map[string]bool{}
			}
			values[dimension][value] = true
		}
	}
	product := 1
	for _, of := range values {
		if product *= len(of); product > len(cells) {
			return false
		}
	}
	return product == len(cells)
}

// byOthers groups partitions that differ only in the dimension "along". Groups are in the order of their first
// partitions.
func byOthers(cells []ids.Partition, along string) (lists [][]int) {
	at := map[string]int{}
	for i, cell := range cells {
		var others strings.Builder
		for _, dimension := range cell.Dimensions() {
			if dimension != along {
				fmt.Fprintf(&others, "%q", cell[dimension])
			}
		}
		n, ok := at[others.String()]
		if !ok {
			n = len(lists)
			at[others.String()] = n
			lists = append(lists, nil)
		}
		lists[n] = append(lists[n], i)
	}
	return lists
}

// batchSize returns how many of the listed partitions the next batch gets. The span of a batch is the time from the
// start of its first period to the end of its last. If the asset may read the span, the batch ends before the first gap
// in time. Otherwise, the task could also read the periods in the gap, which are not in the batch.
func (b *builder) batchSize(a *Asset, keys []string, cells []ids.Partition, list []int, along string) (int, error) {
	spans := a.Partitions.Time() != nil && readsSpan(a, along)
	var last *Period
	bytes := 0
	for n, i := range list {
		if bytes += len(keys[i]); n == a.Batch || n > 0 && bytes > event.MaxBatchBytes {
			return n, nil
		}
		if !spans {
			continue
		}
		next, err := period(b.request.Calendar, a.Partitions, cells[i])
		if err != nil {
			return 0, err
		}
		if last != nil && next.Start.After(last.End) {
			return n, nil
		}
		last = next
	}
	return len(list), nil
}

// readsSpan reports whether the query or the command of an asset may read the span of its batch. In a query, it
// searches for the names of the variables that contain the start and the end of the span.
func readsSpan(a *Asset, dimension string) bool {
	if a.Work.SQL == "" {
		return true // Servo does not know which variables a command reads
	}
	query := strings.ToLower(a.Work.SQL)
	return strings.Contains(query, "'"+dimension+"_start'") || strings.Contains(query, "'"+dimension+"_end'")
}

// addBatch combines some partitions into one task.
func (n *node) addBatch(keys []string, cells []ids.Partition, list []int) {
	batch := make([]string, len(list))
	task := n.tasks[n.at[keys[list[0]]]]
	if len(list) > 1 {
		of := make([]ids.Partition, len(list))
		for j, i := range list {
			of[j] = cells[i]
		}
		task = batchKey(n.asset, of)
	}
	for j, i := range list {
		batch[j] = keys[i]
		n.tasks[n.at[keys[i]]] = task
	}
	n.batches = append(n.batches, batch)
}

// maxBatchKey is the maximum size of the values of one dimension in the key of a batch, in bytes.
const maxBatchKey = 100

// batchKey returns the key of the task of a batch: "mart/sales[date=2025-01-01..2025-02-19]". No task of a single
// partition has such a key, because the value of a period never contains "..", and task keys escape the commas of
// other values.
func batchKey(a *Asset, cells []ids.Partition) string {
	var b strings.Builder
	b.WriteString(a.Key.String())
	for i, dimension := range cells[0].Dimensions() {
		b.WriteByte("[;"[min(i, 1)])
		b.WriteString(ids.EscapeTaskKey(dimension))
		b.WriteByte('=')
		d := a.Partitions.Dimension(dimension)
		var values []string
		for _, cell := range cells {
			if v := ids.EscapeTaskKey(cell[dimension]); !slices.Contains(values, v) {
				values = append(values, v)
			}
		}
		switch text := strings.Join(values, ","); {
		case len(values) == 1:
			b.WriteString(values[0])
		case d != nil && d.IsTime():
			b.WriteString(values[0] + ".." + values[len(values)-1])
		case len(text) <= maxBatchKey:
			b.WriteString(text)
		default:
			sum := sha256.Sum256([]byte(text))
			fmt.Fprintf(&b, "%d values,%s", len(values), hex.EncodeToString(sum[:8]))
		}
	}
	b.WriteByte(']')
	if b.Len() > ids.MaxTaskKey {
		sum := sha256.Sum256([]byte(b.String()))
		return a.Key.String() + "[batch," + hex.EncodeToString(sum[:16]) + "]"
	}
	return b.String()
}

// count returns the number of tasks of a node.
func (n *node) count() int {
	if n.batches != nil {
		return len(n.batches)
	}
	return len(n.keys)
}

// cells returns the partitions of a task of a node.
func (n *node) cells(i int) []string {
	if n.batches != nil {
		return n.batches[i]
	}
	return n.keys[i : i+1]
}

// distinct returns the task keys of a node, each once. (n.tasks repeats the key of a batch for each of its
// partitions.)
func (n *node) distinct() []string {
	if n.batches == nil {
		return n.tasks
	}
	tasks := slices.Clone(n.tasks)
	slices.Sort(tasks)
	return slices.Compact(tasks)
}

// setPeriod sets the period of a task: from the start of its first partition to the end of its last.
func (b *builder) setPeriod(t *Task, a *Asset, cells []string) error {
	if a.Partitions.Time() == nil {
		return nil
	}
	for _, key := range cells {
		partition, err := ids.ParsePartition(key)
		if err != nil {
			return err
		}
		p, err := period(b.request.Calendar, a.Partitions, partition)
		switch {
		case err != nil:
			return err
		case t.Period == nil:
			t.Period = p
		default:
			if p.Start.Before(t.Period.Start) {
				t.Period.Start = p.Start
			}
			if p.End.After(t.Period.End) {
				t.Period.End = p.End
			}
		}
	}
	return nil
}

// readImages returns the partitions of an upstream asset that a batch reads, each only once.
func (b *builder) readImages(n *node, e edge, keys []string, g *gathered) reads {
	if len(keys) == 1 {
		return b.readImage(n, e, keys[0], g)
	}
	var all reads
	for _, key := range keys {
		r := b.readImage(n, e, key, g)
		all.edges = append(all.edges, r.edges...)
		all.set.Items = append(all.set.Items, r.set.Items...)
	}
	slices.Sort(all.edges)
	all.edges = slices.Compact(all.edges)
	sortInputs(all.set.Items)
	all.set.Items = slices.CompactFunc(all.set.Items, func(x, y Input) bool { return x.PartitionKey == y.PartitionKey })
	return all
}

// EachPartition returns the partitions that a task materializes.
func (t *Task) EachPartition() []string {
	if len(t.Partitions) > 0 {
		return t.Partitions
	}
	return []string{t.PartitionKey}
}

// outputOf returns the output of one partition of a task. The parameter "out" is the output of the task, which may have
// several partitions.
func outputOf(t *Task, partition string, out Input) Input {
	if t != nil && len(t.Partitions) > 0 && out.URI != "" {
		out.URI = ids.CellURI(out.URI, partition)
	}
	out.PartitionKey = partition
	return out
}

// batch validates the partitions of a task that has a batch.
func (v *validator) batch(t *Task) {
	if len(t.Partitions) == 0 {
		return
	}
	seen, size := make(map[string]bool, len(t.Partitions)), 0
	for _, key := range t.Partitions {
		if _, err := ids.ParsePartition(key); err != nil {
			v.fail("task %s: %w", t.TaskKey, err)
		}
		if seen[key] {
			v.fail("task %s materializes the partition %.200s twice", t.TaskKey, key)
		}
		seen[key], size = true, size+len(key)
	}
	switch first := t.Partitions[0]; {
	case cmp.Or(t.Kind, event.KindTask) != event.KindTask:
		v.fail("task %s is a %s, but has a batch", t.TaskKey, t.Kind)
	case len(t.Partitions) < 2 || len(t.Partitions) > event.MaxBatch || size > event.MaxBatchBytes || first != t.PartitionKey:
		v.fail("task %s has a batch of %d partitions, whose keys have %d bytes together: a batch must have 2 to %d partitions, with keys of at most %d bytes together, and its first partition must be the one that the task names",
			t.TaskKey, len(t.Partitions), size, event.MaxBatch, event.MaxBatchBytes)
	case !v.plan.Assets[t.AssetKey].Batch:
		v.fail("task %s has a batch, but its asset %s has none", t.TaskKey, t.AssetKey)
	}
}
