package query_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/archive"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/query"
)

// This test checks a statement of docs/format/archive.md: stock DuckDB can read the archive.
func TestArchiveIsReadableWithStockDuckDB(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first := time.Date(2026, 3, 1, 10, 0, 0, 0, time.UTC)
	write := func(at time.Time, data ...string) {
		entries := make([]archive.Entry, len(data))
		for i, text := range data {
			entries[i] = archive.Entry{ID: ids.AtTime(at.Add(time.Duration(i) * time.Second)), Data: []byte(text)}
		}
		file, err := archive.Encode(entries)
		require.NoError(t, err)
		path := filepath.Join(dir, filepath.FromSlash(archive.Key(ids.Domain{Tenant: "acme", Workspace: "prod"}, entries[0].ID)))
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, file, 0o600))
	}
	write(first, "{\"event_type\":\"RunTriggered\",\"payload\":{\"run_id\":\"r1\"}}\n{\"event_type\":\"PlanCreated\",\"payload\":{\"run_id\":\"r1\"}}\n",
		"{\"event_type\":\"TaskFinished\",\"payload\":{\"run_id\":\"r1\"}}\r\n", "not JSON\n", "{\"a\":\"\\ud800\"}\n", "")
	write(first.AddDate(0, 0, 1), "{\"event_type\":\"LimitSet\",\"payload\":{\"slots\":3}}\n")

	db, err := query.Open(t.Context(), query.Source{AllowedDirs: []string{dir}}, query.Options{Threads: 2})
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	files := "read_parquet('" + filepath.ToSlash(dir) + "/archive/**/*.parquet')"
	require.Equal(t, [][]any{{"RunTriggered"}, {"PlanCreated"}, {"TaskFinished"}, {"LimitSet"}},
		all(t, db, "SELECT text->>'event_type' FROM "+files+" WHERE text IS NOT NULL ORDER BY entry, line"))
	require.Equal(t, [][]any{{int64(4)}}, all(t, db, "SELECT count(DISTINCT text->>'event_type') FROM "+files), "all rows are events")
	require.Equal(t, [][]any{{"acme", "prod", int64(1)}},
		all(t, db, "SELECT tenant, workspace, count(*) FROM "+files+" WHERE date = '2026-03-02' GROUP BY ALL"))
	require.Equal(t, [][]any{{"not JSON\n"}, {"{\"a\":\"\\ud800\"}\n"}},
		all(t, db, "SELECT decode(from_base64(whole)) FROM "+files+" WHERE whole IS NOT NULL ORDER BY entry"))
	require.Equal(t, [][]any{
		{"entry", "VARCHAR"},
		{"line", "INTEGER"},
		{"text", "VARCHAR"},
		{"whole", "VARCHAR"},
		{"crc32c", "BIGINT"},
	}, all(t, db, "SELECT column_name, column_type FROM (DESCRIBE FROM "+files+") LIMIT 5"))
}
