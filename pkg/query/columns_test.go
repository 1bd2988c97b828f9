package query_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/query"
	"github.com/servo-orchestration/servo/pkg/space"
	"github.com/servo-orchestration/servo/pkg/state"
)

// declare deploys a release in which the asset a/x has the given partition columns.
func declare(t *testing.T, r *revision, columns ...space.Column) {
	t.Helper()
	add(t, r, &state.Deployment{Release: "r", Meta: meta(1)})
	r.source.Links = t.TempDir()
	r.source.Declared = func(context.Context, string, func(string) ([]string, error)) (*query.Declarations, error) {
		return &query.Declarations{Columns: func(string) []space.Column { return columns }}, nil
	}
}

// describe adds columns and a schema hash to the commit marker of an output.
func describe(t *testing.T, r *revision, uri, schema string, names ...string) {
	t.Helper()
	path := filepath.Join(r.dir, filepath.FromSlash(contract.CommitMarkerKeyOf(uri)))
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	var m contract.CommitMarker
	require.NoError(t, json.Unmarshal(data, &m))
	m.SchemaHash = schema
	for _, name := range names {
		m.Columns = append(m.Columns, contract.CommitMarkerColumn{Name: name, Type: "BIGINT"})
	}
	data, err = json.Marshal(m)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, data, 0o600))
}

func uriOf(i int) string { return fmt.Sprintf("assets/a/x/%d/%s/m/", i, materialization) }

func TestPartitionColumnsSkipFiles(t *testing.T) {
	t.Parallel()
	r := newRevision(t)
	declare(t, r, space.Column{Name: "date", Type: "DATE"})
	const parts, wanted = 1000, 517
	rows := make([]*state.Partition, parts)
	first := time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)
	day := func(i int) string { return first.AddDate(0, 0, i).Format(time.DateOnly) }
	for i := range rows {
		rows[i] = partition("a/x", ids.Partition{"date": day(i)}.Key(), uriOf(i), int64(i+2))
		if i == 0 || i == wanted { // DuckDB reads the columns from the first file
			output(t, r, uriOf(i), "data.parquet", fmt.Sprintf("SELECT %d AS x", i))
		} else {
			broken(t, r, uriOf(i))
		}
		describe(t, r, uriOf(i), "s", "x")
	}
	add(t, r, rows...)
	db := r.open(t)
	want := [][]any{{int32(wanted), "2025-06-01"}}
	for _, where := range []string{"date = '2025-06-01'", "date IN ('2025-06-01')", "date BETWEEN '2025-06-01' AND DATE '2025-06-02' - 1", "date = (SELECT DATE '2025-06-01')"} {
		require.Equal(t, want, all(t, db, "SELECT * FROM a.x WHERE "+where), where)
	}
	rowsOf, err := db.Query(t.Context(), "SELECT sum(x) FROM a.x WHERE date >= '2025-06-01'")
	if err == nil {
		_, err = rowsOf.Collect(1)
	}
	require.Error(t, err, "a filter that needs the other files")
}

// broken writes an output whose file is not a Parquet file.
func broken(t *testing.T, r *revision, uri string) {
	t.Helper()
	path := filepath.Join(r.dir, filepath.FromSlash(uri), "data.parquet")
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte("no Parquet"), 0o600))
	commit(t, r, uri)
}

func TestPartitionColumnsOfFilesWin(t *testing.T) {
	t.Parallel()
	for _, described := range []bool{true, false} {
		r := newRevision(t)
		declare(t, r, space.Column{Name: "date", Type: "DATE"})
		own := "SELECT 1 AS x, DATE '2025-01-01' AS \"Date\" UNION ALL SELECT 2, DATE '2024-12-31' UNION ALL SELECT 3, NULL"
		output(t, r, uriOf(1), "data.parquet", own)
		output(t, r, uriOf(2), "data.parquet", "SELECT 4 AS x")
		output(t, r, uriOf(3), "data.parquet", "SELECT 5 AS x, DATE '2025-01-02' AS \"Date\"")
		if described {
			describe(t, r, uriOf(1), "s", "x", "Date")
			describe(t, r, uriOf(2), "t", "x")
			describe(t, r, uriOf(3), "s", "x", "Date")
		}
		for i := 1; i <= 3; i++ {
			add(t, r, partition("a/x", ids.Partition{"date": fmt.Sprintf("2025-01-0%d", i)}.Key(), uriOf(i), int64(i+1)))
		}
		db := r.open(t)
		require.Equal(t, [][]any{{"1", "2025-01-01"}, {"2", "2024-12-31"}, {"3", nil}, {"4", "2025-01-02"}, {"5", "2025-01-02"}},
			all(t, db, "SELECT x::VARCHAR, date::VARCHAR FROM a.x ORDER BY x"))
		require.Equal(t, [][]any{{int64(2)}}, all(t, db, "SELECT count(*) FROM a.x WHERE date = '2025-01-02'"))
		require.Equal(t, [][]any{{int64(1)}}, all(t, db, "SELECT count(*) FROM a.x WHERE date < '2025-01-01'"), "a late row is found")
	}
}

