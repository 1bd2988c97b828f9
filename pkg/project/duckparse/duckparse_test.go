package duckparse_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/projecttest"
	"github.com/servo-orchestration/servo/pkg/project"
	"github.com/servo-orchestration/servo/pkg/project/duckparse"
)

func open(t testing.TB) *duckparse.Parser {
	t.Helper()
	p, err := duckparse.Open(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

func TestParserContract(t *testing.T) { projecttest.TestParser(t, open(t).Parse) }

func TestProjecttestParserContract(t *testing.T) {
	projecttest.TestParser(t, projecttest.Parse)
}

func TestParseFindsTables(t *testing.T) {
	p := open(t)
	for name, c := range map[string]struct{ query, want string }{
		"a subquery":                  {"SELECT * FROM a.b WHERE x IN (SELECT y FROM c.d)", "a.b c.d"},
		"an expression":               {"SELECT (SELECT max(x) FROM a.b) AS m, EXISTS (FROM c.d)", "a.b c.d"},
		"a union":                     {"FROM a.b UNION ALL SELECT * FROM c.d EXCEPT FROM e.f", "a.b c.d e.f"},
		"a lateral join":              {"SELECT * FROM a.b, LATERAL (SELECT * FROM c.d WHERE d.x = b.x)", "a.b c.d"},
		"a pivot of named values":     {"FROM a.b PIVOT (sum(x) FOR y IN ('p', 'q'))", "a.b"},
		"an unpivot":                  {"UNPIVOT a.b ON c INTO NAME n VALUE v", "a.b"},
		"an asof join":                {"FROM a.b ASOF JOIN c.d ON b.t >= d.t", "a.b c.d"},
		"a window and a filter":       {"SELECT sum(x) FILTER (WHERE y) OVER (PARTITION BY z) FROM a.b QUALIFY row_number() OVER () = 1", "a.b"},
		"quoted names":                {`SELECT * FROM "a"."b" AS "c"`, "a.b"},
		"a string is not a table":     {"SELECT 'FROM x.y' -- FROM z.z\n FROM a.b", "a.b"},
		"a file":                      {"FROM 'data/x.csv'", "data/x.csv"},
		"recursion":                   {"WITH RECURSIVE r AS (SELECT * FROM a.b UNION ALL SELECT * FROM r) FROM r", "a.b"},
		"inner names stay inside":     {"SELECT * FROM (WITH w AS (SELECT 1) FROM w) JOIN w ON true", "w"},
		"a name is not defined yet":   {"WITH p AS (FROM q), q AS (SELECT 1) FROM p, q", "q"},
		"a name is not its own table": {"WITH w AS (FROM w) FROM w", "w"},
		"a nested query sees outside": {"WITH w AS (SELECT 1 AS x) SELECT (SELECT x FROM w), y FROM a.b WHERE x IN (FROM w)", "a.b"},
		"a sample and a set":          {"FROM a.b USING SAMPLE 10 ROWS", "a.b"},
		"the schema of DuckDB":        {"FROM information_schema.tables JOIN duckdb_columns() ON true", "information_schema.tables"},
	} {
		t.Run(name, func(t *testing.T) {
			parsed, err := p.Parse(t.Context(), []string{c.query})
			require.NoError(t, err)
			require.Nil(t, parsed[0].Bad)
			var names []string
			for _, ref := range parsed[0].Refs {
				names = append(names, strings.TrimPrefix(ref.Schema+"."+ref.Table, "."))
			}
			require.Equal(t, c.want, strings.Join(names, " "))
		})
	}
}

func TestParseReportsErrorPositions(t *testing.T) {
	p := open(t)
	for query, want := range map[string]string{
		"SELECT * FROM a.b WHERE":             "23: syntax error at end of input",
		"SELEC 1":                             `0: syntax error at or near "SELEC"`,
		"SELECT 'é' FRM a.b x y":              `16: syntax error at or near "a"`,
		"SELECT 1;\nSELECT 2 FROM a.b":        "17: found 2 statements; an asset is one SELECT",
		"PIVOT a.b ON c USING sum(d)":         "0: must be a single SELECT (a PIVOT must name its values: PIVOT … ON … IN (…))",
		"COPY (SELECT 1) TO 'x.csv'":          "0: must be a single SELECT (a PIVOT must name its values: PIVOT … ON … IN (…))",
		"-- nothing":                          "0: no statement: write one SELECT",
		"SELECT 1 FROM a.b; DROP TABLE a.b":   "0: must be a single SELECT (a PIVOT must name its values: PIVOT … ON … IN (…))",
		"SELECT " + strings.Repeat("(", 5000): "5007: syntax error at end of input",
	} {
		parsed, err := p.Parse(t.Context(), []string{query})
		require.NoError(t, err)
		bad := parsed[0].Bad
		require.NotNil(t, bad, "%.40s", query)
		require.Contains(t, fmt.Sprintf("%d: %s", bad.Offset, bad.Message), want, "%.40s", query)
	}
}

func TestLoadFindsDependenciesInQueries(t *testing.T) {
	files := fstest.MapFS{
		"servo.yaml":             {Data: []byte("name: demo\n")},
		"assets/raw/weather.sql": {Data: []byte("SELECT * FROM read_csv('data/weather.csv')")},
		"assets/report/top.sql":  {Data: []byte("/* servo\ntags: [x]\n*/\nWITH w AS (FROM raw.weather)\nFROM w JOIN 'data/x.parquet' USING (y);\n")},
		"assets/report/bad.sql":  {Data: []byte("/* servo\ntags: [x]\n*/\nSELECT é\nFROM\n  raw.wether\n")},
		"assets/report/none.sql": {Data: []byte("/* servo\ntags: [x]\n*/\n-- a comment\nSELECT 'é', FROM WHERE\n")},
	}
	_, err := project.LoadFS(t.Context(), files, "/p", project.Options{ParseSQL: open(t).Parse})
	require.EqualError(t, err, "assets/report/bad.sql:6:3: no asset for table raw.wether: did you mean raw.weather?\n"+
		`assets/report/none.sql:5:18: syntax error at or near "WHERE"`)
}

func TestParseRejectsHugeQueries(t *testing.T) {
	p := open(t)
	const n = 100_000
	for name, query := range map[string]string{
		"brackets":   "SELECT " + strings.Repeat("(", n) + "1" + strings.Repeat(")", n),
		"negations":  "SELECT " + strings.Repeat("NOT ", n) + "x",
		"sums":       "SELECT 1" + strings.Repeat("+1", n),
		"subqueries": strings.Repeat("SELECT * FROM (", n/10) + "SELECT 1" + strings.Repeat(")", n/10),
		"functions":  "SELECT " + strings.Repeat("f(", n) + strings.Repeat(")", n),
		"joins":      "FROM a.b" + strings.Repeat(" JOIN a.b USING (x)", n/10),
		"withs":      strings.Repeat("WITH a AS (", n/10) + "SELECT 1" + strings.Repeat(") FROM a", n/10),
	} {
		t.Run(name, func(t *testing.T) {
			parsed, err := p.Parse(t.Context(), []string{query, "FROM a.b"})
			require.NoError(t, err)
			require.NotNil(t, parsed[0].Bad)
			require.Equal(t, []project.Ref{{Schema: "a", Table: "b", Offset: 5}}, parsed[1].Refs, "other queries are unaffected")
		})
	}
}

func BenchmarkLoad10000Queries(b *testing.B) {
	files := fstest.MapFS{"servo.yaml": {Data: []byte("name: demo\n")}}
	for i := range 10_000 {
		query := "/* servo\ndescription: a table\nretries: {max_attempts: 3}\n*/\nSELECT * FROM read_csv('x.csv')"
		if i > 10 {
			query = fmt.Sprintf("/* servo\ndescription: a table\nretries: {max_attempts: 3}\n*/\nWITH c AS (SELECT a, b, sum(c) AS d FROM n.a%d WHERE x > 10 GROUP BY ALL)\n"+
				"SELECT c.*, d.x / 10 AS y, CASE WHEN d.z IS NULL THEN 'none' ELSE d.z END AS z\nFROM c JOIN n.a%d AS d ON c.a = d.a\nORDER BY 1, 2\n", i-1, i-10)
		}
		files[fmt.Sprintf("assets/n/a%d.sql", i)] = &fstest.MapFile{Data: []byte(query)}
	}
	dir := b.TempDir()
	require.NoError(b, os.CopyFS(dir, files))
	p := open(b)
	for b.Loop() {
		loaded, err := project.Load(b.Context(), dir, project.Options{ParseSQL: p.Parse})
		require.NoError(b, err)
		require.Len(b, loaded.Assets, 10_000)
	}
}
