package cloudblob_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/blobtest"
	"github.com/servo-orchestration/servo/internal/cloudblob"
	"github.com/servo-orchestration/servo/internal/latency"
	"github.com/servo-orchestration/servo/internal/memblob"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/clock"
)

func random() *latency.Source { return latency.NewSource(rand.New(rand.NewPCG(1, 2))) }

// hasty is a clock that advances by a second on each reading, and by the duration of each
// Sleep without waiting.
type hasty struct {
	mu  sync.Mutex
	now time.Time
}

func (h *hasty) Now() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.now = h.now.Add(time.Second)
	return h.now
}

func (h *hasty) Sleep(ctx context.Context, d time.Duration) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.now = h.now.Add(d)
	return ctx.Err()
}

func TestContract(t *testing.T) {
	t.Run("metering", func(t *testing.T) {
		blobtest.Run(t, func(*testing.T) blob.Store {
			return cloudblob.New(memblob.New(memblob.Options{}), cloudblob.Config{})
		})
	})
	t.Run("as GCS", func(t *testing.T) {
		blobtest.Run(t, func(*testing.T) blob.Store {
			return cloudblob.New(memblob.New(memblob.Options{}), cloudblob.Config{
				Model: cloudblob.GCS(), Clock: &hasty{}, Random: random(),
			})
		})
	})
}

// gcs returns a store with the model of GCS, in the virtual time of a synctest bubble.
func gcs(inner blob.Store) *cloudblob.Store {
	return cloudblob.New(inner, cloudblob.Config{Model: cloudblob.GCS(), Clock: clock.System{}, Random: random()})
}

func TestLatenciesFollowModel(t *testing.T) {
	model := cloudblob.GCS()
	for _, row := range []struct {
		name string
		dist latency.Dist
		do   func(ctx context.Context, s blob.Store, i int) error
	}{
		{"create", model.Write, func(ctx context.Context, s blob.Store, i int) error {
			_, err := s.Create(ctx, fmt.Sprintf("new/%d", i), nil)
			return err
		}},
		{"put", model.Write, func(ctx context.Context, s blob.Store, i int) error {
			_, err := s.Put(ctx, fmt.Sprintf("put/%d", i), nil)
			return err
		}},
		{"get", model.Read, func(ctx context.Context, s blob.Store, _ int) error {
			_, _, err := s.Get(ctx, "there/k")
			return err
		}},
		{"head", model.Read, func(ctx context.Context, s blob.Store, _ int) error {
			_, err := s.Head(ctx, "there/k")
			return err
		}},
		{"list", model.List, func(ctx context.Context, s blob.Store, _ int) (failed error) {
			for _, err := range s.List(ctx, blob.ListOptions{Prefix: "there/"}) {
				failed = err
			}
			return failed
		}},
		{"delete", model.Delete, func(ctx context.Context, s blob.Store, i int) error {
			return s.Delete(ctx, fmt.Sprintf("gone/%d", i))
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const n = 20_000
				inner := memblob.New(memblob.Options{})
				_, err := inner.Create(t.Context(), "there/k", []byte("x"))
				require.NoError(t, err)
				s := gcs(inner)
				took := make([]time.Duration, n)
				for i := range took {
					began := clock.System{}.Now()
					require.NoError(t, row.do(t.Context(), s, i))
					took[i] = clock.System{}.Now().Sub(began)
				}
				slices.Sort(took)
				require.InEpsilon(t, row.dist.P50, took[n/2], 0.03)
				require.InEpsilon(t, row.dist.P99, took[n*99/100], 0.06)
			})
		})
	}
}

func TestMutationLimitRejectsWithoutEffect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, inner := t.Context(), memblob.New(memblob.Options{})
		s := cloudblob.New(inner, cloudblob.Config{Model: cloudblob.Model{MutationEvery: time.Second}, Clock: clock.System{}})
		content := func() string {
			data, _, err := inner.Get(ctx, "hints/a")
			require.NoError(t, err)
			return string(data)
		}
		first, err := s.Put(ctx, "hints/a", []byte("1"))
		require.NoError(t, err)
		_, err = s.Put(ctx, "hints/a", []byte("2"))
		require.ErrorIs(t, err, cloudblob.ErrTooFast)
		_, err = s.Replace(ctx, "hints/a", []byte("2"), first.Version)
		require.ErrorIs(t, err, cloudblob.ErrTooFast)
		for _, known := range []error{blob.ErrExists, blob.ErrMismatch, blob.ErrNotFound, blob.ErrInvalid} {
			require.NotErrorIs(t, err, known, "for the port the outcome is unknown")
		}
		require.ErrorIs(t, s.Delete(ctx, "hints/a"), cloudblob.ErrTooFast)
		require.Equal(t, "1", content())
		_, err = s.Create(ctx, "hints/a", nil)
		require.ErrorIs(t, err, blob.ErrExists, "an existing name is refused with ErrExists")
		_, err = s.Put(ctx, "hints/b", nil)
		require.NoError(t, err, "the limit applies per name")

		require.NoError(t, (clock.System{}).Sleep(ctx, time.Second-time.Millisecond))
		require.ErrorIs(t, s.Delete(ctx, "hints/a"), cloudblob.ErrTooFast)
		require.NoError(t, (clock.System{}).Sleep(ctx, time.Millisecond))
		require.NoError(t, s.Delete(ctx, "hints/a"))
		_, err = s.Create(ctx, "hints/a", nil)
		require.ErrorIs(t, err, cloudblob.ErrTooFast, "a deletion is a mutation")
		require.EqualValues(t, 5, s.Usage()["hints"].Refused)
		require.EqualValues(t, 3, s.Usage()["hints"].ClassA, "two puts, and a create refused with ErrExists")
	})
}