func TestPartitionColumnsNeedOneType(t *testing.T) {
	t.Parallel()
	r := newRevision(t)
	declare(t, r, space.Column{Name: "date", Type: "DATE"})
	output(t, r, uriOf(1), "data.parquet", "SELECT 1 AS x, '2025-01-01' AS date")
	output(t, r, uriOf(2), "data.parquet", "SELECT 2 AS x")
	add(t, r, partition("a/x", `{"date":"2025-01-01"}`, uriOf(1), 2), partition("a/x", `{"date":"2025-01-02"}`, uriOf(2), 3))
	_, err := r.open(t).Query(t.Context(), "FROM a.x")
	require.ErrorContains(t, err, "some of its partitions have a column date of type VARCHAR, and others get date from their keys as DATE")
}

func TestPartitionColumnsHaveAllValues(t *testing.T) {
	t.Parallel()
	r := newRevision(t)
	declare(t, r, space.Column{Name: "hour", Type: "TIMESTAMPTZ"}, space.Column{Name: "r", Type: "VARCHAR"})
	values := []string{"NULL", "null", "__HIVE_DEFAULT_PARTITION__", "a b", "a/../b", "'; DROP TABLE x; --", "100%", "%41", "+", `\`, `"`, "ü", strings.Repeat("ü", 128), "*?[x]"}
	var rows []*state.Partition
	for i, v := range values {
		output(t, r, uriOf(i), "data.parquet", fmt.Sprintf("SELECT %d AS x", i))
		describe(t, r, uriOf(i), "s", "x")
		rows = append(rows, partition("a/x", ids.Partition{"hour": "2025-03-30T03:00+02:00", "r": v}.Key(), uriOf(i), int64(i+2)))
	}
	// This output was stored when the asset had other dimensions.
	output(t, r, uriOf(99), "data.parquet", "SELECT 99 AS x")
	add(t, r, append(rows, partition("a/x", `{"day":"2025-01-01"}`, uriOf(99), 999))...)
	for _, links := range []string{r.source.Links, ""} {
		r.source.Links = links
		db := r.open(t)
		for i, v := range values {
			require.Equal(t, [][]any{{int32(i), time.Date(2025, 3, 30, 1, 0, 0, 0, time.UTC), v}}, all(t, db, "SELECT * FROM a.x WHERE r = ?", v))
		}
		require.Equal(t, [][]any{{int64(len(values))}}, all(t, db, "SELECT count(*) FROM a.x WHERE hour = '2025-03-30T01:00:00Z'"))
	}
}

// batch writes the output of a batch, with one partition for each day, and its commit marker. Only the first day has
// a file. batch returns the rows of table partition_status.
func batch(t *testing.T, r *revision, days int) []*state.Partition {
	t.Helper()
	uri := "assets/a/x/first/" + materialization + "/x.cells/"
	m := contract.CommitMarker{MaterializationID: materialization, AttemptID: materialization, Nonce: "n", URI: uri, Files: []contract.CommitMarkerFile{}}
	rows := make([]*state.Partition, days)
	for i := range rows {
		key := ids.Partition{"date": time.Date(2024, 1, 1+i, 0, 0, 0, 0, time.UTC).Format(time.DateOnly)}.Key()
		rows[i] = partition("a/x", key, contract.CellURI(uri, key), int64(i+2))
		m.Cells = append(m.Cells, contract.CommitMarkerCell{PartitionKey: key})
	}
	one := contract.CellURI(uri, rows[0].PartitionKey)
	output(t, r, one, "data.parquet", "SELECT 7 AS id")
	data, err := os.ReadFile(filepath.Join(r.dir, filepath.FromSlash(one), "data.parquet"))
	require.NoError(t, err)
	m.Files = append(m.Files, contract.CommitMarkerFile{Name: strings.TrimPrefix(one, uri) + "data.parquet", Size: int64(len(data)), CRC32C: blob.CRC32C(data)})
	m.Cells[0].Files = 1
	data, err = json.Marshal(m)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(r.dir, filepath.FromSlash(contract.CommitMarkerKeyOf(one))), data, 0o600))
	return rows
}

// The work for a batch is proportional to its number of partitions. If the batch's commit marker were decoded for
// each partition, the work would be proportional to the square of that number.
func TestQueryDecodesTheMarkerOfABatchOnce(t *testing.T) {
	allocations := func(days int) float64 {
		r := newRevision(t)
		declare(t, r, space.Column{Name: "date", Type: "DATE"})
		add(t, r, batch(t, r, days)...)
		require.Equal(t, [][]any{{int32(7), "2024-01-01"}}, all(t, r.open(t), "SELECT id, date::VARCHAR FROM a.x"))
		return testing.AllocsPerRun(1, func() { r.open(t) })
	}
	few, many := allocations(200), allocations(800)
	require.Less(t, many, 6*few)
}
