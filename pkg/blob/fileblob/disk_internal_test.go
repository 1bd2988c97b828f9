package fileblob

import (
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/blob"
)

// disk models the contents of a directory after a power loss: everything that was flushed, and any part of the rest.
// It intercepts the system calls of the stores on the directory, one at a time.
type disk struct {
	dir    string
	random *rand.Rand

	objects map[string][]image // the durable image of each key, and its later images
	folders map[string]bool    // the folders that are durable
	flushed map[string]int64   // temporary files with durable content, and their durable modification time
	logs    map[uint64]*logImage
	names   []map[string]uint64 // the durable names of the journals, then each newer set of names

	// fate is what happens at a later system call.
	in       int // number of calls until fate happens
	fate     fate
	snapshot func() // called if fate is takeSnapshot
	err      error  // returned if fate is fail
}

type fate int

const (
	nothing fate = iota
	takeSnapshot
	kill
	fail
)

// image is the object that a key names on the disk.
type image struct {
	data    []byte // nil: no object
	version int64
	durable bool // the content is durable; its name may not be
	// stamped is the modification time that was flushed last, or 0. Setting the time later
	// changes the inode only in memory.
	stamped int64
	// lost is true after a failed flush: from then on the system treats the content as flushed.
	lost bool
}

// flush makes an image durable, unless an earlier flush of it failed.
func (i *image) flush() {
	if !i.lost {
		i.durable, i.stamped = true, i.version
	}
}

type logImage struct{ synced, present []byte }

func newDisk(dir string, random *rand.Rand) *disk {
	return &disk{
		dir: dir, random: random, objects: map[string][]image{}, folders: map[string]bool{},
		flushed: map[string]int64{}, logs: map[uint64]*logImage{}, names: []map[string]uint64{{}},
	}
}

// system returns a store's view of the disk. The store appends its background work to the parameter background, and the
// test runs this work.
func (d *disk) system(boot string, background *[]func()) *system {
	return &system{
		boot:        boot,
		openBeneath: openBeneath,
		write: func(f *os.File, p []byte, off int64) (int, error) {
			if err := d.beforeCall(); err != nil {
				n, _ := f.WriteAt(p[:d.random.IntN(len(p))], off)
				return n, err
			}
			n, err := f.WriteAt(p, off)
			d.look()
			return n, err
		},
		sync: func(f *os.File) error { return d.do(func() error { d.syncedLog(f); return nil }) },
		fsync: func(f *os.File) error {
			if err := d.beforeCall(); err != nil {
				if images := d.objects[d.rel(f)]; len(images) > 0 {
					images[len(images)-1].lost = true
				}
				return err
			}
			d.synced(f)
			return nil
		},
		syncAll: func(*os.File) error {
			if err := d.beforeCall(); err != nil {
				d.loseUnflushed()
				return err
			}
			d.syncedAll()
			return nil
		},
		rename: func(from *os.File, name string, to *os.File, base string) error {
			return d.do(func() error {
				err := rename(from, name, to, base)
				stamped, flushed := d.flushed[name]
				d.named(to, base, flushed, stamped)
				return err
			})
		},
		remove: func(folder *os.File, base string) error {
			return d.do(func() error {
				err := unlink(folder, base, 0)
				d.named(folder, base, false, 0)
				return err
			})
		},
		later: func(do func()) { *background = append(*background, do) },
	}
}

func (d *disk) do(call func() error) error {
	if err := d.beforeCall(); err != nil {
		return err
	}
	return call()
}

// beforeCall is called before each system call. It counts d.in down, and executes the fate when d.in reaches 0.
func (d *disk) beforeCall() error {
	d.look()
	if d.in--; d.in != 0 {
		return nil
	}
	switch d.fate {
	case takeSnapshot:
		d.snapshot()
	case kill:
		runtime.Goexit()
	case fail:
		return d.err
	case nothing:
	}
	return nil
}

// look records the contents of the journals, and forgets folders that were removed.
func (d *disk) look() map[string]uint64 {
	maps.DeleteFunc(d.folders, func(folder string, _ bool) bool {
		_, err := os.Stat(filepath.Join(d.dir, folder))
		return err != nil
	})
	present := map[string]uint64{}
	for _, name := range []string{journalName, oldName} {
		data, err := os.ReadFile(filepath.Join(d.dir, blob.TempPrefix, name))
		if err != nil {
			continue
		}
		h, _, err := decodeHeader(data)
		if err != nil {
			panic(err)
		}
		present[name] = h.id
		if d.logs[h.id] == nil {
			d.logs[h.id] = &logImage{}
		}
		d.logs[h.id].present = data
	}
	return present
}

func (d *disk) isTemps(f *os.File) bool { return filepath.Base(f.Name()) == blob.TempPrefix }

func (d *disk) rel(f *os.File) string {
	rel, err := filepath.Rel(d.dir, f.Name())
	if err != nil {
		panic(err)
	}
	return rel
}

func (d *disk) named(folder *os.File, base string, durable bool, stamped int64) {
	if d.isTemps(folder) {
		d.names = append(d.names, d.look())
		return
	}
	key := path.Join(d.rel(folder), base)
	i := image{durable: durable, stamped: stamped}
	if data, err := os.ReadFile(filepath.Join(d.dir, key)); err == nil {
		info, err := os.Stat(filepath.Join(d.dir, key))
		if err != nil {
			panic(err)
		}
		i.data, i.version = append([]byte{}, data...), info.ModTime().UnixNano()
	}
	if len(d.objects[key]) == 0 {
		d.objects[key] = []image{{durable: true}}
	}
	d.objects[key] = append(d.objects[key], i)
}

