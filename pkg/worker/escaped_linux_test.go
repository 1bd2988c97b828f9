package worker_test

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/plan"
)

// pid returns the process id in a file of the project.
func (w *fixture) pid(name string) int {
	w.t.Helper()
	text, err := os.ReadFile(filepath.Join(w.root, name))
	require.NoError(w.t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	require.NoError(w.t, err)
	return pid
}

// waitForPID is the end of a script. It waits until the child process has written its process id.
const waitForPID = "\nuntil test -s pid; do sleep 0.01; done"

// This test fails if a process that has called setsid outlives its task.
func TestEscapedProcessesEndWithTheirTask(t *testing.T) {
	for name, script := range map[string]string{
		"a session":           `setsid sh -c 'echo $$ > pid; exec sleep 1000' &`,
		"a daemon":            `(setsid sh -c 'echo $$ > pid; exec sleep 1000' </dev/null >/dev/null 2>&1 &)`,
		"a group":             `set -m; (sh -c 'echo $$ > pid; exec sleep 1000' &) `,
		"without environment": `(env -i setsid sh -c 'echo $$ > pid; exec sleep 1000' &)`,
		"a session in one":    `(setsid sh -c '(env -i setsid sh -c "echo \$\$ > pid; exec sleep 1000" &); exec sleep 1000' &)`,
		"ignored signals":     `(setsid sh -c 'trap "" TERM HUP INT; echo $$ > pid; while :; do sleep 1; done' &)`,
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t, nil, map[string]plan.Work{"a/b": shell(script + waitForPID)}, task("a/b", "", nil))
			w.run("a/b")
			require.ErrorIs(t, syscall.Kill(w.pid("pid"), 0), syscall.ESRCH, "outlives its task")
		})
	}
}

func TestEscapedProcessesOfOtherTasksLive(t *testing.T) {
	long := shell(`setsid sh -c 'echo $$ > long.pid; exec sleep 1000' &
		(env -i setsid sh -c 'echo $$ > hidden.pid; exec sleep 1000' &)
		until test -s long.pid && test -s hidden.pid; do sleep 0.01; done
		echo > began; read -r line < go`)
	short := shell(`(setsid sh -c 'echo $$ > pid; exec sleep 1000' &)` + waitForPID)
	w := newFixture(t, nil, map[string]plan.Work{"a/long": long, "a/short": short}, task("a/long", "", nil), task("a/short", "", nil))
	for _, name := range []string{"began", "go"} {
		require.NoError(t, syscall.Mkfifo(filepath.Join(w.root, name), 0o600))
	}
	answer := w.deliverLater("a/long")
	_, err := os.ReadFile(filepath.Join(w.root, "began"))
	require.NoError(t, err)
	w.run("a/short")
	require.ErrorIs(t, syscall.Kill(w.pid("pid"), 0), syscall.ESRCH)
	require.NoError(t, syscall.Kill(w.pid("long.pid"), 0), "a process of a running task")
	require.NoError(t, syscall.Kill(w.pid("hidden.pid"), 0), "a process of a running task")
	require.NoError(t, os.WriteFile(filepath.Join(w.root, "go"), []byte("\n"), 0o600))
	require.Equal(t, http.StatusOK, <-answer)
	require.ErrorIs(t, syscall.Kill(w.pid("long.pid"), 0), syscall.ESRCH)
	require.ErrorIs(t, syscall.Kill(w.pid("hidden.pid"), 0), syscall.ESRCH)
}

// A script may start a process and then replace itself by Servo, like the entry point of a container.
func TestProcessesOlderThanTheCommandLive(t *testing.T) {
	w := newFixture(t, nil, hello, ab)
	script := `(env -i setsid sh -c 'echo $$ > pid; exec sleep 1000' &)` + waitForPID + "\nsleep 0.05" // start times have a resolution of 10 ms
	cmd := exec.CommandContext(t.Context(), "sh", "-c", script)
	cmd.Dir = w.root
	require.NoError(t, cmd.Run())
	older := w.pid("pid")
	w.run("a/b")
	require.NoError(t, syscall.Kill(older, 0), "the command cannot have started it")
	require.NoError(t, syscall.Kill(older, syscall.SIGKILL))
	_, err := syscall.Wait4(older, nil, 0, nil)
	require.NoError(t, err)
}
