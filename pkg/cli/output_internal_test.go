package cli

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/clock"
)

// The folder has no project. So a command that reads the project before it checks -o csv fails with exit code 1.
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
