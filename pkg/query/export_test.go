package query_test

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/query"
	"github.com/servo-orchestration/servo/pkg/space"
)

// stock executes a query on a catalog with an unconfigured DuckDB, and returns the text in its only cell.
func stock(t *testing.T, file, text string) string {
	t.Helper()
	db, err := sql.Open("duckdb", file+"?access_mode=read_only")
	require.NoError(t, err)
	defer db.Close()
	var found string
	require.NoError(t, db.QueryRowContext(t.Context(), text).Scan(&found))
	return found
}

// catalogOf returns a catalog of an asset with an output for each of the given days.
func catalogOf(r *revision, days ...int) query.Catalog {
	e := query.Exported{View: "a/x", Columns: []space.Column{{Name: "date", Type: "DATE"}}}
	for _, day := range days {
		e.Outputs = append(e.Outputs, query.ExportedOutput{
			Partition: ids.Partition{"date": fmt.Sprintf("2025-01-0%d", day)}.Key(), MaterializationID: fmt.Sprintf("M%d", day), URI: uriOf(day),
		})
	}
	return query.Catalog{Outputs: r.dir, Assets: []query.Exported{e}}
}

func TestExportWritesViews(t *testing.T) {
	t.Parallel()
	r := newRevision(t)
	for i := 1; i <= 3; i++ {
		output(t, r, uriOf(i), "data.parquet", fmt.Sprintf("SELECT %d AS x", i))
		describe(t, r, uriOf(i), "s", "x")
	}
	file := filepath.Join(t.TempDir(), "it's.duckdb")
	at := time.Date(2025, 1, 2, 3, 4, 5, 0, time.UTC)
	export := func(revision int64, days ...int) ([]string, error) {
		c := catalogOf(r, days...)
		c.Revision, c.At = revision, at
		return query.Export(t.Context(), c, file)
	}
	linked := func() (names []string) {
		entries, err := os.ReadDir(filepath.Join(file+".links", "a.x"))
		require.NoError(t, err)
		for _, e := range entries {
			name, _, _ := strings.Cut(e.Name(), "-") // drop the hash of the partition
			names = append(names, name)
		}
		return names
	}
	views, err := export(7, 1, 2)
	require.NoError(t, err)
	require.Equal(t, []string{"a/x"}, views)
	require.Equal(t, "2 2025-01-02", stock(t, file, "SELECT concat_ws(' ', x, date) FROM a.x WHERE date = '2025-01-02'"))
	require.Equal(t, "7", stock(t, file, "SELECT revision::VARCHAR FROM servo_export"))

	// For an hour after a catalog file was replaced, later exports keep the links that its views read.
	for _, step := range []struct {
		after time.Duration
		days  []int
		want  []string
	}{
		{time.Minute, []int{2, 3}, []string{"M1", "M2", "M3"}},
		{59 * time.Minute, []int{2, 3}, []string{"M1", "M2", "M3"}},
		{time.Minute, []int{2, 3}, []string{"M2", "M3"}},
	} {
		at = at.Add(step.after)
		_, err = export(8, step.days...)
		require.NoError(t, err)
		require.Equal(t, step.want, linked())
		require.Equal(t, "2 3", stock(t, file, "SELECT string_agg(x, ' ' ORDER BY x) FROM a.x"))
	}
	entries, err := os.ReadDir(filepath.Dir(file))
	require.NoError(t, err)
	require.Len(t, entries, 2, "no temporary files")

	// A failed export changes nothing.
	require.NoError(t, os.Truncate(filepath.Join(r.dir, filepath.FromSlash(uriOf(2)), "data.parquet"), 10))
	_, err = export(10, 2)
	require.ErrorContains(t, err, "asset a/x: file ")
	require.Equal(t, []string{"M2", "M3"}, linked())
	require.Equal(t, "8", stock(t, file, "SELECT revision::VARCHAR FROM servo_export"))
}

