package worker_test

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/blob/fileblob"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/worker"
)

// newSandboxFixture returns a fixture with assets for the given queries. Its state folder is inside the project,
// where servo creates it by default.
func newSandboxFixture(t *testing.T, state string, data []string, queries map[string]string) *fixture {
	t.Helper()
	assets, tasks := map[string]plan.Work{}, []plan.Task{}
	for _, name := range slices.Sorted(maps.Keys(queries)) {
		key := "q/" + name
		assets[key] = query(queries[name])
		tasks = append(tasks, task(key, "", nil))
	}
	w := newFixture(t, nil, assets, tasks...)
	store, err := fileblob.Open(filepath.Join(w.root, state), fileblob.Options{NoSync: true})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	w.store, w.config.Store, w.config.ScratchDir = store, store, filepath.Join(w.root, state, "scratch")
	w.worker, w.server = w.open(w.config)
	w.plan.Data = data
	w.storePlan()
	w.file(state+"/keys.json", "a signing key")
	w.file(".env", "PASSWORD=x")
	w.file("servo.yaml", "")
	w.file("seeds/x.csv", "v\n3\n")
	w.file("data/x.csv", "v\n7\n")
	w.file("data/deep/y.csv", "v\n8\n")
	return w
}

// This test fails if a query can read files outside of the data folders, such as the signing keys with
// read_text('.servo/keys.json').
func TestQueriesCannotReadBeyondDataFolders(t *testing.T) {
	queries := map[string]string{
		"keys":      "FROM read_text('.servo/keys.json')",
		"up":        "FROM read_text('data/../.servo/keys.json')",
		"root":      "FROM read_text(getvariable('servo_root') || '/.servo/keys.json')",
		"all":       "FROM glob('**')",
		"inside":    "FROM glob('.servo/**')",
		"env":       "FROM read_text('.env')",
		"hidden":    "FROM read_text('data/.hidden.csv')",
		"below":     "FROM read_text('data/.git/config')",
		"pattern":   "FROM read_text('data/?git/*')",
		"link":      "FROM read_text('data/link.txt')",
		"folder":    "FROM read_text('data/linked/keys.json')",
		"config":    "FROM read_text('servo.yaml')",
		"seeds":     "FROM read_csv('seeds/x.csv')",
		"pivoted":   "FROM (PIVOT (FROM read_text(getvariable('servo_root') || '/.env')) ON filename IN ('x') USING max(content))",
		"summary":   "FROM (SUMMARIZE 'seeds/x.csv')",
		"elsewhere": "FROM read_text('/etc/passwd')",
	}
	w := newSandboxFixture(t, ".servo", nil, queries)
	w.file("data/.hidden.csv", "v\n9\n")
	w.file("data/.git/config", "x")
	require.NoError(t, os.Symlink("../.servo/keys.json", filepath.Join(w.root, "data/link.txt")))
	require.NoError(t, os.Symlink("../.servo", filepath.Join(w.root, "data/linked")))
	for name := range queries {
		got := w.failed("q/" + name)
		require.Equal(t, worker.CodeSQL, got.Code, name)
		require.Contains(t, got.Message, "Permission Error", name)
		require.NotContains(t, got.Message, "signing", name)
		require.Contains(t, got.Message, "data folders", name)
		require.False(t, got.Retryable, name)
	}
}

// This test fails if a query can write to a data folder, or call a function that ends the process. A call of
// enable_logging ends the process if DuckDB cannot write the log file.
func TestQueriesCannotWriteOrEndTheProcess(t *testing.T) {
	const file = "getvariable('servo_root') || '/data/x.csv'"
	queries := map[string]string{
		"profile": "FROM enable_profiling(format = 'json', save_location = " + file + "), read_csv('data/x.csv')",
		"log":     "SELECT 1 AS x FROM enable_logging(storage = 'file', storage_path = '/nonexistent/log')",
		"hidden":  "FROM query\u00a0('FROM enable' || '_profiling(format = ''json'')')",
		"pivoted": "FROM (PIVOT (FROM enable_profiling(format = 'json', save_location = " + file + ")) ON x IN ('x') USING max(x))",
		"second":  "SELECT 1 AS x; COPY (SELECT 1) TO 'ROOT/data/x.csv'",
	}
	w := newSandboxFixture(t, ".servo", nil, queries)
	w.plan.Assets["q/second"] = query(strings.ReplaceAll(queries["second"], "ROOT", w.root))
	w.storePlan()
	for name := range queries {
		got := w.failed("q/" + name)
		require.Equal(t, worker.CodeSQL, got.Code, name)
		require.False(t, got.Retryable, name)
	}
	content, err := os.ReadFile(filepath.Join(w.root, "data/x.csv"))
	require.NoError(t, err)
	require.Equal(t, "v\n7\n", string(content))
}

