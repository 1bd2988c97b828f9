package query_test

import (
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/query"
	"github.com/servo-orchestration/servo/pkg/space"
)

// stock reads one text from a catalog with an unconfigured DuckDB.
func stock(t *testing.T, file, text string) string {
	t.Helper()
	db, err := sql.Open("duckdb", file+"?access_mode=read_only")
	require.NoError(t, err)
	defer db.Close()
	var found string
	require.NoError(t, db.QueryRowContext(t.Context(), text).Scan(&found))
	return found
}

func everything(string) bool { return true }

func TestExportWritesViews(t *testing.T) {
	t.Parallel()
	r := newRevision(t)
	declare(t, r, space.Column{Name: "date", Type: "DATE"})
	for i := 1; i <= 3; i++ {
		output(t, r, uriOf(i), "data.parquet", fmt.Sprintf("SELECT %d AS x", i))
		describe(t, r, uriOf(i), "s", "x")
		add(t, r, partition("a/x", ids.Partition{"date": fmt.Sprintf("2025-01-0%d", i)}.Key(), uriOf(i), int64(i+1)))
	}
	file := filepath.Join(t.TempDir(), "it's.duckdb")
	now := clock.System{}.Now()
	export := func(revision int64) ([]string, error) {
		return query.Export(t.Context(), r.source, revision, now, file, everything)
	}
	folders := func() (names []string) {
		entries, err := os.ReadDir(file + ".links")
		require.NoError(t, err)
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return names
	}
	for revision := int64(7); revision < 10; revision++ {
		views, err := export(revision)
		require.NoError(t, err)
		require.Equal(t, []string{"a/x"}, views)
		require.Equal(t, "2 2025-01-02", stock(t, file, "SELECT concat_ws(' ', x, date) FROM a.x WHERE date = '2025-01-02'"))
		require.Equal(t, fmt.Sprint(revision), stock(t, file, "SELECT revision::VARCHAR FROM servo_export"))
		now = now.Add(2 * time.Hour)
	}
	require.Len(t, folders(), 2, "the links of the file and of the one before")
	entries, err := os.ReadDir(filepath.Dir(file))
	require.NoError(t, err)
	require.Len(t, entries, 2, "no temporary files")

	// A failed export changes nothing.
	before := folders()
	require.NoError(t, os.Truncate(filepath.Join(r.dir, filepath.FromSlash(uriOf(2)), "data.parquet"), 10))
	_, err = export(10)
	require.ErrorContains(t, err, "asset a/x: file ")
	require.Equal(t, before, folders())
	require.Equal(t, "9", stock(t, file, "SELECT revision::VARCHAR FROM servo_export"))
}

func TestExportKeepsForeignFiles(t *testing.T) {
	t.Parallel()
	r := newRevision(t)
	output(t, r, uriOf(1), "data.parquet", "SELECT 1 AS x")
	add(t, r, partition("a/x", "", uriOf(1), 1))
	export := func(file string) error {
		_, err := query.Export(t.Context(), r.source, 1, time.Date(2025, 1, 2, 3, 4, 5, 0, time.UTC), file, everything)
		return err
	}
	dir := t.TempDir()
	text := filepath.Join(dir, "notes.txt")
	require.NoError(t, os.WriteFile(text, []byte("mine"), 0o600))
	require.ErrorContains(t, export(text), "holds something that `servo export` did not write: choose another file")
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
	require.ErrorContains(t, export(wal), "a process writes to ")
	require.ErrorContains(t, export(filepath.Join(dir, "absent", "e.duckdb")), "no such file")
	require.NoDirExists(t, filepath.Join(dir, "absent"))
}
