package manifest_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/faultblob"
	"github.com/servo-orchestration/servo/internal/memblob"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/manifest"
)

func TestPublishTakesOneWriteAndOneRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fx := newFixture()
		s := fx.writer()
		cur := publish(t, s, nil, 1)
		require.Equal(t, memblob.Stats{Creates: 1, Gets: 1, Puts: 1},
			requests(fx.blobs.Stats()), "the first publish in a second also writes the hint")

		before := fx.blobs.Stats()
		cur = publish(t, s, cur, 10)
		require.Equal(t, memblob.Stats{Creates: 10, Gets: 10}, requests(fx.blobs.Stats().Sub(before)))

		elapse(t, time.Second)
		before = fx.blobs.Stats()
		publish(t, s, cur, 1)
		require.EqualValues(t, 1, fx.blobs.Stats().Sub(before).Puts)
	})
}

// requests returns a copy of the counters in which the counts of bytes are zero.
func requests(s memblob.Stats) memblob.Stats {
	s.BytesRead, s.BytesWritten = 0, 0
	return s
}

// elapse lets virtual time d elapse.
func elapse(t *testing.T, d time.Duration) {
	t.Helper()
	select {
	case <-time.NewTimer(d).C:
	case <-t.Context().Done():
	}
}

// Readers can start to load the revision while the publisher reads the boundary.
func TestPublishAnnouncesBeforeReadingBoundary(t *testing.T) {
	fx := newFixture()
	var announced []int64
	reads := fx.blobs.Stats().Gets
	s := manifest.New(manifest.Config{
		Domain: domain, Store: fx.blobs, IDs: ids.NewSource(clock.System{}.Now, nil), Clock: clock.System{},
		OnStored: func(revision int64) {
			announced = append(announced, revision)
			require.Equal(t, reads, fx.blobs.Stats().Gets)
		},
	})
	publish(t, s, nil, 1)
	require.Equal(t, []int64{1}, announced)
}

func TestPublishedAtGrowsWithRevision(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFixture().writer()
		first := publish(t, s, nil, 1)
		require.Equal(t, event.At(now()), first.PublishedAt)
		second := publish(t, s, first, 1)
		require.Equal(t, first.PublishedAt.Add(time.Millisecond), second.PublishedAt)
		elapse(t, time.Minute)
		require.Equal(t, event.At(now()), publish(t, s, second, 1).PublishedAt)
	})
}

func TestPublishResolvesLostResponseByReading(t *testing.T) {
	for name, c := range map[string]struct {
		hook    faultblob.Hook
		creates int64
	}{
		"created, response lost":        {nth(faultblob.Create, 1, faultblob.FailAfter), 1},
		"request lost":                  {nth(faultblob.Create, 1, faultblob.FailBefore), 1},
		"created, then read fails":      {failBoth(faultblob.FailAfter), 2},
		"request lost, then read fails": {failBoth(faultblob.FailBefore), 1},
		"boundary cannot be read":       {nth(faultblob.Get, 1, faultblob.FailBefore), 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fx := newFixture()
				fx.faults(c.hook)
				next := manifest.First(domain, timeline, "w")
				require.NoError(t, fx.writer().Publish(t.Context(), next))
				require.Equal(t, c.creates, fx.blobs.Stats().Creates)
				got, err := fx.writer().Load(t.Context())
				require.NoError(t, err)
				require.Equal(t, next, got)
			})
		})
	}
}

// failBoth fails the first create and the read that would reveal its outcome.
func failBoth(fault faultblob.Fault) faultblob.Hook {
	create, get := nth(faultblob.Create, 1, fault), nth(faultblob.Get, 1, faultblob.FailBefore)
	return func(op faultblob.Op, key string) faultblob.Fault {
		return max(create(op, key), get(op, key))
	}
}

func TestPublishLostResponseAfterOtherWriterConflicts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fx := newFixture()
		winner := publish(t, fx.writer(), nil, 1)
		for _, hook := range []faultblob.Hook{
			nil,
			nth(faultblob.Create, 1, faultblob.FailAfter),
			nth(faultblob.Create, 1, faultblob.FailBefore),
		} {
			fx.faults(hook)
			err := fx.writer().Publish(t.Context(), manifest.First(domain, timeline, "loser"))
			require.ErrorIs(t, err, manifest.ErrConflict)
			var conflict *manifest.ConflictError
			require.ErrorAs(t, err, &conflict)
			require.Equal(t, winner, conflict.Current)
		}
	})
}

func TestPublishCanBeRepeatedAfterTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fx := newFixture()
		s := fx.writer()
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		fx.faults(func(op faultblob.Op, _ string) faultblob.Fault {
			if op == faultblob.Create {
				return faultblob.FailAfter
			}
			return faultblob.FailBefore
		})
		next := manifest.First(domain, timeline, "w")
		err := s.Publish(ctx, next)
		require.ErrorIs(t, err, manifest.ErrUnknown)
		require.ErrorIs(t, err, context.DeadlineExceeded)

		err = s.Publish(ctx, next)
		require.NotErrorIs(t, err, manifest.ErrUnknown, "nothing is sent after ctx ended")
		require.ErrorIs(t, err, context.DeadlineExceeded)

		fx.faults(nil)
		require.NoError(t, s.Publish(t.Context(), next))
	})
}

