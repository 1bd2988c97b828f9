package query

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/table"
)

// inlineRows returns SQL for the inline rows of a manifest. Their columns and types are those that the rows would
// have in a file. Values are written as literals of their column's type, so that they cannot inject SQL.
func inlineRows(d *table.Schema, arrays [][]byte) (string, error) {
	names := make([]string, len(d.Columns))
	columns := make([]string, len(d.Columns))
	for i, c := range d.Columns {
		names[i] = "c" + strconv.Itoa(i)
		columns[i] = "CAST(" + names[i] + " AS " + string(c.Type) + ") AS " + quoteName(c.Name)
	}
	var values []string
	for _, array := range arrays {
		var rows []map[string]jsontext.Value
		if err := json.Unmarshal(array, &rows); err != nil {
			return "", fmt.Errorf("table %s: inline rows of the manifest: %w", d.Name, err)
		}
		for _, row := range rows {
			literals := make([]string, len(d.Columns))
			for i, c := range d.Columns {
				var err error
				if literals[i], err = literal(c, row[c.Name]); err != nil {
					return "", fmt.Errorf("table %s: inline rows of the manifest: column %s: %w", d.Name, c.Name, err)
				}
			}
			values = append(values, "      ("+strings.Join(literals, ", ")+")")
		}
	}
	if len(values) == 0 {
		return "", nil
	}
	return "SELECT " + strings.Join(columns, ", ") + " FROM (VALUES\n" + strings.Join(values, ",\n") +
		") AS inline_rows(" + strings.Join(names, ", ") + ")", nil
}

// literal returns a value as a SQL literal. If a row lacks the column, the literal is the zero value that the column
// would have in a file.
func literal(c table.Column, v jsontext.Value) (string, error) {
	if v == nil {
		return zero(c), nil
	}
	var err error
	switch c.Type {
	case table.Varchar:
		var text string
		if err = json.Unmarshal(v, &text); err == nil {
			// A NUL character would end the SQL.
			return strings.ReplaceAll(quoteText(text), "\x00", "' || chr(0) || '"), nil
		}
	case table.Integer, table.Bigint:
		var n int64
		if err = json.Unmarshal(v, &n); err == nil {
			return strconv.FormatInt(n, 10), nil
		}
	case table.Boolean:
		var is bool
		if err = json.Unmarshal(v, &is); err == nil {
			return strconv.FormatBool(is), nil
		}
	case table.Timestamp:
		var at event.Time
		if v.Kind() == '0' {
			err = json.Unmarshal(v, (*int64)(&at))
		} else {
			err = json.Unmarshal(v, &at)
		}
		if err == nil {
			return quoteText(at.String()), nil
		}
	}
	return "", err
}

func zero(c table.Column) string {
	switch {
	case c.Nullable:
		return "NULL"
	case c.Type == table.Varchar:
		return "''"
	case c.Type == table.Boolean:
		return "false"
	case c.Type == table.Timestamp:
		return "'1970-01-01T00:00:00Z'"
	}
	return "0"
}