// This test fails if glob or read_blob lists hidden files. Queries can neither read their contents nor see their
// names.
func TestQueriesCannotListHiddenNames(t *testing.T) {
	hidden := map[string]string{
		"all":      "SELECT * FROM glob('data/**')",
		"files":    "SELECT filename FROM read_blob('data/**')",
		"text":     "SELECT filename FROM read_text('data/*')",
		"one":      "SELECT * FROM glob('data/*')",
		"question": "SELECT * FROM glob('data/?hidden')",
		"class":    "SELECT * FROM glob('data/[.]*')",
		"middle":   "SELECT * FROM glob('data/*/z.csv')",
		"deep":     "SELECT * FROM glob('data/**/z.csv')",
		"below":    "SELECT * FROM glob('data/deep/**')",
		"list":     "SELECT filename FROM read_blob(['data/x.csv', 'data/*'])",
		"link":     "SELECT * FROM glob('data/linke?/*')",
		"state":    "SELECT * FROM glob('data/state/k*')",
		"states":   "SELECT * FROM glob('data/s*/*')",
	}
	visible := map[string]string{
		"names":  "SELECT parse_filename(file) AS v FROM glob('data/*.csv')",
		"letter": "SELECT parse_filename(file) AS v FROM glob('data/[!.]*.csv')",
		"folder": "SELECT parse_filename(file) AS v FROM glob('data/*/y.csv')",
		"every":  "SELECT parse_filename(file) AS v FROM glob('data/deep/**/y.csv')",
	}
	want := map[string]string{"names": "x.csv", "letter": "x.csv", "folder": "y.csv", "every": "y.csv"}
	queries := maps.Clone(hidden)
	maps.Copy(queries, visible)
	w := newSandboxFixture(t, "data/state", nil, queries)
	w.file("data/.hidden", "x")
	w.file("data/.h/z.csv", "v\n9\n")
	w.file("data/deep/.z", "x")
	w.file("private/key", "x")
	require.NoError(t, os.Symlink("../private", filepath.Join(w.root, "data/linked")))
	for name := range hidden {
		got := w.failed("q/" + name)
		require.Contains(t, got.Message, "Permission Error", name)
		require.Contains(t, got.Message, "a pattern must not match such names", name)
	}
	for name := range visible {
		require.Equal(t, []string{want[name]}, w.rows(w.run("q/"+name), "columns(*)"), name)
	}
}

func TestQueriesReadDataFolders(t *testing.T) {
	queries := map[string]string{
		"plain":   "SELECT v FROM read_csv('data/x.csv')",
		"deep":    "SELECT v FROM read_csv('data/deep/*.csv')",
		"pattern": "SELECT v FROM read_csv('data/*.csv')",
		"every":   "SELECT v FROM read_csv('data/deep/**/*.csv')",
		"built":   "SELECT v FROM read_csv('data/' || 'x' || '.csv')",
		"seeds":   "SELECT v FROM 'seeds/x.csv'",
		"none":    "SELECT 1 AS v",
		// A state folder whose name does not begin with a dot is also protected.
		"state": "FROM read_text('data/state/keys.json')",
	}
	want := map[string]string{"plain": "7", "deep": "8", "pattern": "7", "every": "8", "built": "7", "seeds": "3", "none": "1"}
	w := newSandboxFixture(t, "data/state", []string{"data", "seeds"}, queries)
	w.file("data/.gitignore", "*\n")
	for name := range want {
		require.Equal(t, []string{want[name]}, w.rows(w.run("q/"+name), "columns(*)"), name)
	}
	require.Contains(t, w.failed("q/state").Message, "Permission Error")
}

func TestDataFoldersAreBelowTheProject(t *testing.T) {
	w := newSandboxFixture(t, ".servo", nil, map[string]string{"x": "FROM read_text('data/keys.json')"})
	require.NoError(t, os.RemoveAll(filepath.Join(w.root, "data")))
	require.NoError(t, os.Symlink(".servo", filepath.Join(w.root, "data")))
	got := w.failed("q/x")
	require.Equal(t, worker.CodeInvalidInput, got.Code)
	require.Contains(t, got.Message, "data folder data is a link to ")
	for _, name := range []string{"..", "../..", "/", ".servo", "data/../.servo", "a/.b", "/a/.b", "../.b", "/a/../b"} {
		w.plan.Data = []string{name}
		w.storePlan()
		require.Equal(t, worker.CodePlanUnreadable, w.failed("q/x").Code, name)
	}
}
