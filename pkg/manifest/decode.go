package manifest

import (
	"encoding/json"
	"fmt"
	"sync"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/servo-orchestration/servo/pkg/ids"
)

// maxBytes is the maximum size of a manifest.
const maxBytes = 32 << 20

// maxSmall is the maximum size of a boundary or hint.
const maxSmall = 64 << 10

// Decode decodes and validates the manifest of a domain's revision, read from key. It
// rejects unknown fields, because a writer would drop them from the next revision.
func Decode(key string, d ids.Domain, revision int64, data []byte) (*Manifest, error) {
	return (&Decoder{Domain: d}).Decode(key, revision, data)
}

// Decoder decodes successive manifests of one domain faster than [Decode]. It reuses
// the deltas of the previous manifest, which are most of the text and rarely change.
// It is safe for concurrent use.
type Decoder struct {
	Domain ids.Domain

	mu    sync.Mutex
	known map[deltaText]Delta // the deltas of the last decoded manifest; never modified
}

// deltaText is a delta as encoded in a manifest.
type deltaText struct{ tier, text string }

// Decode works like the function [Decode]. Manifests share their deltas: callers must
// not modify them.
func (dec *Decoder) Decode(key string, revision int64, data []byte) (*Manifest, error) {
	dec.mu.Lock()
	known := dec.known
	dec.mu.Unlock()
	m, known, err := decode(data, known)
	switch {
	case err != nil:
		return nil, &CorruptError{Key: key, Reason: err.Error()}
	case m.Domain() != dec.Domain || m.Revision != revision:
		return nil, &CorruptError{Key: key, Reason: fmt.Sprintf("it contains revision %d of %s", m.Revision, m.Domain())}
	}
	dec.mu.Lock()
	defer dec.mu.Unlock()
	dec.known = known
	return m, nil
}

var errTooLarge = fmt.Errorf("it has more than %d bytes", maxBytes)

// decode returns the manifest and its deltas by their text. It decodes and validates
// only deltas that are not in known.
func decode(data []byte, known map[deltaText]Delta) (*Manifest, map[deltaText]Delta, error) {
	if len(data) > maxBytes {
		return nil, nil, errTooLarge
	}
	var head struct {
		Manifest

		L1 []jsontext.Value `json:"l1"`
		L0 []jsontext.Value `json:"l0_deltas"`
	}
	// jsonv2 takes two fifths of the time of encoding/json, and rejects duplicate names
	// and trailing data.
	err := jsonv2.Unmarshal(data, &head, jsonv2.RejectUnknownMembers(true))
	if err == nil && head.SchemaVersion >= 1 && head.SchemaVersion <= SchemaVersion {
		m := head.Manifest
		deltas, checked := map[deltaText]Delta{}, map[string][]bool{}
		for _, list := range []struct {
			name, tier string
			texts      []jsontext.Value
			to         *[]Delta
		}{{"l1", TierL1, head.L1, &m.L1}, {"l0_deltas", TierL0, head.L0, &m.L0}} {
			for i, text := range list.texts {
				d, ok := known[deltaText{list.tier, string(text)}]
				if !ok {
					err = jsonv2.Unmarshal(text, &d, jsonv2.RejectUnknownMembers(true))
				}
				if err != nil {
					return nil, nil, fmt.Errorf("it is not a manifest: %s[%d]: %w", list.name, i, err)
				}
				deltas[deltaText{list.tier, string(text)}] = d
				*list.to, checked[list.tier] = append(*list.to, d), append(checked[list.tier], ok)
			}
		}
		return &m, deltas, m.validate(func(tier string, i int, _ *Delta) bool { return checked[tier][i] })
	}
	// A newer format explains any other error, so check the version first.
	var version struct {
		SchemaVersion int `json:"schema_version"`
	}
	if headErr := json.Unmarshal(data, &version); headErr != nil {
		return nil, nil, fmt.Errorf("it is not a JSON object: %w", headErr)
	}
	if version.SchemaVersion < 1 || version.SchemaVersion > SchemaVersion {
		return nil, nil, fmt.Errorf("its schema_version is %d, but this build reads 1 to %d; upgrade servo", version.SchemaVersion, SchemaVersion)
	}
	return nil, nil, fmt.Errorf("it is not a manifest: %w", err)
}
