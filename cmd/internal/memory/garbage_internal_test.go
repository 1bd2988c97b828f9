package memory

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestGCPercentFallsWithLiveHeap(t *testing.T) {
	const mib = 1 << 20
	for live, want := range map[uint64]int{0: 300, 20 * mib: 300, 85 * mib: 300, 128 * mib: 200, 256 * mib: 100, 512 * mib: 50, 8192 * mib: 50} {
		require.Equal(t, want, gcPercent(live), "%d MiB", live/mib)
	}
}

// The finalizer that tunes the collector must run even if its object is allocated between live small objects.
func TestGarbageIsTunedBesideSmallObjects(t *testing.T) {
	const tuners = 100
	tuned := make(chan int, 100*tuners)
	set := func(percent int) int {
		tuned <- percent
		return 0
	}
	var live []*int8
	for range tuners {
		live = append(live, new(int8))
		(&collected{percent: startPercent, set: set}).again()
		live = append(live, new(int8))
	}
	for range 1000 {
		if runtime.GC(); len(tuned) >= tuners {
			break
		}
	}
	require.GreaterOrEqual(t, len(tuned), tuners)
	require.LessOrEqual(t, <-tuned, mostPercent)
	runtime.KeepAlive(live)
}
