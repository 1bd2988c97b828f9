package query

import (
	"strings"

	"github.com/servo-orchestration/servo/pkg/table"
)

// Script is SQL for stock DuckDB that creates a view for each projection table
// of a revision, over that revision's own list of files: paths, or URLs that
// the DuckDB it is pasted into can read. It gives what [DB.Query] gives.
func Script(tables map[string][]string) string {
	var script strings.Builder
	script.WriteString("-- The tables of one revision: of each key the row with the greatest row_seq,\n" +
		"-- unless it is a deletion. The files are those that its manifest names.\n")
	for _, d := range table.All() {
		script.WriteString("\n" + createView(d, tables[d.Name]) + ";\n")
	}
	return script.String()
}

// createView is the view of a table. The empty SELECT gives the columns their
// order and types, whatever builds wrote the files, and whether there are any.
// A file has a key once, so that one file needs no search for the newest rows.
// Of the ways to search, the window was the fastest with few files and many,
// and it is the one through which DuckDB passes a filter on the key.
func createView(d table.Description, files []string) string {
	columns := make([]string, len(d.Columns))
	for i, c := range d.Columns {
		columns[i] = "CAST(NULL AS " + string(c.Type) + ") AS " + quoteName(c.Name)
	}
	view := "CREATE OR REPLACE VIEW " + quoteName(d.Name) + " AS\n"
	empty := "SELECT " + strings.Join(columns, ", ") + " WHERE false"
	if len(files) == 0 {
		return view + empty
	}
	view += "SELECT * FROM (\n" +
		"  SELECT * FROM (\n" +
		"    " + empty + "\n" +
		"    UNION ALL BY NAME\n" +
		"    SELECT * FROM read_parquet(" + quoteList(files) + ", union_by_name = true, hive_partitioning = false))\n"
	if len(files) > 1 {
		keys := d.Keys()
		for i, key := range keys {
			keys[i] = quoteName(key)
		}
		view += "  QUALIFY row_number() OVER (PARTITION BY " + strings.Join(keys, ", ") + " ORDER BY row_seq DESC) = 1\n"
	}
	return view + ") WHERE NOT deleted"
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
