package remote

import (
	"bytes"
	"encoding/json"
	"errors"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/event"
)

// body is the body of POST /v1/compact.
type body struct {
	Tenant    string   `json:"tenant"`
	Workspace string   `json:"workspace"`
	Entries   []string `json:"entries,omitempty"`
	// Data has the content of entries, by their index in Entries. The compactor does not read these entries from the
	// store.
	Data    map[int]content `json:"data,omitempty"`
	Barrier bool            `json:"barrier,omitempty"`
	Sweep   bool            `json:"sweep,omitempty"`
	Through event.Time      `json:"through,omitzero"`

	notified bool // a notification of the bucket announced the entries
}

// content contains an entry that the caller has just stored, and the version and the checksum of the stored object.
type content struct {
	Data    string `json:"data"`
	Version int64  `json:"version"`
	CRC32C  uint32 `json:"crc32c"`
	// Stored is when the store created the entry. If it is 0, the compactor asks the store for this time.
	Stored event.Time `json:"stored,omitzero"`
}

// check returns an error if the content is incomplete or does not match its checksum. It does not ask the store.
func (c content) check() error {
	switch {
	case c.Data == "":
		return errors.New("data is empty")
	case c.Version == 0:
		return errors.New("version is missing: send the version of the stored object")
	case blob.CRC32C([]byte(c.Data)) != c.CRC32C:
		return errors.New("crc32c does not match data")
	}
	return nil
}

// encode returns the body as JSON. It omits the content of entries if the body would be too large.
func (b body) encode() ([]byte, error) {
	data := &bytes.Buffer{}
	encoder := json.NewEncoder(data)
	encoder.SetEscapeHTML(false) // the ledger does not escape HTML in entries either
	if err := encoder.Encode(b); err != nil || data.Len() <= maxBody || b.Data == nil {
		return data.Bytes(), err
	}
	b.Data = nil
	return b.encode()
}
