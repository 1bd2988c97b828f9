// Package partcolumn writes the SQL that reads the files of a partitioned asset. The rows have a column for each
// dimension of the partitions. The package is pure: its caller executes the SQL and creates the links. This package is
// not a stable API.
//
// DuckDB can skip files by the value of a column only if the column comes from the path, as in a folder
// "date=2025-01-15". The folders of outputs do not have such names. So the SQL reads the files through symbolic links,
// which are in folders that have such names. If a file itself has a column with the name of a dimension, the file's
// column takes precedence over the partition key: the folders through which the file is read do not name this
// dimension.
package partcolumn

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/space"
)

// Part is one partition of an asset.
type Part struct {
	Key string
	// Folder is a name that is unique among the outputs of the asset. Links are created below it, so that later calls
	// of Read can reuse them. If Folder is empty, later calls cannot reuse the links.
	Folder string
	// Files are the paths of the partition's Parquet files.
	Files []string
	// Columns are the names of all columns of the files.
	Columns []string
	// Schema identifies the columns of the files: their names, types and order. Parts with equal columns have the same
	// Schema. "" means that the columns are not known.
	Schema string
}

// Link is a symbolic link that must exist before the SQL is executed.
type Link struct{ Path, Target string }

// Overlap is a dimension that is a column in the files of some partitions, but not in the files of others.
type Overlap struct {
	space.Column
	// Query is SQL that returns the values of the column in the files that contain it.
	Query string
}

// View describes how to read the partitions of an asset.
type View struct {
	// SQL is a query for the rows.
	SQL   string
	Links []Link
	// Overlaps lists columns that come from files for some partitions and from keys for others. The type of such a
	// column must be the same in the files and in the keys.
	Overlaps []Overlap
}

// ReadParquet returns the SQL that reads files as one table. Hive partitioning is off: a folder called
// "date=2025-01-15" adds no column.
func ReadParquet(files []string) string {
	return "read_parquet(" + quoteList(files) + ", union_by_name = true, hive_partitioning = false)"
}

// Names returns the names of the columns of files, given the paths of their fields as commit markers list them. It
// returns false if it cannot decide whether the files have a dimension as a column: a path that begins with a dimension
// and a dot may belong to a nested column, or to a column with a dot in its name.
func Names(paths []string, columns []space.Column) (names []string, known bool) {
	for _, path := range paths {
		top, _, nested := strings.Cut(path, ".")
		if nested && hasColumn([]string{top}, columns) {
			return nil, false
		}
		names = append(names, path)
	}
	return names, len(paths) > 0
}

func hasColumn(names []string, columns []space.Column) bool {
	for i := range columns {
		if has(names, columns[i].Name) {
			return true
		}
	}
	return false
}

// has reports whether a list of names contains a name. It ignores case, as DuckDB does.
func has(names []string, name string) bool {
	for _, n := range names {
		if strings.EqualFold(n, name) {
			return true
		}
	}
	return false
}

// Missing returns the columns that a list of column names lacks.
func Missing(columns []space.Column, names []string) (missing []space.Column) {
	for _, c := range columns {
		if !has(names, c.Name) {
			missing = append(missing, c)
		}
	}
	return missing
}

// Keyed returns a query for the rows of a table. The query adds the values of a partition key as columns.
func Keyed(table, key string, columns []space.Column) (string, error) {
	partition, err := parse(key, columns)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for _, c := range columns {
		b.WriteString(", CAST(" + quote(plan.SQLLiteral(c.Type, partition[c.Name])) + " AS " + c.Type + ") AS " + quoteName(c.Name))
	}
	return "SELECT *" + b.String() + " FROM " + table, nil
}

// parse parses a partition key. It returns an error if the key lacks one of the columns.
func parse(key string, columns []space.Column) (ids.Partition, error) {
	partition, err := ids.ParsePartition(key)
	if err != nil {
		return nil, err
	}
	for _, c := range columns {
		if _, ok := partition[c.Name]; !ok {
			return nil, fmt.Errorf("partition %q has no value for the dimension %s", key, c.Name)
		}
	}
	return partition, nil
}