func TestUsageCountsByClassAndKind(t *testing.T) {
	ctx := t.Context()
	s := cloudblob.New(memblob.New(memblob.Options{}), cloudblob.Config{})
	for i := range cloudblob.PageSize + 1 {
		_, err := s.Create(ctx, fmt.Sprintf("ledger/%04d", i), []byte("12345"))
		require.NoError(t, err)
	}
	_, err := s.CreateFrom(ctx, "state/a", strings.NewReader("1234567"))
	require.NoError(t, err)
	_, err = s.Create(ctx, "state/a", []byte("refused"))
	require.ErrorIs(t, err, blob.ErrExists)
	_, _, err = s.Get(ctx, "state/a")
	require.NoError(t, err)
	_, _, err = s.Get(ctx, "state/absent")
	require.ErrorIs(t, err, blob.ErrNotFound)
	r, _, err := s.Open(ctx, "state/a")
	require.NoError(t, err)
	_, err = io.ReadAll(r)
	require.NoError(t, errors.Join(err, r.Close()))
	_, err = s.Head(ctx, "state/a")
	require.NoError(t, err)
	require.NoError(t, s.Delete(ctx, "state/a"))
	_, err = s.Create(ctx, "../invalid", nil)
	require.ErrorIs(t, err, blob.ErrInvalid)
	before := s.Usage()
	require.Equal(t, cloudblob.Usage{
		"ledger": {ClassA: cloudblob.PageSize + 1, BytesIn: 5 * (cloudblob.PageSize + 1)},
		"state":  {ClassA: 2, ClassB: 4, Free: 1, BytesIn: 7, BytesOut: 14},
	}, before)

	for _, err := range s.List(ctx, blob.ListOptions{Prefix: "ledger/"}) {
		require.NoError(t, err)
	}
	for _, err := range s.List(ctx, blob.ListOptions{Prefix: "nothing/"}) {
		require.NoError(t, err)
	}
	for _, err := range s.List(ctx, blob.ListOptions{Prefix: "ledger/"}) {
		require.NoError(t, err)
		break
	}
	require.EqualValues(t, before["ledger"].ClassA+2+1, s.Usage()["ledger"].ClassA, "two pages, and the first page of an aborted listing")
	require.EqualValues(t, 1, s.Usage()["nothing"].ClassA, "an empty listing counts as one")
	require.Equal(t, before.Total().ClassA+4, s.Usage().Total().ClassA)
	require.Equal(t, int64(5), before["state"].Operations()-before["state"].ClassA)
}

func TestWriteCanceledEarlyChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := memblob.New(memblob.Options{})
		var written []string
		s := cloudblob.New(inner, cloudblob.Config{
			Model: cloudblob.Model{Write: latency.Dist{P50: time.Second, P99: time.Second}}, Clock: clock.System{}, Random: random(),
			Written: func(o blob.Object) { written = append(written, o.Key) },
		})
		try := func(key string, timeout time.Duration) error {
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			defer cancel()
			_, err := s.Create(ctx, key, nil)
			return err
		}
		require.ErrorIs(t, try("a", 400*time.Millisecond), context.DeadlineExceeded)
		_, err := inner.Head(t.Context(), "a")
		require.ErrorIs(t, err, blob.ErrNotFound)
		require.ErrorIs(t, try("a", 600*time.Millisecond), context.DeadlineExceeded)
		_, err = inner.Head(t.Context(), "a")
		require.NoError(t, err, "it was already in progress")
		require.Equal(t, []string{"a"}, written, "the notification is sent anyway")
		require.NoError(t, try("b", 2*time.Second))
		require.Equal(t, []string{"a", "b"}, written)
	})
}
