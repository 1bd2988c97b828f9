package fileblob

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/clock"
)

// crashTest runs two stores on one directory. The stores execute one operation at a time. The test kills them,
// injects errors, and simulates power losses.
type crashTest struct {
	t      *testing.T
	random *rand.Rand
	disk   *disk
	all    bool // the system has syncAll
	stores [2]*Store
	later  [2][]func()
	steps  int

	acked map[string]image
	// pending contains the possible images of each key whose content is unknown, because its last operation is running
	// or has failed.
	pending   map[string][]image
	snapshots []snapshot
}

// snapshot is a directory as a crash left it, and the contents that a store may find there.
type snapshot struct {
	dir, boot, what string
	acked           map[string]image
	pending         map[string][]image
}

var testLimits = limits{inline: 300, rotate: 2500, rest: 1000, ahead: 700}

func newCrashTest(t *testing.T, seed uint64) *crashTest {
	t.Helper()
	random := rand.New(rand.NewPCG(seed, 0))
	w := &crashTest{
		t: t, random: random, all: random.IntN(3) > 0, disk: newDisk(memory(t), random),
		acked: map[string]image{}, pending: map[string][]image{},
	}
	return w
}

func (w *crashTest) open(i int) {
	w.t.Helper()
	sys := w.disk.system("this boot", &w.later[i])
	if !w.all {
		sys.syncAll = nil
	}
	s, err := open(w.disk.dir, Options{Now: clock.System{}.Now}, testLimits, sys)
	require.NoError(w.t, err)
	w.stores[i] = s
}

// runLater runs the background work of a store.
func (w *crashTest) runLater(i int) {
	tasks := w.later[i]
	w.later[i] = nil
	for _, task := range tasks {
		task()
	}
}

// step executes one operation of one store. At one of the system calls, it takes a snapshot, kills the store or
// returns an error.
func (w *crashTest) step() {
	w.t.Helper()
	w.steps++
	i := w.random.IntN(2)
	if w.stores[i] == nil {
		w.open(i)
		w.resolve()
	}
	d := w.disk
	d.look()
	d.in, d.fate = 1+w.random.IntN(12), []fate{nothing, takeSnapshot, takeSnapshot, takeSnapshot, kill, fail}[w.random.IntN(6)]
	d.err = []error{syscall.EIO, syscall.ENOSPC}[w.random.IntN(2)]
	op := w.draw()
	d.snapshot = func() { w.takeSnapshots(op.what) }
	died, err := w.run(i, op)
	d.in, d.fate = 0, nothing
	switch {
	case died:
		w.reap(i)
	case err == nil, errors.Is(err, blob.ErrExists), errors.Is(err, blob.ErrMismatch):
		w.resolve()
	default:
		require.True(w.t, errors.Is(err, d.err), "step %d: %v", w.steps, err)
	}
	if w.random.IntN(2) == 0 {
		w.takeSnapshots(fmt.Sprintf("after step %d, %s: %v, died %v", w.steps, op.what, err, died))
	}
	if w.random.IntN(3) == 0 {
		if d.in = 1; w.random.IntN(3) == 0 {
			d.fate = fail
		}
		w.runLater(w.random.IntN(2))
		d.in, d.fate = 0, nothing
	}
	if i := w.random.IntN(8); i < 2 && w.stores[i] != nil {
		w.close(i)
	}
}

func (w *crashTest) close(i int) {
	w.t.Helper()
	w.runLater(i)
	require.NoError(w.t, w.stores[i].Close())
	w.stores[i] = nil
}

// reap closes the files of a killed process.
func (w *crashTest) reap(i int) {
	s := w.stores[i]
	w.stores[i] = nil
	for _, task := range w.later[i] {
		w.disk.in, w.disk.fate = 1, kill
		done := make(chan struct{})
		go func() {
			defer close(done)
			task()
		}()
		<-done
	}
	w.later[i] = nil
	_ = s.journal.close()
	_ = errors.Join(s.writes.close(), s.temps.Close(), s.dirFile.Close(), s.root.Close())
}

// run executes an operation in a goroutine, which may be killed.
func (w *crashTest) run(i int, op operation) (died bool, err error) {
	w.pending[op.key] = append(w.pending[op.key], op.outcome)
	died = true
	done := make(chan struct{})
	go func() {
		defer close(done)
		err = op.do(w.t.Context(), w.stores[i])
		died = false
	}()
	<-done
	return died, err
}

// resolve makes the current contents the only allowed ones. It is called when an operation has returned a known
// outcome, because the outcomes of all earlier operations are then known, too.
func (w *crashTest) resolve() {
	w.t.Helper()
	requireAllowed(w.t, w.disk.dir, w.acked, w.pending, fmt.Sprintf("step %d", w.steps))
	clear(w.acked)
	clear(w.pending)
	for _, key := range testKeys {
		if i := read(w.t, w.disk.dir, key); i.data != nil {
			w.acked[key] = i
		}
	}
}

