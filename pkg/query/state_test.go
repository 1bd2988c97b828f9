package query_test

import (
	"database/sql/driver"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/filecheck"
	"github.com/servo-orchestration/servo/pkg/query"
	"github.com/servo-orchestration/servo/pkg/state"
	"github.com/servo-orchestration/servo/pkg/table"
	"github.com/servo-orchestration/servo/pkg/table/parquetfile"
)

// revision is a folder with the files of one revision.
type revision struct {
	dir    string
	source query.Source
}

func newRevision(tb testing.TB) *revision {
	tb.Helper()
	dir := tb.TempDir()
	return &revision{dir: dir, source: query.Source{Tables: map[string]query.Table{}, Outputs: dir}}
}

// add writes rows of a table to a file, as the compactor does.
func add[R any](tb testing.TB, r *revision, rows ...*R) (path string) {
	tb.Helper()
	for d, list := range state.Set(&state.Rows{}, rows).Lists {
		path = addList(tb, r, d, list)
	}
	return path
}

func addList(tb testing.TB, r *revision, d *state.Declaration, list any) string {
	tb.Helper()
	data, err := d.Encode(&parquetfile.Format{}, list)
	require.NoError(tb, err)
	in := r.source.Tables[d.Name]
	path := filepath.Join(r.dir, "state", d.Name, fmt.Sprintf("%04d.parquet", len(in.Files)))
	require.NoError(tb, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(tb, os.WriteFile(path, data, 0o600))
	in.Files = append(in.Files, filecheck.File{Path: path, Size: int64(len(data)), CRC32C: blob.CRC32C(data)})
	r.source.Tables[d.Name] = in
	return path
}

// inline adds rows of a table to the manifest, as the compactor does.
func inline[R any](tb testing.TB, r *revision, rows ...*R) {
	tb.Helper()
	for d, list := range state.Set(&state.Rows{}, rows).Lists {
		inlineList(tb, r, d, list)
	}
}

func inlineList(tb testing.TB, r *revision, d *state.Declaration, list any) {
	tb.Helper()
	data, err := d.Encode(table.JSON{}, list)
	require.NoError(tb, err)
	in := r.source.Tables[d.Name]
	in.Inline = append(in.Inline, data)
	r.source.Tables[d.Name] = in
}

func (r *revision) open(tb testing.TB) *query.DB {
	tb.Helper()
	db, err := query.Open(tb.Context(), r.source, query.Options{Threads: 2})
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, db.Close()) })
	return db
}

func all(tb testing.TB, db *query.DB, sql string, args ...any) [][]any {
	tb.Helper()
	rows, err := db.Query(tb.Context(), sql, args...)
	require.NoError(tb, err)
	cells, err := rows.Collect(1000)
	require.NoError(tb, err)
	return cells
}

func meta(seq int64) state.Meta {
	return state.Meta{Tenant: "acme", Workspace: "prod", Version: fmt.Sprintf("v%06d", seq), Seq: seq}
}

func gone(seq int64) state.Meta {
	m := meta(seq)
	m.Deleted = true
	return m
}

// task returns the row of the i-th task. Each run has a hundred tasks.
func task(i int, seq int64, s state.TaskState) *state.Task {
	return &state.Task{
		RunID: fmt.Sprintf("01J8ZC4W9QN3V6T2K7%08d", i/100), TaskKey: fmt.Sprintf("raw/orders_%03d", i%100),
		TaskID: fmt.Sprintf("t%08d", i), Kind: event.KindTask, State: s, TriggerRule: event.RuleAllSuccess,
		WorkerQueue: "default", MaxAttempts: 1, Attempt: 1, AttemptID: fmt.Sprintf("a%08d", i),
		CreatedAt: event.Time(1_760_000_000_000_000 + int64(i)), RowCount: int64(i), Meta: meta(seq),
	}
}

func driverValues(n int) []driver.Value { return make([]driver.Value, n) }
