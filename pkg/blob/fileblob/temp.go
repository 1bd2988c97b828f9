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

// temp is content that has no key yet. It is stored in a temporary file.
type temp struct {
	store *Store
	name  string // name of the file in the folder of temporary files
	size  int64
	crc   uint32
	// data is the content for the journal, or nil if the content is too large for the journal.
	data []byte
	// placed is true after the file was renamed from its temporary name to the name of its key.
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

// stageFrom writes the content of a stream to a temporary file. If the content is small enough for the journal,
// stageFrom also keeps it in memory.
func (s *Store) stageFrom(r io.Reader) (*temp, error) {
	t := &temp{store: s, name: rand.Text()}
	sum, kept := crc32.New(castagnoli), &prefix{limit: int(s.limits.inline)}
	return t, t.write(func(f *os.File) (err error) {
		t.size, err = io.Copy(io.MultiWriter(f, sum, kept), r)
		t.crc, t.data = sum.Sum32(), kept.Bytes()
		return err
	})
}

// write creates and fills the file. If it fails, it removes the file.
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

// discard removes the temporary file, unless it was placed. If that fails, a later sweep
// removes the file.
func (t *temp) discard() {
	if !t.placed {
		_ = t.store.root.Remove(path.Join(blob.TempPrefix, t.name))
	}
}

// prefix buffers the bytes written to it. If there are more than limit bytes, it discards all of them.
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

// source is a reader that returns an error as soon as its context is done.
type source struct {
	ctx context.Context //nolint:containedctx // used only during the call that created the source
	r   io.Reader
}

// Read implements [io.Reader].
func (s *source) Read(p []byte) (int, error) {
	if err := s.ctx.Err(); err != nil {
		return 0, err
	}
	return s.r.Read(p)
}
