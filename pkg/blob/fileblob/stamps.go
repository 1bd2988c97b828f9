package fileblob

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"sync"
	"time"

	"github.com/servo-orchestration/servo/pkg/blob"
)

// stamps generates versions: times in nanoseconds, each greater than all earlier ones, in steps that the file system
// can store.
type stamps struct {
	now  func() time.Time
	tick time.Duration

	mu   sync.Mutex
	last int64
}

// next returns a version that is greater than the parameter old and greater than all earlier versions.
func (s *stamps) next(old int64) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	tick := int64(s.tick)
	next := max(s.now().UnixNano(), s.last+tick, old+tick)
	s.last = next - next%tick // still greater than old and s.last
	return s.last
}

// probe tests that the file system stores modification times, and returns their
// granularity.
func probe(root *os.Root) (tick time.Duration, err error) {
	name := path.Join(blob.TempPrefix, rand.Text())
	f, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, fileMode)
	if err != nil {
		return 0, err
	}
	defer func() {
		removed := root.Remove(name)
		if errors.Is(removed, fs.ErrNotExist) {
			removed = nil // another process's sweep removed the file as a leftover, because its time is old
		}
		err = errors.Join(err, f.Close(), removed)
	}()

	want := time.Unix(1e9+1, 123_456_789)
	if err := root.Chtimes(name, want, want); err != nil {
		return 0, err
	}
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	lost := want.Sub(info.ModTime())
	for _, tick := range []time.Duration{1, 100, time.Microsecond, time.Millisecond, time.Second, 2 * time.Second} {
		if 0 <= lost && lost < tick {
			return tick, nil
		}
	}
	return 0, fmt.Errorf("the file system stored %v as the modification time of a file, not %v: put the store on another file system", info.ModTime(), want)
}