// Read returns a view that reads the parts of an asset. The view's links are below folder, which is an absolute path.
// Read skips parts without files. It returns an error if no part has files.
func Read(parts []Part, columns []space.Column, folder string) (*View, error) {
	r := reader{columns: columns, folder: folder, at: map[string]int{}, view: &View{}}
	for i := range parts {
		if len(parts[i].Files) > 0 {
			if err := r.add(&parts[i], i); err != nil {
				return nil, err
			}
		}
	}
	if len(r.groups) == 0 {
		return nil, fmt.Errorf("no partition has files")
	}
	queries := make([]string, len(r.groups))
	for i := range r.groups {
		var err error
		if queries[i], err = r.query(&r.groups[i]); err != nil {
			return nil, err
		}
	}
	r.overlaps(queries)
	r.view.SQL = strings.Join(queries, "\nUNION ALL BY NAME\n")
	return r.view, nil
}

// reader groups parts that are read in the same way.
type reader struct {
	columns []space.Column
	folder  string
	groups  []group
	at      map[string]int // maps a list of columns to the position of its group
	view    *View
}

// group contains parts that get the same columns from their partition keys. A part that DuckDB cannot read through
// folders is alone in its group.
type group struct {
	keyed []space.Column // the columns that come from the keys
	parts []groupPart
}

type groupPart struct {
	*Part
	at        int // the index of the part in the argument of Read
	partition ids.Partition
}

func (r *reader) add(p *Part, at int) error {
	keyed := Missing(r.columns, p.Columns)
	partition, err := parse(p.Key, keyed)
	if err != nil {
		return err
	}
	var name strings.Builder
	for _, c := range keyed {
		name.WriteString(c.Name + "=")
	}
	if !r.linkable(keyed, partition) {
		name.WriteString(p.Key) // this part gets a group of its own
	}
	i, known := r.at[name.String()]
	if !known {
		i = len(r.groups)
		r.at[name.String()] = i
		r.groups = append(r.groups, group{keyed: keyed})
	}
	r.groups[i].parts = append(r.groups[i].parts, groupPart{p, at, partition})
	return nil
}

// maxName is the maximum length of the name of a folder.
const maxName = 255

// linkable reports whether DuckDB can read the values of a partition from the names of folders below r.folder.
func (r *reader) linkable(keyed []space.Column, partition ids.Partition) bool {
	if strings.ContainsAny(r.folder, "=*?[") {
		return false // DuckDB would read the folder's name as a column or as a pattern
	}
	for _, c := range keyed {
		if len(folderName(c, partition)) > maxName {
			return false
		}
	}
	return true
}

// Order returns partition columns, whose values come from the keys, in the order in which a query over several
// partitions returns them. It returns false if this order may differ between partitions, because some values do not
// fit into the name of a folder.
func Order(columns []space.Column, keys []string, folder string) (ordered []space.Column, known bool) {
	if len(columns) < 2 { //nolint:mnd // one column has only one order
		return columns, true
	}
	r := reader{folder: folder}
	for _, key := range keys {
		partition, err := parse(key, columns)
		if err != nil || !r.linkable(columns, partition) {
			return nil, false
		}
	}
	ordered = slices.Clone(columns)
	slices.SortFunc(ordered, func(a, b space.Column) int { return strings.Compare(a.Name, b.Name) }) // DuckDB's order
	return ordered, true
}

// Value returns a SQL expression for the value that a partition key has in a column.
func Value(key string, c space.Column) (string, error) {
	partition, err := parse(key, []space.Column{c})
	if err != nil {
		return "", err
	}
	return "CAST(" + quote(plan.SQLLiteral(c.Type, partition[c.Name])) + " AS " + c.Type + ")", nil
}

// folderName returns the name of a folder from which DuckDB reads the value of a column. It escapes the first
// character and every character that is not a letter or a digit. If the first character were not escaped, DuckDB
// would read the text NULL as a missing value.
func folderName(c space.Column, partition ids.Partition) string {
	var b strings.Builder
	b.WriteString(c.Name + "=")
	value := plan.SQLLiteral(c.Type, partition[c.Name])
	for i := range len(value) {
		if v := value[i]; i > 0 && (v >= '0' && v <= '9' || v >= 'a' && v <= 'z' || v >= 'A' && v <= 'Z') {
			b.WriteByte(v)
		} else {
			fmt.Fprintf(&b, "%%%02X", v)
		}
	}
	return b.String()
}

