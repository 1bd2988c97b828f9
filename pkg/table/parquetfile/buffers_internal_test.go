package parquetfile

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestBuffersAreReused(t *testing.T) {
	var b buffers
	first := b.Allocate(5000)
	require.Len(t, first, 5000)
	b.Free(first)
	again := b.Allocate(4000)
	require.Len(t, again, 4000)
	require.Same(t, &first[0], &again[0])
	require.NotSame(t, &first[0], &b.Allocate(4000)[0], "the first buffer is in use")
	b.Free(again)
	require.Len(t, b.Allocate(6000), 6000, "no free buffer is large enough")
}

func TestBufferThatGrowsKeepsItsValues(t *testing.T) {
	var b buffers
	small := b.Allocate(2000)
	copy(small, "values")
	large := b.Reallocate(3000, small)
	require.Equal(t, "values", string(large[:6]))
	next := b.Allocate(2000)
	copy(next, "others")
	require.Equal(t, "values", string(small[:6]), "a reader may still use the smaller buffer")
	require.Same(t, &large[0], &b.Reallocate(1000, large)[0])
}

func TestBuffersThatAreKeptAreFew(t *testing.T) {
	var b buffers
	b.Free(nil)
	b.Free(make([]byte, 10))
	for range 10 {
		b.Free(make([]byte, minBufferBytes))
	}
	require.Len(t, b.free, maxFreeBuffers)
}
