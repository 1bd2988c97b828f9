// Package projecttest tests the contract of a [project.SQLParser]. It also contains a small parser that satisfies the
// contract without DuckDB.
package projecttest

import (
	"context"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/project"
)

var (
	refPattern = regexp.MustCompile(`(?i)\b(?:from|join)\s+(?:(\w+)\.)?(?:(\w+)\.)?(\w+)(\s*\()?`)
	ctePattern = regexp.MustCompile(`(?i)(?:\bwith|,)\s+(\w+)\s+as\s*\(`)
	lookback   = regexp.MustCompile(`(?i)(\w+(?:\.\w+)?)\s*>=?\s*getvariable\('(\w+)'\)\s*-\s*([1-9])`)
	verb       = regexp.MustCompile(`(?i)^(select|with|from|values)\b`)
)

// Parse is a [project.SQLParser] for simple queries. It searches for FROM and JOIN, and does
// not understand strings and comments.
func Parse(_ context.Context, queries []string) ([]project.Parsed, error) {
	parsed := make([]project.Parsed, len(queries))
	for i, query := range queries {
		parsed[i] = parse(query)
	}
	return parsed, nil
}

func parse(sql string) project.Parsed {
	if !verb.MatchString(sql) {
		return project.Parsed{Bad: &project.SyntaxError{Message: "it must be a SELECT statement"}}
	}
	if at := strings.IndexByte(sql, ';'); at >= 0 {
		return project.Parsed{Bad: &project.SyntaxError{Offset: at, Message: "there are 2 statements; an asset is one SELECT"}}
	}
	defined := map[string]bool{}
	for _, m := range ctePattern.FindAllStringSubmatch(sql, -1) {
		defined[strings.ToLower(m[1])] = true
	}
	var refs []project.Ref
	for _, m := range refPattern.FindAllStringSubmatchIndex(sql, -1) {
		group := func(i int) string {
			if m[2*i] < 0 {
				return ""
			}
			return sql[m[2*i]:m[2*i+1]]
		}
		ref := project.Ref{Catalog: group(1), Schema: group(2), Table: group(3), Offset: m[6]}
		switch {
		case ref.Schema != "":
			ref.Offset = m[4]
		case ref.Catalog != "": // the name has one dot: the group for the catalog matched the schema
			ref.Catalog, ref.Schema, ref.Offset = "", ref.Catalog, m[2]
		}
		if ref.Catalog != "" {
			ref.Offset = m[2]
		}
		if function := group(4) != ""; function || (ref.Schema == "" && defined[strings.ToLower(ref.Table)]) {
			continue
		}
		refs = append(refs, ref)
	}
	parsed := project.Parsed{Refs: refs}
	for _, m := range lookback.FindAllStringSubmatchIndex(sql, -1) {
		found := project.Lookback{Offset: m[2], Column: sql[m[2]:m[3]], Variable: strings.ToLower(sql[m[4]:m[5]]), From: -int64(sql[m[6]] - '0')}
		name := strings.ToLower(found.Column[strings.LastIndexByte(found.Column, '.')+1:])
		for _, ref := range refs {
			ref.Offset = 0
			found.Columns = append(found.Columns, project.Column{Ref: ref, Name: name})
		}
		parsed.Lookbacks = append(parsed.Lookbacks, found)
	}
	return parsed
}

// TestParser checks that a parser satisfies the contract.
func TestParser(t *testing.T, parse project.SQLParser) {
	t.Helper()
	for name, c := range map[string]struct {
		query string
		want  []project.Ref
	}{
		"a table":               {"SELECT * FROM raw.weather", []project.Ref{{Schema: "raw", Table: "weather", Offset: 14}}},
		"from first":            {"FROM raw.weather", []project.Ref{{Schema: "raw", Table: "weather", Offset: 5}}},
		"no table":              {"SELECT 1", nil},
		"a table twice":         {"SELECT * FROM a.b JOIN a.b AS c USING (x)", []project.Ref{{Schema: "a", Table: "b", Offset: 14}, {Schema: "a", Table: "b", Offset: 23}}},
		"a table function":      {"SELECT * FROM range(3)", nil},
		"no schema":             {"SELECT * FROM weather", []project.Ref{{Table: "weather", Offset: 14}}},
		"a catalog":             {"SELECT * FROM db.raw.weather", []project.Ref{{Catalog: "db", Schema: "raw", Table: "weather"}}},
		"capitals are kept":     {"select * from RAW.Weather", []project.Ref{{Schema: "RAW", Table: "Weather", Offset: 14}}},
		"a query's own table":   {"WITH w AS (SELECT * FROM raw.weather) SELECT * FROM w", []project.Ref{{Schema: "raw", Table: "weather", Offset: 25}}},
		"two of its own tables": {"WITH a AS (SELECT 1), b AS (SELECT * FROM a) SELECT * FROM A JOIN B ON true", nil},
		"offsets are in bytes":  {"SELECT 'é' FROM raw.weather", []project.Ref{{Schema: "raw", Table: "weather", Offset: 17}}},
	} {
		t.Run(name, func(t *testing.T) {
			parsed, err := parse(t.Context(), []string{"SELECT 1", c.query, "SELECT 1"})
			require.NoError(t, err)
			require.Len(t, parsed, 3, "one result per query, in order")
			require.Nil(t, parsed[1].Bad)
			refs := parsed[1].Refs
			for i := range refs {
				if refs[i].Catalog != "" {
					refs[i].Offset = 0 // ignored: DuckDB reports the offset of the table name
				}
			}
			require.Equal(t, c.want, refs)
		})
	}
	t.Run("a filter that looks back", func(t *testing.T) {
		parsed, err := parse(t.Context(), []string{"SELECT 'é' FROM raw.weather AS w WHERE w.day >= getvariable('DATE') - 7"})
		require.NoError(t, err)
		require.Equal(t, []project.Lookback{{
			Offset: 40, Column: "w.day", Variable: "date", Columns: []project.Column{{Ref: project.Ref{Schema: "raw", Table: "weather"}, Name: "day"}},
			From: -7,
		}}, parsed[0].Lookbacks)
	})
	for name, query := range map[string]string{
		"a statement that is no query": "CREATE TABLE t AS SELECT 1",
		"two statements":               "SELECT 1; SELECT 2",
		"no SQL at all":                "hello",
	} {
		t.Run(name, func(t *testing.T) {
			parsed, err := parse(t.Context(), []string{query})
			require.NoError(t, err)
			bad := parsed[0].Bad
			require.NotNil(t, bad)
			require.NotEmpty(t, bad.Message)
			require.GreaterOrEqual(t, bad.Offset, 0)
			require.Less(t, bad.Offset, len(query))
		})
	}
}
