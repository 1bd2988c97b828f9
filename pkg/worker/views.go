package worker

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/partcolumn"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/quality"
	"github.com/servo-orchestration/servo/pkg/space"
)

// Queries and checks read assets as views. The view of a partitioned asset adds the dimensions as columns. It does
// not add them if the asset sets partition_columns: false, or if the files of the asset already have columns with
// these names.

// storedSchema is the name of a schema with one view. The view shows the checked output with only the columns that its
// files have. The name cannot be the namespace of an asset.
const storedSchema = `"stored files"`

// createView returns the statements that create a view with an asset's name and the rows of a query.
func createView(key ids.AssetKey, query string) []string {
	return []string{
		"CREATE SCHEMA IF NOT EXISTS " + quoteName(key.Namespace),
		"CREATE OR REPLACE VIEW " + quality.Table(key) + " AS " + query,
	}
}

// noRows returns a query whose result has the declared columns and no rows. It replaces the input of an asset that
// reads itself, if the task's partition has no earlier output to read.
func (a *attempt) noRows(t *work) string {
	return plan.EmptyRows(t.Checks, t.plan.PartitionColumns[a.asset.String()])
}

// inputView returns a query for the rows of an input, and the files that this query reads. An input without files has
// no query.
func (a *attempt) inputView(ctx context.Context, d *database, t *work, in *input) (query string, files []string, err error) {
	if len(in.merged) > 0 {
		return a.mergedView(ctx, d, t, in)
	}
	files = in.parquet()
	columns := t.plan.PartitionColumns[in.asset.String()]
	if len(columns) == 0 || len(files) == 0 {
		return "SELECT * FROM " + readParquet(files), files, nil
	}
	parts := make([]partcolumn.Part, len(in.parts))
	for i := range in.parts {
		if parts[i], err = d.partOf(ctx, &in.parts[i], columns); err != nil {
			return "", nil, a.explainMemory(a.brokenInput(ctx, []input{*in}, sqlFailure(err)))
		}
	}
	a.staged.views++ // PRE checks, the query and POST checks need separate folders
	folder, err := a.folder(filepath.Join("partitions", strconv.Itoa(a.staged.views)))
	if err != nil {
		return "", nil, err
	}
	view, err := partcolumn.Read(parts, columns, folder)
	if err != nil {
		return "", nil, permanent(CodePlanUnreadable, "input %s: %w", in.asset, err)
	}
	if err := createLinks(view.Links); err != nil {
		return "", nil, fail(CodeWorker, CategoryInfrastructure, err)
	}
	for i := range view.Overlaps {
		if err := d.checkOverlap(ctx, in.asset, &view.Overlaps[i]); err != nil {
			return "", nil, err
		}
	}
	return view.SQL, files, nil
}

// partOf returns the files of a partition and the names of their columns. The names come from the commit marker. If the
// marker does not list them completely, they come from the files.
func (d *database) partOf(ctx context.Context, p *part, columns []space.Column) (partcolumn.Part, error) {
	found := partcolumn.Part{Key: p.partitionKey}
	for i, f := range p.marker.Files {
		if isParquet(f.Name) {
			found.Files = append(found.Files, p.paths[i])
		}
	}
	if len(found.Files) == 0 {
		return found, nil
	}
	paths := make([]string, len(p.marker.Columns))
	for i := range p.marker.Columns {
		paths[i] = p.marker.Columns[i].Name
	}
	var known bool
	if found.Columns, known = partcolumn.Names(paths, columns); known {
		found.Schema = p.marker.SchemaHash
		return found, nil
	}
	var err error
	found.Columns, err = d.columnNames(ctx, found.Files)
	return found, err
}

// columnNames returns the names of the columns of Parquet files.
func (d *database) columnNames(ctx context.Context, files []string) ([]string, error) {
	columns, err := d.describe(ctx, statement{text: "DESCRIBE SELECT * FROM " + readParquet(files)})
	names := make([]string, len(columns))
	for i := range columns {
		names[i] = columns[i].name
	}
	return names, err
}

// checkOverlap checks a partition column that the files of some partitions contain, and that other partitions get
// from their keys. It returns an error if the two types differ.
func (d *database) checkOverlap(ctx context.Context, asset ids.AssetKey, o *partcolumn.Overlap) error {
	found, err := d.describe(ctx, statement{text: "DESCRIBE " + o.Query})
	if err != nil {
		return sqlFailure(err)
	}
	if len(found) == 1 && partcolumn.SameType(o.Column, found[0].kind) {
		return nil
	}
	return permanent(CodeInvalidInput, "some partitions of input %s have a column %s of type %s, and others get %s from their keys as %s: "+
		"cast the column in %s and run all partitions again, or set partition_columns: false there",
		asset, o.Name, found[0].kind, o.Name, o.Type, asset)
}

// outputView returns a query for the rows of the output that is checked.
func (r *checkRun) outputView(ctx context.Context, files []string) (string, error) {
	stored := "SELECT * FROM " + readParquet(files)
	columns := r.t.plan.PartitionColumns[r.asset.String()]
	if len(columns) == 0 {
		return stored, nil
	}
	names, err := r.db.columnNames(ctx, files)
	if err != nil {
		return "", sqlFailure(err)
	}
	columns = partcolumn.Missing(columns, names)
	if len(columns) == 0 {
		return stored, nil
	}
	for _, statement := range []string{"CREATE SCHEMA IF NOT EXISTS " + storedSchema, "CREATE OR REPLACE VIEW " + storedSchema + ".output AS " + stored} {
		if _, err := r.db.exec(ctx, statement); err != nil {
			return "", sqlFailure(err)
		}
	}
	r.stored = storedSchema + ".output"
	query, err := partcolumn.Keyed(readParquet(files), cmp.Or(r.cell, r.env.PartitionKey), columns)
	if err != nil {
		return "", permanent(CodePlanUnreadable, "output of %s: %w", r.asset, err)
	}
	return query, nil
}

// createLinks creates symbolic links and their folders.
func createLinks(links []partcolumn.Link) error {
	last := ""
	for _, l := range links {
		if dir := filepath.Dir(l.Path); dir != last {
			if err := os.MkdirAll(dir, 0o700); err != nil {
				return fmt.Errorf("link the files of partitions: %w", err)
			}
			last = dir
		}
		target, err := filepath.Abs(l.Target)
		if err != nil {
			return fmt.Errorf("link the files of partitions: %w", err)
		}
		if err := os.Symlink(target, l.Path); err != nil {
			return fmt.Errorf("link the files of partitions: %w", err)
		}
	}
	return nil
}

// withPartitionColumns adds the partition columns of an asset to the columns of its outputs. The result has the columns
// that readers of the asset get.
func withPartitionColumns(a *plan.Asset, columns []resultColumn) []resultColumn {
	names := make([]string, len(columns))
	for i := range columns {
		names[i] = columns[i].name
	}
	for _, c := range partcolumn.Missing(a.PartitionColumns(), names) {
		columns = append(columns, resultColumn{c.Name, c.Type})
	}
	return columns
}
