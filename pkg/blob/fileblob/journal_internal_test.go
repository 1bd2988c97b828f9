package fileblob

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/clock"
)

// openWith opens a store with the real system calls. The function override may replace some of them.
func openWith(t *testing.T, dir string, override func(*system)) *Store {
	t.Helper()
	var s *Store
	sys := realSystem(nil)
	var later []func()
	sys.later = func(do func()) { later = append(later, do) }
	override(&sys)
	s, err := open(dir, Options{Now: clock.System{}.Now}, testLimits, &sys)
	require.NoError(t, err)
	t.Cleanup(func() {
		for _, task := range later {
			task()
		}
		require.NoError(t, s.Close())
	})
	return s
}

func unchanged(*system) {}

func withBoot(boot string) func(*system) { return func(sys *system) { sys.boot = boot } }

func own(dir, name string) string { return filepath.Join(dir, blob.TempPrefix, name) }

// journaled returns the keys of a journal's records, with "-" before the key of a removed object.
func journaled(t *testing.T, dir, name string) []string {
	t.Helper()
	f, err := os.Open(own(dir, name))
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	scan, err := newScanner(f)
	require.NoError(t, err)
	keys := []string{}
	for {
		r, _, err := scan.next()
		if errors.Is(err, io.EOF) {
			return keys
		}
		require.NoError(t, err)
		if r.kind == kindRemove {
			r.key = "-" + r.key
		}
		keys = append(keys, r.key)
	}
}

func TestChangeIsVisibleOnlyAfterFlush(t *testing.T) {
	dir := memory(t)
	var s *Store
	synced := 0
	s = openWith(t, dir, func(sys *system) {
		sys.sync = func(*os.File) error {
			synced++
			require.NoFileExists(t, filepath.Join(dir, "k"))
			require.Equal(t, []string{"k"}, journaled(t, dir, journalName))
			return nil
		}
		sys.rename = func(from *os.File, name string, to *os.File, base string) error {
			if base == "k" {
				require.Equal(t, 1, synced)
				found, err := loadStatus(s.writes.file)
				require.NoError(t, err)
				require.Equal(t, busy, found.mark)
				require.Equal(t, s.journal.status.end, found.end, "visible records are valid even if this process dies")
				require.Greater(t, found.end, int64(headerBytes))
			}
			return rename(from, name, to, base)
		}
	})
	_, err := s.Create(t.Context(), "k", []byte("x"))
	require.NoError(t, err)
	require.Equal(t, 1, synced)
	require.FileExists(t, filepath.Join(dir, "k"))
}

func TestRefusedChangeHasNoRecord(t *testing.T) {
	ctx, dir := t.Context(), memory(t)
	s := openWith(t, dir, unchanged)
	o, err := s.Create(ctx, "a/b", []byte("x"))
	require.NoError(t, err)
	_, err = s.Create(ctx, "a/b", []byte("y"))
	require.ErrorIs(t, err, blob.ErrExists)
	_, err = s.Replace(ctx, "a/b", []byte("y"), o.Version+1)
	require.ErrorIs(t, err, blob.ErrMismatch)
	_, err = s.Replace(ctx, "new/folder/k", []byte("y"), 1)
	require.ErrorIs(t, err, blob.ErrMismatch)
	for _, key := range []string{"a", "a/b/c", "a/b/c/d"} {
		_, err = s.Put(ctx, key, []byte("y"))
		require.ErrorIs(t, err, blob.ErrInvalid, key)
	}
	require.NoError(t, s.Delete(ctx, "absent"))
	require.NoError(t, s.Delete(ctx, "a"))
	require.Equal(t, []string{"a/b"}, journaled(t, dir, journalName))
	require.NoError(t, s.Delete(ctx, "a/b"))
	require.Equal(t, []string{"a/b", "-a/b"}, journaled(t, dir, journalName))
	require.NoDirExists(t, filepath.Join(dir, "new"))
}

