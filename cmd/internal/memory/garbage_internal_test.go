package memory

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestGCPercentFallsWithLiveHeap(t *testing.T) {
	const mib = 1 << 20
	for live, want := range map[uint64]int{0: 300, 20 * mib: 300, 85 * mib: 300, 128 * mib: 200, 256 * mib: 100, 512 * mib: 50, 8192 * mib: 50} {
		require.Equal(t, want, gcPercent(live), "%d MiB", live/mib)
	}
}
