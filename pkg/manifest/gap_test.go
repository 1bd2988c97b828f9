package manifest_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/manifest"
)

// In an earlier version, collection stopped permanently if somebody had deleted the first or the second manifest above
// the boundary. This test fails without stepOver.
func TestRetainStepsOverDeletedManifests(t *testing.T) {
	for gap, missing := range map[string][]int64{"first": {1, 2, 3}, "second": {2, 3}, "middle": {5}, "two": {1, 2, 6}} {
		t.Run(gap, func(t *testing.T) {
			fx, c := newTickFixture()
			a := fx.author(c)
			a.publishMany(t, 8, 10*time.Minute)
			for _, revision := range missing {
				require.NoError(t, fx.blobs.Delete(t.Context(), manifest.Key(domain, revision)))
			}
			dense, err := a.s.Dense(t.Context())
			require.NoError(t, err)
			require.False(t, dense)
			a.publishMany(t, 2, 40*24*time.Hour)
			require.NoError(t, a.collect(t.Context()))
			kept, orphans, err := fx.audit(t.Context())
			require.NoError(t, err)
			require.Equal(t, []int64{9, 10}, kept, "the newest, and the one before it, which was replaced just now")
			require.Empty(t, fx.keys(t.Context(), manifest.PinPrefix(domain)))
			require.Empty(t, orphans)
			dense, err = a.s.Dense(t.Context())
			require.NoError(t, err)
			require.True(t, dense)
		})
	}
}

// The revision before a gap is kept as long as the revision after the gap is young.
func TestRetainKeepsARevisionBeforeAYoungGap(t *testing.T) {
	fx, c := newTickFixture()
	a := fx.author(c)
	a.publishMany(t, 3, time.Minute)
	require.NoError(t, fx.blobs.Delete(t.Context(), manifest.Key(domain, 2)))
	require.NoError(t, a.collect(t.Context()))
	require.Contains(t, fx.keys(t.Context(), "manifests/"), manifest.Key(domain, 1))
	c.pass(2 * time.Hour)
	require.NoError(t, a.collect(t.Context()))
	require.Equal(t, []string{manifest.Key(domain, 3)}, fx.keys(t.Context(), "manifests/"))
}

// timed is a store with a clock, as a bucket has.
type timed struct {
	blob.Store

	clock *tick
}

func (s timed) Now(context.Context) (time.Time, error) { return s.clock.Now(), nil }

// A gap is as young as the store's clock says, even if the collector's clock is a year ahead.
func TestRetainKeepsARevisionBeforeAYoungGapIfItsClockIsAhead(t *testing.T) {
	fx, c := newTickFixture()
	a := fx.author(c)
	a.publishMany(t, 3, time.Minute)
	require.NoError(t, fx.blobs.Delete(t.Context(), manifest.Key(domain, 2)))
	ahead := &tick{now: c.Now().AddDate(1, 0, 0)}
	s := manifest.New(manifest.Config{Domain: domain, Store: timed{fx.blobs, c}, IDs: ids.NewSource(ahead.Now, nil), Clock: ahead})
	_, err := s.Load(t.Context())
	require.NoError(t, err)
	collector := manifest.NewCollector(s, manifest.Policy{})
	for more := true; more; {
		more, err = collector.Retain(t.Context())
		require.NoError(t, err)
	}
	require.Contains(t, fx.keys(t.Context(), "manifests/"), manifest.Key(domain, 1))
}

// Manifests are not a gap if another collector deletes them between two requests of this collector.
func TestRetainTakesNoDeletedRevisionForAGap(t *testing.T) {
	steps := 0
	for n, hit := 1, true; hit; n++ {
		fx, c := newTickFixture()
		a, b := fx.author(c), fx.author(c)
		a.publishMany(t, 12, 10*time.Minute)
		require.NoError(t, b.load(t.Context()))
		reached := fx.meanwhile(n, func() { require.NoError(t, a.collect(t.Context())) })
		require.NoError(t, b.collect(t.Context()), "at operation %d", n)
		hit = reached()
		fx.faults(nil)
		kept, _, err := fx.audit(t.Context())
		require.NoError(t, err)
		require.Equal(t, []int64{6, 7, 8, 9, 10, 11, 12}, kept, "at operation %d", n)
		steps++
	}
	require.Greater(t, steps, 5)
}

func TestLostDistinguishesNewDomains(t *testing.T) {
	fx, c := newTickFixture()
	a := fx.author(c)
	_, err := a.s.Load(t.Context())
	require.ErrorIs(t, err, manifest.ErrNone)
	require.False(t, manifest.Lost(err))
	a.publishMany(t, 10, time.Hour)
	require.NoError(t, a.collect(t.Context()))
	for _, key := range append(fx.keys(t.Context(), "manifests/"), manifest.HintKey(domain)) {
		require.NoError(t, fx.blobs.Delete(t.Context(), key))
	}
	s := manifest.New(manifest.Config{Domain: domain, Store: fx.blobs, IDs: ids.NewSource(c.Now, nil), Clock: c})
	_, err = s.Load(t.Context())
	require.True(t, manifest.Lost(err))
	require.True(t, manifest.Damaged(err))
	_, err = fx.blobs.Put(t.Context(), manifest.BoundaryKey(domain), []byte("{"))
	require.NoError(t, err)
	_, err = s.Load(t.Context())
	require.True(t, manifest.Damaged(err))
	require.False(t, manifest.Lost(err), "the boundary itself is damaged")
}
