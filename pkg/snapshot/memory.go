package snapshot

import (
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"sync"

	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/table"
)

// memory is a [table.Format] that keeps the rows in memory. The bytes of a file contain only the name of the table
// and the number of the file.
type memory struct {
	mu       sync.Mutex
	files    [][]reflect.Value // the rows of each file, by its number
	decoders map[ids.Domain]*manifest.Decoder
}

// remembered is the number of manifests that the decoder of each domain remembers.
const remembered = 256

// Decoder returns a decoder of a domain's manifests. All processes of a simulation share this decoder. If c is not a
// memory codec, Decoder returns nil.
func (c *Codec) Decoder(d ids.Domain) *manifest.Decoder {
	m, ok := c.files.(*memory)
	if !ok {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.decoders[d] == nil {
		m.decoders[d] = &manifest.Decoder{Domain: d, Remember: remembered}
	}
	return m.decoders[d]
}

// NewMemoryCodec returns a codec that keeps rows in memory. A file contains only the name of its table and a number
// that identifies its rows in memory, so no other codec can read the file. The codec is for simulations, which would
// otherwise spend most of their time on Parquet. Callers must not modify rows after encoding them.
func NewMemoryCodec() *Codec {
	m := &memory{decoders: map[ids.Domain]*manifest.Decoder{}}
	return &Codec{files: m, inline: m}
}

// memoryFile is the content of a file of a memory codec: the table, and the number of the file. It is JSON, so that a
// manifest can contain it. Decode does not use encoding/json: simulations decode many files, and encoding/json would
// take a noticeable part of their time.
const memoryFile = `{"table":%q,"rows_in_memory":%d}`

// rowBytes is the approximate size of a row, in bytes, as JSON.
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
	return fmt.Appendf(nil, memoryFile, s.Name, len(m.files)-1), nil
}

// Decode implements [table.Format]. It copies the stored rows into the rows that add returns.
func (m *memory) Decode(s *table.Schema, data []byte, add func() reflect.Value) error {
	rest, table := strings.CutPrefix(string(data), `{"table":"`+s.Name+`","rows_in_memory":`)
	number, err := strconv.Atoi(strings.TrimSuffix(rest, "}"))
	if !table || err != nil {
		return errors.New("not a file of this codec and table")
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if number < 0 || number >= len(m.files) {
		return fmt.Errorf("unknown file number %d", number)
	}
	for _, row := range m.files[number] {
		add().Set(row)
	}
	return nil
}
