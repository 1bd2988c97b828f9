package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
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

func TestAppendSingleEventIsOneRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(nil)
		began := now()
		e := cancel("")
		appended, err := w.Append(t.Context(), []*event.Envelope{e})
		require.NoError(t, err)
		require.Equal(t, began, now())
		stats := w.store.Stats()
		require.EqualValues(t, 1, stats.Creates)
		require.Zero(t, stats.Reads()+stats.Lists+stats.Puts)

		require.Equal(t, ledger.Key(domain, appended.Entry), appended.Key)
		require.Equal(t, domain, e.Domain)
		require.Equal(t, "servo/acme/prod", e.Source)
		require.Equal(t, event.At(began), e.Time)
		require.Greater(t, appended.Entry, e.ID)
		require.Empty(t, e.Group)

		require.Len(t, w.durable, 1)
		entry := w.durable[0]
		require.Equal(t, appended.Entry, entry.Name)
		require.True(t, entry.Urgent)
		require.Equal(t, blob.CRC32C(entry.Data), entry.Object.CRC32C)
		require.Equal(t, e, w.groups(t, appended.Entry)[0].Events[0])
	})
}

func TestAppendBatchesArrivalsDuringPut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		w := newFixture(func(_ context.Context, _ string, nth int) (bool, error) {
			if nth == 1 {
				<-gate
			}
			return true, nil
		})
		var results []<-chan result
		for n := range 100 {
			results = append(results, w.start(t.Context(), heartbeat(n)))
		}
		synctest.Wait()
		close(gate)
		for _, r := range results {
			require.NoError(t, (<-r).err)
		}
		require.EqualValues(t, 2, w.store.Stats().Creates)
		names := w.entries(t)
		require.Len(t, w.groups(t, names[0]), 1)
		require.Len(t, w.groups(t, names[1]), 99)
		require.False(t, w.durable[1].Urgent, "a heartbeat is not urgent")
		require.Equal(t, 99, w.durable[1].Events)
	})
}

// Decisions are folded after facts, and an entry is folded as a whole. So no entry may contain both.
func TestAppendSeparatesDecisionsFromFacts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		w := newFixture(func(_ context.Context, _ string, nth int) (bool, error) {
			if nth == 1 {
				<-gate
			}
			return true, nil
		})
		var results []<-chan result
		for n := range 20 {
			fired := &event.TimerFired{TimerID: fmt.Sprintf("timer:liveness:%d", n), FiredAt: event.At(now()), Observed: event.Observed{CaughtUpAt: event.At(now())}}
			results = append(results, w.start(t.Context(), heartbeat(n)), w.start(t.Context(), &event.Envelope{Payload: fired}))
			synctest.Wait()
		}
		close(gate)
		for _, r := range results {
			require.NoError(t, (<-r).err)
		}
		require.Len(t, w.entries(t), 3, "the first, then one of facts and one of decisions")
		for _, name := range w.entries(t) {
			groups := w.groups(t, name)
			for _, g := range groups {
				require.Equal(t, event.HasFiredTimer(groups[0].Events), event.HasFiredTimer(g.Events))
			}
		}
	})
}

func TestAppendCompletesGroupAndKeepsItTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(nil)
		group := []*event.Envelope{cancel("a"), heartbeat(1), heartbeat(2)}
		appended, err := w.Append(t.Context(), group)
		require.NoError(t, err)
		groups := w.groups(t, appended.Entry)
		require.Len(t, groups, 1)
		require.Nil(t, groups[0].Err)
		require.Equal(t, group[0].ID, groups[0].ID)
		require.Equal(t, group, groups[0].Events)
	})
}

