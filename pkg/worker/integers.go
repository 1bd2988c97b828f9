package worker

import (
	"context"
	"fmt"
	"iter"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/servo-orchestration/servo/pkg/quality"
)

// Parquet has no 128-bit integers. DuckDB writes them as DOUBLE, which keeps only about 15 digits. In DuckDB, the sum
// of integers is a 128-bit integer, so such columns are common. Therefore the worker stores 128-bit integers as
// DECIMAL(38,0).

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

// exact casts the query's 128-bit integers, including those inside lists, structs and maps. It casts them to the
// integer type that the contract of the asset declares, or to [exactInteger]. The choice depends on types only, so that
// all partitions of an asset agree. It also returns the names of the columns that it casts.
func exact(q *resolvedQuery, columns []resultColumn, checks []quality.Check) (s statement, cast []string) {
	declared := quality.DeclaredIntegers(checks)
	var list, names strings.Builder
	for i, c := range columns {
		if i > 0 {
			list.WriteString(", ")
			names.WriteString(", ")
		}
		fmt.Fprintf(&names, "c%d", i)
		kind, changed := storedType(c, declared)
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

// sourceColumn matches the column in DuckDB's error about a failed cast. The function exact has named the columns c0,
// c1 and so on.
var sourceColumn = regexp.MustCompile(`from source column c(\d+)\b`)

// failedCast returns the column whose cast has failed. If DuckDB's error does not name it, failedCast returns all
// columns that were cast.
func failedCast(message string, columns []resultColumn, cast []string) []string {
	m := sourceColumn.FindStringSubmatch(message)
	if m == nil {
		return cast
	}
	at, err := strconv.Atoi(m[1])
	if err != nil || at >= len(columns) || !slices.Contains(cast, columns[at].name) {
		return cast
	}
	return []string{columns[at].name}
}

// columnsText returns the beginning of a sentence about the columns whose cast may have failed.
func columnsText(names []string) string {
	if len(names) == 1 {
		return "Column " + names[0]
	}
	return "One of the columns " + strings.Join(names, ", ")
}

// refuseUnstorable returns an error for the first column whose values Parquet would change. Parquet stores intervals
// as 32 bits of milliseconds, unions without their tags, and times without their offsets.
func refuseUnstorable(columns []resultColumn) error {
	for _, c := range columns {
		if instead := unstorable(c.kind); instead != "" {
			return permanent(CodeInvalidOutput, "column %s has type %s, whose values Parquet would change: %s", c.name, c.kind, instead)
		}
	}
	return nil
}

// unstorable returns "" if Parquet can store values of the type. Otherwise, it returns advice about what to store
// instead.
func unstorable(kind string) (instead string) {
	for word, rest := range words(kind) {
		switch {
		case word == "INTERVAL":
			return "store a number, as in epoch(column), or text, as in CAST(column AS VARCHAR)"
		case word == "UNION":
			return "store a struct, or text"
		case word == "TIME" && strings.HasPrefix(rest, " WITH TIME ZONE"):
			return "store a TIMESTAMP WITH TIME ZONE, a TIME, or text"
		}
	}
	return ""
}

// storedType returns the type in which a column is stored, and whether it differs from the type of the column. The
// parameter declared contains the integer types that the contract declares, by column in lower case.
func storedType(c resultColumn, declared map[string]string) (kind string, changed bool) {
	kind, changed = exactType(c.kind)
	if as := declared[strings.ToLower(c.name)]; as != "" && changed && kind == exactInteger {
		return as, true
	}
	return kind, changed
}

// exactType replaces 128-bit integers in the name of a type. Field names and enum values that look
// like types are quoted, and stay unchanged.
func exactType(kind string) (exact string, changed bool) {
	var b strings.Builder
	for word := range words(kind) {
		if word == "HUGEINT" || word == "UHUGEINT" {
			word, changed = exactInteger, true
		}
		b.WriteString(word)
	}
	return b.String(), changed
}

// words yields the words, quoted texts and other single characters of a type's name, in order, each with the part of
// the name that follows it.
func words(kind string) iter.Seq2[string, string] {
	return func(yield func(word, rest string) bool) {
		for kind != "" {
			end := 1
			switch c := kind[0]; {
			case c == '\'' || c == '"':
				end = 1 + strings.IndexByte(kind[1:], c) + 1
			case isWord(c):
				for end < len(kind) && isWord(kind[end]) {
					end++
				}
			}
			word := kind[:end]
			kind = kind[end:]
			if !yield(word, kind) {
				return
			}
		}
	}
}

func isWord(c byte) bool {
	return c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= 0x80
}
