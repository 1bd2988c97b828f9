package cli

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/clock"
)

// The folder has no project. So a command that reads the project before it checks -o csv fails with exit code 1, not
// with the code of a usage error.
func TestCSVIsRejectedBeforeAnyChange(t *testing.T) {
	for _, line := range []string{
		"admin compact", "admin du", "admin gc", "admin merge", "admin rebuild", "admin verify",
		"admin skip 01ARZ3NDEKTSV4RRFFQ69G5FAV --reason lost",
		"assets forget raw/orders --reason old",
		"partitions add tenants acme", "partitions remove tenants acme",
		"partitions mark raw/orders --stale --reason wrong",
	} {
		var out, errs bytes.Buffer
		code := Main(t.Context(), Env{
			Args: append(strings.Fields(line), "-o", "csv"), Stdin: &bytes.Buffer{}, Stdout: &out, Stderr: &errs,
			Dir: t.TempDir(), Program: "servo", Name: "servo", Clock: clock.System{},
		})
		require.Equal(t, exitUsage, code, "%s: %s", line, errs.String())
		require.Contains(t, errs.String(), "choose -o table, json or yaml", line)
		require.Empty(t, out.String(), line)
	}
}

// A command that writes no result rejects -o instead of ignoring it.
func TestCommandsWithoutResultRejectFormats(t *testing.T) {
	dir := t.TempDir()
	for _, line := range []string{"init shop", "cancel latest", "limits set gpu 2", "logs clean/daily", "schema", "deploy"} {
		for _, format := range []string{"json", "yaml", "csv"} {
			var out, errs bytes.Buffer
			code := Main(t.Context(), Env{
				Args: append(strings.Fields(line), "-o", format), Stdin: &bytes.Buffer{}, Stdout: &out, Stderr: &errs,
				Dir: dir, Program: "servo", Name: "servo", Clock: clock.System{},
			})
			require.Equal(t, exitUsage, code, "%s: %s", line, errs.String())
			require.Contains(t, errs.String(), "remove -o "+format, line)
			require.Empty(t, out.String(), line)
		}
	}
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
}

// A command without an annotation accepts only the format table. So each command that writes a result must be listed
// here.
func TestFormatsOfCommands(t *testing.T) {
	formats := map[string][]string{}
	var visit func(*cobra.Command)
	visit = func(cmd *cobra.Command) {
		if kind := cmd.Annotations[formatsAnnotation]; kind != "" {
			formats[kind] = append(formats[kind], strings.TrimPrefix(cmd.CommandPath(), "servo "))
		}
		for _, sub := range cmd.Commands() {
			visit(sub)
		}
	}
	a := &app{Env: Env{Name: "servo"}}
	visit(a.root())
	require.Equal(t, []string{
		"admin ledger", "admin manifest", "alerts", "assets", "backfill create", "backfill list", "check", "checks", "deadlines",
		"deployments", "diff", "env list", "extension list", "limits", "partitions", "partitions sets", "quarantine list", "query",
		"requests", "retry", "run", "runs", "schedule next", "schedule ticks", "schedule trigger", "schedules", "tasks", "test", "validate",
	}, formats["rows"])
	require.Equal(t, []string{
		"admin compact", "admin du", "admin gc", "admin merge", "admin pin", "admin rebuild", "admin skip", "admin verify",
		"assets forget", "backfill show", "explain", "partitions add", "partitions mark", "partitions remove", "plan", "quarantine show",
		"schedule show", "status", "version",
	}, formats["document"])
}