func TestConcurrentChangesShareFlush(t *testing.T) {
	ctx, dir := t.Context(), memory(t)
	syncs := 0
	entered, leave := make(chan struct{}), make(chan struct{})
	s := openWith(t, dir, func(sys *system) {
		sys.sync = func(*os.File) error {
			if syncs++; syncs == 1 {
				close(entered)
				<-leave
			}
			return nil
		}
	})
	errs := make(chan error)
	create := func(key string) {
		_, err := s.Create(ctx, key, nil)
		errs <- err
	}
	go create("first")
	<-entered
	const others = 10
	for i := range others {
		go create(fmt.Sprint(i))
	}
	waiting := func() int {
		s.queue.mu.Lock()
		defer s.queue.mu.Unlock()
		return len(s.queue.waiting)
	}
	require.Eventually(t, func() bool { return waiting() == others }, 10*time.Second, time.Millisecond)
	close(leave)
	for range others + 1 {
		require.NoError(t, <-errs)
	}
	require.Equal(t, 2, syncs)
}

func TestBatchHasOneChangePerKey(t *testing.T) {
	q := queue{waiting: []*change{{key: "a"}, {key: "b"}, {key: "a", made: true}, {key: "c"}, {key: "a"}}}
	keys := func(changes []*change) (keys string) {
		for _, c := range changes {
			keys += c.key
		}
		return keys
	}
	require.Equal(t, "abc", keys(q.take()))
	second := q.take()
	require.Equal(t, "a", keys(second))
	require.True(t, second[0].made, "in order of arrival")
	require.Equal(t, "a", keys(q.take()))
	require.Empty(t, q.take())
}

func TestFullJournalDiskUndoesWrite(t *testing.T) {
	ctx, dir := t.Context(), memory(t)
	full := false
	s := openWith(t, dir, func(sys *system) {
		sys.write = func(f *os.File, p []byte, off int64) (int, error) {
			if full {
				n, _ := f.WriteAt(p, off) // all bytes are written although the call fails
				return n, fmt.Errorf("write: %w", syscall.ENOSPC)
			}
			return f.WriteAt(p, off)
		}
	})
	_, err := s.Create(ctx, "a", []byte("x"))
	require.NoError(t, err)
	full = true
	_, err = s.Create(ctx, "f/b", bytes.Repeat([]byte("y"), 200))
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.ErrorContains(t, err, "free some space")
	require.NoDirExists(t, filepath.Join(dir, "f"))
	full = false
	require.Equal(t, []string{"a"}, journaled(t, dir, journalName))
	id := s.journal.header.id
	_, err = s.Create(ctx, "c", []byte("z"))
	require.NoError(t, err)
	require.Equal(t, []string{"a", "c"}, journaled(t, dir, journalName))
	require.Equal(t, id, s.journal.header.id, "the same journal continues")
}

func TestFailedFlushRestoresFilesFromJournal(t *testing.T) {
	ctx, dir := t.Context(), memory(t)
	var fails error
	var calls []string
	s := openWith(t, dir, func(sys *system) {
		sys.sync = func(*os.File) error { return fails }
		sys.syncAll = func(*os.File) error { calls = append(calls, "sync all"); return fails }
		sys.rename = func(from *os.File, name string, to *os.File, base string) error {
			calls = append(calls, base)
			return rename(from, name, to, base)
		}
	})
	first, err := s.Create(ctx, "a", []byte("x"))
	require.NoError(t, err)
	fails = fmt.Errorf("flush: %w", syscall.EIO)
	_, err = s.Create(ctx, "b", []byte("y"))
	require.ErrorIs(t, err, syscall.EIO)
	_, err = s.Head(ctx, "b")
	require.ErrorIs(t, err, blob.ErrNotFound)
	_, err = s.Create(ctx, "a", []byte("x"))
	require.ErrorIs(t, err, syscall.EIO, "nothing is answered before everything is durable again")

	fails, calls = nil, nil
	_, err = s.Create(ctx, "c", []byte("z"))
	require.NoError(t, err)
	require.Equal(t, []string{"sync all", "a", "sync all", journalName, "c"}, calls)
	require.Equal(t, []string{"c"}, journaled(t, dir, journalName))
	again, err := s.Head(ctx, "a")
	require.NoError(t, err)
	require.Equal(t, first.Version, again.Version)
}

