package worker

import (
	"context"
	"fmt"
	"strings"
)

// Parquet has no 128-bit integers. DuckDB writes them as DOUBLE, which loses digits beyond 15. Its
// sum of integers is a 128-bit integer. Therefore the worker stores them as DECIMAL(38,0).

// exactInteger is the type in which 128-bit integers are stored.
const exactInteger = "DECIMAL(38,0)"

// resultColumn is a column of a query's result.
type resultColumn struct{ name, kind string }

// describe returns the columns of a query's result. The query is bound, not executed.
func (d *database) describe(ctx context.Context, s statement) (columns []resultColumn, err error) {
	rows, err := d.conn.QueryContext(ctx, s.text)
	if err != nil {
		return nil, err
	}
	defer func() {
		if closeErr := rows.Close(); err == nil {
			err = closeErr
		}
	}()
	for rows.Next() {
		var c resultColumn
		var null, key, fallback, extra any
		if err := rows.Scan(&c.name, &c.kind, &null, &key, &fallback, &extra); err != nil {
			return nil, err
		}
		columns = append(columns, c)
	}
	return columns, rows.Err()
}

// exact casts the query's 128-bit integers to [exactInteger], including those inside lists, structs
// and maps. The choice depends on types only, so that all partitions of an asset agree. cast names
// the affected columns.
func exact(q *resolvedQuery, columns []resultColumn) (s statement, cast []string) {
	var list, names strings.Builder
	for i, c := range columns {
		if i > 0 {
			list.WriteString(", ")
			names.WriteString(", ")
		}
		fmt.Fprintf(&names, "c%d", i)
		kind, changed := exactType(c.kind)
		if changed {
			cast = append(cast, c.name)
			fmt.Fprintf(&list, "CAST(c%d AS %s) AS %s", i, kind, quoteName(c.name))
		} else {
			fmt.Fprintf(&list, "c%d AS %s", i, quoteName(c.name))
		}
	}
	if len(cast) == 0 {
		return q.within("", ""), nil
	}
	return q.within("SELECT "+list.String()+" FROM (", "\n) AS result("+names.String()+")"), cast
}

// exactType replaces 128-bit integers in the name of a type. Field names and enum values that look
// like types are quoted, and stay unchanged.
func exactType(kind string) (exact string, changed bool) {
	var b strings.Builder
	for i := 0; i < len(kind); {
		rest := kind[i:]
		end := 1
		switch c := rest[0]; {
		case c == '\'' || c == '"':
			end = 1 + strings.IndexByte(rest[1:], c) + 1
		case isWord(c):
			for end < len(rest) && isWord(rest[end]) {
				end++
			}
		}
		if word := rest[:end]; word == "HUGEINT" || word == "UHUGEINT" {
			b.WriteString(exactInteger)
			changed = true
		} else {
			b.WriteString(word)
		}
		i += end
	}
	return b.String(), changed
}

func isWord(c byte) bool {
	return c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= 0x80
}