func TestAppendRejectsInvalidEventsBeforeWriting(t *testing.T) {
	w := newFixture(nil)
	for name, group := range map[string][]*event.Envelope{
		"invalid":   {cancel(strings.Repeat("r", event.MaxMessage+1))},
		"torn":      {{Group: ids.AtTime(time.UnixMilli(1)), GroupSize: 2, Payload: cancel("").Payload}},
		"duplicate": {{ID: ids.AtTime(time.UnixMilli(1)), Payload: cancel("").Payload}, {ID: ids.AtTime(time.UnixMilli(1)), Payload: cancel("").Payload}},
		"too many":  make([]*event.Envelope, event.MaxGroupEvents+1),
		"too large": make([]*event.Envelope, 40),
	} {
		t.Run(name, func(t *testing.T) {
			for i := range group {
				if group[i] == nil {
					group[i] = cancel(strings.Repeat("r", event.MaxMessage-2000+len(group)))
				}
			}
			_, err := w.Append(t.Context(), group)
			var refused *event.DecodeError
			require.ErrorAs(t, err, &refused)
		})
	}
	for name, group := range map[string][]*event.Envelope{
		"empty":            nil,
		"of another owner": {{Domain: ids.Domain{Tenant: "evil", Workspace: "prod"}, Payload: cancel("").Payload}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := w.Append(t.Context(), group)
			require.Error(t, err)
		})
	}
	require.Zero(t, w.store.Stats())
}

func TestAppendRetriesUnknownOutcomeUnderSameName(t *testing.T) {
	for name, persisted := range map[string]bool{"failed but stored": true, "failed and not stored": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var keys []string
				w := newFixture(func(_ context.Context, key string, nth int) (bool, error) {
					keys = append(keys, key)
					if nth == 1 || !persisted && nth <= 3 {
						return persisted, errLost
					}
					return true, nil
				})
				began := now()
				appended, err := w.Append(t.Context(), []*event.Envelope{cancel("")})
				require.NoError(t, err)
				require.Equal(t, []string{appended.Entry}, w.entries(t))
				for _, key := range keys {
					require.Equal(t, appended.Key, key)
				}
				require.Less(t, now().Sub(began), 700*time.Millisecond)
				if persisted {
					require.Len(t, keys, 2, "the second try finds the entry of the first")
				} else {
					require.Len(t, keys, 4)
				}
				require.Equal(t, w.durable[0].Object.CRC32C, blob.CRC32C(w.durable[0].Data))
				require.NotZero(t, w.durable[0].Object.Version)
			})
		})
	}
}

func TestAppendRenamesWhenNameIsTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(nil)
		w.store.decide = func(ctx context.Context, key string, nth int) (bool, error) {
			if nth > 1 {
				return true, nil
			}
			_, err := w.store.Store.Create(ctx, key, []byte("another's"))
			return err == nil, nil
		}
		appended, err := w.Append(t.Context(), []*event.Envelope{cancel("")})
		require.NoError(t, err)
		names := w.entries(t)
		require.Len(t, names, 2)
		require.Equal(t, names[1], appended.Entry)
		require.Len(t, w.durable, 1)
	})
}

func TestAppendRenamesWhenRetryFindsOtherBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(nil)
		w.store.decide = func(ctx context.Context, key string, nth int) (bool, error) {
			if nth > 1 {
				return true, nil
			}
			if _, err := w.store.Store.Create(ctx, key, []byte("another's")); err != nil {
				return false, err
			}
			return false, errLost
		}
		appended, err := w.Append(t.Context(), []*event.Envelope{cancel("")})
		require.NoError(t, err)
		require.Equal(t, w.entries(t)[1], appended.Entry)
	})
}

func TestAppendIgnoresAnswersAfter30Seconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(func(ctx context.Context, _ string, nth int) (bool, error) {
			if nth == 1 {
				return true, clock.System{}.Sleep(ctx, 31*time.Second) // the store stalls for 31 s
			}
			return true, nil
		})
		began := now()
		appended, err := w.Append(t.Context(), []*event.Envelope{cancel("")})
		require.NoError(t, err)
		names := w.entries(t)
		require.Len(t, names, 2, "appended again; folding the second copy changes nothing")
		require.Equal(t, names[1], appended.Entry)
		require.Equal(t, w.groups(t, names[0]), w.groups(t, names[1]))
		require.True(t, ids.Time(appended.Entry).Sub(began) >= 30*time.Second)
		require.Len(t, w.durable, 1)
	})
}

