package worker_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/worker"
)

func buildOf(t *testing.T) (version, platform string) {
	t.Helper()
	e, err := worker.OpenExtensions(t.Context(), t.TempDir(), t.TempDir())
	require.NoError(t, err)
	require.NoError(t, e.Close())
	return e.Version, e.Platform
}

// Without a network, a missing extension fails immediately. The error names the command that fetches the extension.
func TestMissingExtensionSaysWhatToDo(t *testing.T) {
	version, platform := buildOf(t)
	for _, extension := range plan.Extensions {
		w := newFixture(t, nil, map[string]plan.Work{"a/b": {
			SQL: "SELECT 1 AS x", External: []plan.External{{Extension: extension, Directory: plan.ExtensionsDir}},
		}}, task("a/b", "", nil))
		e := w.failed("a/b")
		require.Equal(t, worker.CodeExtensionMissing, e.Code)
		require.Equal(t, "configuration", e.Category)
		require.False(t, e.Retryable)
		require.Equal(t, fmt.Sprintf("load %s: no file for DuckDB %s, %s in .servo-extensions: run servo extension fetch %s "+
			"on a machine with network access, and copy the file to this folder", extension, version, platform, extension), e.Message)
		require.Contains(t, w.log("a/b"), e.Message)
	}
}

// The worker rejects an unsigned extension, and a file that is not an extension.
func TestDamagedExtensionIsNotLoaded(t *testing.T) {
	version, platform := buildOf(t)
	w := newFixture(t, nil, map[string]plan.Work{"a/b": {
		SQL: "SELECT 1 AS x", External: []plan.External{{Extension: plan.ExtensionHTTPFS, Directory: plan.ExtensionsDir}},
	}}, task("a/b", "", nil))
	file := worker.ExtensionPath(filepath.Join(w.root, plan.ExtensionsDir), plan.ExtensionHTTPFS, version, platform)
	require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
	require.NoError(t, os.WriteFile(file, make([]byte, 4096), 0o600))
	e := w.failed("a/b")
	require.Equal(t, worker.CodeExtensionMissing, e.Code)
	require.Contains(t, e.Message, "load httpfs: "+file)
	for _, advice := range []string{"INSTALL", "LOAD ", "allow_unsigned", "Please"} {
		require.NotContains(t, e.Message, advice)
	}
	_, err := worker.ReadExtension(file)
	require.ErrorContains(t, err, "is not an extension of DuckDB")
}

func TestUnknownExtensionIsRejected(t *testing.T) {
	w := newFixture(t, nil, map[string]plan.Work{"a/b": {
		SQL: "SELECT 1 AS x", External: []plan.External{{Extension: "shellfs", Directory: plan.ExtensionsDir}},
	}}, task("a/b", "", nil))
	require.Equal(t, worker.CodePlanUnreadable, w.failed("a/b").Code)
}

// Queries can read the folders of sources.paths in the same way as data folders, except hidden files.
func TestQueriesReadSourcePaths(t *testing.T) {
	above := t.TempDir()
	absolute := filepath.Join(above, "landing")
	for name, text := range map[string]string{"landing/a.csv": "x\n1\n", "landing/.env": "x\n2\n", "landing/deep/b.csv": "x\n3\n", "closed/c.csv": "x\n4\n"} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(above, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(above, name), []byte(text), 0o600))
	}
	for text, want := range map[string]string{
		"SELECT x FROM '" + absolute + "/a.csv'":                      "1",
		"SELECT x FROM read_csv('" + absolute + "/deep/' || 'b.csv')": "3",
		"SELECT max(x) AS x FROM read_csv('" + absolute + "/*.csv')":  "1",
		"SELECT x FROM 'data/link.csv'":                               "1",
		"SELECT x FROM read_csv('../landing/a.csv')":                  "1",
		"SELECT x FROM read_csv('" + absolute + "/.env')":             "",
		"SELECT x FROM '" + above + "/closed/c.csv'":                  "",
		"SELECT x FROM '../landing/../closed/c.csv'":                  "",
		"SELECT x FROM 'data/closed.csv'":                             "",
	} {
		w := newFixture(t, nil, map[string]plan.Work{"a/b": query(text)}, task("a/b", "", nil))
		w.root = filepath.Join(above, "project")
		require.NoError(t, os.MkdirAll(filepath.Join(w.root, "data"), 0o755))
		for link, to := range map[string]string{"link.csv": absolute + "/a.csv", "closed.csv": above + "/closed/c.csv"} {
			_ = os.Remove(filepath.Join(w.root, "data", link))
			require.NoError(t, os.Symlink(to, filepath.Join(w.root, "data", link)))
		}
		w.plan.Root = w.root
		w.plan.Data = []string{absolute, "../landing"}
		w.storePlan()
		if want == "" {
			e := w.failed("a/b")
			require.Equal(t, worker.CodeSQL, e.Code, text)
			require.Contains(t, e.Message, "Permission", text)
			continue
		}
		require.Equal(t, []string{want}, w.rows(w.run("a/b"), "x"), text)
	}
}

