package query_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/query"
	"github.com/servo-orchestration/servo/pkg/state"
)

// millionTasks returns a revision with 1,000,000 task rows: 800,000 in the base and the others in 49 deltas.
func millionTasks(b *testing.B) *revision {
	b.Helper()
	r := newRevision(b)
	states := []state.TaskState{state.TaskReady, state.TaskRunning, state.TaskSucceeded, state.TaskFailed}
	rows := make([]*state.Task, 0, 800_000)
	for i := range 800_000 {
		rows = append(rows, task(i, int64(i)+1, states[i%4]))
	}
	add(b, r, rows...)
	for f := range 49 {
		rows = rows[:0]
		for i := range 4082 {
			rows = append(rows, task(600_000+f*4000+i, int64(f+1)*1_000_000+int64(i), state.TaskSucceeded))
		}
		add(b, r, rows...)
	}
	return r
}

func BenchmarkOneMillionTasksIn50Files(b *testing.B) {
	r := millionTasks(b)
	db := r.open(b)
	for name, sql := range map[string]string{
		"GroupBy": "SELECT state, count(*), max(created_at) FROM tasks GROUP BY state",
		"OneRun":  "SELECT * FROM tasks WHERE run_id = '01J8ZC4W9QN3V6T2K700000012'",
		"Raw":     "SELECT state, count(*) FROM read_parquet(['" + r.source.Tables["tasks"].Files[0].Path + "']) GROUP BY state",
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				rows, err := db.Query(b.Context(), sql)
				require.NoError(b, err)
				_, err = rows.Collect(1000)
				require.NoError(b, err)
			}
		})
	}
	b.Run("BaseAloneGroupBy", func(b *testing.B) {
		alone := *r
		alone.source.Tables = map[string]query.Table{"tasks": {Files: r.source.Tables["tasks"].Files[:1]}}
		db := alone.open(b)
		for b.Loop() {
			rows, err := db.Query(b.Context(), "SELECT state, count(*), max(created_at) FROM tasks GROUP BY state")
			require.NoError(b, err)
			_, err = rows.Collect(1000)
			require.NoError(b, err)
		}
	})
	b.Run("Open", func(b *testing.B) {
		for b.Loop() {
			db, err := query.Open(b.Context(), r.source, query.Options{})
			require.NoError(b, err)
			require.NoError(b, db.Close())
		}
	})
}

// BenchmarkListing lists the columns of an asset with 2,000 outputs. A session that knows its statements reads only a
// few of the commit markers.
func BenchmarkListing(b *testing.B) {
	const outputs, columns = 2_000, "SELECT count(*) FROM information_schema.columns WHERE table_schema = 'raw'"
	r := newRevision(b)
	output(b, r, "assets/raw/orders/0/"+materialization+"/m1/", "a.parquet", "SELECT 1 AS id, 'x' AS note")
	first := filepath.Join(r.dir, "assets", "raw", "orders", "0", materialization, "m1", "a.parquet")
	data, err := os.ReadFile(first)
	require.NoError(b, err)
	rows := make([]*state.Partition, outputs)
	for i := range rows {
		uri := fmt.Sprintf("assets/raw/orders/%d/%s/m1/", i, materialization)
		rows[i] = partition("raw/orders", fmt.Sprintf(`{"d":"%d"}`, i), uri, int64(i+1))
		if i > 0 {
			dir := filepath.Join(r.dir, filepath.FromSlash(uri))
			require.NoError(b, os.MkdirAll(dir, 0o755))
			require.NoError(b, os.WriteFile(filepath.Join(dir, "a.parquet"), data, 0o600))
			commit(b, r, uri)
		}
	}
	add(b, r, rows...)
	for name, sql := range map[string]string{"known statements": columns, "unknown statements": ""} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				r.source.SQL = sql
				db := r.open(b)
				require.Equal(b, [][]any{{int64(2)}}, all(b, db, columns))
				require.NoError(b, db.Close())
			}
		})
	}
}
