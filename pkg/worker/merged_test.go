package worker_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/memblob"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/filecheck"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/merged"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/space"
	"github.com/servo-orchestration/servo/pkg/worker"
)

// manySmall is a fixture with an asset that has many small outputs.
type manySmall struct {
	*fixture

	asset   ids.AssetKey
	columns []space.Column
	read    []plan.Input // the visible outputs, in the order of their keys
	reads   int
}

const visits = "raw/visits"

// allTypes is a query whose columns have all kinds of types. For some days, it returns no rows.
const allTypes = `SELECT range AS id, 'day ' || getvariable('date') AS text, range % 3 = 0 AS odd, CASE range % 4 WHEN 0 THEN 'NaN'::DOUBLE WHEN 1 THEN -0.0 ELSE range / 7 END AS number,
	[range, NULL] AS list, {a: range, b: {c: 'x'}} AS struct, MAP {'k': range} AS map, (range / 8)::DECIMAL(9, 3) AS small, range::HUGEINT * 1000000000000000000000 AS huge,
	TIMESTAMP '2020-01-01 00:00:00.123456' + INTERVAL (range) SECOND AS at, TIMESTAMPTZ '2020-01-01 00:00:00+02' AS zoned, '2020-01-01 00:00:00.123456789'::TIMESTAMP_NS AS nano,
	TIME '12:00:01' AS clock, DATE '1200-01-01' AS old, 'a'::BLOB AS bytes, '{"x": 1}'::JSON AS doc,
	'00000000-0000-0000-0000-000000000001'::UUID AS uuid, 7::UTINYINT AS tiny, NULL AS nothing, 1::FLOAT AS single
	FROM range((hash(getvariable('date')) % 4)::BIGINT)`

func newManySmall(t *testing.T, store blob.Store, days int, regions ...string) *manySmall {
	t.Helper()
	asset, err := ids.ParseAssetKey(visits)
	require.NoError(t, err)
	w := &manySmall{fixture: newFixture(t, store, map[string]plan.Work{visits: query("SELECT 1 AS x")}, task(visits, "", nil)), asset: asset}
	w.columns = []space.Column{{Name: "region", Type: "VARCHAR"}, {Name: "date", Type: "DATE"}}
	if len(regions) == 0 {
		w.columns, regions = w.columns[1:], []string{""}
	}
	for day := range days {
		for _, region := range regions {
			partition := ids.Partition{"date": time.Date(2022, 1, 1+day, 0, 0, 0, 0, time.UTC).Format(time.DateOnly)}
			if region != "" {
				partition["region"] = region
			}
			w.read = append(w.read, plan.Input{PartitionKey: partition.Key()})
		}
	}
	slices.SortFunc(w.read, func(a, b plan.Input) int { return strings.Compare(a.PartitionKey, b.PartitionKey) })
	return w
}

// write materializes the partitions at the given positions with a query, and makes these outputs the visible ones.
func (w *manySmall) write(text string, at ...int) {
	w.t.Helper()
	w.reads++
	version := fmt.Sprintf("raw/version%d", w.reads) // each version needs its own tasks, so that it gets its own outputs
	asset, err := ids.ParseAssetKey(version)
	require.NoError(w.t, err)
	tasks := make([]plan.Task, len(at))
	for i, p := range at {
		partition, err := ids.ParsePartition(w.read[p].PartitionKey)
		require.NoError(w.t, err)
		tasks[i] = task(ids.TaskKey(asset, partition), w.read[p].PartitionKey, nil)
	}
	w.setPlan(map[string]plan.Work{version: query(text)}, tasks...)
	for i, p := range at {
		end := w.run(tasks[i].TaskKey)
		w.read[p].MaterializationID, w.read[p].URI = end.MaterializationID, end.Output.URI
	}
}

// all returns the positions of all partitions.
func (w *manySmall) all() []int {
	list := make([]int, len(w.read))
	for i := range list {
		list[i] = i
	}
	return list
}

// merge merges the visible outputs.
func (w *manySmall) merge() worker.Merges {
	w.t.Helper()
	done, err := w.tryMerge()
	require.NoError(w.t, err)
	return done
}

