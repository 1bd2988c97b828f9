package worker

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/quality"
)

// If an asset has the setting `batch`, each of its tasks materializes several partitions at once. The query reads the
// values of the dimensions from lists and returns these values as columns. The worker writes one folder per partition.
// All folders are below the directory of one execution, and one commit marker names them all. So either all partitions
// of the task are committed or none, and two executions of a task never mix their partitions.

// resultInBatch is the temporary table with the rows of a batch. Its column cellColumn contains, for each row, the
// position of the row's partition in the batch, or -1 if the row belongs to no partition.
const (
	resultInBatch = "servo_batch_result"
	cellColumn    = "servo_batch_partition"
)

// executionPrefix returns the directory for the files of this execution.
func (a *attempt) executionPrefix() string {
	if len(a.batch) > 0 {
		return contract.BatchPrefix(a.domain, a.asset, a.env.PartitionKey, a.env.MaterializationID, a.env.AttemptID, a.nonce)
	}
	return contract.ExecutionPrefix(a.domain, a.asset, a.env.PartitionKey, a.env.MaterializationID, a.env.AttemptID, a.nonce)
}

// partitionVariable returns the name of the variable that contains the value of a dimension or, for a batch, the list
// of its values.
func partitionVariable(w *plan.Work, dimension string) string {
	if w.Batch {
		return dimension + "_keys"
	}
	return dimension
}

// setPartitions returns the statement that sets the variable of a dimension. Without a batch, cells contains one
// partition.
func setPartitions(w *plan.Work, dimension string, cells ...ids.Partition) (string, error) {
	if w.Batch {
		return keysVariable(w.Dimensions, dimension, cells)
	}
	return setDimension(w.Dimensions, dimension, cells[0][dimension])
}

// keysVariable returns the statement that sets the list variable of a dimension to the values of the given
// partitions.
func keysVariable(kinds map[string]string, dimension string, cells []ids.Partition) (string, error) {
	kind, err := dimensionType(kinds, dimension)
	if err != nil {
		return "", err
	}
	values := valuesIn(cells, dimension)
	for i := range values {
		values[i] = plan.SQLLiteral(kind, values[i])
	}
	return "SET VARIABLE " + quoteName(dimension+"_keys") + " = CAST(" + quoteList(values) + " AS " + kind + "[])", nil
}

// valuesIn returns the distinct values that the given partitions have in a dimension.
func valuesIn(cells []ids.Partition, dimension string) (values []string) {
	seen := make(map[string]bool, len(cells))
	for _, cell := range cells {
		if value := cell[dimension]; !seen[value] {
			seen[value] = true
			values = append(values, value)
		}
	}
	return values
}

// arrange returns the files that a command has written for the partitions of its task, in the order of these
// partitions. The files of a partition are in the folder that names it: "date=2025-01-15", or
// "date=2025-01-15/region=eu". Each partition must have a folder, which may be empty. Otherwise a command that skips a
// partition by mistake would replace it with an empty output.
func (t *work) arrange(dir string, made []outputFile) ([]outputFile, error) {
	keys := t.cellKeys()
	cells, err := parseCells(keys)
	if err != nil {
		return nil, permanent(CodePlanUnreadable, "task %s: %w", t.task.TaskKey, err)
	}
	at := make(map[string]int, len(keys))
	for i, key := range keys {
		at[key] = i
	}
	dimensions := cells[0].Dimensions()
	of := make(map[string]int, len(made))
	for i := range made {
		key, rest := folderOf(made[i].name, dimensions)
		n, ok := at[key]
		if !ok {
			return nil, permanent(CodeInvalidOutput, "the output file %.200q is not in the folder of a partition of the task: write it to a folder such as %s",
				made[i].name, exampleFolder(cells[0], dimensions))
		}
		if made[i].name = rest; len(t.task.Partitions) > 0 {
			made[i].name = ids.PartitionSegment(key) + "/" + rest
		}
		if _, twice := of[made[i].name]; twice {
			return nil, permanent(CodeInvalidOutput, "two folders name partition %s, and both have a file %.200q: write one folder for each partition",
				strings.TrimSuffix(exampleFolder(cells[n], dimensions), "/"), rest)
		}
		of[made[i].name] = n
	}
	if err := t.requireFolders(dir, cells, dimensions); err != nil {
		return nil, err
	}
	slices.SortStableFunc(made, func(x, y outputFile) int {
		return cmp.Or(cmp.Compare(of[x.name], of[y.name]), strings.Compare(x.name, y.name))
	})
	return made, nil
}

