package query

import (
	"context"
	"fmt"
	"regexp"
	"strings"
)

// newestOutputs is the number of outputs, newest first, that the session reads to find the columns of an asset for a
// listing of views. The number is greater than one, because an output may have no rows, or belong to a partition that
// is no longer declared.
const newestOutputs = 4

// listing matches SQL that may list views. DESCRIBE without a name lists all views. DESC means DESCRIBE only at the
// start of a statement.
var listing = regexp.MustCompile(`(?i)information_schema|duckdb_(tables|views|columns|schemas)|\bshow\b|\bsqlite_(temp_)?(master|schema)\b` +
	`|\bpg_(attribute|class|namespace|tables|views)\b|\bdescribe\s*(;|\)|$)|(^|;|\()\s*desc\s*(;|\)|$)`)

// listsViews reports whether SQL may list the views of all assets.
func listsViews(sql string) bool { return listing.MatchString(sql) }

// listAssets marks the assets that the SQL does not mention. The session knows only some of their files. The parameter
// "lower" is the SQL in lower case.
func (db *DB) listAssets(lower string) {
	for _, a := range db.assets {
		a.listed = !a.isMentioned(lower)
	}
}

// listedView returns the query of a view that has the columns of an asset, but no rows. A statement that reads rows
// from the view fails, because the session does not know all files of the asset.
func (db *DB) listedView(ctx context.Context, a *asset) (string, error) {
	rows, err := db.rows(ctx, a)
	if err != nil {
		return "", err
	}
	columns, err := db.described(ctx, rows)
	if err != nil {
		return "", err
	}
	cells := make([]string, len(columns))
	for i, c := range columns {
		cells[i] = "CAST(NULL AS " + c.Type + ") AS " + quoteName(c.Name)
	}
	name := a.namespace + "." + a.name
	refusal := fmt.Sprintf("this statement lists views without naming %s, so only the columns of %s are known: to read its rows, name it in the statement", name, name)
	return "SELECT " + strings.Join(cells, ", ") + " FROM (SELECT 1) WHERE error(" + quoteText(refusal) + ") IS NULL", nil
}