// The machine's clock is two minutes behind the store's, so a listing may have missed the entry. The test fails if
// mayBeMissed ignores the store's clock.
func TestAppendRenamesWhenClockIsBehindStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(nil)
		const behind = 2 * time.Minute
		w.store.Store = memblob.New(memblob.Options{Now: func() time.Time { return now().Add(behind) }})
		for n := range 3 {
			appended, err := w.Append(t.Context(), []*event.Envelope{heartbeat(n)})
			require.NoError(t, err)
			require.Less(t, now().Add(behind).Sub(ids.Time(appended.Entry)), time.Minute)
			require.Len(t, w.entries(t), n+2, "the first was appended again; after that the store's time is known")
		}
	})
}

// The store's reads return no time. The test fails if this zero time is taken for the time at which the entry was
// stored.
func TestAppendRenamesLateEntryWhenReadHasNoTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(func(_ context.Context, _ string, nth int) (bool, error) {
			if nth == 1 {
				return true, errLost
			}
			return true, nil
		})
		const behind = 2 * time.Minute
		w.store.Store = memblob.New(memblob.Options{Now: func() time.Time { return now().Add(behind) }})
		w.store.timeless = true
		appended, err := w.Append(t.Context(), []*event.Envelope{heartbeat(1)})
		require.NoError(t, err)
		require.Less(t, now().Add(behind).Sub(ids.Time(appended.Entry)), time.Minute)
		require.Len(t, w.entries(t), 2)
	})
}

func TestAppendRenamesAfterLongOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := now()
		used := map[string]bool{}
		w := newFixture(func(_ context.Context, key string, _ int) (bool, error) {
			used[key] = true
			if now().Sub(began) < 40*time.Second {
				return false, errLost
			}
			return true, nil
		})
		appended, err := w.Append(t.Context(), []*event.Envelope{cancel("")})
		require.NoError(t, err)
		require.Len(t, used, 2)
		require.Equal(t, []string{appended.Entry}, w.entries(t))
		require.Less(t, now().Sub(began), 46*time.Second, "backoff is capped at five seconds")
	})
}

func TestAppendFailsOnInvalidObject(t *testing.T) {
	w := newFixture(func(context.Context, string, int) (bool, error) { return false, blob.ErrInvalid })
	_, err := w.Append(t.Context(), []*event.Envelope{cancel("")})
	require.ErrorIs(t, err, blob.ErrInvalid)
	require.NotErrorIs(t, err, ledger.ErrUnknown)
	require.Empty(t, w.durable)
}

func TestAppendEntryIDExceedsEveryIDInIt(t *testing.T) {
	w := newFixture(nil)
	ahead := ids.AtTime(now().Add(10 * time.Minute))
	for _, e := range []*event.Envelope{
		{CausationID: ahead, Payload: cancel("").Payload},
		{CorrelationID: ahead, Payload: cancel("").Payload},
		{Payload: &event.RunCancelRequested{RunID: ids.AtTime(now().Add(20 * time.Minute))}},
		{ID: ids.AtTime(now().Add(25 * time.Minute)), Payload: cancel("").Payload},
	} {
		preset := e.ID
		appended, err := w.Append(t.Context(), []*event.Envelope{e})
		require.NoError(t, err)
		for _, id := range event.ULIDs(e) {
			require.Greater(t, appended.Entry, id)
			if preset == "" && id != e.ID {
				require.Greater(t, e.ID, id, "an event's id exceeds every id that it names")
			}
		}
	}
}

