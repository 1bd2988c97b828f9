package fileblob

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"hash/crc32"
	"io"
	"os"
	"path"

	"github.com/servo-orchestration/servo/pkg/blob"
)

// temp is content in a file that has no key yet.
type temp struct {
	store *Store
	name  string // in the folder of temporary files
	size  int64
	crc   uint32
	// data is the content for the journal; nil if it is too large for that, and
	// on the disk instead.
	data []byte
	// placed: the file has got its key, and no temporary name any more.
	placed bool
}

func (t *temp) isLarge() bool { return t.size > t.store.limits.inline }

// stage writes content to a temporary file.
func (s *Store) stage(data []byte) (*temp, error) {
	t := &temp{store: s, name: rand.Text(), size: int64(len(data)), crc: blob.CRC32C(data), data: data}
	return t, t.write(func(f *os.File) error {
		_, err := f.Write(data)
		return err
	})
}

// stageFrom is stage for a stream, of which it keeps what may go to the journal.
func (s *Store) stageFrom(r io.Reader) (*temp, error) {
	t := &temp{store: s, name: rand.Text()}
	sum, kept := crc32.New(castagnoli), &prefix{limit: int(s.limits.inline)}
	return t, t.write(func(f *os.File) (err error) {
		t.size, err = io.Copy(io.MultiWriter(f, sum, kept), r)
		t.crc, t.data = sum.Sum32(), kept.Bytes()
		return err
	})
}

// write makes the file. If that fails, nothing is left of it.
func (t *temp) write(fill func(f *os.File) error) error {
	f, err := create(t.store.temps, t.name)
	if err != nil {
		return err
	}
	err = fill(f)
	if err == nil && t.isLarge() {
		t.data = nil
		if t.store.journal != nil {
			err = t.store.sys.fsync(f)
		}
	}
	if err = errors.Join(err, f.Close()); err != nil {
		t.discard()
	}
	return err
}

// discard removes the temporary name. What cannot be removed is swept later.
func (t *temp) discard() {
	if !t.placed {
		_ = t.store.root.Remove(path.Join(blob.TempPrefix, t.name))
	}
}

// prefix keeps what is written to it, until that is too much for the journal.
type prefix struct {
	bytes.Buffer
	limit int
	full  bool
}

// Write implements [io.Writer].
func (p *prefix) Write(b []byte) (int, error) {
	if p.full = p.full || p.Len()+len(b) > p.limit; p.full {
		p.Reset()
		return len(b), nil
	}
	return p.Buffer.Write(b)
}

// source reads until its context is done.
type source struct {
	ctx context.Context //nolint:containedctx // lives as long as the call that it belongs to
	r   io.Reader
}

// Read implements [io.Reader].
func (s *source) Read(p []byte) (int, error) {
	if err := s.ctx.Err(); err != nil {
		return 0, err
	}
	return s.r.Read(p)
}
