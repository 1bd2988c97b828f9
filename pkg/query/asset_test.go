package query_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/duckdb/duckdb-go/v2"
	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/state"
)

// output writes a partition's output with a SELECT of stock DuckDB.
func output(t *testing.T, r *revision, uri, file, sql string) {
	t.Helper()
	dir := filepath.Join(r.dir, filepath.FromSlash(uri))
	require.NoError(t, os.MkdirAll(dir, 0o755))
	connector, err := duckdb.NewConnector("", nil)
	require.NoError(t, err)
	defer connector.Close()
	conn, err := connector.Connect(t.Context())
	require.NoError(t, err)
	defer conn.Close()
	_, err = conn.(*duckdb.Conn).ExecContext(t.Context(), "COPY ("+sql+") TO '"+filepath.Join(dir, file)+"'", nil)
	require.NoError(t, err)
}

func partition(key, part, uri string, seq int64) *state.Partition {
	return &state.Partition{AssetKey: key, PartitionKey: part, Status: "MATERIALIZED", OutputURI: uri, Meta: meta(seq)}
}

func TestAnAssetIsAViewOverItsCurrentOutputs(t *testing.T) {
	t.Parallel()
	r := newRevision(t)
	output(t, r, "assets/raw/orders/m1/", "part-0.parquet", "SELECT 1 AS id, 'old' AS note")
	output(t, r, "assets/raw/orders/m2/", "part-0.parquet", "SELECT 1 AS id, 'new' AS note")
	output(t, r, "assets/raw/orders/[m3]/", "a.parquet", "SELECT 2 AS id, 9.5 AS price")
	output(t, r, "assets/raw/orders/[m3]/", "b.parquet", "SELECT 3 AS id, 8.5 AS price")
	add(t, r, partition("raw/orders", `{"d":"1"}`, "assets/raw/orders/m1/", 1))
	add(t, r, partition("raw/orders", `{"d":"1"}`, "assets/raw/orders/m2/", 2),
		partition("raw/orders", `{"d":"2"}`, "assets/raw/orders/[m3]/", 3))
	db := r.open(t)
	require.Equal(t, [][]any{{int32(1), "new"}, {int32(2), nil}, {int32(3), nil}},
		all(t, db, "SELECT id, note FROM raw.orders ORDER BY id"), "partitions are united by name")
	require.Equal(t, [][]any{{int64(3)}}, all(t, db, `SELECT count(price) + 1 FROM RAW."orders" o JOIN partition_status p ON p.partition_key = '{"d":"1"}'`))
}

func TestTheFoldersOfAnOutputAddNoColumns(t *testing.T) {
	t.Parallel()
	r := newRevision(t)
	uri := "assets/tenant=acme/workspace=prod/raw/orders/date=2012-01-01/m1/"
	output(t, r, uri, "data.parquet", "SELECT 1 AS id")
	add(t, r, partition("raw/orders", `{"date":"2012-01-01"}`, uri, 1))
	require.Equal(t, [][]any{{int32(1)}}, all(t, r.open(t), "SELECT * FROM raw.orders"))
}

func TestAnAssetWithoutParquetSaysWhy(t *testing.T) {
	t.Parallel()
	r := newRevision(t)
	require.NoError(t, os.MkdirAll(filepath.Join(r.dir, "assets", "raw", "log"), 0o755))
	add(t, r, partition("raw/log", "", "assets/raw/log/", 1), partition("raw/lost", "", "assets/raw/lost/", 2),
		partition("raw/evil", "", "../../etc/", 3), partition("t/state", "", "assets/raw/log/", 4))
	db := r.open(t)
	_, err := db.Query(t.Context(), "SELECT * FROM raw.log")
	require.ErrorContains(t, err, "The asset raw/log cannot be queried: its outputs hold no *.parquet files.")
	_, err = db.Query(t.Context(), "SELECT * FROM raw.lost")
	require.ErrorContains(t, err, "The asset raw/lost cannot be queried: an output cannot be read")
	_, err = db.Query(t.Context(), "SELECT * FROM raw.evil")
	require.ErrorContains(t, err, "is not a path under the store")
	require.Empty(t, all(t, db, "SELECT t.state FROM tasks t"), "an alias is not an asset")
}

func TestAnAssetNeverHidesATable(t *testing.T) {
	t.Parallel()
	r := newRevision(t)
	output(t, r, "assets/main/runs/m1/", "a.parquet", "SELECT 1 AS id")
	add(t, r, partition("main/runs", "", "assets/main/runs/m1/", 1))
	require.Equal(t, [][]any{{int64(0)}}, all(t, r.open(t), "SELECT count(run_id) FROM main.runs"))
}