func TestFailedRenameStartsNewJournal(t *testing.T) {
	ctx, dir := t.Context(), memory(t)
	var fails error
	s := openWith(t, dir, func(sys *system) {
		sys.rename = func(from *os.File, name string, to *os.File, base string) error {
			if fails != nil && base == "b" {
				return fails
			}
			return rename(from, name, to, base)
		}
	})
	_, err := s.Create(ctx, "a", []byte("x"))
	require.NoError(t, err)
	fails = fmt.Errorf("rename: %w", syscall.EACCES)
	_, err = s.Create(ctx, "f/b", []byte("y"))
	require.ErrorIs(t, err, syscall.EACCES)
	require.ErrorContains(t, err, "grant this user read and write permission")
	require.Empty(t, journaled(t, dir, journalName), "a new journal without its record")
	require.NoDirExists(t, filepath.Join(dir, "f"))
	_, err = s.Create(ctx, "c", nil)
	require.NoError(t, err, "other writes are not blocked")
}

func TestOldJournalIsRemovedBeforeRestart(t *testing.T) {
	ctx, dir := t.Context(), memory(t)
	broken := false
	s := openWith(t, dir, func(sys *system) {
		sys.rename = func(from *os.File, name string, to *os.File, base string) error {
			if broken && base == journalName {
				require.NoFileExists(t, own(dir, oldName))
			}
			if broken && base == "b" {
				return syscall.EIO
			}
			return rename(from, name, to, base)
		}
	})
	for i := range 20 {
		_, err := s.Create(ctx, fmt.Sprint(i), make([]byte, 200))
		require.NoError(t, err)
	}
	require.FileExists(t, own(dir, oldName), "the rotation is in progress")
	broken = true
	_, err := s.Create(ctx, "b", nil)
	require.ErrorIs(t, err, syscall.EIO)
	require.Empty(t, journaled(t, dir, journalName), "everything is flushed, and a new journal starts")
}

func TestFailedRotationReplaysJournals(t *testing.T) {
	ctx, dir := t.Context(), memory(t)
	var later []func()
	var fails error
	s := openWith(t, dir, func(sys *system) {
		sys.syncAll = func(*os.File) error { return fails }
		sys.later = func(do func()) { later = append(later, do) }
	})
	for i := range 20 {
		_, err := s.Create(ctx, fmt.Sprint(i), make([]byte, 200))
		require.NoError(t, err)
	}
	fails = syscall.EIO
	later[0]()
	require.FileExists(t, own(dir, oldName))
	require.NoError(t, os.Truncate(filepath.Join(dir, "0"), 0)) // as if the disk lacked the content
	fails = nil
	_, err := s.Create(ctx, "k", nil)
	require.NoError(t, err)
	require.NoFileExists(t, own(dir, oldName))
	data, _, err := s.Get(ctx, "0")
	require.NoError(t, err)
	require.Len(t, data, 200, "restored")
}

func TestTwoStoresShareJournal(t *testing.T) {
	ctx, dir := t.Context(), memory(t)
	stores := []*Store{openWith(t, dir, unchanged), openWith(t, dir, unchanged)}
	stores[1].stamps.now = func() time.Time { return time.Unix(1, 0) } // a clock that is behind
	last := int64(0)
	for i := range 6 {
		o, err := stores[i%2].Create(ctx, fmt.Sprint(i), nil)
		require.NoError(t, err)
		require.Greater(t, o.Version, last, "versions increase across processes")
		last = o.Version
	}
	require.Equal(t, []string{"0", "1", "2", "3", "4", "5"}, journaled(t, dir, journalName))
}

func TestDeadWriterLeavesNoRecord(t *testing.T) {
	ctx, dir := t.Context(), memory(t)
	s := openWith(t, dir, unchanged)
	_, err := s.Create(ctx, "a", []byte("x"))
	require.NoError(t, err)
	// A process dies while it holds the lock and has written half of its record.
	require.NoError(t, s.writes.holding(func() error {
		c := &change{key: "b", content: &temp{store: s, size: 1, data: []byte("y")}, version: s.journal.status.last + 1}
		r := c.record()
		b, _ := r.append(nil, s.journal.status.chain)
		_, err := s.journal.file.WriteAt(b[:len(b)/2], s.journal.status.end)
		next := s.journal.status
		next.mark = busy
		return errors.Join(err, next.save(s.writes.file))
	}))
	again := openWith(t, dir, unchanged)
	require.Empty(t, journaled(t, dir, journalName), "files are flushed, and a new journal starts")
	for i, store := range []*Store{s, again} {
		_, err := store.Create(ctx, fmt.Sprint(i), nil)
		require.NoError(t, err)
	}
	require.Equal(t, []string{"0", "1"}, journaled(t, dir, journalName))
	data, _, err := s.Get(ctx, "a")
	require.NoError(t, err)
	require.Equal(t, "x", string(data))
}