// requireFolders returns an error if a command has not created the folder of a partition.
func (t *work) requireFolders(dir string, cells []ids.Partition, dimensions []string) error {
	if t.Output == plan.OutputNone {
		return nil
	}
	found, err := fs.Glob(os.DirFS(dir), strings.Repeat("*/", len(dimensions)-1)+"*")
	if err != nil {
		return err
	}
	has := make(map[string]bool, len(cells))
	for _, folder := range found {
		key, _ := folderOf(folder+"/", dimensions)
		has[key] = true
	}
	for i, key := range t.cellKeys() {
		if !has[key] {
			return permanent(CodeInvalidOutput, "the command has created no folder for partition %s: create %s, and leave it empty if the partition has no files",
				strings.TrimSuffix(exampleFolder(cells[i], dimensions), "/"), exampleFolder(cells[i], dimensions))
		}
	}
	return nil
}

// folderOf splits the path of a file into its partition folders and the rest. It returns the key of the partition
// that these folders name, and the rest of the path. The key is "" if the folders name no partition.
func folderOf(name string, dimensions []string) (key, rest string) {
	p := ids.Partition{}
	for _, dimension := range dimensions {
		folder, below, inside := strings.Cut(name, "/")
		text, ok := strings.CutPrefix(folder, dimension+"=")
		value, err := url.PathUnescape(text)
		if !inside || !ok || err != nil {
			return "", name
		}
		p[dimension], name = value, below
	}
	return p.Key(), name
}

func exampleFolder(cell ids.Partition, dimensions []string) string {
	var b strings.Builder
	for _, dimension := range dimensions {
		b.WriteString(dimension + "=" + url.PathEscape(cell[dimension]) + "/")
	}
	return b.String()
}

// parseCells parses the partition keys of a task. There is at least one.
func parseCells(keys []string) ([]ids.Partition, error) {
	cells := make([]ids.Partition, len(keys))
	for i, key := range keys {
		var err error
		if cells[i], err = ids.ParsePartition(key); err != nil {
			return nil, err
		}
	}
	return cells, nil
}

// cellKeys returns the partitions of the task.
func (t *work) cellKeys() []string { return t.task.EachPartition() }

// copyBatch executes the query of a batch, and writes a Parquet file for each of its partitions. If a partition has no
// rows, its file has no rows.
func (a *attempt) copyBatch(ctx context.Context, d *database, t *work, query *resolvedQuery) (made []outputFile, rows int64, err error) {
	keys := t.cellKeys()
	cells, err := parseCells(keys)
	if err != nil {
		return nil, 0, permanent(CodePlanUnreadable, "task %s: %w", t.task.TaskKey, err)
	}
	if err := d.createBatch(ctx, t, query, cells); err != nil {
		return nil, 0, err
	}
	if cpu, ok := d.cpuTime(); ok {
		a.addCPU(cpu)
	}
	if err := d.refuseStrangers(ctx, t, cells[0].Dimensions()); err != nil {
		return nil, 0, err
	}
	for i, key := range keys {
		name := outputName
		if len(a.batch) > 0 {
			name = ids.PartitionSegment(key) + "/" + outputName
		}
		target := filepath.Join(a.dir, "batch-"+strconv.Itoa(i)+".parquet")
		n, err := d.exec(ctx, "COPY (SELECT * EXCLUDE ("+cellColumn+") FROM "+resultInBatch+" WHERE "+cellColumn+" = "+strconv.Itoa(i)+") TO "+
			quote(target)+" (FORMAT parquet, COMPRESSION zstd)")
		if err != nil {
			return nil, 0, sqlFailure(err)
		}
		rows += n
		made = append(made, outputFile{name: name, path: target, open: func() (*os.File, error) { return os.Open(target) }}) //nolint:gosec // a file of this execution
		if err := made[i].describe(); err != nil {
			return nil, 0, err
		}
	}
	return made, rows, nil
}

