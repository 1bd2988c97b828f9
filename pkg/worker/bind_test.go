package worker_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	_ "github.com/duckdb/duckdb-go/v2"
	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/space"
	"github.com/servo-orchestration/servo/pkg/worker"
)

// sqlAsset returns an SQL asset "a/NAME" that reads other assets.
func sqlAsset(name, text string, deps ...string) plan.Asset {
	a := plan.Asset{
		Key: ids.AssetKey{Namespace: "a", Name: name}, Work: plan.Work{SQL: text},
		File: "assets/a/" + name + ".sql", Query: plan.Source{File: "assets/a/" + name + ".sql", Line: 1, Column: 1},
	}
	for _, dep := range deps {
		a.Deps = append(a.Deps, ids.AssetKey{Namespace: "a", Name: dep})
	}
	return a
}

func script(name string) plan.Asset {
	return plan.Asset{Key: ids.AssetKey{Namespace: "a", Name: name}, Work: shell("true"), File: "assets/a/" + name + ".yaml"}
}

func daily(a plan.Asset) plan.Asset {
	a.Partitions = space.Days("2025-01-01", "")
	a.Work.Dimensions = map[string]string{"date": "DATE"}
	return a
}

// parquetOf writes the rows of a query to a file.
func parquetOf(t testing.TB, text string) string {
	t.Helper()
	db, err := sql.Open("duckdb", "")
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "data.parquet")
	_, err = db.ExecContext(t.Context(), "COPY ("+text+") TO '"+file+"' (FORMAT parquet)")
	require.NoError(t, err)
	require.NoError(t, db.Close())
	return file
}

// bindAll binds assets. The parameter outputs contains the files of the outputs of commands, the newest first.
func bindAll(t testing.TB, root string, outputs map[string][]string, assets ...plan.Asset) *worker.Bound {
	t.Helper()
	slices.SortFunc(assets, func(a, b plan.Asset) int { return plan.CompareKeys(a.Key, b.Key) })
	bound, err := worker.Bind(t.Context(), worker.Binding{
		Root: root, Scratch: t.TempDir(), State: filepath.Join(root, ".servo"), Assets: assets,
		Outputs: func(_ context.Context, asset ids.AssetKey, all bool) ([]string, error) {
			files := outputs[asset.Name]
			if !all {
				files = files[:min(len(files), 1)]
			}
			return files, nil
		},
	})
	require.NoError(t, err)
	return bound
}

func messages(b *worker.Bound) (texts []string) {
	for _, p := range b.Problems {
		texts = append(texts, fmt.Sprintf("%s:%d:%d: %s: %s", p.File, p.Line, p.Column, p.Message, p.Suggestion))
	}
	return texts
}

func TestBindFollowsColumnsThroughQueries(t *testing.T) {
	bound := bindAll(
		t, t.TempDir(), nil,
		// The columns have the types that they have after a round trip through a Parquet file: an enum becomes text, and a
		// sum of integers becomes a decimal.
		sqlAsset("one", `SELECT 'x'::ENUM('x', 'y') AS e, sum(n) AS total, {'k': 1::HUGEINT} AS s, NULL AS nothing, 1 AS "odd ""name" FROM range(3) t(n)`),
		sqlAsset("two", `SELECT e || 'z' AS text, total / 2 AS half, s.k, nothing, "odd ""name" FROM a.one`, "one"),
		sqlAsset("three", "SELECT text, half\n, k.x FROM a.two", "two"),
		sqlAsset("four", `SELECT text, halff FROM A."Two"`, "two"),
		sqlAsset("five", `SELECT * FROM a.four`, "four"),
		sqlAsset("six", `FROM a.two SELECT upper(text), half::VARCHAR, nothing + 1`, "two"),
	)
	texts := messages(bound)
	require.Len(t, texts, 2, "%q", texts)
	require.Equal(t, `assets/a/four.sql:1:14: Referenced column "halff" not found in FROM clause: did you mean "half"?`, texts[0])
	require.Contains(t, texts[1], "assets/a/three.sql:1:1: Cannot extract field 'x' from expression")
	require.Equal(t, []ids.AssetKey{{Namespace: "a", Name: "five"}}, bound.Skipped, "readers of a broken query are skipped")
	require.Empty(t, bound.Unknown)
}