func (w *manySmall) tryMerge() (worker.Merges, error) {
	w.t.Helper()
	m := worker.Merger{
		Store: w.store, NewID: ids.NewSource(clock.System{}.Now, nil).New, Dir: w.t.TempDir(), MemoryLimit: "256MB", Checked: filecheck.New(), Before: epoch.Add(time.Hour), Limits: merged.Usual,
	}
	g := worker.Merging{Domain: domain, Asset: w.asset, Columns: w.columns}
	for _, in := range w.read {
		marker, err := contract.DecodeCommitMarker([]byte(w.fixture.read(contract.CommitMarkerKeyOf(in.URI))))
		require.NoError(w.t, err)
		g.Parts = append(g.Parts, worker.MergingPart{PartitionKey: in.PartitionKey, Marker: marker})
	}
	return m.Merge(w.t.Context(), g)
}

// table executes a query over some of the outputs. It returns the columns, and the rows of the result in order.
func (w *manySmall) table(text string, mergedFiles bool, inputs []plan.Input) []string {
	w.t.Helper()
	w.reads++
	reader := fmt.Sprintf("mart/reader%d", w.reads)
	w.setPlan(map[string]plan.Work{reader: query(text)}, task(reader, "", map[string]plan.InputSet{visits: {Items: inputs}}))
	w.plan.PartitionColumns = map[string][]space.Column{visits: w.columns}
	if !mergedFiles {
		w.plan.NoMerge = []string{visits}
	}
	w.storePlan()
	end := w.run(reader)
	w.worker.Rest()
	local := filepath.Join(w.t.TempDir(), "x.parquet")
	require.NoError(w.t, os.WriteFile(local, []byte(w.fixture.read(end.Output.URI+"data.parquet")), 0o600))
	db, err := sql.Open("duckdb", "")
	require.NoError(w.t, err)
	defer db.Close()
	var lines []string
	for _, q := range []string{"SELECT column_name || ' ' || column_type FROM (DESCRIBE FROM '%s')", "SELECT t::VARCHAR FROM '%s' t"} {
		found, err := db.QueryContext(w.t.Context(), fmt.Sprintf(q, local))
		require.NoError(w.t, err)
		for found.Next() {
			var line string
			require.NoError(w.t, found.Scan(&line))
			lines = append(lines, line)
		}
		require.NoError(w.t, errorsOf(found))
	}
	return lines
}

func errorsOf(rows *sql.Rows) error {
	if err := rows.Err(); err != nil {
		return err
	}
	return rows.Close()
}

// mergedKeys returns the keys of the merged files.
func (w *manySmall) mergedKeys(suffix string) []string {
	return slices.DeleteFunc(w.keysBelow(merged.Prefix(domain, w.asset)), func(key string) bool { return !strings.HasSuffix(key, suffix) })
}

// without deletes the single files of some outputs, but not their markers.
func (w *manySmall) without(inputs []plan.Input) {
	w.t.Helper()
	for _, in := range inputs {
		require.NoError(w.t, w.store.Delete(w.t.Context(), in.URI+"data.parquet"))
	}
}

func (w *manySmall) put(key string, data []byte) {
	w.t.Helper()
	_, err := w.store.Put(w.t.Context(), key, data)
	require.NoError(w.t, err)
}

func TestQueryReadsMergedFiles(t *testing.T) {
	for _, store := range []blob.Store{nil, memblob.New(memblob.Options{})} {
		w := newManySmall(t, store, 70)
		w.write(allTypes, w.all()...)
		want := w.table("FROM raw.visits", false, w.read)
		require.Empty(t, w.mergedKeys(""))
		done := w.merge()
		require.Equal(t, [2]int{1, 70}, [2]int{done.Files, done.Cells})
		require.Zero(t, w.merge(), "nothing is left to merge")
		require.Len(t, w.mergedKeys(""), 3)
		w.columns = []space.Column{{Name: "date", Type: "VARCHAR"}}
		require.Equal(t, []string{"kind VARCHAR", "{'kind': VARCHAR}"}, w.table("SELECT any_value(typeof(date)) AS kind FROM raw.visits", true, w.read), "the type of a key has changed")
		w.columns = []space.Column{{Name: "date", Type: "DATE"}}
		w.without(w.read[10:])
		require.Equal(t, want, w.table("FROM raw.visits", true, w.read), "the single files are not read")
		one := w.table("SELECT * FROM raw.visits WHERE date = DATE '2022-02-05'", true, w.read)
		require.Equal(t, slices.DeleteFunc(slices.Clone(want), func(s string) bool { return strings.HasPrefix(s, "{'id") && !strings.Contains(s, "2022-02-05") }), one)

		// A merged file is not used for a version that it does not contain, even if the partition and the columns are the
		// same.
		w.write(strings.ReplaceAll(strings.ReplaceAll(allTypes, "'day '", "'other '"), "(hash(getvariable('date')) % 4)::BIGINT", "3"), 30)
		require.Equal(t, []string{"n BIGINT", "{'n': 3}"}, w.table("SELECT count(*) AS n FROM raw.visits WHERE text LIKE 'other %'", true, w.read))
	}
}