// query returns a query for the rows of a group. If the group has a single partition, the query contains the values
// of its key as constants.
func (r *reader) query(g *group) (string, error) {
	if len(g.keyed) > 0 && len(g.parts) > 1 {
		return r.linked(g), nil
	}
	var files []string
	for _, p := range g.parts {
		files = append(files, p.Files...)
	}
	if len(g.keyed) == 0 {
		return "SELECT * FROM " + ReadParquet(files), nil
	}
	return Keyed(ReadParquet(files), g.parts[0].Key, g.keyed)
}

// linked returns a query that reads the rows of a group through links. If all files are known to have the same schema,
// DuckDB opens only the files that match a filter on the columns that come from the keys.
func (r *reader) linked(g *group) string {
	schema := g.parts[0].Schema
	var files, types []string
	for _, p := range g.parts {
		folder := []string{r.folder}
		if p.Folder != "" {
			folder = append(folder, p.Folder)
		} else if len(g.keyed) < len(r.columns) {
			folder = append(folder, strconv.Itoa(p.at)) // several partitions may have the same values in these columns
		}
		for _, c := range g.keyed {
			folder = append(folder, folderName(c, p.partition))
		}
		files = append(files, r.link(strings.Join(folder, "/"), p.Files)...)
		if p.Schema != schema {
			schema = ""
		}
	}
	for _, c := range g.keyed {
		types = append(types, quote(c.Name)+": "+c.Type)
	}
	return "SELECT * FROM read_parquet(" + quoteList(files) + ", union_by_name = " + strconv.FormatBool(schema == "") +
		", hive_partitioning = true, hive_types = {" + strings.Join(types, ", ") + "})"
}

// link adds links through which the files of a part appear below a folder, and returns the paths of the files there.
// If all files are in one directory, the folder itself becomes a single link to this directory, because creating one
// link for each partition is much faster than creating a folder with a link for each file.
func (r *reader) link(folder string, files []string) []string {
	paths := make([]string, len(files))
	dir := path.Dir(files[0])
	if slices.ContainsFunc(files, func(f string) bool { return path.Dir(f) != dir || strings.ContainsAny(path.Base(f), "*?[=") }) {
		dir = "" // DuckDB would read such a name as a pattern or as a column
	}
	for i, file := range files {
		paths[i] = folder + "/" + path.Base(file)
		if dir == "" {
			paths[i] = folder + "/" + strconv.Itoa(i) + ".parquet"
			r.view.Links = append(r.view.Links, Link{paths[i], file})
		}
	}
	if dir != "" {
		r.view.Links = append(r.view.Links, Link{folder, dir})
	}
	return paths
}

// overlaps finds the columns that some groups have in their files and others get from their keys.
func (r *reader) overlaps(queries []string) {
	for _, c := range r.columns {
		var own []string
		keyed := false
		for i := range r.groups {
			if has(namesOf(r.groups[i].keyed), c.Name) {
				keyed = true
			} else {
				own = append(own, queries[i])
			}
		}
		for _, query := range own {
			if keyed {
				r.view.Overlaps = append(r.view.Overlaps, Overlap{c, "SELECT " + quoteName(c.Name) + " FROM (" + query + ")"})
			}
		}
	}
}

func namesOf(columns []space.Column) []string {
	names := make([]string, len(columns))
	for i := range columns {
		names[i] = columns[i].Name
	}
	return names
}

// SameType reports whether a type, as DuckDB names it, is the type of the column.
func SameType(c space.Column, kind string) bool {
	return kind == c.Type || c.Type == "TIMESTAMPTZ" && kind == "TIMESTAMP WITH TIME ZONE"
}

func quote(s string) string     { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
func quoteName(s string) string { return `"` + strings.ReplaceAll(s, `"`, `""`) + `"` }

func quoteList(texts []string) string {
	quoted := make([]string, len(texts))
	for i, text := range texts {
		quoted[i] = quote(text)
	}
	return "[" + strings.Join(quoted, ", ") + "]"
}
