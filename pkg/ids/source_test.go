package ids_test

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/servo-orchestration/servo/pkg/ids"
)

// zeros is entropy of only zeros.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// ones is entropy that makes every step as large as possible.
type ones struct{}

func (ones) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 0xff
	}
	return len(p), nil
}

func TestSourceIDsAlwaysIncrease(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.UnixMilli(1_736_937_000_000)
		var source *ids.Source
		clock := func() time.Time { return now }
		switch rapid.IntRange(0, 2).Draw(t, "entropy") {
		case 0:
			source = ids.NewSource(clock, zeros{})
		case 1:
			source = ids.NewSource(clock, ones{})
		default:
			source = ids.NewSource(clock, nil)
		}
		last := ""
		for range rapid.IntRange(1, 50).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.Int64Range(-5000, 5000).Draw(t, "ms")) * time.Millisecond)
			if rapid.Bool().Draw(t, "observes") {
				seen := ids.AtTime(now.Add(time.Duration(rapid.Int64Range(-60, 60).Draw(t, "s")) * time.Second))
				if rapid.Bool().Draw(t, "full") {
					seen = seen[:10] + "ZZZZZZZZZZZZZZZZ"
				}
				source.Observe(seen)
				last = max(last, seen)
			}
			id := source.New()
			require.True(t, ids.Valid(id))
			require.Greater(t, id, last)
			last = id
		}
	})
}

func TestSourceIDHasTimeOfClock(t *testing.T) {
	now := time.UnixMilli(1_736_937_000_123).UTC()
	require.Equal(t, now, ids.Time(ids.NewSource(func() time.Time { return now }, nil).New()))
}

func TestSourcesAfterSameObservationDiffer(t *testing.T) {
	now := func() time.Time { return time.UnixMilli(1_736_937_000_000) }
	seen := map[string]bool{}
	for range 1000 {
		s := ids.NewSource(now, nil)
		ahead := ids.AtTime(now().Add(20 * time.Minute))
		s.Observe(ahead)
		id := s.New()
		require.Greater(t, id, ahead)
		require.False(t, seen[id])
		seen[id] = true
	}
}

func TestObserveIgnoresInvalidIDs(t *testing.T) {
	now := func() time.Time { return time.UnixMilli(1_736_937_000_000).UTC() }
	s := ids.NewSource(now, nil)
	for _, bad := range []string{"", "x", "7ZZZZZZZZZZZZZZZZZZZZZZZZZ", "76EZ91ZPZZZZZZZZZZZZZZZZZZ", "01jhk4w2zs4t9m3q6v8x0yb1cd"} {
		s.Observe(bad)
	}
	require.Equal(t, now(), ids.Time(s.New()))
}

func TestSourceIsSafeForConcurrentUse(t *testing.T) {
	s := ids.NewSource(func() time.Time { return time.UnixMilli(1_736_937_000_000) }, nil)
	var mu sync.Mutex
	seen := map[string]bool{}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			last := ""
			for range 500 {
				id := s.New()
				s.Observe(id)
				mu.Lock()
				twice := seen[id]
				seen[id] = true
				mu.Unlock()
				if twice || id <= last {
					t.Errorf("%s after %s, seen before: %v", id, last, twice)
				}
				last = id
			}
		})
	}
	wg.Wait()
	require.Len(t, seen, 4000)
}

func TestObserveIgnoresIDsFarAhead(t *testing.T) {
	now := time.UnixMilli(1_736_937_000_000).UTC()
	s := ids.NewSource(func() time.Time { return now }, nil)
	for _, ahead := range []time.Duration{31 * time.Minute, time.Hour, 2 * 365 * 24 * time.Hour} {
		s.Observe(ids.AtTime(now.Add(ahead)))
		require.Equal(t, now, ids.Time(s.New()).Truncate(time.Second), "after an id %s ahead", ahead)
	}
	s.Observe(ids.AtTime(now.Add(29 * time.Minute)))
	require.Equal(t, now.Add(29*time.Minute), ids.Time(s.New()).Truncate(time.Second), "a small lead is followed")
}

func TestSourceFollowsClockSetBack(t *testing.T) {
	now := time.UnixMilli(1_736_937_000_000).UTC()
	s := ids.NewSource(func() time.Time { return now }, nil)
	right := now
	now = right.Add(2 * 365 * 24 * time.Hour)
	s.New()
	now = right
	require.Equal(t, right, ids.Time(s.New()).Truncate(time.Second))
	before := s.New()
	now = right.Add(-time.Minute)
	require.Greater(t, s.New(), before, "ids still increase after a small step back")
}

func TestRaiseSetsFloor(t *testing.T) {
	now := time.UnixMilli(1_736_937_000_000).UTC()
	s := ids.NewSource(func() time.Time { return now }, nil)
	last := ids.AtTime(now.Add(3 * time.Hour))
	s.Raise(last)
	for range 10 {
		id := s.New()
		require.Greater(t, id, last)
		last = id
		now = now.Add(-time.Minute)
	}
}