func TestSourcePathCannotContainTheProject(t *testing.T) {
	w := newFixture(t, nil, map[string]plan.Work{"a/b": query("FROM 'data/x.csv'")}, task("a/b", "", nil))
	for _, dir := range []string{w.root, filepath.Dir(w.root)} {
		w.plan.Data = []string{dir}
		w.storePlan()
		e := w.failed("a/b")
		require.Equal(t, worker.CodeSourceDenied, e.Code)
		require.Contains(t, e.Message, "contains the project")
	}
}

func TestBindReportsExternalData(t *testing.T) {
	root := t.TempDir()
	using := func(name, text string, external ...plan.External) plan.Asset {
		a := sqlAsset(name, text)
		a.Work.External = external
		return a
	}
	httpfs := plan.External{Extension: plan.ExtensionHTTPFS, Directory: plan.ExtensionsDir, Prefixes: []string{"s3://landing/events/"}}
	sqlite := plan.External{Extension: plan.ExtensionSQLite, Directory: plan.ExtensionsDir, Attach: map[string]string{"crm": "crm.sqlite"}}
	reader := sqlAsset("reader", "SELECT x FROM a.good", "good")
	bound := bindAll(t, root, nil,
		using("good", "FROM read_parquet(['s3://landing/events/x.parquet'])", httpfs),
		using("other", "FROM 's3://other/x.parquet'", httpfs),
		using("unused", "FROM 's3://landing/events/x.parquet'"),
		using("scan", "FROM sqlite_scan('x.sqlite', 't')", sqlite), reader)
	var texts []string
	for _, p := range bound.Problems {
		texts = append(texts, fmt.Sprintf("%s:%d:%d: %s: %s", p.File, p.Line, p.Column, p.Message, p.Suggestion))
	}
	require.ElementsMatch(t, []string{
		"assets/a/other.sql:1:6: read s3://other/x.parquet: no prefix of httpfs covers it: add it to sources.extensions.httpfs.prefixes in servo.yaml",
		"assets/a/unused.sql:1:6: read s3://landing/events/x.parquet: the asset does not use httpfs: add uses: [httpfs]",
		"assets/a/scan.sql:1:5: the query of an asset with `uses` may not name sqlite_scan: read the tables of an attached database as NAME.TABLE",
	}, texts)
	require.Len(t, bound.Missing, 2, "one for each asset whose other problems are not reported")
	require.Contains(t, bound.Missing[0].Message, "no file for DuckDB")
	require.Equal(t, "a/good", bound.Unknown[0].String())
	require.Equal(t, "a/reader", bound.Skipped[0].String())

	made := parquetOf(t, "SELECT 1 AS y")
	bound = bindAll(t, root, map[string][]string{"good": {made}}, using("good", "FROM 's3://landing/events/x.parquet'", httpfs), reader)
	require.Len(t, bound.Problems, 1)
	require.Contains(t, bound.Problems[0].Message, `"x" not found`)
}
