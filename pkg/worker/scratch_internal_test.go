package worker

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// SweepScratch removes the folders of dead processes, regardless of whether a process died before or after its folder
// got its final name. It keeps the folder of a running worker.
func TestSweepScratchRemovesFoldersOfDeadWorkers(t *testing.T) {
	t.Parallel()
	parent := filepath.Join(t.TempDir(), "scratch")
	folders, _, err := SweepScratch(parent, false)
	require.NoError(t, err, "there is no such folder yet")
	require.Zero(t, folders)
	living, err := openScratch(parent, "living")
	require.NoError(t, err)
	for _, dir := range []string{"new-123", "worker-dead", "other"} {
		require.NoError(t, os.MkdirAll(filepath.Join(parent, dir, "attempt"), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(parent, dir, "attempt", "rows"), []byte("12345"), 0o600))
	}
	for _, dry := range []bool{true, false} {
		folders, bytes, err := SweepScratch(parent, dry)
		require.NoError(t, err)
		require.Equal(t, 2, folders)
		require.Equal(t, int64(10), bytes)
	}
	require.NoDirExists(t, filepath.Join(parent, "new-123"))
	require.NoDirExists(t, filepath.Join(parent, "worker-dead"))
	require.DirExists(t, filepath.Join(parent, "other"), "it is nobody's")
	require.DirExists(t, living.dir)
	require.NoError(t, living.close())
}
