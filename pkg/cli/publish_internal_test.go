package cli

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	_ "github.com/duckdb/duckdb-go/v2" // the readers use this driver
	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/filecheck"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/project"
	"github.com/servo-orchestration/servo/pkg/publisher"
	"github.com/servo-orchestration/servo/pkg/release"
	"github.com/servo-orchestration/servo/pkg/space"
)

// TestPublishedPlacesAreNeverHalfWritten commits 1,000 outputs of five partitions and publishes each of them, while
// readers loop over the folder and the catalog. Every row contains the version of its output. So a reader notices a
// partition that is missing, that appears twice, or whose rows come from several versions.
func TestPublishedPlacesAreNeverHalfWritten(t *testing.T) {
	t.Parallel()
	const commits, days, rows = 1_000, 5, 40
	memory := "/dev/shm" // 2,000 small files take a minute on some disks
	if _, err := os.Stat(memory); err != nil {
		memory = ""
	}
	dir, err := os.MkdirTemp(memory, "published-") //nolint:usetesting // in memory
	require.NoError(t, err)
	defer os.RemoveAll(dir)
	p := &project.Project{Root: dir, Domain: ids.Domain{Tenant: "default", Workspace: "default"}}
	store := filepath.Join(dir, ".servo")
	require.NoError(t, os.Mkdir(store, 0o700))
	columns := map[string][]space.Column{"clean/daily": {{Name: "date", Type: "DATE"}}}
	places := (&app{}).places(p, store, &release.Places{Folder: "./published", DuckDB: "./shop.duckdb"}, "release", columns)
	asset := publisher.Asset{Key: "clean/daily", Name: "clean/daily", Dimensions: []string{"date"}}
	writer, err := sql.Open("duckdb", "?threads=1")
	require.NoError(t, err)
	defer writer.Close()
	now := event.Time(1_700_000_000_000_000)
	commit := func(i int) {
		out, err := storeOutput(t.Context(), writer, store, i%days, i, rows)
		require.NoError(t, err)
		if i < days {
			asset.Outputs = append(asset.Outputs, out)
		} else {
			asset.Outputs[i%days] = out
		}
		now += event.Time(time.Minute.Microseconds())
	}
	update := func(place int) {
		_, err := places[place].Update(t.Context(), []publisher.Asset{asset}, 1, now)
		require.NoError(t, err)
	}
	for i := range days {
		commit(i)
	}
	update(0)
	update(1)

	ctx, cancel := context.WithCancel(t.Context())
	var readers sync.WaitGroup
	var reads [3]int
	var failed [3]error
	check := "SELECT count(*), count(DISTINCT date), count(DISTINCT date::VARCHAR || ' ' || version) FROM "
	for reader, from := range []string{
		"read_parquet('" + filepath.Join(dir, "published/clean/daily/*/*.parquet") + "', hive_partitioning = true)", "clean.daily",
	} {
		readers.Go(func() {
			for ctx.Err() == nil && failed[reader] == nil {
				failed[reader] = readOnce(dir, reader, check+from, days*rows, days)
				reads[reader]++
			}
		})
	}
	readers.Go(func() { // this reader checks the files much more often than DuckDB does
		for ctx.Err() == nil && failed[2] == nil {
			for day := range days {
				_, err := os.Stat(filepath.Join(dir, fmt.Sprintf("published/clean/daily/date=2025-01-0%d/data.parquet", day+1)))
				failed[2] = errors.Join(failed[2], err)
			}
			reads[2]++
		}
	})
	for i := days; i < commits; i++ {
		commit(i)
		update(0)
		if i%40 == 0 { // update the catalog only after some commits, as a busy process does
			update(1)
		}
	}
	cancel()
	readers.Wait()
	require.NoError(t, errors.Join(failed[:]...))
	require.Greater(t, reads[0], 10)
	require.Greater(t, reads[1], 10)
	require.Greater(t, reads[2], commits)
}

// readOnce opens its own DuckDB session, as another program would, and checks the numbers of rows, days and versions.
func readOnce(dir string, reader int, query string, rows, days int) (err error) {
	name := "?threads=1"
	if reader == 1 {
		name = filepath.Join(dir, "shop.duckdb") + "?access_mode=read_only"
	}
	db, err := sql.Open("duckdb", name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	var got [3]int
	if err := db.QueryRowContext(context.Background(), query).Scan(&got[0], &got[1], &got[2]); err != nil {
		return err
	}
	if got != [3]int{rows, days, days} {
		return fmt.Errorf("reader %d found %d rows of %d days and %d versions", reader, got[0], got[1], got[2])
	}
	return nil
}

// storeOutput stores an output with its commit marker.
func storeOutput(ctx context.Context, db *sql.DB, store string, day, version, rows int) (publisher.Output, error) {
	key := ids.Partition{"date": fmt.Sprintf("2025-01-0%d", day+1)}.Key()
	id := fmt.Sprintf("01J%023d", version)
	asset := ids.AssetKey{Namespace: "clean", Name: "daily"}
	uri := contract.ExecutionPrefix(ids.Domain{Tenant: "default", Workspace: "default"}, asset, key, id, id, "n")
	folder := filepath.Join(store, filepath.FromSlash(uri))
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return publisher.Output{}, err
	}
	file := filepath.Join(folder, "data.parquet")
	if _, err := db.ExecContext(ctx, fmt.Sprintf("COPY (SELECT %d AS version, range AS x FROM range(%d)) TO '%s' (FORMAT parquet)", version, rows, file)); err != nil {
		return publisher.Output{}, err
	}
	data, err := os.Open(file) //nolint:gosec // the test chooses the path
	if err != nil {
		return publisher.Output{}, err
	}
	sum, size, err := filecheck.Sum(ctx, data)
	if err := errors.Join(err, data.Close()); err != nil {
		return publisher.Output{}, err
	}
	marker, err := json.Marshal(contract.CommitMarker{
		MaterializationID: id, RunID: id, TaskKey: "clean/daily", AssetKey: "clean/daily", PartitionKey: key, Attempt: 1, AttemptID: id, Nonce: "n", URI: uri,
		Files: []contract.CommitMarkerFile{{Name: "data.parquet", Size: size, CRC32C: sum}}, SchemaHash: "s",
		Columns: []contract.CommitMarkerColumn{{Name: "version", Type: "INTEGER"}, {Name: "x", Type: "BIGINT"}},
	})
	if err != nil {
		return publisher.Output{}, err
	}
	return publisher.Output{Partition: key, MaterializationID: id, URI: uri},
		os.WriteFile(filepath.Join(store, filepath.FromSlash(contract.CommitMarkerKeyOf(uri))), marker, 0o600)
}
