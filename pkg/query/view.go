package query

import (
	"strings"

	"github.com/servo-orchestration/servo/pkg/filecheck"
	"github.com/servo-orchestration/servo/pkg/state"
	"github.com/servo-orchestration/servo/pkg/table"
)

// Table locates the rows of a projection table.
type Table struct {
	// Files are the Parquet files, in any order, with size and checksum from the manifest. Their paths are absolute;
	// for [Script], they may also be URLs.
	Files []filecheck.File
	// Inline are the rows that the manifest itself contains, as JSON arrays.
	Inline [][]byte
}

// Script returns SQL for stock DuckDB that creates a view for each projection table of a revision. The views read the
// files of that revision by their paths or URLs, which DuckDB must be able to read. The views have the same rows as
// the views of a [DB].
func Script(tables map[string]Table) (string, error) {
	var script strings.Builder
	script.WriteString("-- The tables of one revision: for each key the row with the greatest row_seq,\n" +
		"-- without deletions. The files are those that the manifest names; the literals\n" +
		"-- are the rows that it contains.\n")
	for _, d := range state.Declarations() {
		view, err := createView(d.Schema, tables[d.Name])
		if err != nil {
			return "", err
		}
		script.WriteString("\n" + view + ";\n")
	}
	return script.String(), nil
}

// createView returns the SQL that creates the view of a table. The SELECT without rows defines the order and the
// types of the columns, so that the columns do not depend on the builds that wrote the files, and exist even if
// there are no files. A key is unique within a file. So a view of a single file returns its rows directly. For
// several files, a window function selects the newest row of each key: it was the fastest solution, and DuckDB
// applies filters on the key before the window function.
func createView(d *table.Schema, t Table) (string, error) {
	columns := make([]string, len(d.Columns))
	for i, c := range d.Columns {
		columns[i] = "CAST(NULL AS " + string(c.Type) + ") AS " + quoteName(c.Name)
	}
	view := "CREATE OR REPLACE VIEW " + quoteName(d.Name) + " AS\n"
	parts := []string{"SELECT " + strings.Join(columns, ", ") + " WHERE false"}
	inline, err := inlineRows(d, t.Inline)
	if err != nil {
		return "", err
	}
	if len(t.Files) > 0 {
		parts = append(parts, "SELECT * FROM read_parquet("+quoteList(pathsOf(t.Files))+", union_by_name = true, hive_partitioning = false)")
	}
	if inline != "" {
		parts = append(parts, inline)
	}
	if len(parts) == 1 {
		return view + parts[0], nil
	}
	view += "SELECT * FROM (\n" +
		"  SELECT * FROM (\n" +
		"    " + strings.Join(parts, "\n    UNION ALL BY NAME\n    ") + ")\n"
	if len(t.Files)+len(t.Inline) > 1 {
		keys := d.Keys()
		for i, key := range keys {
			keys[i] = quoteName(key)
		}
		view += "  QUALIFY row_number() OVER (PARTITION BY " + strings.Join(keys, ", ") + " ORDER BY row_seq DESC) = 1\n"
	}
	return view + ") WHERE NOT deleted", nil
}

func pathsOf(files []filecheck.File) []string {
	paths := make([]string, len(files))
	for i, f := range files {
		paths[i] = f.Path
	}
	return paths
}

func quoteName(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

func quoteText(text string) string { return "'" + strings.ReplaceAll(text, "'", "''") + "'" }

func quoteList(texts []string) string {
	quotes := make([]string, len(texts))
	for i, text := range texts {
		quotes[i] = quoteText(text)
	}
	return "[" + strings.Join(quotes, ", ") + "]"
}
