// Package secrets_test runs commands that print their secrets, and searches for these secrets in
// everything that Servo writes.
package secrets_test

import (
	"bytes"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	_ "github.com/duckdb/duckdb-go/v2"
	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/cli"
	"github.com/servo-orchestration/servo/pkg/clock"
)

// The test searches for the secrets and for characteristic parts of them. Commands also print a harmless text next to
// each secret. If the test does not find this text, its search does not work.
const (
	fileCanary = "filed-7f3a91c2"
	envCanary  = "environed-55d0be"
	lineCanary = "line-of-a-key-90ab"
	beside     = "printed-beside-a-secret"
)

var project = map[string]string{
	"servo.yaml": "name: secrets\n",
	"assets/raw/told.yaml": `
run: {command: [sh, tell.sh]}
secrets: {FILED: file:api-token, ENVIRONED: env:WAREHOUSE_PASSWORD, KEY: file:key}
`,
	"assets/raw/failed.yaml": `
run: {command: [sh, -c, '. ./tell.sh; exit 1']}
secrets: {FILED: file:api-token, ENVIRONED: env:WAREHOUSE_PASSWORD, KEY: file:key}
retries: {max_attempts: 2, initial_delay: 1s}
`,
	"assets/raw/missing.yaml": `
run: {command: [sh, tell.sh]}
secrets: {FILED: file:api-token, NONE: file:no-such-file}
retries: {max_attempts: 5}
`,
	"assets/raw/cloud.yaml": `
run: {command: [sh, tell.sh]}
secrets: {KEY: gcp:projects/p/secrets/k}
`,
	"assets/raw/other.yaml": `
run: {command: [env]}
`,
	"assets/raw/query.sql": "SELECT '" + beside + "' AS told",
	"tell.sh": `
echo ` + beside + ` "$FILED" "$ENVIRONED" "$KEY"
echo ` + beside + ` "$FILED" "$ENVIRONED" "$KEY" >&2
printf %s "${FILED%7f3a91c2}"; printf %s 7f3a91c2; echo
printf %s "${ENVIRONED%55d0be}" >&2; printf %s 55d0be >&2; echo >&2
yes "$FILED" | head -c 3000 >&2; echo >&2
echo "$KEY" | sed -n 2p
env
test "${#FILED} ${#ENVIRONED}" = "14 16" && echo "secrets were passed"
echo ` + beside + ` "$ENVIRONED" "$KEY" ends >&2
`,
}

