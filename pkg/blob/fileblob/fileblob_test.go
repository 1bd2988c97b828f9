package fileblob_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/servo-orchestration/servo/internal/blobtest"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/blob/fileblob"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t *testing.T, dir string, opts fileblob.Options) *fileblob.Store {
	t.Helper()
	s, err := fileblob.Open(dir, opts)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func TestContract(t *testing.T) {
	blobtest.Run(t, func(t *testing.T) blob.Store { return open(t, t.TempDir(), fileblob.Options{}) })
}

func listed(t *testing.T, s blob.Store, prefix string) map[string]int64 {
	t.Helper()
	versions := map[string]int64{}
	for o, err := range s.List(t.Context(), blob.ListOptions{Prefix: prefix}) {
		require.NoError(t, err)
		versions[o.Key] = o.Version
	}
	return versions
}

func keys(versions map[string]int64) []string { return slices.Sorted(maps.Keys(versions)) }

// files returns the paths on the disk, without the store's own files but with leftover
// temporary files.
func files(t *testing.T, dir string) []string {
	t.Helper()
	var paths []string
	require.NoError(t, filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		rel, _ := filepath.Rel(dir, path)
		own := []string{".", blob.TempPrefix, filepath.Join(blob.TempPrefix, "lock"), filepath.Join(blob.TempPrefix, "journal")}
		if !slices.Contains(own, rel) {
			paths = append(paths, rel)
		}
		return err
	}))
	return paths
}

func TestObjectIsFileAtItsKey(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "folder")
	s := open(t, dir, fileblob.Options{})
	key := "assets/tenant=t/x y/50%25.parquet"
	_, err := s.Create(t.Context(), key, []byte("content"))
	require.NoError(t, err)

	require.Equal(t, filepath.Join(dir, "assets", "tenant=t", "x y", "50%25.parquet"), s.Path(key))
	data, err := os.ReadFile(s.Path(key))
	require.NoError(t, err)
	require.Equal(t, "content", string(data))
	require.Empty(t, s.Path("../escape"), "an invalid key has no file")
	require.Equal(t, []string{"assets", "assets/tenant=t", "assets/tenant=t/x y", key}, files(t, dir),
		"no temporary file is left")
}

func TestReopenKeepsObjectsAndVersions(t *testing.T) {
	ctx := t.Context()
	dir := t.TempDir()
	s := open(t, dir, fileblob.Options{})
	for i := range 20 {
		_, err := s.Create(ctx, fmt.Sprintf("k/%d/%d", i%3, i), []byte("x"))
		require.NoError(t, err)
	}
	o, err := s.Put(ctx, "k/0/0", []byte("y"))
	require.NoError(t, err)
	before := listed(t, s, "")

	again := open(t, dir, fileblob.Options{})
	require.Equal(t, before, listed(t, again, ""))
	_, err = again.Replace(ctx, "k/0/0", []byte("z"), o.Version)
	require.NoError(t, err, "the version matches after a restart")
}

func TestVersionsGrowWhenClockGoesBack(t *testing.T) {
	ctx := t.Context()
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	s := open(t, t.TempDir(), fileblob.Options{NoSync: true, Now: func() time.Time { return now }})
	o, err := s.Create(ctx, "k", nil)
	require.NoError(t, err)
	require.True(t, now.Equal(o.Updated), "an object is dated by the store's clock")
	for range 10 {
		now = now.Add(-time.Hour)
		next, err := s.Replace(ctx, "k", nil, o.Version)
		require.NoError(t, err)
		require.Greater(t, next.Version, o.Version)
		o = next
	}
	behind := open(t, filepath.Dir(s.Path("k")), fileblob.Options{NoSync: true, Now: func() time.Time { return now }})
	next, err := behind.Put(ctx, "k", nil)
	require.NoError(t, err)
	require.Greater(t, next.Version, o.Version, "even in a process whose clock is behind")
}

func TestTwoStoresShareDirectory(t *testing.T) {
	ctx := t.Context()
	dir := t.TempDir()
	stores := []*fileblob.Store{open(t, dir, fileblob.Options{}), open(t, dir, fileblob.Options{})}
	won := func(errs []error, lost error) int {
		t.Helper()
		count := 0
		for _, err := range errs {
			if err == nil {
				count++
			} else {
				require.ErrorIs(t, err, lost)
			}
		}
		return count
	}
	race := func(do func(i int, s *fileblob.Store) error) []error {
		errs := make([]error, 8)
		var wg sync.WaitGroup
		for i := range errs {
			wg.Go(func() { errs[i] = do(i, stores[i%2]) })
		}
		wg.Wait()
		return errs
	}
	var version int64
	for round := range 10 {
		key := fmt.Sprintf("r/%d/k", round)
		errs := race(func(i int, s *fileblob.Store) error {
			_, err := s.Create(ctx, key, []byte{byte(i)})
			return err
		})
		require.Equal(t, 1, won(errs, blob.ErrExists), "one create wins across stores")
		errs = race(func(i int, s *fileblob.Store) error {
			_, err := s.Replace(ctx, "boundary", []byte{byte(i)}, version)
			return err
		})
		require.Equal(t, 1, won(errs, blob.ErrMismatch), "one replace wins across stores")
		o, err := stores[0].Head(ctx, "boundary")
		require.NoError(t, err)
		version = o.Version
		require.NoError(t, stores[1].Delete(ctx, key))
		require.Equal(t, []string{"boundary"}, keys(listed(t, stores[0], "")), "each sees the other's changes")
	}
}

