package service

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/identity"
)

func TestParseReportsEveryProblem(t *testing.T) {
	var out strings.Builder
	env := map[string]string{
		"SERVO_CONCURRENCY": "many", "SERVO_WORKER_URL": "ftp://x", "SERVO_DISPATCH_RATE": "-1", "SERVO_TENANT_WEIGHTS": "acme=3,globex",
		"SERVO_WORKER_URLS": "gpu=http://gpu:1,large", "SERVO_KEYS": "/not/there", "SERVO_WORKER_KEYS": "/nor/there", "SERVO_QUEUE": "projects/p", "SERVO_CALLERS": " ,",
	}
	_, err := parse(dispatcherKind, []string{"--listen", "nowhere", "--log-level", "loud", "--trace-ratio", "half", "extra"}, func(name string) string { return env[name] }, &out)
	for _, want := range []string{
		`unexpected argument "extra"`, `SERVO_CONCURRENCY "many": want a value of type int`, "--store is missing", `--listen "nowhere"`, `--log-level "loud"`,
		"--compactor-url is missing", `--worker-url "ftp://x"`, "--dispatch-rate is -1", `--tenant-weights: "globex"`,
		`--worker-urls: "large"`, "/not/there", "/nor/there", `--queue "projects/p"`, `--callers " ," names no account`, `--trace-ratio "half": want a value of type float`,
	} {
		require.ErrorContains(t, err, want)
	}
	code := RunSweeper(t.Context(), Process{Args: []string{"--every", "1ms", "--full-every", "-1s"}, Getenv: none, Stderr: &out, Clock: clock.System{}})
	require.Equal(t, exitUsage, code)
	require.Contains(t, out.String(), "servo-sweeper: invalid configuration:\n  --store is missing")
	require.Contains(t, out.String(), "\n  --every is 1ms")
	require.Contains(t, out.String(), "\n  --full-every is -1s")
}

func TestFlagOverridesEnvironment(t *testing.T) {
	env := map[string]string{
		"SERVO_STORE": "/env", "SERVO_COMPACTOR_URL": "http://env:1", "SERVO_DISPATCHER_URL": "http://env:2", "SERVO_EVERY": "90s", "SERVO_FULL_EVERY": "6h",
	}
	c, err := parse(sweeperKind, []string{"--store", "/flag"}, func(name string) string { return env[name] }, os.Stderr)
	require.NoError(t, err)
	require.Equal(t, config{
		Listen: "127.0.0.1:8093", Store: "/flag", LogLevel: "info", CompactorURL: "http://env:1", DispatcherURL: "http://env:2", Every: 90 * time.Second,
		FullEvery: 6 * time.Hour,
		Issuer:    identity.GoogleIssuer, IssuerKeys: identity.GoogleKeys, Identity: NoIdentity, Traces: Traces{Ratio: 1},
	}, c)
}

func TestBucketRequiresCallers(t *testing.T) {
	bucket := []string{"--store", "gs://b", "--dispatcher-url", "http://d:1"}
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"no callers":            {bucket, "--callers is missing"},
		"no account":            {append(bucket, "--callers", "sweeper=a@b.example, pubsub", "--audience", "https://c.example"), `--callers: "pubsub" is invalid: expected ROLE=ACCOUNT`},
		"no role":               {append(bucket, "--callers", "a@b.example", "--audience", "https://c.example"), `"a@b.example" is invalid: expected ROLE=ACCOUNT`},
		"an unknown role":       {append(bucket, "--callers", "king=a@b.example", "--audience", "https://c.example"), "roles are compactor,"},
		"no audience":           {append(bucket, "--callers", "sweeper=a@b.example"), "--audience is missing"},
		"an audience of no use": {append(bucket, "--callers", "sweeper=a@b.example", "--audience", "compactor"), `--audience "compactor" is not a URL`},
		"an unknown identity":   {append(bucket, "--callers", "any", "--identity", "aws"), `--identity "aws" is neither google nor none`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parse(compactorKind, tc.args, none, os.Stderr)
			require.ErrorContains(t, err, tc.want)
		})
	}
	_, err := parse(dispatcherKind, []string{
		"--store", "/d", "--compactor-url", "http://c:1", "--worker-url", "http://w:1", "--callers", "sweeper=a@b.example", "--audience", "https://d.example",
	}, none, os.Stderr)
	require.ErrorContains(t, err, "the local queue calls this service")
	c, err := parse(compactorKind, append(bucket, "--callers", AnyCaller), none, os.Stderr)
	require.NoError(t, err)
	require.Equal(t, GoogleIdentity, c.Identity)
	require.False(t, c.verifies())
	keys := filepath.Join(t.TempDir(), KeysFile)
	_, err = OpenKeys(keys)
	require.NoError(t, err)
	c, err = parse(dispatcherKind, []string{
		"--store", "gs://b", "--keys", keys, "--compactor-url", "http://c:1", "--worker-url", "http://w:1", "--url", "https://d.example",
		"--callers", " sweeper=a@b.example,, queue=c@b.example,pubsub=a@b.example ", "--queue", "projects/p/locations/l",
	}, none, os.Stderr)
	require.NoError(t, err)
	require.Equal(t, "https://d.example", c.Audience, "the default is --url")
	accounts, err := c.accounts()
	require.NoError(t, err)
	require.Equal(t, map[string][]string{"a@b.example": {"sweeper", "pubsub"}, "c@b.example": {"queue"}}, accounts)
}