// With and without merged files, the rows, their order and the columns are the same, regardless of which outputs are
// selected, replaced or damaged.
func TestI33MergedFilesNeverChangeRows(t *testing.T) {
	for seed := range uint64(2) {
		random := rand.New(rand.NewPCG(seed, 7))
		w := newManySmall(t, nil, 34, "us", "Eu")
		if seed == 1 {
			w = newManySmall(t, memblob.New(memblob.Options{}), 68)
		}
		w.write(allTypes, w.all()...)
		for step := range 5 {
			if step > 0 {
				some := slices.DeleteFunc(w.all(), func(int) bool { return random.IntN(12*step) > 0 })
				more := []string{"", ", 5 AS later", ", 'x' AS ID2", ", DATE '2000-01-01' AS date"}[random.IntN(3+int(seed%2))]
				w.write(strings.Replace(allTypes, " AS tiny", " AS tiny"+more, 1), some...)
			}
			w.merge()
			if step%2 == 1 {
				w.damage(random)
			}
			from := random.IntN(20)
			inputs := slices.DeleteFunc(slices.Clone(w.read[from:]), func(plan.Input) bool { return random.IntN(60) == 0 })
			for _, text := range []string{"FROM raw.visits", "SELECT date, count(*) AS n, max(text) AS m FROM raw.visits WHERE date > DATE '2022-02-10' GROUP BY ALL ORDER BY ALL"} {
				require.Equal(t, w.table(text, false, inputs), w.table(text, true, inputs), "seed %d, step %d", seed, step)
			}
		}
	}
}

// damage damages or deletes one of the objects of merged files.
func (w *manySmall) damage(random *rand.Rand) {
	w.t.Helper()
	keys := w.mergedKeys("")
	if len(keys) == 0 {
		return
	}
	key := keys[random.IntN(len(keys))]
	data := []byte(w.fixture.read(key))
	switch random.IntN(3) {
	case 0:
		require.NoError(w.t, w.store.Delete(w.t.Context(), key))
	case 1:
		w.put(key, data[:len(data)/2])
	default:
		data[len(data)/2] ^= 0x55
		w.put(key, data)
	}
}

// A query must succeed even if DuckDB cannot read a merged file whose checksum is correct.
func TestQueryFailsNeverBecauseOfMergedFiles(t *testing.T) {
	w := newManySmall(t, nil, 64)
	w.write("SELECT 1 AS x", w.all()...)
	w.merge()
	prefix := merged.Prefix(domain, w.asset)
	index, _, _, err := merged.Load(t.Context(), w.store, prefix)
	require.NoError(t, err)
	file, err := merged.Describe(t.Context(), w.store, prefix, &index.Files[0])
	require.NoError(t, err)
	w.put(merged.DataKey(prefix, index.Files[0].ID), []byte("PAR1 nonsense"))
	nonsense := []byte("PAR1 nonsense")
	file.Size, file.CRC32C = int64(len(nonsense)), crc32.Checksum(nonsense, crc32.MakeTable(crc32.Castagnoli))
	description, err := json.Marshal(file)
	require.NoError(t, err)
	w.put(merged.CellsKey(prefix, index.Files[0].ID), description)
	require.NoError(t, merged.Update(t.Context(), w.store, prefix, func(x *merged.Index) bool {
		x.Files[0] = merged.EntryOf(x.Files[0].ID, file, description)
		return true
	}))
	require.Len(t, w.table("SELECT x FROM raw.visits", true, w.read), 1+64)
}

// Workers merge outputs that their queries have read, except new outputs and those of assets with merge: false.
func TestWorkerMergesAfterItsTask(t *testing.T) {
	w := newManySmall(t, nil, 100)
	w.write("SELECT 1 AS x", w.all()...)
	w.table("FROM raw.visits", true, w.read)
	require.Empty(t, w.mergedKeys(""), "the outputs are new")
	w.clock.mu.Lock()
	w.clock.now = w.clock.now.Add(11 * time.Minute)
	w.clock.mu.Unlock()
	w.table("FROM raw.visits", false, w.read)
	require.Empty(t, w.mergedKeys(""))
	w.table("FROM raw.visits", true, w.read[:63])
	require.Empty(t, w.mergedKeys(""), "too few")
	want := w.table("FROM raw.visits", true, w.read[:80])
	require.Len(t, w.mergedKeys(".parquet"), 1)
	w.without(w.read[:80])
	require.Equal(t, want, w.table("FROM raw.visits", true, w.read[:80]))
	require.Len(t, w.mergedKeys(".parquet"), 1)
}

