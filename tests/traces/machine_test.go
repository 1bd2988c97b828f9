package traces_test

import (
	"bytes"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/cli"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/trace/otlp"
)

// On one machine a single process executes the run, and sends all spans before it ends.
func TestRunOnOneMachineIsOneTrace(t *testing.T) {
	var got collector
	server := httptest.NewServer(&got)
	t.Cleanup(server.Close)
	dir := t.TempDir()
	for name, text := range map[string]string{
		"servo.yaml":        "name: traced\n",
		"assets/raw/a.sql":  "select 1 as x",
		"assets/raw/b.yaml": "deps: [raw/a]\nrun: {command: [\"true\"]}\noutput: none\n",
	} {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	}
	run := func(env cli.Env) (code int, out string) {
		var stderr bytes.Buffer
		env.Dir, env.Clock, env.Stdout, env.Stderr, env.Environ = dir, clock.System{}, &stderr, &stderr, []string{"PATH=/usr/bin:/bin"}
		code = cli.Main(t.Context(), env)
		return code, stderr.String()
	}
	code, out := run(cli.Env{Args: []string{"run", "--all", "--traces", server.URL}, OpenTraces: otlp.Open})
	require.Zero(t, code, out)
	got.mu.Lock()
	var names []string
	var runID []byte
	for _, s := range got.spans {
		names = append(names, strings.TrimSpace(s.Name+" "+s.attribute("servo.task_key")))
		if slices.Contains([]string{"fold", "compact"}, s.Name) {
			continue // these spans have their own traces, with links to the run
		}
		if runID == nil {
			runID = s.TraceId
		}
		require.Equal(t, runID, s.TraceId, s.Name)
	}
	got.mu.Unlock()
	for _, want := range []string{
		"trigger", "run", "dispatch raw/a", "attempt raw/a", "callback finished raw/a", "dispatch raw/b", "attempt raw/b", "callback finished raw/b",
	} {
		require.Contains(t, names, want)
	}

	code, out = run(cli.Env{Args: []string{"run", "--all", "--traces", server.URL}})
	require.NotZero(t, code)
	require.Contains(t, out, "servo-cloud")
	code, out = run(cli.Env{Args: []string{"run", "--all", "--traces", "nowhere"}, OpenTraces: otlp.Open})
	require.Equal(t, 2, code)
	require.Contains(t, out, "is not a URL")
}
