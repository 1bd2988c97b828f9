package snapshot

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"sync"

	"github.com/servo-orchestration/servo/pkg/table"
)

// memory is a [table.Format] that keeps the rows in memory. The bytes of a file contain only
// its number.
type memory struct {
	mu    sync.Mutex
	files [][]reflect.Value // the rows by the number of the file
}

// NewMemoryCodec returns a codec that keeps rows in memory. Its files contain only the
// number of their rows, so no other codec can read them. It is for simulations, which
// would otherwise spend most of their time on Parquet. Callers must not modify rows after
// encoding them.
func NewMemoryCodec() *Codec {
	m := &memory{}
	return &Codec{files: m, inline: m}
}

// memoryFile is the content of a file of a memory codec. It is JSON, so that a manifest
// can contain it.
type memoryFile struct {
	Table  string `json:"table"`
	Number int    `json:"rows_in_memory"`
}

// rowBytes is the approximate size of a row as JSON.
const rowBytes = 400

// Encode implements [table.Format].
func (m *memory) Encode(s *table.Schema, n int, row func(i int) reflect.Value) ([]byte, error) {
	rows := make([]reflect.Value, n)
	for i := range rows {
		rows[i] = row(i)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.files = append(m.files, rows)
	return json.Marshal(memoryFile{Table: s.Name, Number: len(m.files) - 1})
}

// Decode implements [table.Format]. It adds copies of the rows.
func (m *memory) Decode(s *table.Schema, data []byte, add func() reflect.Value) error {
	var file memoryFile
	if err := json.Unmarshal(data, &file); err != nil || file.Table != s.Name {
		return errors.New("not a file of this codec and table")
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if file.Number < 0 || file.Number >= len(m.files) {
		return fmt.Errorf("unknown file number %d", file.Number)
	}
	for _, row := range m.files[file.Number] {
		add().Set(row)
	}
	return nil
}