func (d *disk) syncedLog(f *os.File) {
	data, err := io.ReadAll(io.NewSectionReader(f, 0, 1<<40))
	if err != nil {
		panic(err)
	}
	h, _, err := decodeHeader(data)
	if err != nil {
		panic(err)
	}
	if d.logs[h.id] == nil {
		d.logs[h.id] = &logImage{present: data}
	}
	d.logs[h.id].synced = data
}

// synced records a flush of one file or folder.
func (d *disk) synced(f *os.File) {
	info, err := f.Stat()
	switch {
	case err != nil:
		panic(err)
	case !info.IsDir() && filepath.Base(filepath.Dir(f.Name())) == blob.TempPrefix:
		d.flushed[filepath.Base(f.Name())] = info.ModTime().UnixNano()
		head := make([]byte, len(logMagic))
		if file, err := os.Open(f.Name()); err == nil {
			if _, err := file.Read(head); err == nil && string(head) == logMagic {
				d.syncedLog(file)
			}
			_ = file.Close()
		}
	case !info.IsDir():
		images := d.objects[d.rel(f)]
		images[len(images)-1].flush()
	case d.isTemps(f):
		d.names = []map[string]uint64{d.look()}
	default:
		d.syncedFolder(d.rel(f))
	}
}

func (d *disk) syncedFolder(folder string) {
	for key, images := range d.objects {
		entry := key
		for path.Dir(entry) != folder && entry != "." {
			entry = path.Dir(entry)
		}
		// The variable entry is the folder's direct entry on the path of the key: an object, or a subfolder. If the subfolder
		// was removed, everything in it was removed too.
		if _, err := os.Stat(filepath.Join(d.dir, entry)); entry == key || err != nil {
			d.objects[key] = images[len(images)-1:]
		}
	}
	entries, err := os.ReadDir(filepath.Join(d.dir, folder))
	if err != nil {
		return
	}
	for _, e := range entries {
		d.folders[path.Join(folder, e.Name())] = true
	}
}

// loseUnflushed records a failed syncAll.
func (d *disk) loseUnflushed() {
	for _, images := range d.objects {
		for n := range images {
			images[n].lost = d.random.IntN(2) == 0
		}
	}
}

func (d *disk) syncedAll() {
	d.names = []map[string]uint64{d.look()}
	for _, log := range d.logs {
		log.synced = log.present
	}
	for key, images := range d.objects {
		images[len(images)-1].flush()
		d.objects[key] = images[len(images)-1:]
	}
	_ = filepath.WalkDir(d.dir, func(p string, e os.DirEntry, err error) error {
		if err == nil && e.IsDir() {
			rel, _ := filepath.Rel(d.dir, p)
			d.folders[rel] = true
		}
		return err
	})
}

// afterPowerLoss returns a directory as a power loss could leave it now.
func (d *disk) afterPowerLoss(t *testing.T) string {
	t.Helper()
	dir := memory(t)
	temps := filepath.Join(dir, blob.TempPrefix)
	require.NoError(t, os.Mkdir(temps, 0o755))
	d.look()
	for name, id := range d.names[d.random.IntN(len(d.names))] {
		require.NoError(t, os.WriteFile(filepath.Join(temps, name), d.torn(d.logs[id]), 0o600))
	}
	if d.random.IntN(2) == 0 {
		status, err := os.ReadFile(filepath.Join(d.dir, blob.TempPrefix, "lock"))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(temps, "lock"), status, 0o600))
	}
	lost := map[string]bool{}
	for _, key := range slices.Sorted(maps.Keys(d.objects)) {
		images := d.objects[key]
		i := images[d.random.IntN(len(images))]
		gone := i.data == nil
		for f := path.Dir(key); f != "."; f = path.Dir(f) {
			if _, drawn := lost[f]; !drawn {
				lost[f] = !d.folders[f] && d.random.IntN(2) == 0
			}
			gone = gone || lost[f]
		}
		file := filepath.Join(dir, key)
		if gone {
			if d.random.IntN(2) == 0 {
				require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
			}
			continue
		}
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		data := i.data
		if !i.durable {
			data = d.damaged(data)
		}
		require.NoError(t, os.WriteFile(file, data, 0o600))
		stamp := time.Unix(0, i.version)
		if i.stamped != i.version && d.random.IntN(2) == 0 {
			stamp = time.Unix(0, i.stamped)
		}
		require.NoError(t, os.Chtimes(file, stamp, stamp))
	}
	return dir
}

// torn returns a journal in which each sector that was not flushed may be missing.
func (d *disk) torn(log *logImage) []byte {
	torn := append([]byte{}, log.present...)
	for from := 0; from < len(torn); from += 64 {
		to := min(from+64, len(torn))
		was := make([]byte, to-from)
		if from < len(log.synced) {
			copy(was, log.synced[from:])
		}
		if d.random.IntN(2) == 0 {
			copy(torn[from:], was)
		}
	}
	if size := len(log.synced); len(torn) > size && d.random.IntN(2) == 0 {
		torn = torn[:size+d.random.IntN(len(torn)-size)]
	}
	return torn
}

func (d *disk) damaged(data []byte) []byte {
	switch d.random.IntN(4) {
	case 0:
		return data
	case 1:
		return nil
	case 2:
		return make([]byte, len(data))
	}
	return data[:d.random.IntN(len(data)+1)]
}

// afterKill returns a copy of the directory after a process was killed.
func (d *disk) afterKill(t *testing.T) string {
	t.Helper()
	dir := memory(t)
	require.NoError(t, os.CopyFS(dir, os.DirFS(d.dir)))
	for key, images := range d.objects {
		if i := images[len(images)-1]; i.data != nil {
			stamp := time.Unix(0, i.version)
			require.NoError(t, os.Chtimes(filepath.Join(dir, key), stamp, stamp))
		}
	}
	return dir
}
