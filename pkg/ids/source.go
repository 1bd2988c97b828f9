package ids

import (
	"crypto/rand"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"
)

// Source mints ULIDs that respect causality: each is greater than every one it
// minted before and than every one it has observed, whatever the clock does. It
// is safe for concurrent use.
type Source struct {
	now     func() time.Time
	entropy io.Reader

	mu   sync.Mutex
	last ulid.ULID
}

// NewSource makes a Source that reads the time from now and randomness from
// entropy; nil means the operating system's.
func NewSource(now func() time.Time, entropy io.Reader) *Source {
	if entropy == nil {
		entropy = rand.Reader
	}
	return &Source{now: now, entropy: entropy}
}

// New mints the next id.
func (s *Source) New() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ms := ulid.Timestamp(s.now()); ms > s.last.Time() {
		s.last = s.fresh(ms)
	} else {
		s.last = s.after(s.last)
	}
	return s.last.String()
}

// Observe makes every later id greater than id. What is not [Valid] is ignored.
func (s *Source) Observe(id string) {
	if !Valid(id) || id[:len(lastTime)] == lastTime {
		return // and so what follows is valid, too
	}
	u, err := ulid.ParseStrict(id)
	if err != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if u.Compare(s.last) > 0 {
		s.last = u
	}
}

// fresh is a random ULID of a millisecond that has none yet.
func (s *Source) fresh(ms uint64) ulid.ULID {
	var u ulid.ULID
	if err := u.SetTime(ms); err != nil {
		panic(fmt.Sprintf("ids: the clock is past the year 10889: %v", err))
	}
	s.read(u[6:])
	u[6] &= 0x7f // room above, so that ids of the same millisecond can count up
	return u
}

// after is u plus a random step of 48 bits, carrying into the time when the rest
// is used up. The step is random because several processes may have observed
// the same u, and must not all mint u+1.
func (s *Source) after(u ulid.ULID) ulid.ULID {
	var step ulid.ULID
	s.read(step[10:])
	carry := 1
	for i := len(u) - 1; i >= 0; i-- {
		sum := int(u[i]) + int(step[i]) + carry
		u[i], carry = byte(sum), sum>>8
	}
	return u
}

func (s *Source) read(p []byte) {
	if _, err := io.ReadFull(s.entropy, p); err != nil {
		panic(fmt.Sprintf("ids: no randomness to be had: %v", err))
	}
}