func TestAppendBoundsEntriesAndNeverSplitsGroups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		w := newFixture(func(_ context.Context, _ string, nth int) (bool, error) {
			if nth == 1 {
				<-gate
			}
			return true, nil
		})
		results := []<-chan result{w.start(t.Context(), cancel(""))}
		synctest.Wait()
		for g := range 7 { // 7 groups of 1,000 small events
			var group []*event.Envelope
			for n := range event.MaxGroupEvents {
				group = append(group, heartbeat(g*event.MaxGroupEvents+n))
			}
			results = append(results, w.start(t.Context(), group...))
		}
		synctest.Wait()
		for range 5 { // 5 groups of nearly 1 MiB
			var group []*event.Envelope
			for range 31 {
				group = append(group, cancel(strings.Repeat("r", event.MaxMessage)))
			}
			results = append(results, w.start(t.Context(), group...))
		}
		synctest.Wait()
		close(gate)
		for _, r := range results {
			require.NoError(t, (<-r).err)
		}
		total := 0
		for _, e := range w.durable {
			require.LessOrEqual(t, len(e.Data), ledger.MaxEntryBytes)
			require.LessOrEqual(t, e.Events, ledger.MaxEntryEvents)
			for _, g := range event.Groups(event.DecodeEntry(e.Data)) {
				require.Nil(t, g.Err)
				total += len(g.Events)
			}
		}
		require.Equal(t, 1+7000+5*31, total)
	})
}

func TestAppendCanceledReportsWhetherWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		w := newFixture(func(ctx context.Context, _ string, nth int) (bool, error) {
			if nth > 1 {
				return true, nil
			}
			select {
			case <-gate:
				return true, nil
			case <-ctx.Done():
				return false, ctx.Err()
			}
		})
		leaderCtx, leaderLeaves := context.WithCancel(t.Context())
		waiterCtx, waiterLeaves := context.WithCancel(t.Context())
		leader := w.start(leaderCtx, heartbeat(1))
		synctest.Wait()
		waiter := w.start(waiterCtx, heartbeat(2))
		synctest.Wait()
		stays := w.start(t.Context(), heartbeat(3))
		synctest.Wait()

		waiterLeaves()
		r := <-waiter
		require.ErrorIs(t, r.err, context.Canceled)
		require.NotErrorIs(t, r.err, ledger.ErrUnknown, "its group was still queued")

		leaderLeaves()
		r = <-leader
		require.ErrorIs(t, r.err, context.Canceled)
		require.ErrorIs(t, r.err, ledger.ErrUnknown)

		r = <-stays
		require.NoError(t, r.err, "the next caller leads")
		require.Equal(t, []string{r.Entry}, w.entries(t))
		groups := w.groups(t, r.Entry)
		require.Len(t, groups, 1)
		require.Equal(t, heartbeat(3).Payload, groups[0].Events[0].Payload)

		_, err := w.Append(waiterCtx, []*event.Envelope{heartbeat(4)})
		require.ErrorIs(t, err, context.Canceled)
		require.NotErrorIs(t, err, ledger.ErrUnknown)
	})
}

func TestAppendNextLeaderKeepsBatchName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		var keys []string
		w := newFixture(func(ctx context.Context, key string, nth int) (bool, error) {
			keys = append(keys, key)
			switch nth {
			case 1:
				<-gate
				return true, nil
			case 2: // stored, but the leader gets no answer before it leaves
				<-ctx.Done()
				return true, ctx.Err()
			}
			return true, nil
		})
		first := w.start(t.Context(), heartbeat(1))
		synctest.Wait()
		ctx, leave := context.WithCancel(t.Context())
		second := w.start(ctx, heartbeat(2))
		synctest.Wait()
		third := w.start(t.Context(), heartbeat(3))
		synctest.Wait()
		close(gate)
		require.NoError(t, (<-first).err)
		synctest.Wait()
		leave()
		require.ErrorIs(t, (<-second).err, ledger.ErrUnknown)
		r := <-third
		require.NoError(t, r.err)
		require.Equal(t, keys[1], keys[2])
		require.Equal(t, r.Key, keys[2])
		require.Len(t, w.entries(t), 2)
		require.Len(t, w.groups(t, r.Entry), 2)
	})
}

func TestAppendBlocksWhileQueueIsFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		w := newFixture(func(context.Context, string, int) (bool, error) {
			<-gate
			return true, nil
		})
		big := func() []*event.Envelope {
			var group []*event.Envelope
			for range 31 {
				group = append(group, cancel(strings.Repeat("r", event.MaxMessage)))
			}
			return group
		}
		var results []<-chan result
		for range 8 { // 8 MiB may wait
			results = append(results, w.start(t.Context(), big()...))
		}
		synctest.Wait()
		ctx, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		_, err := w.Append(ctx, big())
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, ledger.ErrUnknown)

		results = append(results, w.start(t.Context(), big()...))
		synctest.Wait()
		close(gate)
		for _, r := range results {
			require.NoError(t, (<-r).err)
		}
	})
}

// Many callers append to a store that loses answers, stalls, and reports that names are taken. Callers may give up at
// any time.
func TestAppendLosesNothingUnderFaults(t *testing.T) {
	for seed := range uint64(200) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { storm(t, rand.New(rand.NewPCG(seed, 0))) })
		})
	}
}

func storm(t *testing.T, random *rand.Rand) {
	w := newFixture(nil)
	var mu sync.Mutex
	upTo := func(limit int64) int64 {
		mu.Lock()
		defer mu.Unlock()
		return random.Int64N(limit)
	}
	pause := func(ctx context.Context, limit time.Duration) {
		timer := time.NewTimer(time.Duration(upTo(int64(limit))))
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	w.store.decide = func(ctx context.Context, _ string, _ int) (bool, error) {
		switch upTo(6) {
		case 0:
			return true, errLost
		case 1:
			return false, errLost
		case 2:
			pause(ctx, 40*time.Second)
		case 3:
			pause(ctx, 50*time.Millisecond)
		}
		if ctx.Err() != nil {
			return upTo(2) == 0, ctx.Err()
		}
		return true, nil
	}
	const callers = 40
	results := make([]<-chan result, callers)
	groups := make([][]*event.Envelope, callers)
	for n := range callers {
		for m := range 1 + int(upTo(3)) {
			groups[n] = append(groups[n], heartbeat(100*n+m))
		}
		ctx, stop := context.WithTimeout(t.Context(), time.Duration(1+upTo(int64(time.Minute))))
		defer stop()
		results[n] = w.start(ctx, groups[n]...)
		pause(t.Context(), time.Second)
	}
	found := map[string][]string{} // maps a group id to the entries that contain the group
	outcomes := make([]result, callers)
	for n := range results {
		outcomes[n] = <-results[n]
	}
	for _, entry := range w.entries(t) {
		for _, g := range w.groups(t, entry) {
			require.Nil(t, g.Err, "a group is stored as a whole or not at all")
			found[g.ID] = append(found[g.ID], entry)
		}
	}
	for n, r := range outcomes {
		in := found[groups[n][0].GroupID()]
		switch {
		case r.err == nil:
			require.Contains(t, in, r.Entry)
		case !errors.Is(r.err, ledger.ErrUnknown):
			require.Empty(t, in, "reported as not written")
		}
	}
}

func TestAppendToDirectoryIsReadBack(t *testing.T) {
	store, err := fileblob.Open(t.TempDir(), fileblob.Options{NoSync: true})
	require.NoError(t, err)
	a := ledger.NewAppender(ledger.Config{
		Domain: domain, Store: store, IDs: ids.NewSource(now, nil), Clock: clock.System{},
	})
	var wg sync.WaitGroup
	for n := range 200 {
		wg.Go(func() {
			if _, err := a.Append(t.Context(), []*event.Envelope{heartbeat(2 * n), heartbeat(2*n + 1)}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	events := 0
	for name, err := range ledger.List(t.Context(), store, domain, "") {
		require.NoError(t, err)
		data, err := ledger.Read(t.Context(), store, name.Object.Key)
		require.NoError(t, err)
		for _, g := range event.Groups(event.DecodeEntry(data)) {
			require.Nil(t, g.Err)
			events += len(g.Events)
		}
	}
	require.Equal(t, 400, events)
}
