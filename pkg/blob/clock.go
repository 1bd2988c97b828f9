package blob

import (
	"context"
	"time"
)

// Clock is implemented by stores that have a clock of their own and can be asked for
// its time. A folder has none: its clock is the machine's.
type Clock interface {
	// Now asks the store for its time, to the second or finer.
	Now(ctx context.Context) (time.Time, error)
}

// TimeOf asks a store for its time, or the store that it wraps (which its method
// Unwrap returns). ok is false if there is no clock to ask.
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
