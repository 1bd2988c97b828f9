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

	"github.com/servo-orchestration/servo/pkg/blob/faultblob"
	"github.com/servo-orchestration/servo/pkg/blob/memblob"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/manifest"
)

func TestAPublishIsOneWriteAndOneRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		s := w.writer()
		cur := publish(t, s, nil, 1)
		require.Equal(t, memblob.Stats{Creates: 1, Gets: 1, Puts: 1},
			requests(w.blobs.Stats()), "the hint comes with the first publish of a second")

		before := w.blobs.Stats()
		cur = publish(t, s, cur, 10)
		require.Equal(t, memblob.Stats{Creates: 10, Gets: 10}, requests(w.blobs.Stats().Sub(before)))

		elapse(t, time.Second)
		before = w.blobs.Stats()
		publish(t, s, cur, 1)
		require.EqualValues(t, 1, w.blobs.Stats().Sub(before).Puts)
	})
}

// requests are the counters without the bytes.
func requests(s memblob.Stats) memblob.Stats {
	s.BytesRead, s.BytesWritten = 0, 0
	return s
}

// elapse lets virtual time pass.
func elapse(t *testing.T, d time.Duration) {
	t.Helper()
	select {
	case <-time.NewTimer(d).C:
	case <-t.Context().Done():
	}
}

// Who is told early may begin to look while the boundary is being read.
func TestARevisionIsToldOfBeforeTheBoundaryIsRead(t *testing.T) {
	w := newWorld()
	var told []int64
	reads := w.blobs.Stats().Gets
	s := manifest.New(manifest.Config{
		Domain: domain, Store: w.blobs, IDs: ids.NewSource(clock.System{}.Now, nil), Clock: clock.System{},
		Held: func(revision int64) {
			told = append(told, revision)
			require.Equal(t, reads, w.blobs.Stats().Gets)
		},
	})
	publish(t, s, nil, 1)
	require.Equal(t, []int64{1}, told)
}

func TestPublishedAtGrowsWithTheRevision(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newWorld().writer()
		first := publish(t, s, nil, 1)
		require.Equal(t, event.At(now()), first.PublishedAt)
		second := publish(t, s, first, 1)
		require.Equal(t, first.PublishedAt.Add(time.Millisecond), second.PublishedAt)
		elapse(t, time.Minute)
		require.Equal(t, event.At(now()), publish(t, s, second, 1).PublishedAt)
	})
}

func TestALostAnswerIsFoundOutByReading(t *testing.T) {
	for name, c := range map[string]struct {
		hook    faultblob.Hook
		creates int64
	}{
		"created, answer lost":            {nth(faultblob.Create, 1, faultblob.FailAfter), 1},
		"not created, answer lost":        {nth(faultblob.Create, 1, faultblob.FailBefore), 1},
		"created, then a read that fails": {failBoth(faultblob.FailAfter), 2},
		"lost, then a read that fails":    {failBoth(faultblob.FailBefore), 1},
		"boundary cannot be read":         {nth(faultblob.Get, 1, faultblob.FailBefore), 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				w.faults(c.hook)
				next := manifest.First(domain, lineage, "w")
				require.NoError(t, w.writer().Publish(t.Context(), next))
				require.Equal(t, c.creates, w.blobs.Stats().Creates)
				got, err := w.writer().Load(t.Context())
				require.NoError(t, err)
				require.Equal(t, next, got)
			})
		})
	}
}

// failBoth loses the first create and the read that would settle it.
func failBoth(fault faultblob.Fault) faultblob.Hook {
	create, get := nth(faultblob.Create, 1, fault), nth(faultblob.Get, 1, faultblob.FailBefore)
	return func(op faultblob.Op, key string) faultblob.Fault {
		return max(create(op, key), get(op, key))
	}
}

func TestALostAnswerBehindAnotherWriterIsAConflict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		winner := publish(t, w.writer(), nil, 1)
		for _, hook := range []faultblob.Hook{
			nil,
			nth(faultblob.Create, 1, faultblob.FailAfter),
			nth(faultblob.Create, 1, faultblob.FailBefore),
		} {
			w.faults(hook)
			err := w.writer().Publish(t.Context(), manifest.First(domain, lineage, "loser"))
			require.ErrorIs(t, err, manifest.ErrConflict)
			var conflict *manifest.ConflictError
			require.ErrorAs(t, err, &conflict)
			require.Equal(t, winner, conflict.Current)
		}
	})
}

func TestAPublishThatIsCutOffCanBeRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		s := w.writer()
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		w.faults(func(op faultblob.Op, _ string) faultblob.Fault {
			if op == faultblob.Create {
				return faultblob.FailAfter
			}
			return faultblob.FailBefore
		})
		next := manifest.First(domain, lineage, "w")
		err := s.Publish(ctx, next)
		require.ErrorIs(t, err, manifest.ErrUnknown)
		require.ErrorIs(t, err, context.DeadlineExceeded)

		err = s.Publish(ctx, next)
		require.NotErrorIs(t, err, manifest.ErrUnknown, "nothing is tried once ctx is done")
		require.ErrorIs(t, err, context.DeadlineExceeded)

		w.faults(nil)
		require.NoError(t, s.Publish(t.Context(), next))
	})
}

func TestTheBoundaryVoidsAPublishThatComesTooLate(t *testing.T) {
	t.Run("collected meanwhile", func(t *testing.T) {
		w := newWorld()
		cur := publish(t, w.writer(), nil, 1)
		publish(t, w.writer(), cur, 5)
		w.collect(t, 5)
		err := w.writer().Publish(t.Context(), cur.Successor("sleeper"))
		require.ErrorIs(t, err, manifest.ErrNotCommitted)
		m, err := w.writer().Load(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 6, m.Revision)
	})
	t.Run("another lineage", func(t *testing.T) {
		w := newWorld()
		cur := publish(t, w.writer(), nil, 1)
		w.boundary(t, ids.AtTime(time.Unix(9, 0)), 0)
		require.ErrorIs(t, w.writer().Publish(t.Context(), cur.Successor("old")), manifest.ErrNotCommitted)
	})
	t.Run("a boundary that is damaged", func(t *testing.T) {
		w := newWorld()
		_, err := w.blobs.Put(t.Context(), manifest.BoundaryKey(domain), []byte("?"))
		require.NoError(t, err)
		err = w.writer().Publish(t.Context(), manifest.First(domain, lineage, "w"))
		require.ErrorIs(t, err, manifest.ErrUnknown)
		require.ErrorContains(t, err, manifest.BoundaryKey(domain))
	})
}

func TestAHintThatCannotBeWrittenIsNoError(t *testing.T) {
	w := newWorld()
	w.faults(func(op faultblob.Op, _ string) faultblob.Fault {
		if op == faultblob.Put {
			return faultblob.FailBefore
		}
		return faultblob.None
	})
	publish(t, w.writer(), nil, 3)
	m, err := w.writer().Load(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 3, m.Revision)
}

func TestOnlyTheDomainsOwnManifestsArePublished(t *testing.T) {
	w := newWorld()
	other := manifest.First(ids.Domain{Tenant: "evil", Workspace: "prod"}, lineage, "w")
	require.Error(t, w.writer().Publish(t.Context(), other))
	require.Error(t, w.writer().Publish(t.Context(), manifest.First(domain, "no lineage", "w")))
	require.Zero(t, w.blobs.Stats().Creates)
}

// TestWritersThatRaceMakeOneLine has writers race for a thousand revisions, on a
// store that loses answers, and checks that the line is unbroken and that each
// writer was told the truth about each of its revisions.
func TestWritersThatRaceMakeOneLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const last = 1000
		w := newWorld()
		var mu sync.Mutex
		random := rand.New(rand.NewPCG(1, 2))
		w.faults(func(faultblob.Op, string) faultblob.Fault {
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
		won := map[int64][]string{} // nonces that were told to be committed
		var wg sync.WaitGroup
		for range 2 {
			s := w.writer()
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
		w.faults(nil)
		s := w.writer()
		var parent *manifest.Manifest
		for revision := range int64(last) {
			m, err := s.LoadAt(t.Context(), revision+1)
			require.NoError(t, err)
			require.Equal(t, []string{m.Nonce}, won[revision+1], "exactly one writer was told that it holds revision %d", revision+1)
			if parent != nil {
				require.Equal(t, parent.Ref(), *m.Parent)
				require.Greater(t, m.PublishedAt, parent.PublishedAt)
			}
			parent = m
		}
	})
}

// attempt is one round of a writer: load, then publish what follows. It is nil
// when nothing was published.
func attempt(t *testing.T, s *manifest.Store) *manifest.Manifest {
	cur, err := s.Load(t.Context())
	var next *manifest.Manifest
	switch {
	case errors.Is(err, manifest.ErrNone):
		next = manifest.First(domain, lineage, "racer")
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