func TestLongJournalIsRotated(t *testing.T) {
	ctx, dir := t.Context(), memory(t)
	flushes := 0
	var later []func()
	s := openWith(t, dir, func(sys *system) {
		sys.syncAll = func(*os.File) error { flushes++; return nil }
		sys.later = func(do func()) { later = append(later, do) }
	})
	fill := func(store *Store, from int) {
		for i := range 20 {
			_, err := store.Create(ctx, fmt.Sprint(from+i), make([]byte, 200))
			require.NoError(t, err)
		}
	}
	fill(s, 0)
	require.Len(t, later, 1, "one at a time")
	require.Zero(t, flushes)
	old, now := journaled(t, dir, oldName), journaled(t, dir, journalName)
	require.Len(t, append(old, now...), 20)

	other := openWith(t, dir, func(sys *system) { sys.later = func(func()) { t.Error("the other store is flushing") } })
	other.limits.rest = math.MaxInt64
	fill(other, 20)
	require.FileExists(t, own(dir, oldName))

	later[0]()
	require.Equal(t, 1, flushes)
	require.NoFileExists(t, own(dir, oldName))
	fill(s, 40)
	require.Len(t, later, 2, "the next rotation")
	require.Contains(t, journaled(t, dir, oldName), "39", "the other store's files are flushed too")
	later[1]()
}

func TestCloseRotatesLongJournal(t *testing.T) {
	for objects, left := range map[int]int{2: 2, 6: 0} {
		ctx, dir := t.Context(), memory(t)
		s, err := open(dir, Options{Now: clock.System{}.Now}, testLimits, nil)
		require.NoError(t, err)
		for i := range objects {
			_, err := s.Create(ctx, fmt.Sprint(i), make([]byte, testLimits.inline))
			require.NoError(t, err)
		}
		require.Len(t, journaled(t, dir, journalName), objects)
		require.NoError(t, s.Close())
		require.NoFileExists(t, own(dir, oldName), "Close waits for the flush")
		require.Len(t, journaled(t, dir, journalName), left)

		again, err := Open(dir, Options{Read: true})
		require.NoError(t, err)
		data, _, err := again.Get(ctx, "0")
		require.NoError(t, err)
		require.Len(t, data, int(testLimits.inline))
		require.NoError(t, again.Close())
	}
}

func TestRotationOfDeadProcessIsFinished(t *testing.T) {
	ctx, dir := t.Context(), memory(t)
	flushes := 0
	var later []func()
	s := openWith(t, dir, func(sys *system) {
		sys.syncAll = func(*os.File) error { flushes++; return nil }
		sys.later = func(do func()) { later = append(later, do) }
	})
	require.NoError(t, os.WriteFile(own(dir, oldName), mustRead(t, own(dir, journalName)), 0o600))
	dead, err := os.Open(own(dir, oldName))
	require.NoError(t, err)
	require.NoError(t, flock(dead, unix.LOCK_EX))
	fill := func(from int) {
		for i := range 20 {
			_, err := s.Create(ctx, fmt.Sprint(from+i), make([]byte, 200))
			require.NoError(t, err)
		}
	}
	fill(0)
	require.False(t, s.journal.rotating, "another process is flushing")
	require.NoError(t, dead.Close())
	require.Empty(t, later)
	fill(20)
	require.Len(t, later, 1)
	later[0]()
	require.Equal(t, 1, flushes)
	require.NoFileExists(t, own(dir, oldName))
}

func mustRead(t *testing.T, file string) []byte {
	t.Helper()
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	return data
}

