package latency_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/latency"
)

func TestDrawMatchesPercentiles(t *testing.T) {
	const n = 200_000
	for _, d := range []latency.Dist{
		latency.Milliseconds(45, 180), latency.Milliseconds(5, 30),
		{P50: time.Second, P99: time.Second},
	} {
		s := latency.NewSource(rand.New(rand.NewPCG(1, 2)))
		drawn := make([]time.Duration, n)
		for i := range drawn {
			drawn[i] = s.Draw(d)
		}
		slices.Sort(drawn)
		require.InEpsilon(t, d.P50, drawn[n/2], 0.02)
		require.InEpsilon(t, d.P99, drawn[n*99/100], 0.03)
		require.Positive(t, drawn[0])
	}
}

func TestDrawIsDeterministicPerSeed(t *testing.T) {
	d := latency.Dist{P50: 15 * time.Millisecond, P99: 80 * time.Millisecond}
	a, b := latency.NewSource(rand.New(rand.NewPCG(7, 7))), latency.NewSource(rand.New(rand.NewPCG(7, 7)))
	for range 100 {
		require.Equal(t, a.Draw(d), b.Draw(d))
	}
}

func TestZeroDistDrawsZero(t *testing.T) {
	require.Zero(t, (*latency.Source)(nil).Draw(latency.Dist{}))
	require.Zero(t, latency.Dist{}.At(3))
	require.Equal(t, time.Second, latency.Dist{P50: time.Second}.At(3), "a missing percentile equals the median")
}