func TestPublishBelowBoundaryIsNotCommitted(t *testing.T) {
	t.Run("collected", func(t *testing.T) {
		fx := newFixture()
		cur := publish(t, fx.writer(), nil, 1)
		publish(t, fx.writer(), cur, 5)
		fx.collect(t, 5)
		err := fx.writer().Publish(t.Context(), cur.Successor("sleeper"))
		require.ErrorIs(t, err, manifest.ErrNotCommitted)
		m, err := fx.writer().Load(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 6, m.Revision)
	})
	t.Run("damaged boundary", func(t *testing.T) {
		fx := newFixture()
		_, err := fx.blobs.Put(t.Context(), manifest.BoundaryKey(domain), []byte("?"))
		require.NoError(t, err)
		err = fx.writer().Publish(t.Context(), manifest.First(domain, timeline, "w"))
		require.ErrorIs(t, err, manifest.ErrUnknown)
		require.ErrorContains(t, err, manifest.BoundaryKey(domain))
	})
}

func TestPublishIgnoresFailedHint(t *testing.T) {
	fx := newFixture()
	fx.faults(func(op faultblob.Op, _ string) faultblob.Fault {
		if op == faultblob.Put {
			return faultblob.FailBefore
		}
		return faultblob.None
	})
	publish(t, fx.writer(), nil, 3)
	m, err := fx.writer().Load(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 3, m.Revision)
}

func TestPublishRejectsManifestOfAnotherDomain(t *testing.T) {
	fx := newFixture()
	other := manifest.First(ids.Domain{Tenant: "evil", Workspace: "prod"}, timeline, "w")
	require.Error(t, fx.writer().Publish(t.Context(), other))
	require.Error(t, fx.writer().Publish(t.Context(), manifest.First(domain, "no timeline", "w")))
	require.Zero(t, fx.blobs.Stats().Creates)
}

// Two writers race for a thousand revisions on a store that loses responses. The chain of revisions must be unbroken,
// and each committed revision must be reported to one writer.
func TestRacingWritersPublishOneChain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const last = 1000
		fx := newFixture()
		var mu sync.Mutex
		random := rand.New(rand.NewPCG(1, 2))
		fx.faults(func(faultblob.Op, string) faultblob.Fault {
			mu.Lock()
			defer mu.Unlock()
			switch random.IntN(20) {
			case 0:
				return faultblob.FailAfter
			case 1:
				return faultblob.FailBefore
			}
			return faultblob.None
		})
		won := map[int64][]string{} // nonces reported as committed, by revision
		var wg sync.WaitGroup
		for range 2 {
			s := fx.writer()
			wg.Go(func() {
				for {
					m := attempt(t, s)
					if m == nil {
						continue
					}
					mu.Lock()
					won[m.Revision] = append(won[m.Revision], m.Nonce)
					mu.Unlock()
					if m.Revision >= last {
						return
					}
				}
			})
		}
		wg.Wait()
		fx.faults(nil)
		s := fx.writer()
		var parent *manifest.Manifest
		for revision := range int64(last) {
			m, err := s.LoadAt(t.Context(), revision+1)
			require.NoError(t, err)
			require.Equal(t, []string{m.Nonce}, won[revision+1], "exactly one writer committed revision %d", revision+1)
			if parent != nil {
				require.Equal(t, parent.Ref(), *m.Parent)
				require.Greater(t, m.PublishedAt, parent.PublishedAt)
			}
			parent = m
		}
	})
}

// attempt loads the newest revision and publishes a successor, which it returns. It
// returns nil if nothing was committed.
func attempt(t *testing.T, s *manifest.Store) *manifest.Manifest {
	cur, err := s.Load(t.Context())
	var next *manifest.Manifest
	switch {
	case errors.Is(err, manifest.ErrNone):
		next = manifest.First(domain, timeline, "racer")
	case errors.Is(err, faultblob.ErrInjected):
		return nil
	case err != nil:
		t.Error(err)
		return nil
	default:
		next = cur.Successor("racer")
	}
	err = s.Publish(t.Context(), next)
	switch {
	case err == nil:
		return next
	case !errors.Is(err, manifest.ErrConflict):
		t.Error(err)
	}
	return nil
}

func TestRebuiltRevisionStartsATimeline(t *testing.T) {
	fx := newFixture()
	writer, rebuild := fx.writer(), fx.writer()
	cur := publish(t, writer, nil, 3)
	first := cur.Rebuilt(ids.AtTime(time.Unix(9, 0)), "rebuild")
	require.NoError(t, rebuild.Publish(t.Context(), first))
	require.EqualValues(t, 4, first.Revision)

	require.ErrorIs(t, writer.Publish(t.Context(), cur.Successor("old")), manifest.ErrConflict)
	_, err := writer.Next(t.Context(), cur)
	require.ErrorIs(t, err, manifest.ErrReload)
	for range 2 {
		m, err := fx.writer().Load(t.Context())
		require.NoError(t, err)
		require.Equal(t, first, m)
		// The collector of the old timeline raises the boundary; the first revision of the new timeline stays.
		fx.boundary(t, cur.Timeline, 3)
	}
	require.NoError(t, writer.Publish(t.Context(), first.Successor("old")))
	next, err := rebuild.Next(t.Context(), first)
	require.NoError(t, err)
	require.EqualValues(t, 5, next.Revision)
}