func TestRestartReplaysJournal(t *testing.T) {
	ctx, dir := t.Context(), memory(t)
	s := openWith(t, dir, unchanged)
	long := strings.Repeat("long", 100) // too large for the journal
	objects := map[string]blob.Object{}
	for key, content := range map[string]string{"f/lost": "x", "torn": "whole", "deleted": "y", "large": long} {
		o, err := s.Create(ctx, key, []byte(content))
		require.NoError(t, err)
		objects[key] = o
	}
	require.NoError(t, s.Delete(ctx, "deleted"))

	require.NoError(t, os.RemoveAll(filepath.Join(dir, "f")))
	require.NoError(t, os.Truncate(filepath.Join(dir, "torn"), 2))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "deleted"), []byte("y"), 0o600))
	again := openWith(t, dir, withBoot("another"))
	require.Empty(t, journaled(t, dir, journalName))
	for key, content := range map[string]string{"f/lost": "x", "torn": "whole", "large": long} {
		data, o, err := again.Get(ctx, key)
		require.NoError(t, err, key)
		require.Equal(t, content, string(data), key)
		require.Equal(t, objects[key].Version, o.Version, key)
	}
	_, err := again.Head(ctx, "deleted")
	require.ErrorIs(t, err, blob.ErrNotFound)
	again.stamps.now = func() time.Time { return time.Unix(1, 0) }
	o, err := again.Create(ctx, "deleted", nil)
	require.NoError(t, err)
	require.Greater(t, o.Version, objects["deleted"].Version, "even though the clock went back")
}

func TestMissingLargeObjectRestoresPrevious(t *testing.T) {
	ctx, dir := t.Context(), memory(t)
	s := openWith(t, dir, unchanged)
	_, err := s.Create(ctx, "k", []byte("small"))
	require.NoError(t, err)
	large, err := s.Put(ctx, "k", bytes.Repeat([]byte("x"), 400))
	require.NoError(t, err)
	_, err = s.Put(ctx, "absent", bytes.Repeat([]byte("x"), 400))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "k"), bytes.Repeat([]byte("y"), 400), 0o600))
	require.NoError(t, os.Chtimes(filepath.Join(dir, "k"), large.Updated, large.Updated), "only the content differs")
	require.NoError(t, os.Remove(filepath.Join(dir, "absent")))
	again := openWith(t, dir, withBoot("another"))
	data, _, err := again.Get(ctx, "k")
	require.NoError(t, err)
	require.Equal(t, "small", string(data))
	_, err = again.Head(ctx, "absent")
	require.ErrorIs(t, err, blob.ErrNotFound)
}

func TestReplayResolvesFileAndFolderConflict(t *testing.T) {
	for _, row := range []struct{ records, want []string }{
		{[]string{"a/b", "a"}, []string{"a"}},
		{[]string{"a", "a/b/c"}, []string{"a/b/c"}},
		{[]string{"a/b", "-a/b", "a"}, []string{"a"}},
		{[]string{"a/b/c", "a/b", "a"}, []string{"a"}},
		{[]string{"a", "a/b", "a/b/c"}, []string{"a/b/c"}},
		{[]string{"a", "a/b", "-a/b"}, []string{"a"}},
		{[]string{"a", "ab/c"}, []string{"a", "ab/c"}},
	} {
		f := &journalState{objects: map[string][]version{}}
		for _, key := range row.records {
			if name, removed := strings.CutPrefix(key, "-"); removed {
				f.add(record{kind: kindRemove, key: name}, nil, 0)
			} else {
				f.add(record{kind: kindSet, key: key}, nil, 0)
			}
		}
		f.resolveConflicts()
		var kept []string
		for _, key := range f.keys() {
			if versions := f.objects[key]; versions[len(versions)-1].kind == kindSet {
				kept = append(kept, key)
			}
		}
		require.Equal(t, row.want, kept, "%q", row.records)
	}
}

func TestUnreadableJournalIsKept(t *testing.T) {
	dir := memory(t)
	require.NoError(t, openWith(t, dir, unchanged).Delete(t.Context(), "k"))
	require.NoError(t, os.WriteFile(own(dir, journalName), []byte("servolg2, of a later build"), 0o600))
	require.NoError(t, os.Remove(own(dir, "lock")))
	_, err := Open(dir, Options{})
	require.ErrorContains(t, err, own(dir, journalName))
	require.ErrorContains(t, err, "use a version of Servo that can read it")
	require.FileExists(t, own(dir, journalName))
}