func TestMergeRejectsDamagedOutputs(t *testing.T) {
	for _, store := range []blob.Store{nil, memblob.New(memblob.Options{})} {
		w := newManySmall(t, store, 64)
		w.write("SELECT 1 AS x", w.all()...)
		key := w.read[30].URI + "data.parquet"
		data := []byte(w.fixture.read(key))
		data[len(data)/2] ^= 1
		w.put(key, data)
		_, err := w.tryMerge()
		require.ErrorContains(t, err, "CRC-32C")
		require.Empty(t, w.mergedKeys(""))
	}
}

func TestExecutorReadsRowsOfMergedFiles(t *testing.T) {
	w := newManySmall(t, memblob.New(memblob.Options{}), 70)
	w.write("SELECT 1 AS x", w.all()...)
	w.merge()
	w.write("SELECT 2 AS x", 30)
	w.setPlan(map[string]plan.Work{"mart/b": query("SELECT 1")}, task("mart/b", "", map[string]plan.InputSet{visits: {Items: w.read}}))
	w.plan.PartitionColumns = map[string][]space.Column{visits: w.columns}
	w.storePlan()
	var rows []worker.InputRows
	w.config.Executor = func(_ context.Context, e worker.Execution) (err error) {
		if rows, err = e.Rows(); err != nil {
			return err
		}
		if _, err = os.Stat(rows[1].Files[0].Path); err != nil { // the worker deletes the file after the task
			return err
		}
		_, err = e.Output()
		return err
	}
	_, w.server = w.open(w.config)
	w.run("mart/b")
	require.Len(t, rows, 3)
	require.Equal(t, [2]int{0, 30}, [2]int{rows[0].First, rows[0].Cells})
	require.Equal(t, []worker.InputFile{{Key: w.read[30].URI + "data.parquet", Path: rows[1].Files[0].Path}}, rows[1].Files)
	require.Equal(t, [2]int{31, 39}, [2]int{rows[2].First, rows[2].Cells})
	require.Equal(t, rows[0].Merged, rows[2].Merged)
}

// If an output in the middle of a merged file was replaced, a query reads only the rows before and after it from the
// merged file.
func TestQueryReadsOnlyCurrentCellsOfMergedFiles(t *testing.T) {
	w := newManySmall(t, nil, 70)
	w.write("SELECT 1 AS x", w.all()...)
	w.merge()
	w.write("SELECT 2 AS x", 30)
	want := w.table("SELECT date, x FROM raw.visits", false, w.read)
	w.without(w.read[:30])
	w.without(w.read[31:])
	require.Equal(t, want, w.table("SELECT date, x FROM raw.visits", true, w.read))
}

// The second execution of a query, without merged files, must not read a file whose check failed before the first one.
func TestDamagedFileBesideMergedFilesIsNotRead(t *testing.T) {
	// The worker fetches a file with other columns than the merged file earlier, in order to describe these columns.
	for _, text := range []string{"SELECT 2 AS x", "SELECT 2 AS x, 'a' AS y"} {
		for _, store := range []blob.Store{nil, memblob.New(memblob.Options{})} {
			w := newManySmall(t, store, 70)
			w.write("SELECT 1 AS x", w.all()...)
			w.merge()
			w.write(text, 30)
			w.write(strings.Replace(text, "2", "3", 1), 31) // a valid file of the same size, but with another value
			w.put(w.read[30].URI+"data.parquet", []byte(w.fixture.read(w.read[31].URI+"data.parquet")))
			w.setPlan(map[string]plan.Work{"mart/b": query("SELECT sum(x) AS x FROM raw.visits")}, task("mart/b", "", map[string]plan.InputSet{visits: {Items: w.read}}))
			w.plan.PartitionColumns = map[string][]space.Column{visits: w.columns}
			w.storePlan()
			got := w.failed("mart/b")
			require.Equal(t, worker.CodeInvalidInput, got.Code)
			require.Contains(t, got.Message, "is damaged")
		}
	}
}
