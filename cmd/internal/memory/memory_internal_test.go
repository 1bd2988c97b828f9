package memory

import (
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestContainerReadsBothCgroupVersions(t *testing.T) {
	for text, want := range map[string]int64{
		"1073741824\n": 1 << 30, "max\n": 0, "9223372036854771712\n": 0, "": 0, "-1\n": 0, "0\n": 0,
	} {
		for _, name := range limits {
			root := t.TempDir() + "/"
			require.Zero(t, container(root))
			require.NoError(t, os.MkdirAll(filepath.Dir(root+name), 0o755))
			require.NoError(t, os.WriteFile(root+name, []byte(text), 0o600))
			require.Equal(t, want, container(root), "%s: %q", name, text)
		}
	}
}

func TestLimitRespectsGOMEMLIMIT(t *testing.T) {
	t.Setenv("GOMEMLIMIT", "123MiB")
	before := debug.SetMemoryLimit(math.MaxInt64 - 1)
	defer debug.SetMemoryLimit(before)
	Limit()
	require.Equal(t, int64(math.MaxInt64-1), debug.SetMemoryLimit(-1))
}