func TestConcurrentCreateAndDeleteInFolder(t *testing.T) {
	ctx := t.Context()
	dir := t.TempDir()
	stores := []*fileblob.Store{open(t, dir, fileblob.Options{NoSync: true}), open(t, dir, fileblob.Options{NoSync: true})}
	var wg sync.WaitGroup
	for g := range 6 {
		wg.Go(func() {
			s := stores[g%2]
			for i := range 200 {
				key := fmt.Sprintf("wakeups/%d/t/w%d", i%2, g)
				if _, err := s.Create(ctx, key, nil); err != nil {
					t.Errorf("create: %v", err)
				}
				if _, err := s.Head(ctx, key); err != nil {
					t.Errorf("created, but not found: %v", err)
				}
				if err := s.Delete(ctx, key); err != nil {
					t.Errorf("delete: %v", err)
				}
			}
		})
	}
	wg.Wait()
	require.Empty(t, files(t, dir), "no empty folder is left")
}

func TestOpenSweepsOldTemporaryFiles(t *testing.T) {
	ctx := t.Context()
	dir := t.TempDir()
	s := open(t, dir, fileblob.Options{NoSync: true})
	_, err := s.Create(ctx, "kept", []byte("x"))
	require.NoError(t, err)
	now := time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)
	leftover := func(name string, age time.Duration) string {
		path := filepath.Join(dir, blob.TempPrefix, name)
		require.NoError(t, os.WriteFile(path, []byte("half"), 0o600))
		require.NoError(t, os.Chtimes(path, now.Add(-age), now.Add(-age)))
		return path
	}
	old, young := leftover("OLD", time.Hour+time.Second), leftover("YOUNG", time.Hour-time.Second)
	require.Equal(t, []string{"kept"}, keys(listed(t, s, "")), "temporary files are not listed")

	again := open(t, dir, fileblob.Options{NoSync: true, Now: func() time.Time { return now }})
	require.NoFileExists(t, old)
	require.FileExists(t, young)
	require.Equal(t, []string{"kept"}, keys(listed(t, again, "")))
}

func TestErrorNamesFileInPlaceOfFolder(t *testing.T) {
	ctx := t.Context()
	dir := t.TempDir()
	s := open(t, dir, fileblob.Options{NoSync: true})
	require.NoError(t, os.WriteFile(filepath.Join(dir, "ledger"), []byte("a file"), 0o600))
	calls := map[string]func() error{
		"create": func() error { _, err := s.Create(ctx, "ledger/a/b", []byte("x")); return err },
		"stream": func() error { _, err := s.CreateFrom(ctx, "ledger/a/b", strings.NewReader("x")); return err },
		"put":    func() error { _, err := s.Put(ctx, "ledger/a/b", []byte("x")); return err },
		"new":    func() error { _, err := s.Replace(ctx, "ledger/a/b", []byte("x"), 0); return err },
	}
	for name, call := range calls {
		err := call()
		require.ErrorIs(t, err, blob.ErrInvalid, "%s: not done, and never will be", name)
		require.ErrorContains(t, err, `"ledger/a/b"`, "%s: the error names the key", name)
		require.ErrorContains(t, err, filepath.Join(dir, "ledger")+" is a file", "%s: the error names the obstacle", name)
	}
	require.Equal(t, []string{"ledger"}, files(t, dir))
	require.Empty(t, listed(t, s, "ledger/"))
	require.NoError(t, s.Delete(ctx, "ledger/a"))

	_, err := s.Create(ctx, "tables/l0/x", nil)
	require.NoError(t, err)
	for name, call := range map[string]func() error{
		"create": func() error { _, err := s.Create(ctx, "tables/l0", nil); return err },
		"put":    func() error { _, err := s.Put(ctx, "tables/l0", nil); return err },
	} {
		err := call()
		require.ErrorIs(t, err, blob.ErrInvalid, name)
		require.NotErrorIs(t, err, blob.ErrExists, name)
		require.ErrorContains(t, err, "is a folder", name)
	}
	require.NoError(t, s.Delete(ctx, "tables/l0"), "a folder is not an object")
	require.Equal(t, []string{"ledger", "tables/l0/x"}, keys(listed(t, s, "")))
}

