package ledger_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/memblob"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/blob/fileblob"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
)

// off is a clock that is wrong by an amount that a test sets.
type off struct {
	clock.System
	by atomic.Int64
}

func (o *off) Now() time.Time { return o.System.Now().Add(time.Duration(o.by.Load())) }

func appender(store blob.Store, c clock.Clock, durable func(ledger.Entry)) *ledger.Appender {
	return ledger.NewAppender(ledger.Config{Domain: domain, Store: store, IDs: ids.NewSource(c.Now, nil), Clock: c, OnStored: durable})
}

func TestAppendRejectsWrongClock(t *testing.T) {
	for by, ok := range map[time.Duration]bool{
		2 * 365 * 24 * time.Hour: false, time.Hour: false, 5*time.Minute + time.Second: false, 5 * time.Minute: true, 0: true,
		-5 * time.Minute: true, -5*time.Minute - time.Second: false, -time.Hour: false,
	} {
		t.Run(by.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store, c := memblob.New(memblob.Options{}), &off{}
				c.by.Store(int64(by))
				a := appender(store, c, nil)
				_, err := a.Append(t.Context(), []*event.Envelope{cancel("")})
				if ok {
					require.NoError(t, err)
					return
				}
				require.ErrorIs(t, err, ledger.ErrClock)
				require.NotErrorIs(t, err, ledger.ErrUnknown)
				require.ErrorContains(t, err, "set the clock")
				require.ErrorIs(t, a.AppendBuffered(t.Context(), []*event.Envelope{cancel("")}), ledger.ErrClock)
				require.Zero(t, store.Stats().Creates, "nothing was written")

				c.by.Store(0)
				_, err = a.Append(t.Context(), []*event.Envelope{cancel("")})
				require.NoError(t, err, "it works once the clock is set")
			})
		})
	}
}

// The clock is right at first, and then jumps. The next answer of the store reveals the jump.
func TestAppendDetectsClockJump(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, c := memblob.New(memblob.Options{}), &off{}
		durable := 0
		a := appender(store, c, func(ledger.Entry) { durable++ })
		_, err := a.Append(t.Context(), []*event.Envelope{cancel("")})
		require.NoError(t, err)
		c.by.Store(int64(48 * time.Hour))
		_, err = a.Append(t.Context(), []*event.Envelope{cancel("")})
		require.ErrorIs(t, err, ledger.ErrClock, "the compactor would reject the stored entry")
		require.Equal(t, 1, durable)
		_, err = a.Append(t.Context(), []*event.Envelope{cancel("")})
		require.ErrorIs(t, err, ledger.ErrClock)
		require.EqualValues(t, 2, store.Stats().Creates, "the next append writes nothing")
		c.by.Store(0)
		appended, err := a.Append(t.Context(), []*event.Envelope{cancel("")})
		require.NoError(t, err)
		require.WithinDuration(t, now(), ids.Time(appended.Entry), time.Second, "names have the right time again")
	})
}

// mute is a store that cannot report its time at first.
type mute struct {
	*memblob.Store
	refused int
}

func (m *mute) Now(ctx context.Context) (time.Time, error) {
	if m.refused++; m.refused < 4 {
		return time.Time{}, errLost
	}
	return m.Store.Now(ctx)
}

func TestAppendWaitsForStoreTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &mute{Store: memblob.New(memblob.Options{})}
		_, err := appender(store, clock.System{}, nil).Append(t.Context(), []*event.Envelope{cancel("")})
		require.NoError(t, err)
		require.Equal(t, 4, store.refused)

		store.refused = -1000
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		_, err = appender(store, clock.System{}, nil).Append(ctx, []*event.Envelope{cancel("")})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, ledger.ErrUnknown, "nothing was written")
	})
}

func TestAppendSkipsClockCheckForDirectory(t *testing.T) {
	c := &off{}
	c.by.Store(int64(48 * time.Hour))
	store, err := fileblob.Open(t.TempDir(), fileblob.Options{Now: c.Now})
	require.NoError(t, err)
	defer store.Close()
	_, err = appender(store, c, nil).Append(t.Context(), []*event.Envelope{cancel("")})
	require.NoError(t, err)
}