func (w *crashTest) takeSnapshots(what string) {
	take := func(dir, boot, how string) {
		p := snapshot{dir: dir, boot: boot, what: fmt.Sprintf("step %d: %s: %s", w.steps, what, how), acked: maps.Clone(w.acked), pending: map[string][]image{}}
		for k, i := range w.pending {
			p.pending[k] = slices.Clone(i)
		}
		w.snapshots = append(w.snapshots, p)
	}
	take(w.disk.afterPowerLoss(w.t), "another boot", "power was lost")
	if w.random.IntN(3) == 0 {
		take(w.disk.afterKill(w.t), []string{"this boot", "another boot"}[w.random.IntN(2)], "killed")
	}
}

// checkSnapshots opens the directory that each crash left, and checks that its contents are allowed.
func (w *crashTest) checkSnapshots() {
	w.t.Helper()
	for _, p := range w.snapshots {
		var later []func()
		d := newDisk(p.dir, w.random)
		s, err := open(p.dir, Options{Now: clock.System{}.Now}, testLimits, d.system(p.boot, &later))
		require.NoError(w.t, err, p.what)
		requireAllowed(w.t, p.dir, p.acked, p.pending, p.what)
		require.NoError(w.t, s.Close())
		require.NoError(w.t, os.RemoveAll(p.dir))
	}
	w.snapshots = nil
}

type operation struct {
	what    string
	key     string
	outcome image
	do      func(ctx context.Context, s *Store) error
}

var testKeys = []string{"a", "b", "f/a", "f/b", "f/g/a", "h/a"}

func (w *crashTest) draw() operation {
	key := testKeys[w.random.IntN(len(testKeys))]
	size := w.random.IntN(200)
	if w.random.IntN(6) == 0 {
		size = 300 + w.random.IntN(400)
	}
	data := bytes.Repeat([]byte{byte(w.random.IntN(256))}, size)
	data = fmt.Appendf(data, "%d", w.steps)
	op := operation{key: key, outcome: image{data: data}}
	was := read(w.t, w.disk.dir, key)
	if was.data != nil && w.random.IntN(2) == 0 {
		op.what = "delete"
		op.outcome = image{}
		op.do = func(ctx context.Context, s *Store) error { return s.Delete(ctx, key) }
		return op
	}
	switch w.random.IntN(4) {
	case 0:
		op.what = "create"
		op.do = func(ctx context.Context, s *Store) error { _, err := s.Create(ctx, key, data); return err }
	case 1:
		op.what = "create from"
		op.do = func(ctx context.Context, s *Store) error {
			_, err := s.CreateFrom(ctx, key, bytes.NewReader(data))
			return err
		}
	case 2:
		op.what = "put"
		op.do = func(ctx context.Context, s *Store) error { _, err := s.Put(ctx, key, data); return err }
	case 3:
		op.what = "replace"
		op.do = func(ctx context.Context, s *Store) error {
			_, err := s.Replace(ctx, key, data, was.version)
			return err
		}
	}
	op.what = fmt.Sprintf("%s %s, %d bytes", op.what, key, len(data))
	return op
}

func read(t *testing.T, dir, key string) image {
	t.Helper()
	root, err := os.OpenRoot(dir)
	require.NoError(t, err)
	defer func() { require.NoError(t, root.Close()) }()
	data, err := root.ReadFile(key)
	if err != nil {
		require.True(t, isAbsent(err), "%v", err)
		return image{}
	}
	info, err := root.Stat(key)
	require.NoError(t, err)
	return image{data: append([]byte{}, data...), version: info.ModTime().UnixNano()}
}

// requireAllowed checks that each object has the content that was acknowledged last, or the content of a later
// operation with an unknown outcome.
func requireAllowed(t *testing.T, dir string, acked map[string]image, pending map[string][]image, what string) {
	t.Helper()
	for _, key := range testKeys {
		is, was := read(t, dir, key), acked[key]
		if is.data == nil && was.data == nil || is.data != nil && was.data != nil && bytes.Equal(is.data, was.data) {
			require.Equal(t, was.version, is.version, "%s: version of %s", what, key)
			continue
		}
		require.True(t, slices.ContainsFunc(pending[key], func(p image) bool {
			return (p.data == nil) == (is.data == nil) && bytes.Equal(p.data, is.data)
		}), "%s: %s is %s, was %s, and none of %d open outcomes", what, key, short(is), short(was), len(pending[key]))
		require.True(t, is.data == nil || is.version > was.version, "%s: versions of %s grow", what, key)
	}
}

// memory returns a directory in memory, if the system supports that.
func memory(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "fileblob") //nolint:usetesting // t.TempDir may lie on a disk
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}

func short(i image) string { return fmt.Sprintf("%.20x…, %d bytes", i.data, len(i.data)) }

// Acknowledged writes survive kills, failed flushes, a full disk, and power loss at any
// moment. Other writes are visible as a whole or not at all.
func TestAcknowledgedWritesSurviveCrashes(t *testing.T) {
	seeds := 16
	if testing.Short() {
		seeds = 4
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			w := newCrashTest(t, uint64(seed))
			for range 40 {
				w.step()
				w.checkSnapshots()
			}
			for i, s := range w.stores {
				if s != nil {
					w.close(i)
				}
			}
		})
	}
}
