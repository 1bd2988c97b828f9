package publisher

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/servo-orchestration/servo/pkg/event"
)

// RecordName is the name of the file in a published folder that records what Servo has published there.
const RecordName = "_published.json"

// maxRecordBytes is the maximum size of a record, in bytes. It is enough for 20,000 assets, or for a few assets with
// [MaxOutputs] partitions.
const maxRecordBytes = 256 << 20

// Owner identifies the state folder whose outputs a place shows.
type Owner struct {
	// Kind is [KindPublish] or [KindExport].
	Kind   string `json:"kind"`
	Domain string `json:"domain"`
	// State is the path of the state folder, relative to the published place.
	State string `json:"state"`
}

// Kinds of places.
const (
	KindPublish = "publish" // Servo keeps the place up to date
	KindExport  = "export"  // a command wrote the place once
)

// Record is the content of the file [RecordName].
type Record struct {
	Owner

	// Revision and UpdatedAt describe the last change of the place: the revision that was published, and the time of the
	// change.
	Revision  int64      `json:"revision"`
	UpdatedAt event.Time `json:"updated_at"`
	// Assets are the published assets, by name.
	Assets map[string]*Recorded `json:"assets"`
}

// Recorded is a published asset.
type Recorded struct {
	Asset string `json:"asset"`
	Copy  bool   `json:"copy,omitempty"`
	// Outputs maps the folder of each partition to the published materialization.
	Outputs map[string]string `json:"outputs"`
	// Replacing maps the folder of a partition to the materialization that is about to replace the one in Outputs. A
	// reader of such a folder may find either.
	Replacing map[string]string `json:"replacing,omitempty"`
	// Earlier lists further materializations that readers of a catalog may find, because several updates were
	// interrupted.
	Earlier []string `json:"earlier,omitempty"`
	// Copies maps the folder of each complete copy to its files, as Servo wrote them.
	Copies map[string][]copiedFile `json:"copies,omitempty"`
}

// copiedFile is a file of a copy. If somebody has edited the file, its size or its modification time differs from the
// recorded one.
type copiedFile struct {
	Name     string `json:"name"`
	Size     int64  `json:"size"`
	Modified int64  `json:"modified"` // in nanoseconds since 1970
}

// ReadRecord reads the record of a published place from the file called name. If the place has no record, the error
// is [fs.ErrNotExist].
func ReadRecord(name string) (*Record, error) {
	file, err := os.Open(name) //nolint:gosec // the user chose the place
	if err != nil {
		return nil, err
	}
	defer file.Close() // only read
	data, err := io.ReadAll(io.LimitReader(file, maxRecordBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	r := &Record{Assets: map[string]*Recorded{}}
	if err := json.Unmarshal(data, r); err != nil || len(data) > maxRecordBytes {
		return nil, fmt.Errorf("%s is damaged: delete the folder %s, and Servo writes it again", name, filepath.Dir(name))
	}
	r.normalize()
	return r, nil
}

// normalize replaces nil maps of a record with empty ones.
func (r *Record) normalize() {
	if r.Assets == nil {
		r.Assets = map[string]*Recorded{}
	}
	for name, a := range r.Assets {
		if a == nil {
			delete(r.Assets, name)
		} else if a.Outputs == nil {
			a.Outputs = map[string]string{}
		}
	}
}

// Named adds to a set the materializations that readers of a published place may find. The parameter record is the path
// of the place's record. If the record does not exist, Named adds nothing.
func Named(record string, to map[string]bool) error {
	r, err := ReadRecord(record)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, a := range r.Assets {
		for _, outputs := range []map[string]string{a.Outputs, a.Replacing} {
			for _, id := range outputs {
				to[id] = true
			}
		}
		for _, id := range a.Earlier {
			to[id] = true
		}
	}
	return nil
}

// encode returns the record as JSON.
func (r *Record) encode() ([]byte, error) {
	data, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", RecordName, err)
	}
	return append(data, '\n'), nil
}
