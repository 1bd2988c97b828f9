package duckparse_test

import (
	"context"
	"database/sql"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/project/duckparse"
)

func treesOf(t *testing.T, queries ...string) (trees []*plan.Tree) {
	t.Helper()
	parsed, err := open(t).Parse(t.Context(), queries)
	require.NoError(t, err)
	for i, p := range parsed {
		require.Nil(t, p.Bad, queries[i])
		trees = append(trees, p.Tree)
	}
	return trees
}

func TestTreeIgnoresFormattingAndComments(t *testing.T) {
	trees := treesOf(t,
		"SELECT a, sum(b) AS n FROM x.y WHERE c > 1 GROUP BY a ORDER BY 1",
		"select  a , SUM(b) n -- the sum\nfrom x.y\nwhere (c>1) /* c */ group by a order by 1",
		"SELECT a, sum(b) AS n FROM x.y WHERE c > 2 GROUP BY a ORDER BY 1",
	)
	require.Equal(t, trees[0], trees[1])
	require.NotEqual(t, trees[0].Hash, trees[2].Hash)
	require.True(t, trees[0].Positional)
	require.True(t, treesOf(t, "SELECT a FROM x.y ORDER BY #1")[0].Positional)
}

func TestTreeTellsGroupingSetsApart(t *testing.T) {
	seen := map[string]string{}
	queries := []string{"a", "ROLLUP (a)", "CUBE (a, b)", "GROUPING SETS ((a), ())", "GROUPING SETS ((a), (b), ())", "GROUPING SETS ((a), (b))"}
	for _, groups := range queries {
		hash := treesOf(t, "SELECT a, sum(v) AS v FROM x.y GROUP BY "+groups)[0].Hash
		if groups != "GROUPING SETS ((a), ())" { // these grouping sets are the same as ROLLUP (a)
			require.Empty(t, seen[hash], groups)
		}
		seen[hash] = groups
	}
}

func TestParseFindsNamesOfFiles(t *testing.T) {
	parsed, err := open(t).Parse(t.Context(), []string{
		"FROM read_csv(['a.csv', 'b.csv']::VARCHAR[]), read_csv(\"c.csv\"), query_table('d.csv'), read_parquet('e/*.parquet'), read_text(x || 'f')",
	})
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"a.csv", "b.csv", "c.csv", "d.csv", "e/*.parquet"}, parsed[0].Files)
}

func TestTreeSaysWhatNewColumnsChange(t *testing.T) {
	for query, extensible := range map[string]bool{
		"SELECT a FROM x.y":                             true,
		"SELECT a, count(*) AS n FROM x.y GROUP BY a":   true,
		"SELECT DISTINCT a FROM x.y":                    false,
		"SELECT *, a FROM x.y":                          false,
		"SELECT unnest(a) AS a, b FROM x.y":             false,
		"SELECT b, unlist(a) AS a FROM x.y":             false,
		"SELECT generate_subscripts(a, 1), b FROM x.y":  false,
		"SELECT a FROM x.y ORDER BY b":                  true,
		"SELECT a FROM x.y ORDER BY b LIMIT 1":          false,
		"SELECT a FROM x.y QUALIFY sum(b) OVER () > 1":  false,
		"SELECT a, count(*) AS n FROM x.y GROUP BY ALL": false,
		"SELECT a FROM x.y ORDER BY ALL":                false,
		"SELECT a FROM x.y UNION SELECT a FROM x.z":     false,
		"SELECT 1 AS one FROM x.y":                      false,
	} {
		require.Equal(t, extensible, treesOf(t, query)[0].Extensible, query)
	}
}

func TestVersionIsThatOfTheParser(t *testing.T) {
	db, err := sql.Open("duckdb", "")
	require.NoError(t, err)
	defer db.Close()
	var version string
	require.NoError(t, db.QueryRowContext(t.Context(), "SELECT version()").Scan(&version))
	require.Equal(t, "DuckDB "+version, duckparse.Version)
}

func TestCacheParsesEachTextOnce(t *testing.T) {
	var c duckparse.Cache
	queries := []string{"SELECT 1 AS a", "SELECT 2 AS a", "SELECT 1 AS a"}
	first, err := c.Parse(t.Context(), queries)
	require.NoError(t, err)
	require.NoError(t, c.End())
	// With a cancelled context, Parse cannot open DuckDB. So it succeeds only if the cache contains the results of all
	// texts.
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	again, err := c.Parse(ended, queries)
	require.NoError(t, err)
	require.Equal(t, first, again)
	require.NoError(t, c.End())
	_, err = c.Parse(ended, []string{"SELECT 3 AS a"})
	require.Error(t, err)
	require.NoError(t, c.End())
}
