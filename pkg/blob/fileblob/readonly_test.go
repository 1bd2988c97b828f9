package fileblob_test

import (
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/blob/fileblob"
)

// This test fails if opening a store for reading requires write permission.
func TestReadOnlyDirectoryCanBeRead(t *testing.T) {
	dir := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", dir).CombinedOutput(); err != nil {
		t.Skipf("mounting a read-only disk requires root: %v: %s", err, out)
	}
	t.Cleanup(func() {
		out, err := exec.Command("umount", "-l", dir).CombinedOutput()
		require.NoError(t, err, "%s", out)
	})
	remount := func(how string) {
		out, err := exec.CommandContext(t.Context(), "mount", "-o", "remount,"+how, dir).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	for _, used := range []bool{true, false} { // a copy may lack the store's own files
		s, err := fileblob.Open(dir, fileblob.Options{})
		require.NoError(t, err)
		_, err = s.Put(t.Context(), "a/b", []byte("text"))
		require.NoError(t, err)
		require.NoError(t, s.Close())
		if !used {
			require.NoError(t, os.RemoveAll(dir+"/.servo-tmp"))
		}
		remount("ro")
		_, err = fileblob.Open(dir, fileblob.Options{})
		require.ErrorIs(t, err, syscall.EROFS)
		s, err = fileblob.Open(dir, fileblob.Options{Read: true})
		require.NoError(t, err)
		data, _, err := s.Get(t.Context(), "a/b")
		require.NoError(t, err)
		require.Equal(t, "text", string(data))
		_, err = s.Put(t.Context(), "a/c", nil)
		require.ErrorIs(t, err, syscall.EROFS)
		require.ErrorContains(t, err, "mount it writable")
		require.ErrorIs(t, s.Delete(t.Context(), "a/b"), syscall.EROFS)
		require.NoError(t, s.Close())
		remount("rw")
	}
}
