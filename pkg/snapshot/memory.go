package snapshot

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
)

// memory holds the rows of files whose bytes contain only a number.
type memory struct {
	mu    sync.Mutex
	files []any // of type []*R; the number of a file is its index
}

// NewMemoryCodec returns a codec that keeps rows in memory. Its files contain only the
// number of their rows, so no other codec can read them. It is for simulations, which
// would otherwise spend most of their time on Parquet.
func NewMemoryCodec() *Codec {
	c := NewCodec()
	c.memory = &memory{}
	return c
}

// memoryFile is the content of a file of a memory codec. It is JSON, so that a manifest
// can contain it.
type memoryFile struct {
	Table  string `json:"table"`
	Number int    `json:"rows_in_memory"`
}

// rowBytes is the approximate size of a row as JSON.
const rowBytes = 400

// store stores rows and returns the content of a file that refers to them. Callers must
// not modify the rows afterwards.
func store[R any](m *memory, name string, rows []*R) []byte {
	stored := slices.Clone(rows)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.files = append(m.files, stored)
	data, err := json.Marshal(memoryFile{Table: name, Number: len(m.files) - 1})
	if err != nil {
		panic(err) // strings and numbers can always be encoded
	}
	return data
}

// fetch returns copies of the rows that a file refers to.
func fetch[R any](m *memory, name string, data []byte) ([]*R, error) {
	var file memoryFile
	if err := json.Unmarshal(data, &file); err != nil || file.Table != name {
		return nil, errors.New("not a file of this codec and table")
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if file.Number < 0 || file.Number >= len(m.files) {
		return nil, fmt.Errorf("unknown file number %d", file.Number)
	}
	stored, ok := m.files[file.Number].([]*R)
	if !ok {
		return nil, fmt.Errorf("file number %d belongs to another table", file.Number)
	}
	copies := make([]R, len(stored))
	rows := make([]*R, len(stored))
	for i, r := range stored {
		copies[i] = *r
		rows[i] = &copies[i]
	}
	return rows, nil
}
