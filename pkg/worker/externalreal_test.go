//go:build extensions

package worker_test

import (
	"compress/gzip"
	"context"
	"database/sql"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/secret"
	"github.com/servo-orchestration/servo/pkg/worker"
)

// The tests in this file load real, signed extensions: see scripts/test-extensions.

// resolver returns a function that resolves secrets to the given values.
func resolver(values map[string]string) func(context.Context, string) (string, error) {
	return func(_ context.Context, reference string) (string, error) {
		if value, ok := values[reference]; ok {
			return value, nil
		}
		return "", fmt.Errorf("secret %s: %w", reference, secret.ErrRefused)
	}
}

func extensionsDir(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("SERVO_TEST_EXTENSIONS")
	require.NotEmpty(t, dir, "run make test-extensions")
	return dir
}

// objectStore is an HTTP server with objects. It answers requests for the bucket landing only if they are signed with
// the expected key, and requests for /private/ only if they have the expected token.
type objectStore struct {
	*httptest.Server
	mu   sync.Mutex
	seen []string // the paths of all requests
}

const (
	lakeKey    = "AKIALAKEKEYID"
	lakeSecret = "lake-secret-canary"
	token      = "bearer-token-canary"
)

func newObjectStore(t *testing.T) *objectStore {
	t.Helper()
	s := &objectStore{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.seen = append(s.seen, r.URL.Path)
		s.mu.Unlock()
		authorization := r.Header.Get("Authorization")
		switch {
		case strings.HasPrefix(r.URL.Path, "/landing/") && !strings.Contains(authorization, "Credential="+lakeKey+"/"):
			http.Error(rw, "not signed", http.StatusForbidden)
		case strings.HasPrefix(r.URL.Path, "/private/") && authorization != "Bearer "+token:
			http.Error(rw, "no token", http.StatusUnauthorized)
		case strings.HasSuffix(r.URL.Path, "/broken.csv"):
			rw.WriteHeader(http.StatusServiceUnavailable)
		case strings.HasSuffix(r.URL.Path, ".csv") && !strings.HasSuffix(r.URL.Path, "/missing.csv"):
			http.ServeContent(rw, r, "", epoch, strings.NewReader("path\n"+r.URL.Path+"\n"))
		default:
			http.NotFound(rw, r)
		}
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *objectStore) requests(path string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, seen := range s.seen {
		if seen == path {
			n++
		}
	}
	return n
}

// lake returns a declaration of httpfs with three prefixes, the secrets for the bucket landing, and a token for
// /private/.
func lake(t *testing.T, s *objectStore) plan.External {
	t.Helper()
	host := strings.TrimPrefix(s.URL, "http://")
	return plan.External{
		Extension: plan.ExtensionHTTPFS, Directory: extensionsDir(t),
		Prefixes: []string{"s3://landing/events/", s.URL + "/open/", s.URL + "/private/"},
		Secrets: []plan.ExternalSecret{
			{
				Name: "lake", Type: "s3", Options: map[string]string{"endpoint": host, "region": "eu-west-1", "url_style": "path", "use_ssl": "false"},
				References: map[string]string{"key_id": "env:LAKE_KEY", "secret": "file:lake"},
			},
			{Name: "service", Type: "http", Scope: s.URL + "/private/", References: map[string]string{"bearer_token": "file:token"}},
		},
	}
}

// newExternalFixture returns a fixture whose worker knows the secrets. Task a/b executes the query.
func newExternalFixture(t *testing.T, text string, external ...plan.External) *fixture {
	t.Helper()
	w := newFixture(t, nil, map[string]plan.Work{"a/b": {SQL: text, External: external}}, task("a/b", "", nil))
	values := map[string]string{"env:LAKE_KEY": lakeKey, "file:lake": lakeSecret, "file:token": token}
	w.config.Secrets = resolver(values)
	w.worker, w.server = w.open(w.config)
	return w
}

func (w *fixture) holdsNoSecret(message string) {
	w.t.Helper()
	texts := []string{message}
	for _, key := range w.keysBelow("") {
		texts = append(texts, w.read(key))
	}
	for _, text := range texts {
		for _, canary := range []string{lakeSecret, token, lakeKey} {
			require.NotContains(w.t, text, canary)
		}
	}
}

func TestExternalFilesAreReadWithSecrets(t *testing.T) {
	s := newObjectStore(t)
	for text, want := range map[string]string{
		"FROM 's3://landing/events/a.csv'":                                       "/landing/events/a.csv",
		"FROM read_csv('" + s.URL + "/open/' || 'b' || '.csv')":                  "/open/b.csv",
		"FROM read_csv(['" + s.URL + "/private/c.csv'])":                         "/private/c.csv",
		"SELECT path FROM '" + s.URL + "/open/d.csv' GROUP BY ALL":               "/open/d.csv",
		"PIVOT (FROM '" + s.URL + "/open/e.csv') ON path USING count(*)":         "",
		"SELECT current_setting('s3_secret_access_key') || 'none' AS path":       "none",
		"SELECT count(*)::VARCHAR AS path FROM duckdb_settings() WHERE name='x'": "0",
	} {
		t.Setenv("AWS_ACCESS_KEY_ID", "AKIAOFTHEWORKER")
		t.Setenv("AWS_SECRET_ACCESS_KEY", "secret-of-the-worker")
		w := newExternalFixture(t, text, lake(t, s))
		end := w.run("a/b")
		if want != "" {
			require.Equal(t, []string{want}, w.rows(end, "path"), text)
		}
		w.holdsNoSecret("")
	}
}

// An asset without the setting uses can read no external files. An asset with this setting can read only files below
// its prefixes, however the query names these files.
func TestExternalFilesBeyondThePrefixesAreDenied(t *testing.T) {
	s := newObjectStore(t)
	for text, want := range map[string]string{
		"FROM 's3://other/x.csv'":                           "read s3://other/x.csv: no prefix of httpfs covers it: add it to sources.extensions.httpfs.prefixes in servo.yaml",
		"FROM read_csv('s3://' || 'other' || '/x.csv')":     "read s3://other/x.csv: no prefix of httpfs covers it: add it to sources.extensions.httpfs.prefixes in servo.yaml",
		"FROM read_csv('" + s.URL + "/' || 'closed/x.csv')": "no prefix of httpfs covers it",
		"FROM '" + s.URL + "/open/../closed/x.csv'":         "its path has a segment . or .., which servers resolve",
		"FROM '" + s.URL + "/open/%252e%2E/closed/x.csv'":   "its path has a segment . or .., which servers resolve",
		"FROM 's3://landing/eventsx/x.csv'":                 "no prefix of httpfs covers it",
		"SELECT * FROM enable_logging('HTTP')":              "may not call enable_logging()",
		"SELECT message FROM \"DUCKDB_LOGS\"":               "may not name duckdb_logs",
		"FROM duckdb_secrets()":                             "may not name duckdb_secrets",
		"FROM query('FROM duckdb_' || 'secrets()')":         "may not call query()",
		"FROM query/* x */ ('FROM duckdb_' || 'secrets()')": "may not call query()",
		"FROM U&\"d\\0075ckdb_secrets\"()":                  "escapes",
	} {
		w := newExternalFixture(t, text, lake(t, s))
		e := w.failed("a/b")
		code := worker.CodeSourceDenied
		if strings.Contains(want, "may not call") { // no query may call query(), with or without uses
			code = worker.CodeSQL
		}
		require.Equal(t, code, e.Code, "%s: %s", text, e.Message)
		require.Contains(t, e.Message, want, text)
		require.False(t, e.Retryable, text)
		w.holdsNoSecret(e.Message)

		w = newExternalFixture(t, text)
		require.Contains(t, []string{worker.CodeSourceDenied, worker.CodeSQL, ""}, codeOf(w), text)
	}
	require.Empty(t, s.seen, "nothing was read")
	w := newExternalFixture(t, "FROM '"+s.URL+"/open/x.csv'")
	require.Equal(t, "read "+s.URL+"/open/x.csv: the asset does not use httpfs: add uses: [httpfs]\n\nLINE 1: FROM '"+s.URL+"/open/x.csv'\n             ^",
		w.failed("a/b").Message)
	w = newExternalFixture(t, "FROM read_csv('http://' || '127.0.0.1/x.csv')")
	require.Equal(t, "read http://127.0.0.1/x.csv: the asset does not use httpfs: add uses: [httpfs]", w.failed("a/b").Message)
	require.Empty(t, s.seen, "nothing was read")
}

func codeOf(w *fixture) string {
	w.deliver("a/b")
	if e := w.control.last(w.t).Error; e != nil {
		return e.Code
	}
	return ""
}

func TestExternalNetworkErrorsNameHostAndStatus(t *testing.T) {
	s := newObjectStore(t)
	closed := httptest.NewServer(http.NotFoundHandler())
	closed.Close()
	external := lake(t, s)
	external.Prefixes = append(external.Prefixes, closed.URL+"/", "s3://landing/")
	host := strings.TrimPrefix(s.URL, "http://")
	for name, want := range map[string]struct {
		text  string
		retry bool
	}{
		s.URL + "/open/missing.csv": {host + " answered 404 Not Found: ", false},
		s.URL + "/open/broken.csv":  {host + " answered 503 Service Unavailable: ", true},
		closed.URL + "/x.csv":       {strings.TrimPrefix(closed.URL, "http://") + " did not answer: ", true},
	} {
		w := newExternalFixture(t, "FROM '"+name+"'", external)
		e := w.failed("a/b")
		require.Equal(t, worker.CodeNetwork, e.Code, "%s: %s", name, e.Message)
		require.Equal(t, "transient", e.Category)
		require.Contains(t, e.Message, want.text)
		require.Equal(t, want.retry, e.Retryable, name)
		w.holdsNoSecret(e.Message)
	}
	external.Secrets[0].References["key_id"] = "file:token" // the service rejects this key
	w := newExternalFixture(t, "FROM 's3://landing/events/a.csv'", external)
	e := w.failed("a/b")
	require.Equal(t, worker.CodeNetwork, e.Code)
	require.Contains(t, e.Message, "answered 403 Forbidden")
	w.holdsNoSecret(e.Message)
}

func sqliteFile(t *testing.T, file, statement string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
	db, err := sql.Open("duckdb", "")
	require.NoError(t, err)
	load(t, db, plan.ExtensionSQLite)
	_, err = db.ExecContext(t.Context(), "ATTACH '"+file+"' AS made (TYPE sqlite); USE made; "+statement)
	require.NoError(t, err)
	require.NoError(t, db.Close())
}

func load(t *testing.T, db *sql.DB, extension string) {
	t.Helper()
	var version string
	require.NoError(t, db.QueryRowContext(t.Context(), "SELECT library_version FROM pragma_version()").Scan(&version))
	_, err := db.ExecContext(t.Context(), "LOAD '"+worker.ExtensionPath(extensionsDir(t), extension, version[1:], "linux_amd64")+"'")
	require.NoError(t, err)
}

func TestExternalDatabaseIsReadOnly(t *testing.T) {
	external := plan.External{Extension: plan.ExtensionSQLite, Directory: extensionsDir(t), Attach: map[string]string{"crm": "reference/crm.sqlite"}}
	for text, denied := range map[string]string{
		"SELECT count(*) AS n FROM crm.orders":                                                            "",
		"SELECT count(*) AS n FROM crm.main.orders JOIN crm.orders USING (x)":                             "",
		"SELECT count(*) AS n FROM sqlite_scan('OTHER', 'orders')":                                        "may not name sqlite_scan",
		"SELECT count(*) AS n FROM SQLite_Attach('OTHER')":                                                "may not name sqlite_attach",
		"SELECT count(*) AS n FROM sqlite_query('crm', 'SELECT 1')":                                       "may not name sqlite_query",
		"SELECT count(*) AS n FROM (PIVOT (FROM \"sqlite_scan\"('OTHER', 'orders')) ON x USING count(*))": "may not name sqlite_scan",
		"FROM 'OTHER'": "SQL_ERROR",
		"SELECT content FROM read_blob('reference/crm2.sqlite')": "SQL_ERROR",
	} {
		other := filepath.Join(t.TempDir(), "other.sqlite")
		sqliteFile(t, other, "CREATE TABLE orders (x INTEGER)")
		w := newExternalFixture(t, strings.ReplaceAll(text, "OTHER", other), external)
		sqliteFile(t, filepath.Join(w.root, "reference/crm.sqlite"), "CREATE TABLE orders (x INTEGER); INSERT INTO orders VALUES (1), (2)")
		if denied == "" {
			require.Equal(t, []string{"2"}, w.rows(w.run("a/b"), "n"), text)
			continue
		}
		e := w.failed("a/b")
		if denied == "SQL_ERROR" {
			require.Equal(t, worker.CodeSQL, e.Code, "%s: %s", text, e.Message)
			continue
		}
		require.Equal(t, worker.CodeSourceDenied, e.Code, "%s: %s", text, e.Message)
		require.Contains(t, e.Message, denied)
	}
	w := newExternalFixture(t, "SELECT count(*) AS n FROM crm.orders")
	sqliteFile(t, filepath.Join(w.root, "reference/crm.sqlite"), "CREATE TABLE orders (x INTEGER)")
	require.Equal(t, worker.CodeSQL, w.failed("a/b").Code, "the asset does not use sqlite")
}

// The file of a database must be in the project or in a folder of sources.paths, even if it is named through a
// symbolic link.
func TestExternalDatabaseIsInADeclaredFolder(t *testing.T) {
	outside := t.TempDir()
	file := filepath.Join(outside, "crm.sqlite")
	sqliteFile(t, file, "CREATE TABLE orders (x INTEGER)")
	for name, link := range map[string]bool{file: false, "reference/crm.sqlite": true} {
		external := plan.External{Extension: plan.ExtensionSQLite, Directory: extensionsDir(t), Attach: map[string]string{"crm": name}}
		w := newExternalFixture(t, "SELECT count(*) AS n FROM crm.orders", external)
		if link {
			require.NoError(t, os.Mkdir(filepath.Join(w.root, "reference"), 0o755))
			require.NoError(t, os.Symlink(file, filepath.Join(w.root, name)))
		}
		e := w.failed("a/b")
		require.Equal(t, worker.CodeSourceDenied, e.Code, e.Message)
		require.Contains(t, e.Message, "is neither in the project nor in a folder of sources.paths")
		w.plan.Data = []string{outside}
		w.storePlan()
		require.Equal(t, []string{"0"}, w.rows(w.run("a/b"), "n"))
	}
	external := plan.External{Extension: plan.ExtensionSQLite, Directory: extensionsDir(t), Attach: map[string]string{"crm": "none.sqlite"}}
	e := newExternalFixture(t, "FROM crm.orders", external).failed("a/b")
	require.Equal(t, worker.CodeInvalidInput, e.Code)
	require.Equal(t, "attach crm: there is no file none.sqlite: change sources.extensions.sqlite.attach in servo.yaml, or create the file", e.Message)
}

func TestExternalExcelReadsOnlyDataFolders(t *testing.T) {
	excel := plan.External{Extension: plan.ExtensionExcel, Directory: extensionsDir(t)}
	for text, ok := range map[string]bool{
		"SELECT a FROM read_xlsx('data/x.xlsx')":  true,
		"SELECT a FROM 'data/x.xlsx'":             true,
		"SELECT a FROM read_xlsx('other/x.xlsx')": false,
	} {
		w := newExternalFixture(t, text, excel)
		for _, dir := range []string{"data", "other"} {
			require.NoError(t, os.Mkdir(filepath.Join(w.root, dir), 0o755))
			db, err := sql.Open("duckdb", "")
			require.NoError(t, err)
			load(t, db, plan.ExtensionExcel)
			_, err = db.ExecContext(t.Context(), "COPY (SELECT 42 AS a) TO '"+filepath.Join(w.root, dir, "x.xlsx")+"' (FORMAT xlsx, HEADER true)")
			require.NoError(t, err)
			require.NoError(t, db.Close())
		}
		if ok {
			require.Equal(t, []string{"42.0"}, w.rows(w.run("a/b"), "a"), text)
		} else {
			require.Equal(t, worker.CodeSQL, w.failed("a/b").Code)
		}
	}
}

func TestExternalFilesOfExtensionsAreVerified(t *testing.T) {
	dir := t.TempDir()
	good := worker.ExtensionPath(extensionsDir(t), plan.ExtensionExcel, "1.5.5", "linux_amd64")
	data, err := os.ReadFile(good)
	require.NoError(t, err)
	data[len(data)/2] ^= 1
	bad := worker.ExtensionPath(dir, plan.ExtensionExcel, "1.5.5", "linux_amd64")
	require.NoError(t, os.MkdirAll(filepath.Dir(bad), 0o755))
	require.NoError(t, os.WriteFile(bad, data, 0o600))
	w := newExternalFixture(t, "SELECT 1 AS x", plan.External{Extension: plan.ExtensionExcel, Directory: dir})
	e := w.failed("a/b")
	require.Equal(t, worker.CodeExtensionMissing, e.Code)
	require.Equal(t, "load excel: "+bad+" is not signed by DuckDB, or was changed: get the file again with servo extension fetch", e.Message)

	described, err := worker.ReadExtension(good)
	require.NoError(t, err)
	require.Equal(t, "linux_amd64", described.Platform)
	require.Equal(t, "1.5.5", described.DuckDB)
}

// Fetch is the only code that downloads an extension. The server of this test has the layout of a DuckDB repository.
func TestExternalFetchStoresTheFileWhereWorkersFindIt(t *testing.T) {
	good := worker.ExtensionPath(extensionsDir(t), plan.ExtensionSQLite, "1.5.5", "linux_amd64")
	repository := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1.5.5/linux_amd64/sqlite_scanner.duckdb_extension.gz" {
			http.NotFound(rw, r)
			return
		}
		data, err := os.ReadFile(good)
		if err == nil {
			to := gzip.NewWriter(rw)
			_, err = to.Write(data)
			_ = to.Close()
		}
		if err != nil {
			panic(err)
		}
	}))
	defer repository.Close()
	dir := t.TempDir()
	e, err := worker.OpenExtensions(t.Context(), dir, t.TempDir())
	require.NoError(t, err)
	defer func() { require.NoError(t, e.Close()) }()
	_, err = e.Fetch(t.Context(), plan.ExtensionExcel, repository.URL)
	require.ErrorContains(t, err, "fetch excel for DuckDB 1.5.5, linux_amd64: ")
	require.NotContains(t, err.Error(), "Please")
	path, err := e.Fetch(t.Context(), plan.ExtensionSQLite, repository.URL)
	require.NoError(t, err)
	want, err := os.ReadFile(good)
	require.NoError(t, err)
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, len(want), len(got))
	require.NoError(t, e.Load(t.Context(), path))
	external := plan.External{Extension: plan.ExtensionSQLite, Directory: dir, Attach: map[string]string{"crm": "crm.sqlite"}}
	w := newExternalFixture(t, "SELECT count(*) AS n FROM crm.orders", external)
	sqliteFile(t, filepath.Join(w.root, "crm.sqlite"), "CREATE TABLE orders (x INTEGER)")
	require.Equal(t, []string{"0"}, w.rows(w.run("a/b"), "n"))
}

// A partition key from an external source must not make a URL point outside of its declared prefix.
func TestExternalPartitionsCannotClimb(t *testing.T) {
	s := newObjectStore(t)
	for tenant, ok := range map[string]bool{"acme": true, "../closed": false, "..": false, "%2e%2e": false} {
		w := newExternalFixture(t, "FROM read_csv('"+s.URL+"/open/' || getvariable('tenant') || '/x.csv')", lake(t, s))
		w.plan.Tasks[0].PartitionKey = fmt.Sprintf(`{"tenant":%q}`, tenant)
		w.storePlan()
		if ok {
			require.Equal(t, []string{"/open/acme/x.csv"}, w.rows(w.run("a/b"), "path"))
			continue
		}
		e := w.failed("a/b")
		require.Equal(t, worker.CodeSourceDenied, e.Code, "%s: %s", tenant, e.Message)
	}
	require.Zero(t, s.requests("/closed/x.csv"))
}