func TestBindKnowsOutputsOfCommands(t *testing.T) {
	outputs := map[string][]string{
		"daily": {parquetOf(t, "SELECT 1 AS x"), parquetOf(t, "SELECT 1 AS x, 2 AS older")},
		"once":  {parquetOf(t, "SELECT 1 AS x, 2.5 AS y")},
		"bad":   {filepath.Join(t.TempDir(), "missing.parquet")},
	}
	bound := bindAll(
		t, t.TempDir(), outputs, daily(script("daily")), script("once"), script("never"), script("bad"),
		sqlAsset("q1", "SELECT older FROM a.daily", "daily"),
		sqlAsset("q2", "SELECT oldest FROM a.daily", "daily"),
		sqlAsset("q3", "SELECT x + y FROM a.once", "once"),
		sqlAsset("q4", "SELECT x + z FROM a.once", "once"),
		sqlAsset("q5", "SELECT z FROM a.never", "never"),
		sqlAsset("q6", "SELECT z FROM a.bad", "bad"),
		sqlAsset("q7", "SELECT 1 AS x", "never"), // this asset depends on a/never, but does not read it
		sqlAsset("q8", "SELECT y FROM a.q5, a.q7", "q5", "q7"),
	)
	require.Equal(t, []string{
		`assets/a/q2.sql:1:8: Referenced column "oldest" not found in FROM clause: did you mean "older", "date"?; ` +
			`the columns of a/daily are the columns of its outputs`,
		`assets/a/q4.sql:1:12: Referenced column "z" not found in FROM clause: did you mean "x"?; ` +
			`the columns of a/once are the columns of its newest output`,
	}, messages(bound))
	require.Equal(t, []ids.AssetKey{{Namespace: "a", Name: "bad"}, {Namespace: "a", Name: "never"}}, bound.Unknown)
	require.Len(t, bound.Skipped, 3)
}

// A file whose name is computed may exist only when the task runs. Until then, its columns are not known.
func TestBindSkipsQueriesOfMissingFiles(t *testing.T) {
	computed := sqlAsset("z", "SELECT * FROM read_csv('data/' || getvariable('date') || '.csv')")
	reader := sqlAsset("w", "SELECT * FROM a.z", "z")
	z, w := computed.Key, reader.Key
	bound := bindAll(t, t.TempDir(), nil, daily(computed), reader)
	require.Empty(t, messages(bound))
	require.Equal(t, []ids.AssetKey{z, w}, bound.Skipped)
	require.Equal(t, []ids.AssetKey{z}, bound.Unknown)
	bound = bindAll(t, t.TempDir(), map[string][]string{"z": {parquetOf(t, "SELECT 1 AS x")}}, daily(computed), reader)
	require.Equal(t, []ids.AssetKey{z}, bound.Skipped, "the columns of the reader come from an output")
	require.Empty(t, bound.Unknown)
}

func TestBindIsConfinedLikeARun(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{
		"data/x.csv": "a,b\n1,2\n", "data/2025-01-02.csv": "c\n1\n", ".servo/keys.json": `{"secret": 1}`, "outside.csv": "a\n1\n",
	} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(root, name), []byte(text), 0o600))
	}
	bound := bindAll(
		t, root, nil,
		sqlAsset("csv", "SELECT a, b FROM 'data/x.csv'"),
		sqlAsset("column", "SELECT c FROM 'data/x.csv'"),
		sqlAsset("keys", "SELECT * FROM read_text('.servo/keys.json')"),
		sqlAsset("outside", "SELECT * FROM read_csv('outside.csv')"),
		sqlAsset("up", "SELECT * FROM '../outside.csv'"),
		sqlAsset("missing", "SELECT *\nFROM read_csv(['data/x.csv', 'data/y.csv'])"),
		daily(sqlAsset("day", "SELECT c FROM read_csv('data/' || getvariable('date') || '.csv')")), // the first day has no file
		daily(sqlAsset("kind", "SELECT getvariable('date') + 'x'")),
		sqlAsset("unset", "SELECT getvariable('date') IS NULL"),
		sqlAsset("written", "SELECT * FROM read_csv('data/x.csv') WHERE error('executed')"),
	)
	texts := messages(bound)
	require.Len(t, texts, 6, "%q", texts)
	for i, want := range []string{
		`assets/a/column.sql:1:8: Referenced column "c" not found`,
		`assets/a/keys.sql:1:25: Cannot access file ".servo/keys.json"`,
		`assets/a/kind.sql:1:28: Could not choose`,
		`assets/a/missing.sql:2:30: No files found that match the pattern "data/y.csv"`,
		`assets/a/outside.sql:1:24: Cannot access file "outside.csv"`,
		`assets/a/up.sql:1:15: Cannot access file "../outside.csv"`,
	} {
		require.Contains(t, texts[i], want)
	}
	require.Equal(t, []ids.AssetKey{{Namespace: "a", Name: "day"}}, bound.Skipped)
}

func BenchmarkBind100(b *testing.B) {
	assets := []plan.Asset{sqlAsset("q000", "SELECT i AS x, i::VARCHAR AS y FROM range(10) t(i)")}
	for i := range 99 {
		up := fmt.Sprintf("q%03d", i)
		assets = append(assets, sqlAsset(fmt.Sprintf("q%03d", i+1), fmt.Sprintf(
			"WITH t AS (SELECT x, y, count(*) AS n FROM a.%s GROUP BY ALL) SELECT x + 1 AS x, y || 'z' AS y FROM t WHERE n > 0", up), up))
	}
	for b.Loop() {
		if bound := bindAll(b, b.TempDir(), nil, assets...); len(bound.Problems)+len(bound.Skipped) > 0 {
			b.Fatal(bound)
		}
	}
}
