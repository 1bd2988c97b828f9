package fileblob

import (
	"crypto/rand"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"syscall"
)

// version is the state of an object after one record. Content that is in the journal is read only when the object is
// restored.
type version struct {
	record
	log *os.File
	at  int64
	seq int
}

// journalState is the state of the objects according to the journals. For each key it contains the versions that may
// be needed: the last version and, if that version may not be on the disk, the earlier versions that it replaced.
type journalState struct {
	objects map[string][]version
	last    int64 // the greatest version
	seq     int
}

func readLogs(logs logs) (*journalState, error) {
	f := &journalState{objects: map[string][]version{}}
	for _, l := range logs {
		end := l.end
		if end == 0 {
			end = 1 << 62
		}
		scan, err := newScanner(io.NewSectionReader(l.file, 0, end))
		for err == nil {
			var r record
			var at int64
			if r, at, err = scan.next(); err == nil {
				f.add(r, l.file, at)
			}
		}
		if !errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("read journal %s: %w", l.file.Name(), err)
		}
		f.last = max(f.last, l.header.last)
	}
	f.resolveConflicts()
	return f, nil
}

func (f *journalState) add(r record, log *os.File, at int64) {
	f.seq++
	r.data = nil
	v := version{record: r, log: log, at: at, seq: f.seq}
	f.last = max(f.last, r.version)
	if r.kind == kindFile {
		f.objects[r.key] = append(f.objects[r.key], v)
		return
	}
	f.objects[r.key] = []version{v}
}

// resolveConflicts drops each object that conflicts with an object that was recorded later. Two objects conflict if the
// key of one is a folder of the other's key. The dropped object never existed under its name, because the process died
// first. Otherwise, the later write would have been refused.
func (f *journalState) resolveConflicts() {
	for key, versions := range f.objects {
		below := &versions[len(versions)-1]
		for d := path.Dir(key); d != "." && below.kind != kindRemove; d = path.Dir(d) {
			if above := f.objects[d]; len(above) > 0 && above[len(above)-1].kind != kindRemove {
				loser := key
				if above[len(above)-1].seq < below.seq {
					loser = d
				}
				f.objects[loser] = []version{{record: record{kind: kindRemove, key: loser}}}
				below = &f.objects[key][len(f.objects[key])-1]
			}
		}
	}
}

// keys returns the keys of all objects, removed ones first.
func (f *journalState) keys() []string {
	var removed, kept []string
	for _, key := range slices.Sorted(maps.Keys(f.objects)) {
		if versions := f.objects[key]; versions[len(versions)-1].kind == kindRemove {
			removed = append(removed, key)
		} else {
			kept = append(kept, key)
		}
	}
	return append(removed, kept...)
}

// replay restores the files from the journals. It is idempotent.
func (s *Store) replay(f *journalState) error {
	for _, key := range f.keys() {
		if err := s.restore(key, f.objects[key]); err != nil {
			return fmt.Errorf("restore object %q in file %s from the journal: %w", key, s.file(key), err)
		}
	}
	return nil
}

// restore restores an object to the last version that is available. A version is unavailable if its content was too
// large for the journal and is not on the disk. Such a write was never acknowledged, because large content is flushed
// to the disk before the write is acknowledged.
func (s *Store) restore(key string, versions []version) error {
	for _, v := range slices.Backward(versions) {
		switch v.kind {
		case kindSet:
			return s.rewrite(v)
		case kindRemove:
			return s.erase(key)
		case kindFile:
			if is, err := s.isFile(v); is || err != nil {
				return err
			}
		}
	}
	return nil // the file is older than the journal
}

// rewrite writes an object from the journal, because its file may be incomplete.
func (s *Store) rewrite(v version) (err error) {
	t := &temp{store: s, name: rand.Text(), size: v.size}
	defer t.discard()
	err = t.write(func(f *os.File) error {
		n, err := io.Copy(f, io.NewSectionReader(v.log, v.at, v.size))
		if err == nil && n != v.size {
			err = io.ErrUnexpectedEOF
		}
		return err
	})
	if err != nil {
		return err
	}
	if err := s.stamp(t.name, v.version); err != nil {
		return err
	}
	folder, err := s.makeFolder(path.Dir(v.key))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, folder.Close()) }()
	if err := s.sys.rename(s.temps, t.name, folder, path.Base(v.key)); err != nil {
		return err
	}
	t.placed = true
	return nil
}

func (s *Store) erase(key string) error {
	folder, err := s.openFolder(path.Dir(key))
	if err == nil {
		c := &change{key: key, folder: folder}
		var old existing
		if old, err = s.look(c); err == nil && old.exists && !old.isFolder {
			err = s.name(c)
		}
		err = errors.Join(err, folder.Close())
	}
	if err != nil && !isAbsent(err) {
		return err
	}
	s.prune(key)
	return nil
}

// isFile reports whether the file on the disk is this version.
func (s *Store) isFile(v version) (is bool, err error) {
	f, err := s.root.OpenFile(v.key, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		if isAbsent(err) {
			err = nil
		}
		return false, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Size() != v.size || info.ModTime().UnixNano() != v.version {
		return false, err
	}
	sum := crc32.New(castagnoli)
	if _, err := io.Copy(sum, f); err != nil {
		return false, err
	}
	return sum.Sum32() == v.crc, nil
}
