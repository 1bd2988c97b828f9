package query_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/duckdb/duckdb-go/v2"
	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/query"
	"github.com/servo-orchestration/servo/pkg/state"
)

const materialization = "01KAJ2T0000000000000000000"

// output writes the result of a query as a partition's output, with stock DuckDB, and writes its commit marker.
func output(t testing.TB, r *revision, uri, file, sql string) {
	t.Helper()
	defer commit(t, r, uri)
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

// commit writes the commit marker of an output. The marker names all files below the output's URI.
func commit(t testing.TB, r *revision, uri string) {
	t.Helper()
	m := contract.CommitMarker{MaterializationID: materialization, AttemptID: materialization, Nonce: "n", URI: uri, Files: []contract.CommitMarkerFile{}}
	dir := filepath.Join(r.dir, filepath.FromSlash(uri))
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		require.NoError(t, err)
		m.Files = append(m.Files, contract.CommitMarkerFile{Name: e.Name(), Size: int64(len(data)), CRC32C: blob.CRC32C(data)})
	}
	data, err := json.Marshal(m)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(r.dir, filepath.FromSlash(contract.CommitMarkerKeyOf(uri))), data, 0o600))
}

func TestQueryRejectsDamagedOutput(t *testing.T) {
	t.Parallel()
	r := newRevision(t)
	uri := "assets/raw/orders/one/" + materialization + "/x/"
	output(t, r, uri, "data.parquet", "SELECT range AS id FROM range(5000)")
	output(t, r, "assets/raw/other/one/"+materialization+"/x/", "data.parquet", "SELECT 7 AS id")
	add(t, r, partition("raw/orders", "", uri, 1), partition("raw/other", "", "assets/raw/other/one/"+materialization+"/x/", 2))
	db := r.open(t)
	require.Equal(t, [][]any{{int64(5000)}}, all(t, db, "SELECT count(*) FROM raw.orders"))

	path := filepath.Join(r.dir, filepath.FromSlash(uri), "data.parquet")
	info, err := os.Stat(path)
	require.NoError(t, err)
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	data[100] ^= 1
	require.NoError(t, os.WriteFile(path, data, 0o600))
	require.NoError(t, os.Chtimes(path, info.ModTime(), info.ModTime()))
	for _, db := range []*query.DB{db, r.open(t)} {
		_, err = db.Query(t.Context(), "SELECT count(*) FROM raw.orders")
		require.ErrorContains(t, err, "asset raw/orders: file "+path+" is damaged: its CRC-32C is")
		require.Equal(t, [][]any{{int32(7)}}, all(t, db, "SELECT id FROM raw.other"), "another asset is not affected")
	}
}

func TestSessionLimitsFiles(t *testing.T) {
	t.Parallel()
	r := newRevision(t)
	const assets = query.MaxFiles/contract.MaxFiles + 1
	for i := range assets {
		uri := fmt.Sprintf("assets/raw/a%d/one/%s/x/", i, materialization)
		m := contract.CommitMarker{MaterializationID: materialization, AttemptID: materialization, Nonce: "n", URI: uri}
		for j := range contract.MaxFiles {
			m.Files = append(m.Files, contract.CommitMarkerFile{Name: fmt.Sprintf("%d.parquet", j)})
		}
		data, err := json.Marshal(m)
		require.NoError(t, err)
		marker := filepath.Join(r.dir, filepath.FromSlash(contract.CommitMarkerKeyOf(uri)))
		require.NoError(t, os.MkdirAll(filepath.Dir(marker), 0o700))
		require.NoError(t, os.WriteFile(marker, data, 0o600))
		add(t, r, partition(fmt.Sprintf("raw/a%d", i), "", uri, int64(i+1)))
	}
	open := func(sql string) error {
		source := r.source
		source.SQL = sql
		db, err := query.Open(t.Context(), source, query.Options{})
		if err == nil {
			err = db.Close()
		}
		return err
	}
	require.NoError(t, open("FROM raw.a1"))
	require.ErrorContains(t, open(""), "more than 200000 files: pass the SQL as an argument, so that only the assets that it names are read")
	all := ""
	for i := range assets {
		all += fmt.Sprintf("FROM raw.a%d;", i)
	}
	require.ErrorContains(t, open(all), "more than 200000 files: query fewer assets at once")
}

