package ids

import (
	"crypto/rand"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"
)

// MaxAhead is how far an id or a timestamp may be ahead of the store's clock. The compactor
// turns events that are further ahead into dead letters.
const MaxAhead = time.Hour

// maxLead is how far the ids of a [Source] may run ahead of its clock. It is less than MaxAhead, so that observed ids
// never cause a writer's own ids to be rejected, even if the writer's clock is off by a few minutes.
const maxLead = MaxAhead / 2

// Source mints ULIDs that respect causality: each is greater than every ULID that the Source has minted or observed.
// There are two exceptions, so that one wrong clock does not affect everybody's ids. A Source ignores observed ids that
// are more than 30 minutes ahead of its clock. If the clock was set back by more than 30 minutes, the Source restarts
// at the clock's time.
//
// A Source belongs to one domain, because each id depends on the ids observed before. It is safe
// for concurrent use.
type Source struct {
	now     func() time.Time
	entropy io.Reader

	mu    sync.Mutex
	last  ulid.ULID
	floor ulid.ULID // lower bound of minted ids, whatever the clock returns
}

// NewSource returns a Source that gets the time from the function now and randomness from entropy. If entropy is nil,
// the Source uses the operating system's randomness.
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
	now := s.now()
	if s.leads(s.last, now) {
		s.last = s.floor // the clock was set back
	}
	if ms := ulid.Timestamp(now); ms > s.last.Time() {
		s.last = s.fresh(ms)
	} else {
		s.last = s.after(s.last)
	}
	return s.last.String()
}

// leads reports whether an id is more than maxLead ahead of both the time now and the floor.
func (s *Source) leads(id ulid.ULID, now time.Time) bool {
	lead := int64(id.Time()) - max(now.UnixMilli(), int64(s.floor.Time())) //nolint:gosec // 48 bits
	return lead > maxLead.Milliseconds()
}

// Raise makes every later id greater than id, however far id is ahead of the clock. Use it for floors that come from
// the store's time: files whose ids are below such a floor are deleted.
func (s *Source) Raise(id string) {
	u, err := ulid.ParseStrict(id)
	if err != nil || !Valid(id) || id[:len(lastTime)] == lastTime {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if u.Compare(s.floor) > 0 {
		s.floor = u
	}
	if u.Compare(s.last) > 0 {
		s.last = u
	}
}

// Observe makes every later id greater than id. It ignores ids that are not [Valid] or are
// more than 30 minutes ahead of the clock.
func (s *Source) Observe(id string) {
	if !Valid(id) || id[:len(lastTime)] == lastTime {
		return // ignore it, so that later ids stay valid
	}
	u, err := ulid.ParseStrict(id)
	if err != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if u.Compare(s.last) > 0 && !s.leads(u, s.now()) {
		s.last = u
	}
}

// fresh returns a random ULID for a millisecond in which no id was minted or observed.
func (s *Source) fresh(ms uint64) ulid.ULID {
	var u ulid.ULID
	if err := u.SetTime(ms); err != nil {
		panic(fmt.Sprintf("ids: the clock is past the year 10889: %v", err))
	}
	s.read(u[6:])
	u[6] &= 0x7f // leave room to count up within the millisecond
	return u
}

// after returns u plus a random step of 48 bits, which may carry into the time. The step is
// random because several processes may have observed the same u, and must not all mint u+1.
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
		panic(fmt.Sprintf("ids: read randomness: %v", err))
	}
}
