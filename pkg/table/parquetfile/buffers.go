package parquetfile

import (
	"reflect"
	"sync"
)

// minBufferBytes is the capacity of the smallest buffer. Go aligns buffers of this size or larger as the Parquet
// library expects.
const minBufferBytes = 1 << 10

// maxFreeBuffers is how many free buffers are kept for reuse. The Parquet library uses three at once: for compressed
// pages, data pages and dictionary pages.
const maxFreeBuffers = 4

// buffers allocates the buffers for the pages of one file, and reuses them for the next columns and files. Without
// reuse, they are 40 % of the memory that the decoding of small tables allocates. Only one goroutine may use them at
// a time.
type buffers struct{ free [][]byte }

// scratch is the memory that decoding needs and that no decoded row refers to, because rows have copies of all texts.
type scratch struct {
	buffers buffers
	cells   cells
	values  []reflect.Value
}

// unused holds the scratch memory of finished calls.
var unused = sync.Pool{New: func() any { return new(scratch) }}

// release makes the memory available to later calls.
func (m *scratch) release() {
	clear(m.values[:cap(m.values)]) // the values would keep the decoded rows in memory
	m.cells.last, m.cells.known = "", nil
	unused.Put(m)
}

// Allocate implements memory.Allocator. The content of the buffer is undefined.
func (b *buffers) Allocate(size int) []byte {
	for i, buffer := range b.free {
		if cap(buffer) >= size {
			last := len(b.free) - 1
			b.free[i], b.free = b.free[last], b.free[:last]
			return buffer[:size]
		}
	}
	return make([]byte, size, max(size, minBufferBytes))
}

// Reallocate implements memory.Allocator. It does not put the smaller buffer back into free, because values of the
// last page may still refer to it.
func (b *buffers) Reallocate(size int, buffer []byte) []byte {
	if cap(buffer) >= size {
		return buffer[:size]
	}
	larger := b.Allocate(size)
	copy(larger, buffer)
	return larger
}

// Free implements memory.Allocator.
func (b *buffers) Free(buffer []byte) {
	if cap(buffer) >= minBufferBytes && len(b.free) < maxFreeBuffers {
		b.free = append(b.free, buffer)
	}
}
