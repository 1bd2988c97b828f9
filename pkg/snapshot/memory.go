package snapshot

import (
	"encoding/json"
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

// memoryFile is a file of a memory codec. It is JSON, so that it may also stand in
// a manifest.
type memoryFile struct {
	Table  string `json:"table"`
	Number int    `json:"rows_in_memory"`
}

// rowBytes is about how long a row is as JSON.
const rowBytes = 400

// keep gives the bytes that stand for rows, which are not changed any more: they
// are in a state that is published.
func keep[R any](m *memory, name string, rows []*R) []byte {
	kept := slices.Clone(rows)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.files = append(m.files, kept)
	data, err := json.Marshal(memoryFile{Table: name, Number: len(m.files) - 1})
	if err != nil {
		panic(err) // texts and numbers always have a JSON form
	}
	return data
}

// recall gives copies of the rows that bytes stand for.
func recall[R any](m *memory, name string, data []byte) ([]*R, error) {
	var file memoryFile
	if err := json.Unmarshal(data, &file); err != nil || file.Table != name {
		return nil, errors.New("it is no file of this codec and table")
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if file.Number < 0 || file.Number >= len(m.files) {
		return nil, fmt.Errorf("its rows, number %d, are not kept", file.Number)
	}
	kept, ok := m.files[file.Number].([]*R)
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
