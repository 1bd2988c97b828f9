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

// world is two stores on one folder, which do one operation at a time, are
// killed, fail, and lose their power.
type world struct {
	t      *testing.T
	random *rand.Rand
	disk   *disk
	all    bool // syncAll is to be had
	stores [2]*Store
	later  [2][]func()
	steps  int

	acked map[string]image
	// pending are outcomes that are not known: of the operation under way, or of
	// one that failed.
	pending map[string][]image
	photos  []photo
}

// photo is a folder as a crash left it, and what may be in it.
type photo struct {
	dir, boot, what string
	acked           map[string]image
	pending         map[string][]image
}

var testLimits = limits{inline: 300, cut: 2500, ahead: 700}

func newWorld(t *testing.T, seed uint64) *world {
	t.Helper()
	random := rand.New(rand.NewPCG(seed, 0))
	w := &world{
		t: t, random: random, all: random.IntN(3) > 0, disk: newDisk(memory(t), random),
		acked: map[string]image{}, pending: map[string][]image{},
	}
	return w
}

func (w *world) open(i int) {
	w.t.Helper()
	sys := w.disk.system("this boot", &w.later[i])
	if !w.all {
		sys.syncAll = nil
	}
	s, err := open(w.disk.dir, Options{Now: clock.System{}.Now}, testLimits, sys)
	require.NoError(w.t, err)
	w.stores[i] = s
}

// runLater runs what a store left for later.
func (w *world) runLater(i int) {
	tasks := w.later[i]
	w.later[i] = nil
	for _, task := range tasks {
		task()
	}
}

// step is one operation of one store, and a fate at one of its system calls.
func (w *world) step() {
	w.t.Helper()
	w.steps++
	i := w.random.IntN(2)
	if w.stores[i] == nil {
		w.open(i)
		w.resolve()
	}
	d := w.disk
	d.look()
	d.in, d.fate = 1+w.random.IntN(12), []fate{nothing, photograph, photograph, photograph, kill, fail}[w.random.IntN(6)]
	d.err = []error{syscall.EIO, syscall.ENOSPC}[w.random.IntN(2)]
	op := w.draw()
	d.photo = func() { w.takePhotos(op.what) }
	died, err := w.run(i, op)
	d.in, d.fate = 0, nothing
	switch {
	case died:
		w.bury(i)
	case err == nil, errors.Is(err, blob.ErrExists), errors.Is(err, blob.ErrMismatch):
		w.resolve()
	default:
		require.True(w.t, errors.Is(err, d.err), "step %d: %v", w.steps, err)
	}
	if w.random.IntN(2) == 0 {
		w.takePhotos(fmt.Sprintf("after step %d, %s: %v, died %v", w.steps, op.what, err, died))
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

func (w *world) close(i int) {
	w.t.Helper()
	w.runLater(i)
	require.NoError(w.t, w.stores[i].Close())
	w.stores[i] = nil
}

// bury gives back what a killed process held.
func (w *world) bury(i int) {
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

// run runs an operation in a goroutine, which may be killed.
func (w *world) run(i int, op operation) (died bool, err error) {
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

// resolve takes over what the folder is as what it must stay: an operation was
// answered, so nothing that came before it is open any more.
func (w *world) resolve() {
	w.t.Helper()
	requireAllowed(w.t, w.disk.dir, w.acked, w.pending, fmt.Sprintf("step %d", w.steps))
	clear(w.acked)
	clear(w.pending)
	for _, key := range worldKeys {
		if i := read(w.t, w.disk.dir, key); i.data != nil {
			w.acked[key] = i
		}
	}
}

func (w *world) takePhotos(what string) {
	take := func(dir, boot, how string) {
		p := photo{dir: dir, boot: boot, what: fmt.Sprintf("step %d: %s: %s", w.steps, what, how), acked: maps.Clone(w.acked), pending: map[string][]image{}}
		for k, i := range w.pending {
			p.pending[k] = slices.Clone(i)
		}
		w.photos = append(w.photos, p)
	}
	take(w.disk.afterPowerLoss(w.t), "another boot", "power was lost")
	if w.random.IntN(3) == 0 {
		take(w.disk.afterKill(w.t), []string{"this boot", "another boot"}[w.random.IntN(2)], "killed")
	}
}

// develop opens what a crash left, and looks whether it is what it may be.
func (w *world) develop() {
	w.t.Helper()
	for _, p := range w.photos {
		var later []func()
		d := newDisk(p.dir, w.random)
		s, err := open(p.dir, Options{Now: clock.System{}.Now}, testLimits, d.system(p.boot, &later))
		require.NoError(w.t, err, p.what)
		requireAllowed(w.t, p.dir, p.acked, p.pending, p.what)
		require.NoError(w.t, s.Close())
		require.NoError(w.t, os.RemoveAll(p.dir))
	}
	w.photos = nil
}

type operation struct {
	what    string
	key     string
	outcome image
	do      func(ctx context.Context, s *Store) error
}

var worldKeys = []string{"a", "b", "f/a", "f/b", "f/g/a", "h/a"}

func (w *world) draw() operation {
	key := worldKeys[w.random.IntN(len(worldKeys))]
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
			_, err := s.Replace(ctx, key, data, was.generation)
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
	return image{data: append([]byte{}, data...), generation: info.ModTime().UnixNano()}
}

// requireAllowed checks that each object is as it was acknowledged, or as an
// operation wanted it whose outcome is not known.
func requireAllowed(t *testing.T, dir string, acked map[string]image, pending map[string][]image, what string) {
	t.Helper()
	for _, key := range worldKeys {
		is, was := read(t, dir, key), acked[key]
		if is.data == nil && was.data == nil || is.data != nil && was.data != nil && bytes.Equal(is.data, was.data) {
			require.Equal(t, was.generation, is.generation, "%s: generation of %s", what, key)
			continue
		}
		require.True(t, slices.ContainsFunc(pending[key], func(p image) bool {
			return (p.data == nil) == (is.data == nil) && bytes.Equal(p.data, is.data)
		}), "%s: %s is %s, was %s, and none of %d that are open", what, key, short(is), short(was), len(pending[key]))
		require.True(t, is.data == nil || is.generation > was.generation, "%s: generations of %s grow", what, key)
	}
}

// memory is a folder that is fast to change, where the system has one.
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

// What was acknowledged outlives kills, failing flushes, a full disk, and losses
// of power at any moment; what was not is there whole, or not at all.
func TestWhatIsAcknowledgedOutlivesEveryCrash(t *testing.T) {
	worlds := 16
	if testing.Short() {
		worlds = 4
	}
	for seed := range worlds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			w := newWorld(t, uint64(seed))
			for range 40 {
				w.step()
				w.develop()
			}
			for i, s := range w.stores {
				if s != nil {
					w.close(i)
				}
			}
		})
	}
}