func TestExportAcceptsEveryFileName(t *testing.T) {
	t.Parallel()
	r := newRevision(t)
	for i := 1; i <= 2; i++ {
		output(t, r, uriOf(i), "data.parquet", fmt.Sprintf("SELECT %d AS x", i))
	}
	for _, folder := range []string{"100% done", "%41", "it's #1", "a[1]", "b*"} {
		dir := filepath.Join(t.TempDir(), folder)
		require.NoError(t, os.Mkdir(dir, 0o700))
		for range 2 {
			_, err := query.Export(t.Context(), catalogOf(r, 1, 2), filepath.Join(dir, "shop.duckdb"))
			require.NoError(t, err, folder)
		}
		db, err := sql.Open("duckdb", "")
		require.NoError(t, err)
		_, err = db.ExecContext(t.Context(), "ATTACH '"+strings.ReplaceAll(filepath.Join(dir, "shop.duckdb"), "'", "''")+"' AS shop")
		require.NoError(t, err)
		var found string
		require.NoError(t, db.QueryRowContext(t.Context(), "SELECT string_agg(x || ' ' || date, ', ' ORDER BY x) FROM shop.a.x").Scan(&found), folder)
		require.Equal(t, "1 2025-01-01, 2 2025-01-02", found, folder)
		require.NoError(t, db.Close())
	}
	_, err := query.Export(t.Context(), catalogOf(r, 1, 2), filepath.Join(t.TempDir(), "why?.duckdb"))
	require.ErrorContains(t, err, "why?.duckdb: DuckDB cannot write files whose path contains a question mark: choose another file")
}

var opened = flag.String("open", "", "open a database until the standard input ends, and run no test")

// TestMain opens a database in a process of its own, because DuckDB does not lock a file within a process.
func TestMain(m *testing.M) {
	flag.Parse()
	if *opened != "" {
		db, err := sql.Open("duckdb", *opened)
		if err == nil {
			err = db.PingContext(context.Background())
		}
		fmt.Fprintln(os.Stdout, err)
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestExportNamesProcessThatHasFileOpen(t *testing.T) {
	t.Parallel()
	r := newRevision(t)
	output(t, r, uriOf(1), "data.parquet", "SELECT 1 AS x")
	file := filepath.Join(t.TempDir(), "shop.duckdb")
	_, err := query.Export(t.Context(), catalogOf(r, 1), file)
	require.NoError(t, err)
	reader := exec.CommandContext(t.Context(), os.Args[0], "-open", file) //nolint:gosec // this program
	input, err := reader.StdinPipe()
	require.NoError(t, err)
	answer, err := reader.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, reader.Start())
	line, err := bufio.NewReader(answer).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "<nil>\n", line)
	_, err = query.Export(t.Context(), catalogOf(r, 1), file)
	require.ErrorContains(t, err, "shop.duckdb is open in a process that may write to it: close it there, or open it read-only: ")
	require.NoError(t, input.Close())
	require.NoError(t, reader.Wait())
	_, err = query.Export(t.Context(), catalogOf(r, 1), file)
	require.NoError(t, err)
}

func TestExportAcceptsEveryNamespace(t *testing.T) {
	t.Parallel()
	r := newRevision(t)
	output(t, r, uriOf(1), "data.parquet", "SELECT 1 AS x")
	c := catalogOf(r, 1)
	for _, namespace := range []string{"catalog", "servo_catalog", "shop"} {
		c.Assets[0].View = namespace + "/x"
		file := filepath.Join(t.TempDir(), "shop.duckdb")
		for range 2 {
			_, err := query.Export(t.Context(), c, file)
			require.NoError(t, err, namespace)
		}
		require.Equal(t, "1", stock(t, file, "SELECT x::VARCHAR FROM shop."+namespace+".x"))
	}
}