// createBatch creates a table with the rows of the query and, for each row, the position of its partition.
func (d *database) createBatch(ctx context.Context, t *work, query *resolvedQuery, cells []ids.Partition) error {
	dimensions := cells[0].Dimensions()
	var values, on, names strings.Builder
	for i, dimension := range dimensions {
		if i > 0 {
			on.WriteString(" AND ")
		}
		equal := "rows_of.%s = partitions.k%d"
		if kind, err := dimensionType(t.Dimensions, dimension); err != nil {
			return err
		} else if kind == "VARCHAR" { // compare bytes with encode(): under the collation of a column, different values could be equal
			equal = "encode(rows_of.%s) = encode(partitions.k%d)"
		}
		fmt.Fprintf(&on, equal, quoteName(dimension), i)
		fmt.Fprintf(&names, ", k%d", i)
	}
	for i, cell := range cells {
		if i > 0 {
			values.WriteString(", ")
		}
		values.WriteString("(" + strconv.Itoa(i))
		for _, dimension := range dimensions {
			kind, err := dimensionType(t.Dimensions, dimension)
			if err != nil {
				return err
			}
			values.WriteString(", CAST(" + quote(plan.SQLLiteral(kind, cell[dimension])) + " AS " + kind + ")")
		}
		values.WriteString(")")
	}
	_, err := d.storeResult(ctx, t, query, storing{
		before: "CREATE TEMP TABLE " + resultInBatch + " AS SELECT rows_of.*, coalesce(partitions.n, -1) AS " + cellColumn + " FROM (",
		after:  "\n) AS rows_of LEFT JOIN (VALUES " + values.String() + ") AS partitions(n" + names.String() + ") ON " + on.String(),
		check:  func(columns []resultColumn) error { return hasDimensions(t, columns, dimensions) },
	})
	return err
}

// hasDimensions returns an error unless the result of a query has the dimensions of its partitions as columns.
func hasDimensions(t *work, columns []resultColumn, dimensions []string) error {
	if slices.ContainsFunc(columns, func(c resultColumn) bool { return strings.EqualFold(c.name, cellColumn) }) {
		return permanent(CodeInvalidOutput, "the result has a column %s, and this name is reserved: rename the column", cellColumn)
	}
	for _, dimension := range dimensions {
		kind, err := dimensionType(t.Dimensions, dimension)
		if err != nil {
			return err
		}
		if kind == "TIMESTAMPTZ" {
			kind = "TIMESTAMP WITH TIME ZONE"
		}
		i := slices.IndexFunc(columns, func(c resultColumn) bool { return strings.EqualFold(c.name, dimension) })
		switch {
		case i < 0:
			return permanent(CodeInvalidOutput, "the result has no column %s: an asset with `batch` must return the dimensions of its partitions, so that "+
				"each row belongs to one of them", dimension)
		case columns[i].kind != kind:
			return permanent(CodeInvalidOutput, "column %s has type %s, but the partitions have type %s: cast the column", dimension, columns[i].kind, kind)
		}
	}
	return nil
}