func TestUnknownStoreSchemeIsRejected(t *testing.T) {
	for _, store := range []string{"s3://b", "gcs://b", "GS://b"} {
		_, err := parse(compactorKind, []string{"--store", store, "--callers", AnyCaller}, none, os.Stderr)
		require.ErrorContains(t, err, "is neither a folder nor gs://BUCKET", store)
	}
}

func TestWorkerURLsByQueue(t *testing.T) {
	c := config{WorkerURL: "http://w:1/", WorkerURLs: "gpu=https://gpu.example/, large=http://l:2/base"}
	workers, err := c.workers()
	require.NoError(t, err)
	d := dispatchers{cfg: c, workers: workers}
	for queue, want := range map[string]string{
		"default": "http://w:1", "": "http://w:1", "gpu": "https://gpu.example", "large": "http://l:2/base",
	} {
		require.Equal(t, want, d.workerURL(queue), queue)
	}
	for _, wrong := range []string{"gpu", "gpu=", "=http://x:1", "gpu=x", "gpu=http://x:1,gpu=http://y:1", "gpu=http://x:1,"} {
		_, err := config{WorkerURLs: wrong}.workers()
		require.ErrorContains(t, err, "--worker-urls", wrong)
	}
}

// configured parses a file with the values of flags.
func configured(t *testing.T, k kind, text string, args []string, env map[string]string) (config, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "servo.yaml")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return parse(k, append(args, "--config", path), func(name string) string { return env[name] }, os.Stderr)
}

func TestEnvironmentAndFlagsOverrideConfigFile(t *testing.T) {
	c, err := configured(t, dispatcherKind, `
# of the dispatcher
store: /file
compactor-url: http://file:1
worker-url: http://file:2
concurrency: 7
dispatch-rate: 70
tenant-weights: {acme: 3, globex: 2}
callers: {sweeper: a@b.example, queue: c@d.example}
callers-note: ~
`, nil, nil)
	require.ErrorContains(t, err, `line 10: servo-dispatcher has no setting "callers-note"`)
	require.Equal(t, "acme=3,globex=2", c.Weights)
	accounts, err := c.accounts()
	require.NoError(t, err)
	require.Equal(t, map[string][]string{"a@b.example": {"sweeper"}, "c@d.example": {"queue"}}, accounts)

	c, err = configured(t, dispatcherKind, "store: /file\ncompactor-url: http://file:1\nworker-url: http://file:2\nconcurrency: 7\n",
		[]string{"--store", "/flag"}, map[string]string{"SERVO_WORKER_URL": "http://env:2", "SERVO_STORE": "/env"})
	require.NoError(t, err)
	require.Equal(t, "/flag", c.Store)
	require.Equal(t, "http://env:2", c.WorkerURL)
	require.Equal(t, "http://file:1", c.CompactorURL)
	require.Equal(t, 7, c.Concurrency)

	c, err = configured(t, compactorKind, "# nothing\n", []string{"--store", "/flag"}, nil)
	require.NoError(t, err)
	require.Equal(t, "/flag", c.Store)
}

func TestConfigFileErrorsNameTheLine(t *testing.T) {
	_, err := configured(t, compactorKind, `store: /d
keep-runs: a while
config: other.yaml
keep_runs: 720h
store: /e
log-level: [{a: b}]
callers: ~
listen: &a 127.0.0.1:1
subscription: *a
`, []string{"--log-level", "debug"}, nil)
	for _, want := range []string{
		`line 2: keep-runs "a while": want a value of type duration`, `line 3: servo-compactor has no setting "config"`,
		`line 4: servo-compactor has no setting "keep_runs"`, "line 5: store occurs twice", "line 6: log-level: want a string or a number",
		"line 7: callers: missing value", "line 9: subscription: aliases are not supported",
	} {
		require.ErrorContains(t, err, want)
	}
	for text, want := range map[string]string{"- a\n": "want lines like store:", "a: [": "yaml", "just text": "want lines like store:", "store: /d\n---\nstore: /e\n": "a single document"} {
		_, err := configured(t, compactorKind, text, []string{"--store", "/d"}, nil)
		require.ErrorContains(t, err, want, text)
	}
	_, err = parse(compactorKind, []string{"--store", "/d", "--config", "/not/there.yaml"}, none, os.Stderr)
	require.ErrorContains(t, err, "--config")
	require.ErrorIs(t, err, os.ErrNotExist)
}

// The help shows the type of each flag, and no empty defaults.
func TestHelpShowsFlagTypes(t *testing.T) {
	var out strings.Builder
	_, err := parse(dispatcherKind, []string{"--help"}, none, &out)
	require.ErrorIs(t, err, errHelp)
	require.Contains(t, out.String(), "-concurrency int\n")
	require.Contains(t, out.String(), "-store string\n    \tfolder of objects, or gs://BUCKET (required)\n")
}