// If the worker masked nothing, this test would find secrets in logs, the journal, the ledger, manifests and rows,
// and on the terminal.
func TestNothingContainsSecrets(t *testing.T) {
	dir, elsewhere := t.TempDir(), t.TempDir()
	for name, text := range project {
		write(t, filepath.Join(dir, name), text)
	}
	write(t, filepath.Join(elsewhere, "api-token"), fileCanary+"\n")
	write(t, filepath.Join(elsewhere, "key"), "-----BEGIN KEY-----\n"+lineCanary+"\n-----END KEY-----\n")
	var everything bytes.Buffer // the output of all commands
	servo := func(args ...string) (code int, printed string) {
		var out bytes.Buffer
		code = cli.Main(t.Context(), cli.Env{
			Args: args, Dir: dir, Clock: clock.System{}, Stdout: &out, Stderr: &out,
			Environ: []string{"PATH=/usr/bin:/bin", "WAREHOUSE_PASSWORD=" + envCanary},
		})
		everything.Write(out.Bytes())
		return code, out.String()
	}

	code, _ := servo("run", "--all", "--log-level", "debug", "--secrets", elsewhere)
	require.Equal(t, 1, code)
	attempts := func(asset string) string {
		_, rows := servo("query", "-o", "csv", "SELECT attempt, error_code, error_message FROM attempts WHERE task_key = '"+asset+"' ORDER BY 1")
		return rows
	}
	require.Contains(t, attempts("raw/failed"), "2,EXIT_STATUS")
	require.Contains(t, attempts("raw/failed"), "***\n***\n***")
	require.Contains(t, attempts("raw/missing"), "1,SECRET_MISSING")
	require.Contains(t, attempts("raw/missing"), "NONE: secret file:no-such-file: ")
	require.NotContains(t, attempts("raw/missing"), "2,SECRET_MISSING", "a missing secret is not retried")
	require.Contains(t, attempts("raw/cloud"), "secret gcp:projects/p/secrets/k: this worker does not support provider gcp: use the worker of servo-cloud")
	code, log := servo("logs", "raw/told")
	require.Zero(t, code)
	require.Contains(t, log, "secrets were passed")
	require.Contains(t, log, beside+" *** *** ***\n")
	for _, task := range []string{"raw/told", "raw/failed", "raw/missing"} {
		servo("explain", task)
		servo("explain", task, "-o", "json")
	}
	servo("status")
	servo("admin", "ledger")
	_, views := servo("query", "-o", "csv", "SELECT view_name FROM duckdb_views() WHERE NOT internal")
	require.Contains(t, views, "attempts")
	for view := range strings.FieldsSeq(strings.TrimPrefix(views, "view_name\n")) {
		if code, rows := servo("query", "-o", "json", `FROM "`+view+`"`); code != 0 {
			require.Contains(t, rows, "does not exist", view) // a query must name an asset's view with its schema
		}
	}

	found := map[string]bool{}
	search := func(where string, text []byte) {
		for _, canary := range []string{fileCanary, envCanary, lineCanary, "7f3a91c2\n", "55d0be\n"} {
			require.NotContains(t, string(text), canary, where)
		}
		if bytes.Contains(text, []byte(beside)) {
			kind, _, _ := strings.Cut(where, "/")
			found[kind] = true
		}
	}
	search("terminal", everything.Bytes())
	state := filepath.Join(dir, ".servo")
	require.NoError(t, filepath.WalkDir(state, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(state, path)
		search(name, []byte(name))
		search(name, data)
		if filepath.Ext(path) == ".parquet" {
			search("parquet/"+name, rows(t, path))
		}
		return err
	}))
	for _, kind := range []string{"terminal", "ledger", "logs", "plans", "parquet"} {
		require.True(t, found[kind], "the text beside the secrets is not in %s: does the search cover it? %v", kind, found)
	}
}

// Servo reads secrets from a folder only if the user names the folder: there is no default.
func TestSecretsFolderMustBeNamed(t *testing.T) {
	dir, elsewhere := t.TempDir(), t.TempDir()
	write(t, filepath.Join(dir, "servo.yaml"), "name: secrets\n")
	write(t, filepath.Join(dir, "assets/raw/a.yaml"), "run: {command: [sh, -c, 'exit 0']}\noutput: none\nsecrets: {A: file:a}\n")
	write(t, filepath.Join(elsewhere, "a"), "some value")
	servo := func(environ string, args ...string) (int, string) {
		var out bytes.Buffer
		code := cli.Main(t.Context(), cli.Env{
			Args: args, Dir: dir, Clock: clock.System{}, Stdout: &out, Stderr: &out, Environ: []string{"PATH=/usr/bin:/bin", environ},
		})
		return code, out.String()
	}
	code, out := servo("", "run", "--all")
	require.Equal(t, 1, code)
	require.Contains(t, out, "A: secret file:a: no folder of secrets is configured: set --secrets DIR or SERVO_SECRETS")
	for _, args := range [][]string{{"run", "--all"}, {"dev"}, {"worker"}} {
		code, out = servo("", append(args, "--secrets", "nowhere")...)
		require.Equal(t, 1, code)
		require.Contains(t, out, "no folder of secrets at "+filepath.Join(dir, "nowhere")+": name another one with --secrets")
	}
	code, out = servo("", "run", "--all", "--secrets", elsewhere)
	require.Zero(t, code, out)
	code, out = servo("SERVO_SECRETS="+elsewhere, "run", "--all")
	require.Zero(t, code, out)
}

func write(t *testing.T, path, text string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
}

// rows returns the rows of a Parquet file as text.
func rows(t *testing.T, path string) []byte {
	t.Helper()
	db, err := sql.Open("duckdb", "")
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	all, err := db.QueryContext(t.Context(), "SELECT CAST(r AS VARCHAR) FROM read_parquet(?) AS r", path)
	require.NoError(t, err)
	var text bytes.Buffer
	for all.Next() {
		var row string
		require.NoError(t, all.Scan(&row))
		fmt.Fprintln(&text, row)
	}
	require.NoError(t, errors.Join(all.Err(), all.Close()))
	return text.Bytes()
}
