package worker

import (
	"context"
	"fmt"
	"strings"
)

// Parquet has no integers of 128 bits, and DuckDB stores them as DOUBLE, which loses digits
// beyond 15. The sum of integers has such a type. Queries store it as DECIMAL(38,0) instead.

// exactInteger is the type that integers of 128 bits are stored as.
const exactInteger = "DECIMAL(38,0)"

// resultColumn is a column of a query's result.
type resultColumn struct{ name, kind string }

// describe is the columns of a query's result. The query is bound and not executed.
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

// exact is the query with its integers of 128 bits cast to [exactInteger], also those inside
// lists, structs and maps. The choice depends on types alone, so that all partitions of an
// asset agree. cast names the columns that it casts.
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

// exactType replaces the integers of 128 bits in the name of a type. Names of fields and
// values of enums are quoted where they could be mistaken.
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