// All partitions of a batch have the same materialization. The files already have a column with the region, so the
// names of links contain only the date. The links of all regions of a day therefore have the same name. One link must
// not replace another.
func TestExportShowsAllPartitionsOfABatch(t *testing.T) {
	t.Parallel()
	r := newRevision(t)
	e := query.Exported{View: "a/x", Columns: []space.Column{{Name: "date", Type: "DATE"}, {Name: "region", Type: "VARCHAR"}}}
	for i, region := range []string{"eu", "us"} {
		output(t, r, uriOf(i), "data.parquet", "SELECT '"+region+"' AS region")
		describe(t, r, uriOf(i), "s", "region")
		e.Outputs = append(e.Outputs, query.ExportedOutput{
			Partition: ids.Partition{"date": "2025-01-01", "region": region}.Key(), MaterializationID: materialization, URI: uriOf(i),
		})
	}
	file := filepath.Join(t.TempDir(), "x.duckdb")
	for range 2 { // the second export finds the links of the first one
		_, err := query.Export(t.Context(), query.Catalog{Outputs: r.dir, Assets: []query.Exported{e}, At: time.Date(2025, 1, 2, 0, 0, 0, 0, time.UTC)}, file)
		require.NoError(t, err)
		require.Equal(t, "eu us", stock(t, file, "SELECT string_agg(region, ' ' ORDER BY region) FROM a.x"))
	}
	retired, err := filepath.Glob(filepath.Join(file+".links", "*", "*", "retired"))
	require.NoError(t, err)
	require.Empty(t, retired, "the catalog needs all links")
}

func TestExportRemovesAbandonedFolders(t *testing.T) {
	t.Parallel()
	r := newRevision(t)
	output(t, r, uriOf(1), "data.parquet", "SELECT 1 AS x")
	describe(t, r, uriOf(1), "s", "x")
	dir := t.TempDir()
	c := catalogOf(r, 1)
	c.At = time.Date(2025, 1, 2, 3, 4, 5, 0, time.UTC)
	for name, age := range map[string]time.Duration{".servo-export-1": 2 * time.Hour, ".servo-export-2": time.Minute, "mine": 2 * time.Hour} {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, name, "x"), 0o700))
		require.NoError(t, os.Chtimes(filepath.Join(dir, name), c.At.Add(-age), c.At.Add(-age)))
	}
	_, err := query.Export(t.Context(), c, filepath.Join(dir, "out.duckdb"))
	require.NoError(t, err)
	require.NoDirExists(t, filepath.Join(dir, ".servo-export-1"))
	require.DirExists(t, filepath.Join(dir, ".servo-export-2"))
	require.DirExists(t, filepath.Join(dir, "mine"))
}

func TestExportUsesLinksThatAreNeededAgain(t *testing.T) {
	t.Parallel()
	r := newRevision(t)
	for i := 1; i <= 3; i++ {
		output(t, r, uriOf(i), "data.parquet", fmt.Sprintf("SELECT %d AS x", i))
		describe(t, r, uriOf(i), "s", "x")
	}
	file := filepath.Join(t.TempDir(), "c.duckdb")
	at := time.Date(2025, 1, 2, 3, 4, 5, 0, time.UTC)
	for i, days := range [][]int{{1, 2}, {2, 3}, {1, 2}, {1, 2}} {
		c := catalogOf(r, days...)
		c.At = at.Add(time.Duration(i) * 40 * time.Minute)
		_, err := query.Export(t.Context(), c, file)
		require.NoError(t, err)
	}
	require.Equal(t, "1 2", stock(t, file, "SELECT string_agg(x, ' ' ORDER BY x) FROM a.x"))

	// After the store has moved, an export makes the links point to the new place.
	moved := filepath.Join(t.TempDir(), "moved")
	require.NoError(t, os.Rename(r.dir, moved))
	c := catalogOf(r, 1, 2)
	c.Outputs, c.At = moved, at.Add(3*time.Hour)
	_, err := query.Export(t.Context(), c, file)
	require.NoError(t, err)
	require.Equal(t, "1 2", stock(t, file, "SELECT string_agg(x, ' ' ORDER BY x) FROM a.x"))
}