// The views of assets are created when a statement names them. If the transaction of this statement is rolled back,
// later statements must create the views again.
func TestQueryReadsAssetsAfterRollback(t *testing.T) {
	t.Parallel()
	r := newRevision(t)
	for i, name := range []string{"one", "two"} {
		uri := "assets/raw/" + name + "/one/" + materialization + "/x/"
		output(t, r, uri, "data.parquet", "SELECT 7 AS id")
		add(t, r, partition("raw/"+name, "", uri, int64(i+1)))
	}
	db := r.open(t)
	all(t, db, "BEGIN")
	require.Equal(t, [][]any{{int32(7)}}, all(t, db, "FROM raw.one"))
	rows, err := db.Query(t.Context(), "SELECT error('this aborts the transaction')")
	require.Nil(t, rows)
	require.Error(t, err)
	_, err = db.Query(t.Context(), "FROM raw.two")
	require.ErrorContains(t, err, "transaction is aborted")
	all(t, db, "ROLLBACK")
	require.Equal(t, [][]any{{int32(7)}}, all(t, db, "FROM raw.one"))
	require.Equal(t, [][]any{{int32(7)}}, all(t, db, "FROM raw.two"))
}

func partition(key, part, uri string, seq int64) *state.Partition {
	return &state.Partition{AssetKey: key, PartitionKey: part, Status: "MATERIALIZED", OutputURI: uri, Meta: meta(seq)}
}

func TestAssetViewReadsCurrentOutputs(t *testing.T) {
	t.Parallel()
	r := newRevision(t)
	output(t, r, "assets/raw/orders/1/"+materialization+"/m1/", "part-0.parquet", "SELECT 1 AS id, 'old' AS note")
	output(t, r, "assets/raw/orders/2/"+materialization+"/m2/", "part-0.parquet", "SELECT 1 AS id, 'new' AS note")
	output(t, r, "assets/raw/orders/3/"+materialization+"/[m3]/", "a.parquet", "SELECT 2 AS id, 9.5 AS price")
	output(t, r, "assets/raw/orders/3/"+materialization+"/[m3]/", "b.parquet", "SELECT 3 AS id, 8.5 AS price")
	add(t, r, partition("raw/orders", `{"d":"1"}`, "assets/raw/orders/1/"+materialization+"/m1/", 1))
	add(t, r, partition("raw/orders", `{"d":"1"}`, "assets/raw/orders/2/"+materialization+"/m2/", 2),
		partition("raw/orders", `{"d":"2"}`, "assets/raw/orders/3/"+materialization+"/[m3]/", 3))
	db := r.open(t)
	require.Equal(t, [][]any{{int32(1), "new"}, {int32(2), nil}, {int32(3), nil}},
		all(t, db, "SELECT id, note FROM raw.orders ORDER BY id"), "partitions are united by name")
	require.Equal(t, [][]any{{int64(3)}}, all(t, db, `SELECT count(price) + 1 FROM RAW."orders" o JOIN partition_status p ON p.partition_key = '{"d":"1"}'`))
}

func TestAssetViewIgnoresFolderNames(t *testing.T) {
	t.Parallel()
	r := newRevision(t)
	uri := "assets/acme/prod/raw/orders/date=2012-01-01/" + materialization + "/m1/"
	output(t, r, uri, "data.parquet", "SELECT 1 AS id")
	add(t, r, partition("raw/orders", `{"date":"2012-01-01"}`, uri, 1))
	require.Equal(t, [][]any{{int32(1)}}, all(t, r.open(t), "SELECT * FROM raw.orders"))
}

func TestQueryExplainsAssetWithoutView(t *testing.T) {
	t.Parallel()
	r := newRevision(t)
	uri := "assets/raw/log/_/" + materialization + "/m1/"
	require.NoError(t, os.MkdirAll(filepath.Join(r.dir, filepath.FromSlash(uri)), 0o755))
	commit(t, r, uri)
	add(t, r, partition("raw/log", "", uri, 1), partition("raw/lost", "", "assets/raw/lost/", 2),
		partition("raw/evil", "", "../../etc/", 3), partition("t/state", "", uri, 4))
	db := r.open(t)
	_, err := db.Query(t.Context(), "SELECT * FROM raw.log")
	require.ErrorContains(t, err, "The asset raw/log cannot be queried: its outputs contain no *.parquet files.")
	_, err = db.Query(t.Context(), "SELECT * FROM raw.lost")
	require.ErrorContains(t, err, "The asset raw/lost cannot be queried: read commit marker: ")
	_, err = db.Query(t.Context(), "SELECT * FROM raw.evil")
	require.ErrorContains(t, err, "is not a path in the store")
	require.Empty(t, all(t, db, "SELECT t.state FROM tasks t"), "an alias is not an asset")
}

