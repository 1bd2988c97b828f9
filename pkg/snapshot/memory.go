package snapshot

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
)

// memory keeps the rows of files whose bytes only name them.
type memory struct {
	mu    sync.Mutex
	files []any // []*R of each, by number
}

// NewMemoryCodec makes a codec whose files hold no rows, but the number under
// which the codec keeps them: only the same codec can read them. It is for
// simulations, where encoding and decoding Parquet would be nearly all of the
// work.
func NewMemoryCodec() *Codec {
	c := NewCodec()
	c.memory = &memory{}
	return c
}

// memoryMagic begins a file of a memory codec.
const memoryMagic = "rows in memory: "

// keep gives the bytes that stand for rows, which are not changed any more: they
// are in a state that is published.
func keep[R any](m *memory, name string, rows []*R) []byte {
	kept := slices.Clone(rows)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.files = append(m.files, kept)
	return append(binary.BigEndian.AppendUint64([]byte(memoryMagic), uint64(len(m.files)-1)), name...)
}

// recall gives copies of the rows that bytes stand for.
func recall[R any](m *memory, name string, data []byte) ([]*R, error) {
	const head = len(memoryMagic) + 8
	if len(data) < head || string(data[:len(memoryMagic)]) != memoryMagic || string(data[head:]) != name {
		return nil, errors.New("it is no file of this codec and table")
	}
	number := binary.BigEndian.Uint64(data[len(memoryMagic):head])
	m.mu.Lock()
	defer m.mu.Unlock()
	if number >= uint64(len(m.files)) {
		return nil, fmt.Errorf("its rows, number %d, are not kept", number)
	}
	kept, ok := m.files[number].([]*R)
	if !ok {
		return nil, errors.New("its rows are of another table")
	}
	copies := make([]R, len(kept))
	rows := make([]*R, len(kept))
	for i, r := range kept {
		copies[i] = *r
		rows[i] = &copies[i]
	}
	return rows, nil
}
