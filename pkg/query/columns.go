package query

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/partcolumn"
	"github.com/servo-orchestration/servo/pkg/space"
)

// Declarations are the partitions and columns that a release declares for assets.
type Declarations struct {
	// Has reports whether readers of an asset see a partition.
	Has func(asset, partition string) bool
	// Columns returns the columns that readers of an asset get from the keys of its partitions.
	Columns func(asset string) []space.Column
}

// columns returns the partition columns of an asset.
func (d *Declarations) columns(asset string) []space.Column {
	if d == nil || d.Columns == nil {
		return nil
	}
	return d.Columns(asset)
}

// has reports whether readers of an asset see one of its partitions. Readers do not see a partition whose key lacks a
// dimension that the asset now has.
func (d *Declarations) has(asset, partition string) bool {
	if d == nil {
		return true
	}
	key, err := ids.ParsePartition(partition)
	for _, c := range d.columns(asset) {
		if _, ok := key[c.Name]; err == nil && !ok {
			return false
		}
	}
	return d.Has == nil || d.Has(asset, partition)
}

// partOf returns a partition in the form that package partcolumn reads. If the commit marker lists the columns of the
// output, the partition names them.
func (a *asset) partOf(partition string, marker *contract.CommitMarker) partcolumn.Part {
	p := partcolumn.Part{Key: partition}
	paths := make([]string, len(marker.Columns))
	for i := range marker.Columns {
		paths[i] = marker.Columns[i].Name
	}
	if names, known := partcolumn.Names(paths, a.columns); known {
		p.Columns, p.Schema = names, marker.SchemaHash
	}
	return p
}

// rows returns a query for the rows of an asset.
func (db *DB) rows(ctx context.Context, a *asset) (string, error) {
	if len(a.columns) == 0 {
		return "SELECT * FROM " + partcolumn.ReadParquet(pathsOf(a.files)), nil
	}
	for i := range a.parts {
		p := &a.parts[i]
		if len(p.Columns) > 0 || len(p.Files) == 0 {
			continue
		}
		described, err := db.described(ctx, "SELECT * FROM "+partcolumn.ReadParquet(p.Files))
		if err != nil {
			return "", err
		}
		for _, c := range described {
			p.Columns = append(p.Columns, c.Name)
		}
	}
	folder := "="
	if db.links != "" {
		db.linked++
		name := strconv.Itoa(db.linked)
		if a.parts[0].Folder != "" {
			name = a.namespace + "." + a.name // the name is the same in every export, so that the next export finds the links
		}
		folder = filepath.Join(db.links, name)
	}
	view, err := partcolumn.Read(a.parts, a.columns, folder)
	if err != nil {
		return "", err
	}
	if err := createLinks(view.Links); err != nil {
		return "", err
	}
	for _, o := range view.Overlaps {
		found, err := db.described(ctx, o.Query)
		if err != nil {
			return "", err
		}
		if len(found) != 1 || !partcolumn.SameType(o.Column, found[0].Type) {
			return "", fmt.Errorf("some of its partitions have a column %s of type %s, and others get %s from their keys as %s: "+
				"cast the column and run all partitions again, or set partition_columns: false", o.Name, found[0].Type, o.Name, o.Type)
		}
	}
	return view.SQL, nil
}

// described returns the columns of a query.
func (db *DB) described(ctx context.Context, query string) (columns []space.Column, err error) {
	rows, err := db.runOne(ctx, "SELECT column_name, column_type FROM (DESCRIBE "+query+")")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for row, err := range rows.All() {
		if err != nil {
			return nil, err
		}
		columns = append(columns, space.Column{Name: fmt.Sprint(row[0]), Type: fmt.Sprint(row[1])})
	}
	return columns, nil
}

// createLinks creates symbolic links and their folders. The session allows DuckDB to read the files to which the links
// point. DuckDB can therefore also read the links.
func createLinks(links []partcolumn.Link) error {
	last := ""
	for _, l := range links {
		if dir := filepath.Dir(l.Path); dir != last {
			if err := os.MkdirAll(dir, 0o700); err != nil {
				return fmt.Errorf("link the files of partitions: %w", err)
			}
			last = dir
		}
		if err := createLink(l); err != nil {
			return fmt.Errorf("link the files of partitions: %w", err)
		}
	}
	return nil
}

// createLink creates a link, unless it exists. If the project has been moved, it replaces a link of an earlier export
// that points to the old place.
func createLink(l partcolumn.Link) error {
	err := os.Symlink(l.Target, l.Path)
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	if target, err := os.Readlink(l.Path); err == nil && target == l.Target {
		return nil
	}
	temporary := l.Path + ".new"
	if err := os.Remove(temporary); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Symlink(l.Target, temporary); err != nil {
		return err
	}
	return os.Rename(temporary, l.Path)
}