// refuseStrangers returns an error if the result has a row that belongs to no partition of the task.
func (d *database) refuseStrangers(ctx context.Context, t *work, dimensions []string) error {
	var count int64
	if err := d.conn.QueryRowContext(ctx, "SELECT count(*) FROM "+resultInBatch+" WHERE "+cellColumn+" < 0").Scan(&count); err != nil {
		return sqlFailure(err)
	}
	if count == 0 {
		return nil
	}
	list := make([]string, len(dimensions))
	for i, dimension := range dimensions {
		list[i] = quote(dimension+" = ") + " || coalesce(CAST(" + quoteName(dimension) + " AS VARCHAR), 'NULL')"
	}
	var example string
	query := "SELECT " + strings.Join(list, " || ', ' || ") + " FROM " + resultInBatch + " WHERE " + cellColumn + " < 0 LIMIT 1"
	if err := d.conn.QueryRowContext(ctx, query).Scan(&example); err != nil {
		return sqlFailure(err)
	}
	verb := "belong"
	if count == 1 {
		verb = "belongs"
	}
	filter := make([]string, len(dimensions))
	for i, dimension := range dimensions {
		filter[i] = dimension + " IN getvariable('" + dimension + "_keys')"
	}
	return permanent(CodeInvalidOutput, "%s %s to no partition of task %s, for example %s: filter the rows with WHERE %s",
		rowCount(count), verb, t.task.TaskKey, example, strings.Join(filter, " AND "))
}

// setCells divides the files of a marker among the partitions of the batch. The files must be in the order of
// these partitions.
func (a *attempt) setCells(m *contract.CommitMarker) error {
	if len(a.batch) == 0 {
		return nil
	}
	next := 0
	for _, key := range a.batch {
		cell := contract.CommitMarkerCell{PartitionKey: key}
		for folder := ids.PartitionSegment(key) + "/"; next < len(m.Files) && strings.HasPrefix(m.Files[next].Name, folder); next++ {
			cell.Files++
			cell.RowCount += m.Files[next].Rows
			cell.ByteSize += m.Files[next].Size
		}
		m.Cells = append(m.Cells, cell)
	}
	if next < len(m.Files) {
		return permanent(CodeInvalidOutput, "the output file %.200q belongs to no partition of the task", m.Files[next].Name)
	}
	return nil
}

// sameCells reports whether a marker has exactly the partitions of the task.
func (a *attempt) sameCells(m *contract.CommitMarker) bool {
	return slices.EqualFunc(m.Cells, a.batch, func(c contract.CommitMarkerCell, key string) bool { return c.PartitionKey == key })
}

// auditCells runs the POST checks on each partition of a batch, and returns one result for each check.
func (r *checkRun) auditCells(ctx context.Context, checks []*quality.Check) ([]event.CheckResult, error) {
	var merged []event.CheckResult
	failing := make([]int, len(checks))
	for _, key := range r.batch {
		r.cell, r.first, r.made, r.rows, r.shown, r.candidate, r.stored = key, merged, nil, 0, false, "", ""
		folder := ids.PartitionSegment(key) + "/"
		for i := range r.all {
			if strings.HasPrefix(r.all[i].name, folder) {
				r.made = append(r.made, r.all[i])
				r.rows += r.all[i].rows
			}
		}
		results, err := r.run(ctx, checks)
		if err != nil {
			return nil, err
		}
		if merged == nil {
			merged = make([]event.CheckResult, len(results))
		}
		for i := range results {
			mergeResult(&merged[i], &results[i], key, &failing[i])
		}
	}
	for i, n := range failing {
		if n > 1 {
			merged[i].Message += fmt.Sprintf("; and %d more partitions", n-1)
		}
	}
	return merged, nil
}

// mergeResult adds the result of a check of one partition to the result of the batch. The result of the batch is the
// result of the first partition that did not pass. If all partitions passed, it is the result of the first one. The
// number of failing rows is the sum over all partitions.
func mergeResult(to, result *event.CheckResult, key string, failing *int) {
	sum := to.Failing + result.Failing
	if !result.Passed {
		if *failing++; *failing == 1 {
			partition, err := ids.ParsePartition(key)
			*to = *result
			if err == nil {
				to.Message = "partition " + partition.Text() + ": " + result.Message
			}
		}
	}
	if to.Name == "" {
		*to = *result
	}
	to.Failing, to.Measured, to.Season, to.Metric = sum, nil, "", ""
}

// failedBefore reports whether a check failed for an earlier partition of the batch. In this case, the sample of that
// partition is kept.
func (r *checkRun) failedBefore(check string) bool {
	return slices.ContainsFunc(r.first, func(e event.CheckResult) bool { return e.Name == check && !e.Passed })
}
