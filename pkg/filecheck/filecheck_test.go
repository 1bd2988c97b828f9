package filecheck_test

import (
	"bytes"
	"context"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/filecheck"
)

func written(tb testing.TB, path string, data []byte) filecheck.File {
	tb.Helper()
	require.NoError(tb, os.MkdirAll(filepath.Dir(path), 0o700))
	require.NoError(tb, os.WriteFile(path, data, 0o600))
	return filecheck.File{Path: path, Size: int64(len(data)), CRC32C: crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli))}
}

// touch changes one bit of a file, but not the file's size, name or modification time.
func touch(t *testing.T, path string) {
	t.Helper()
	info, err := os.Stat(path)
	require.NoError(t, err)
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	data[len(data)/2] ^= 4
	require.NoError(t, os.WriteFile(path, data, 0o600))
	require.NoError(t, os.Chtimes(path, info.ModTime(), info.ModTime()))
}

func TestCheckDetectsDamage(t *testing.T) {
	t.Parallel()
	c := filecheck.New()
	f := written(t, filepath.Join(t.TempDir(), "a"), bytes.Repeat([]byte("abc"), 1<<20))
	require.NoError(t, c.Check(t.Context(), f))
	require.NoError(t, c.Check(t.Context(), f))
	var damaged *filecheck.DamagedError

	other := f
	other.CRC32C++
	require.ErrorAs(t, c.Check(t.Context(), other), &damaged, "a file that passed fails for another checksum")

	touch(t, f.Path)
	require.ErrorAs(t, c.Check(t.Context(), f), &damaged)
	require.Equal(t, f, damaged.File)
	require.ErrorContains(t, damaged, f.Path+" is damaged: its CRC-32C is")

	require.NoError(t, os.Truncate(f.Path, 5))
	require.ErrorContains(t, c.Check(t.Context(), f), "it has 5 bytes, expected 3145728")
	require.NoError(t, os.Remove(f.Path))
	require.ErrorIs(t, c.Check(t.Context(), f), os.ErrNotExist)
	require.NoError(t, os.Mkdir(f.Path, 0o700))
	require.ErrorContains(t, c.Check(t.Context(), f), "is a folder, not a regular file")
}

func TestCheckStopsWithContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	f := written(t, filepath.Join(t.TempDir(), "a"), []byte("abc"))
	require.ErrorIs(t, filecheck.New().CheckAll(ctx, []filecheck.File{f}), context.Canceled)
}

func TestRememberedFileIsNotRead(t *testing.T) {
	t.Parallel()
	c := filecheck.New()
	f := written(t, filepath.Join(t.TempDir(), "a"), []byte("abc"))
	f.CRC32C++ // with this checksum, a check that reads the file fails
	c.Remember(f)
	require.NoError(t, c.Check(t.Context(), f))
	touch(t, f.Path)
	require.Error(t, c.Check(t.Context(), f))
}

func TestDiskCacheSurvivesProcess(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	name := filepath.Join(dir, "checked")
	first, other := filecheck.Open(name), filecheck.Open(name)
	var files []filecheck.File
	for i := range 3 {
		f := written(t, filepath.Join(dir, fmt.Sprintf("x/%d", i)), []byte("abc"))
		f.CRC32C++
		files = append(files, f)
	}
	first.Remember(files[0])
	other.Remember(files[1])
	require.NoError(t, first.Save())
	require.NoError(t, other.Save(), "two processes save to one file")
	require.NoError(t, first.Save())
	again := filecheck.Open(name)
	require.NoError(t, again.CheckAll(t.Context(), files[:2]))
	require.Error(t, again.Check(t.Context(), files[2]))
	touch(t, files[0].Path)
	require.Error(t, again.Check(t.Context(), files[0]))

	data, err := os.ReadFile(name)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(name, append([]byte("no line\n"), data...), 0o600))
	require.NoError(t, filecheck.Open(name).Check(t.Context(), files[1]), "unreadable lines are skipped")
	require.NoError(t, os.Rename(dir, dir+"-moved"))
	moved := files[1]
	moved.Path = filepath.Join(dir+"-moved", "x/1")
	require.NoError(t, filecheck.Open(filepath.Join(dir+"-moved", "checked")).Check(t.Context(), moved), "the folder may move")
}

func TestDiskCacheForgetsMissingFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	name := filepath.Join(dir, "checked")
	f := written(t, filepath.Join(dir, "a"), []byte("abc"))
	c := filecheck.Open(name)
	c.Remember(f)
	require.NoError(t, c.Save())
	line, err := os.ReadFile(name)
	require.NoError(t, err)
	gone := bytes.Replace(line, []byte(" a\n"), []byte(" gone\n"), 1)
	require.NoError(t, os.WriteFile(name, bytes.Repeat(append(line, gone...), 10_000), 0o600))
	c = filecheck.Open(name)
	require.NoError(t, os.Chtimes(f.Path, time.Unix(1, 0), time.Unix(1, 0)))
	require.NoError(t, c.Check(t.Context(), f))
	require.NoError(t, c.Save())
	data, err := os.ReadFile(name)
	require.NoError(t, err)
	require.Len(t, bytes.Split(bytes.TrimSpace(data), []byte("\n")), 1)
}

func BenchmarkCheck(b *testing.B) {
	f := written(b, filepath.Join(b.TempDir(), "a"), make([]byte, 10<<20))
	b.Run("first", func(b *testing.B) {
		b.SetBytes(f.Size)
		for range b.N {
			require.NoError(b, filecheck.New().Check(b.Context(), f))
		}
	})
	b.Run("again", func(b *testing.B) {
		c := filecheck.New()
		require.NoError(b, c.Check(b.Context(), f))
		for range b.N {
			require.NoError(b, c.Check(b.Context(), f))
		}
	})
}