func TestAssetNeverHidesTable(t *testing.T) {
	t.Parallel()
	r := newRevision(t)
	output(t, r, "assets/main/runs/_/"+materialization+"/m1/", "a.parquet", "SELECT 1 AS id")
	add(t, r, partition("main/runs", "", "assets/main/runs/_/"+materialization+"/m1/", 1))
	require.Equal(t, [][]any{{int64(0)}}, all(t, r.open(t), "SELECT count(run_id) FROM main.runs"))
}

// If the SQL of a session is known when it opens, the session reads only the commit markers of the assets that the
// SQL mentions.
func TestSessionReadsMentionedAssetsOnly(t *testing.T) {
	t.Parallel()
	r := newRevision(t)
	for i, key := range []string{"mart/sales", "raw/orders", "raw/other"} {
		uri := "assets/" + key + "/_/" + materialization + "/m1/"
		output(t, r, uri, "a.parquet", "SELECT "+strconv.Itoa(i)+" AS id")
		add(t, r, partition(key, "", uri, int64(i+1)))
	}
	for sql, want := range map[string]any{
		`SELECT id FROM raw.orders`:                                               int32(1),
		`SELECT s.id + o.id FROM RAW."Orders" AS o, "mart" . sales AS s`:          int32(1),
		`SELECT count(*) FROM partition_status`:                                   int64(3),
		`SELECT count(*) FROM duckdb_views() WHERE schema_name IN ('raw','mart')`: int64(3),
		`SELECT count(*) FROM (DESCRIBE) WHERE schema IN ('raw', 'mart')`:         int64(3),
		`SELECT count(*) FROM ( desc ) WHERE schema IN ('raw', 'mart')`:           int64(3),
		`SELECT count(*) FROM sqlite_master WHERE name IN ('orders', 'sales')`:    int64(2),
		`SELECT count(*) FROM pg_views WHERE schemaname IN ('raw', 'mart')`:       int64(3),
		`SELECT count(*) FROM pg_catalog.pg_class WHERE relname = 'other'`:        int64(1),
	} {
		r.source.SQL = sql
		db := r.open(t)
		require.Equal(t, [][]any{{want}}, all(t, db, sql), sql)
		require.False(t, db.Lacks("raw", "other"))
		require.True(t, db.Lacks("raw", "none"))
	}
	r.source.SQL = "FROM raw.orders"
	_, err := r.open(t).Query(t.Context(), "FROM raw.other")
	require.ErrorContains(t, err, "other", "no marker was read")
}

// A statement that lists views reads only the commit markers of the newest outputs of each asset, because there may be
// many outputs.
func TestListingReadsNewestMarkersOnly(t *testing.T) {
	t.Parallel()
	r := newRevision(t)
	output(t, r, "assets/raw/orders/20/"+materialization+"/m1/", "a.parquet", "SELECT 1 AS id, {'a b': 2.5} AS \"the \"\"note\" WHERE false")
	var rows []*state.Partition
	for i := range 22 {
		uri := "assets/raw/orders/" + strconv.Itoa(i) + "/" + materialization + "/m1/"
		if i == 18 || i == 19 || i == 21 { // outputs without rows
			require.NoError(t, os.MkdirAll(filepath.Join(r.dir, filepath.FromSlash(uri)), 0o755))
			commit(t, r, uri)
		}
		// Outputs 0 to 17 have no commit markers.
		rows = append(rows, partition("raw/orders", `{"d":"`+strconv.Itoa(i)+`"}`, uri, int64(i+1)))
	}
	add(t, r, rows...)

	columns := "SELECT column_name, data_type FROM information_schema.columns WHERE table_schema = 'raw'"
	r.source.SQL = columns
	db := r.open(t)
	require.Equal(t, [][]any{{"id", "INTEGER"}, {`the "note`, `STRUCT("a b" DECIMAL(2,1))`}}, all(t, db, columns))

	dynamic := "SELECT (SELECT count(*) FROM duckdb_views()) AS views, n FROM (SELECT count(*) AS n FROM query_table('raw' || '.orders'))"
	r.source.SQL = dynamic
	rowsOf, err := r.open(t).Query(t.Context(), dynamic)
	if err == nil {
		_, err = rowsOf.Collect(10)
	}
	require.ErrorContains(t, err, "this statement lists views without naming raw.orders, so only the columns of raw.orders are known: to read its rows, name it in the statement")
}