func TestSweepKeepsJournal(t *testing.T) {
	ctx, dir := t.Context(), memory(t)
	s := openWith(t, dir, unchanged)
	_, err := s.Create(ctx, "k", []byte("x"))
	require.NoError(t, err)
	s.stamps.now = func() time.Time { return clock.System{}.Now().Add(100 * time.Hour) }
	require.NoError(t, s.sweep())
	require.Equal(t, []string{"k"}, journaled(t, dir, journalName))
}

func TestDamagedStatusIsIgnored(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "lock"))
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	got, err := loadStatus(f)
	require.NoError(t, err)
	require.Zero(t, got)
	want := status{mark: busy, log: 1 << 63, end: 77, chain: 0xffffffff, last: 1 << 62}
	require.NoError(t, want.save(f))
	got, err = loadStatus(f)
	require.NoError(t, err)
	require.Equal(t, want, got)
	for i := range statusBytes {
		b := mustRead(t, f.Name())
		b[i] ^= 1
		_, err := f.WriteAt(b, 0)
		require.NoError(t, err)
		got, err = loadStatus(f)
		require.NoError(t, err)
		require.Zero(t, got, "byte %d", i)
		require.NoError(t, want.save(f))
	}
}

// FuzzScanner reads arbitrary bytes as a journal. The scanner must end, read no more than
// the input, and return records that encode to the same bytes.
func FuzzScanner(f *testing.F) {
	h := header{boot: "boot", id: 7, last: 9}
	b, chain := h.encode()
	f.Add(b)
	for _, r := range []record{
		{kind: kindSet, key: "a/b", size: 3, crc: blob.CRC32C([]byte("abc")), version: 10, data: []byte("abc")},
		{kind: kindFile, key: "large", size: 1 << 30, crc: 5, version: 11},
		{kind: kindRemove, key: "a/b"},
		{kind: kindSet, key: "empty", version: 12},
	} {
		b, chain = r.append(b, chain)
		f.Add(bytes.Clone(b))
	}
	f.Add(append(bytes.Clone(b), make([]byte, 100)...))
	f.Add(b[:len(b)-1])
	r := record{kind: 9, key: "of a later build", version: 1}
	b, _ = r.append(b, chain)
	f.Add(b)
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := newScanner(bytes.NewReader(data))
		if err != nil {
			return
		}
		again, chain := s.encode()
		for {
			r, at, err := s.next()
			if err != nil {
				break
			}
			again, chain = r.append(again, chain)
			require.EqualValues(t, s.end-int64(len(r.data)), at)
		}
		require.LessOrEqual(t, s.end, int64(len(data)))
		require.True(t, bytes.Equal(again[headerBytes:], data[headerBytes:s.end]))
	})
}

func TestScannerStopsBeforeDamage(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	h := header{boot: "boot", id: random.Uint64()}
	b, chain := h.encode()
	ends := []int{len(b)}
	for i := range 20 {
		data := make([]byte, random.IntN(50))
		r := record{kind: kindSet, key: fmt.Sprint("k", i), size: int64(len(data)), crc: blob.CRC32C(data), version: 1, data: data}
		b, chain = r.append(b, chain)
		ends = append(ends, len(b))
	}
	read := func(b []byte) (count int) {
		s, err := newScanner(bytes.NewReader(b))
		require.NoError(t, err)
		for {
			if _, _, err := s.next(); err != nil {
				require.ErrorIs(t, err, io.EOF)
				return count
			}
			count++
		}
	}
	require.Equal(t, 20, read(b))
	for i := headerBytes; i < len(b); i++ {
		whole := 0
		for ends[whole+1] <= i {
			whole++
		}
		damaged := bytes.Clone(b)
		damaged[i] ^= 1 << random.IntN(8)
		if damaged[i] != 0 || b[i] != 0 {
			require.Equal(t, whole, read(damaged), "byte %d", i)
		}
		require.Equal(t, whole, read(b[:i]), "rotate at byte %d", i)
	}
}
