package blob

import (
	"context"
	"time"
)

// Clock is implemented by stores that have their own clock, which callers can read. A store in a directory has no
// such clock: it uses the machine's clock.
type Clock interface {
	// Now returns the store's time, to the second or finer.
	Now(ctx context.Context) (time.Time, error)
}

// TimeOf returns the time of a store. If the store has no clock, TimeOf asks the store that its method Unwrap
// returns, and so on. ok is false if none of these stores has a clock.
func TimeOf(ctx context.Context, store Store) (now time.Time, ok bool, err error) {
	for {
		switch s := store.(type) {
		case Clock:
			now, err = s.Now(ctx)
			return now, true, err
		case interface{ Unwrap() Store }:
			store = s.Unwrap()
		default:
			return time.Time{}, false, nil
		}
	}
}