func TestExportWithoutRows(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "c.duckdb")
	c := query.Catalog{Outputs: t.TempDir()}
	_, err := query.Export(t.Context(), c, file)
	require.ErrorContains(t, err, "none of the assets has an output with rows: run them first")
	require.NoFileExists(t, file)
	c.Empty = true
	views, err := query.Export(t.Context(), c, file)
	require.NoError(t, err)
	require.Empty(t, views)
	require.Equal(t, "0", stock(t, file, "SELECT count(*)::VARCHAR FROM duckdb_views() WHERE NOT internal"))
}

func TestExportKeepsForeignFiles(t *testing.T) {
	t.Parallel()
	r := newRevision(t)
	output(t, r, uriOf(1), "data.parquet", "SELECT 1 AS x")
	export := func(file string) error {
		c := query.Catalog{Outputs: r.dir, Assets: []query.Exported{{View: "a/x", Outputs: []query.ExportedOutput{{MaterializationID: "M1", URI: uriOf(1)}}}}}
		_, err := query.Export(t.Context(), c, file)
		return err
	}
	dir := t.TempDir()
	text := filepath.Join(dir, "notes.txt")
	require.NoError(t, os.WriteFile(text, []byte("mine"), 0o600))
	require.ErrorContains(t, export(text), "contains data that servo did not write: choose another file")
	require.NoDirExists(t, text+".links")

	catalog := filepath.Join(dir, "c.duckdb")
	require.NoError(t, export(catalog))
	require.NoDirExists(t, catalog+".links", "no view needs links")
	db, err := sql.Open("duckdb", catalog)
	require.NoError(t, err)
	_, err = db.ExecContext(t.Context(), "CREATE TABLE mine AS SELECT 1")
	require.NoError(t, err)
	require.NoError(t, db.Close())
	require.ErrorContains(t, export(catalog), "did not write")

	wal := filepath.Join(dir, "d.duckdb")
	require.NoError(t, os.WriteFile(wal+".wal", nil, 0o600))
	require.ErrorContains(t, export(wal), "a process is writing to ")
	require.ErrorContains(t, export(filepath.Join(dir, "absent", "e.duckdb")), "no such file")
	require.NoDirExists(t, filepath.Join(dir, "absent"))
}

func TestExportKeepsWhatUsersAdd(t *testing.T) {
	t.Parallel()
	r := newRevision(t)
	output(t, r, uriOf(1), "data.parquet", "SELECT 1 AS x")
	describe(t, r, uriOf(1), "s", "x")
	export := func(file string) error {
		_, err := query.Export(t.Context(), catalogOf(r, 1), file)
		return err
	}
	for name, statement := range map[string]string{
		"view": "CREATE VIEW mine AS SELECT 1 AS one", "view beside ours": "CREATE VIEW a.mine AS SELECT 1 AS one",
		"changed view": "CREATE OR REPLACE VIEW a.x AS SELECT 2 AS x", "macro": "CREATE MACRO twice(x) AS 2 * x",
		"type": "CREATE TYPE mood AS ENUM ('sad', 'ok')", "sequence": "CREATE SEQUENCE counter", "table": "CREATE TABLE mine (x INT)",
	} {
		file := filepath.Join(t.TempDir(), "c.duckdb")
		require.NoError(t, export(file))
		require.NoError(t, export(file), "nobody has changed the file")
		db, err := sql.Open("duckdb", file)
		require.NoError(t, err)
		_, err = db.ExecContext(t.Context(), statement)
		require.NoError(t, errors.Join(err, db.Close()))
		before, err := os.ReadFile(file)
		require.NoError(t, err)
		require.ErrorContains(t, export(file), "choose another file", name)
		after, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, before, after, name)
	}
	file := filepath.Join(t.TempDir(), "c.duckdb")
	require.NoError(t, export(file))
	db, err := sql.Open("duckdb", file)
	require.NoError(t, err)
	_, err = db.ExecContext(t.Context(), "DROP VIEW a.x")
	require.NoError(t, errors.Join(err, db.Close()))
	require.NoError(t, export(file), "a view that somebody has dropped is written again")
	require.Equal(t, "1", stock(t, file, "SELECT x::VARCHAR FROM a.x"))
}
