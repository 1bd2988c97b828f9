package compactor

import (
	"sync/atomic"
	"time"

	"github.com/servo-orchestration/servo/pkg/ids"
)

// ListMargin limits which entries a listing can miss. A missed entry appears after the listing, but the time in its
// name may be earlier than the beginning of the listing, by at most ListMargin. Appenders ensure that a name is at most
// 60 s behind the store's clock.
const ListMargin = 90 * time.Second

// storeTime is the latest known time of the store's clock, in Unix milliseconds; 0: none is known.
type storeTime struct{ atomic.Int64 }

// observe records a time of the store's clock. Several goroutines may call it at once.
func (s *storeTime) observe(t time.Time) {
	ms := t.UnixMilli()
	for {
		old := s.Load()
		if ms <= old || s.CompareAndSwap(old, ms) {
			return
		}
	}
}

// limit returns now or, if the store's time is known and earlier, the store's time.
func (s *storeTime) limit(now time.Time) time.Time {
	if known := s.Load(); known != 0 {
		now = time.UnixMilli(min(known, now.UnixMilli()))
	}
	return now
}

// completeAt returns the id up to which a listing is complete, given a time that the store's clock had reached before
// the listing began. Writers keep the names of entries close to the store's clock, so no other clock may raise the
// result. This machine's clock can only lower it. completeAt returns "" if no time of the store is known yet.
func completeAt(storeTime int64, now time.Time) string {
	if storeTime == 0 {
		return ""
	}
	storeTime = min(storeTime, now.UnixMilli())
	return ids.AtTime(time.UnixMilli(storeTime).Add(-ListMargin))
}