func TestOpenErrorNamesCause(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for _, path := range []string{file, filepath.Join(file, "below")} {
		_, err := fileblob.Open(path, fileblob.Options{})
		require.ErrorIs(t, err, syscall.ENOTDIR)
		require.ErrorContains(t, err, path)
		require.ErrorContains(t, err, "a file is where a folder should be")
	}
	_, err := fileblob.Open("/proc/servo", fileblob.Options{})
	require.ErrorContains(t, err, "/proc/servo", "a file system without mkdir")
}

func TestFullDiskLeavesNoTemporaryFile(t *testing.T) {
	ctx := t.Context()
	dir := t.TempDir()
	s := open(t, dir, fileblob.Options{NoSync: true})
	full := fmt.Errorf("write: %w", syscall.ENOSPC)
	_, err := s.CreateFrom(ctx, "k", failing{full})
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.ErrorContains(t, err, `"k"`)
	require.ErrorContains(t, err, filepath.Join(dir, "k"))
	require.ErrorContains(t, err, "free some space")
	require.Empty(t, files(t, dir))
}

type failing struct{ err error }

// Read implements [io.Reader].
func (f failing) Read([]byte) (int, error) { return 0, f.err }

func TestSymlinksDoNotLeaveDirectory(t *testing.T) {
	ctx := t.Context()
	outside := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(outside, "secret"), []byte("secret"), 0o600))
	dir := t.TempDir()
	s := open(t, dir, fileblob.Options{NoSync: true})
	require.NoError(t, os.Symlink(outside, filepath.Join(dir, "out")))
	require.NoError(t, os.Symlink(filepath.Join(outside, "secret"), filepath.Join(dir, "link")))

	for _, key := range []string{"out/secret", "link"} {
		_, _, err := s.Get(ctx, key)
		require.Error(t, err, key)
		_, _, err = s.Open(ctx, key)
		require.Error(t, err, key)
		_, err = s.Put(ctx, key, []byte("overwritten"))
		require.Error(t, err, key)
	}
	_, err := s.Create(ctx, "out/new", nil)
	require.Error(t, err)
	_ = s.Delete(ctx, "out/secret")
	require.Empty(t, listed(t, s, ""), "links are not listed")

	data, err := os.ReadFile(filepath.Join(outside, "secret"))
	require.NoError(t, err)
	require.Equal(t, "secret", string(data))
	entries, err := os.ReadDir(outside)
	require.NoError(t, err)
	require.Len(t, entries, 1)
}

func TestListSkipsNonObjects(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, fileblob.Options{NoSync: true})
	require.NoError(t, os.WriteFile(filepath.Join(dir, "new\nline"), nil, 0o600))
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "empty", "folder"), 0o700))
	require.NoError(t, syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "put here by hand"), []byte("x"), 0o600))

	require.Equal(t, []string{"put here by hand"}, keys(listed(t, s, "")))
	_, _, err := s.Get(t.Context(), "pipe")
	require.ErrorIs(t, err, blob.ErrNotFound, "and reading a pipe does not block")
}

func TestDeleteRemovesEmptyFolders(t *testing.T) {
	ctx := t.Context()
	dir := t.TempDir()
	s := open(t, dir, fileblob.Options{})
	for _, key := range []string{"wakeups/1/t/w", "wakeups/2/t/w", "wakeups/2/u/w"} {
		_, err := s.Create(ctx, key, nil)
		require.NoError(t, err)
	}
	require.NoError(t, s.Delete(ctx, "wakeups/1/t/w"))
	require.NoError(t, s.Delete(ctx, "wakeups/2/t/w"))
	require.Equal(t, []string{"wakeups", "wakeups/2", "wakeups/2/u", "wakeups/2/u/w"}, files(t, dir))
	_, err := s.Create(ctx, "wakeups/1", nil)
	require.NoError(t, err, "a removed folder may become a key")
}

func TestClosedStoreFails(t *testing.T) {
	s, err := fileblob.Open(t.TempDir(), fileblob.Options{})
	require.NoError(t, err)
	require.NoError(t, s.Close())
	_, err = s.Create(t.Context(), "k", nil)
	require.ErrorIs(t, err, os.ErrClosed)
	for _, err := range s.List(t.Context(), blob.ListOptions{}) {
		require.ErrorIs(t, err, os.ErrClosed)
	}
}

// A listing must not fail if another caller empties and removes a folder that the listing has just opened.
func TestListIgnoresFoldersRemovedMeanwhile(t *testing.T) {
	s := open(t, t.TempDir(), fileblob.Options{})
	done := make(chan error)
	go func() {
		for range 500 {
			if _, err := s.Create(t.Context(), "a/b/c", nil); err != nil {
				done <- err
				return
			}
			if err := s.Delete(t.Context(), "a/b/c"); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	for {
		select {
		case err := <-done:
			require.NoError(t, err)
			return
		default:
		}
		for _, err := range s.List(t.Context(), blob.ListOptions{Prefix: "a/"}) {
			require.NoError(t, err)
		}
	}
}
