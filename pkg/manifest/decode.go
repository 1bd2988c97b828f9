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
// the base and the deltas of the previous manifest, which are most of the text and rarely
// change. It is safe for concurrent use.
type Decoder struct {
	Domain ids.Domain
	// Remember is how many decoded manifests the decoder keeps, to return them if it receives the same bytes again.
	// Simulations set it, because many processes read each revision: without it, a simulation spends a sixth of its time
	// on decoding.
	Remember int

	mu         sync.Mutex
	known      parsed               // the parts of the last decoded manifest
	remembered map[string]*Manifest // decoded manifests by their encoded bytes
	oldest     []string             // the keys of remembered, oldest first
}

// parsed holds parts of a manifest that have been decoded and validated. It is never modified.
type parsed struct {
	domain   ids.Domain
	baseText string
	base     BaseSnapshot
	deltas   map[deltaText]Delta
}

// deltaText is a delta as encoded in a manifest.
type deltaText struct{ tier, text string }

// Decode works like the function [Decode]. Manifests share the files of their base and their
// deltas: callers must not modify them.
func (dec *Decoder) Decode(key string, revision int64, data []byte) (*Manifest, error) {
	dec.mu.Lock()
	m, known := dec.remembered[string(data)], dec.known
	dec.mu.Unlock()
	var err error
	if m == nil {
		m, known, err = decode(data, known)
	}
	switch {
	case err != nil:
		return nil, &CorruptError{Key: key, Reason: err.Error()}
	case m.Domain() != dec.Domain || m.Revision != revision:
		return nil, &CorruptError{Key: key, Reason: fmt.Sprintf("it contains revision %d of %s", m.Revision, m.Domain())}
	}
	dec.mu.Lock()
	defer dec.mu.Unlock()
	dec.known = known
	dec.remember(string(data), m)
	return m.copied(), nil
}

// remember keeps a decoded manifest, and drops the oldest one if there are too many.
func (dec *Decoder) remember(data string, m *Manifest) {
	if dec.Remember == 0 || dec.remembered[data] != nil {
		return
	}
	if dec.remembered == nil {
		dec.remembered = map[string]*Manifest{}
	}
	if len(dec.oldest) == dec.Remember {
		delete(dec.remembered, dec.oldest[0])
		dec.oldest = dec.oldest[1:]
	}
	dec.remembered[data], dec.oldest = m, append(dec.oldest, data)
}

var errTooLarge = fmt.Errorf("it has more than %d bytes", maxBytes)

// decode returns the manifest, and its parts as a map from their encoded text. It decodes and validates only the parts
// that are not in known.
func decode(data []byte, known parsed) (*Manifest, parsed, error) {
	if len(data) > maxBytes {
		return nil, parsed{}, errTooLarge
	}
	var head struct {
		Manifest

		Base jsontext.Value   `json:"base_snapshot"`
		L1   []jsontext.Value `json:"l1"`
		L0   []jsontext.Value `json:"l0_deltas"`
	}
	// jsonv2 takes two fifths of the time of encoding/json, and rejects duplicate names
	// and trailing data.
	err := jsonv2.Unmarshal(data, &head, jsonv2.RejectUnknownMembers(true))
	if err == nil && head.SchemaVersion >= 1 && head.SchemaVersion <= SchemaVersion {
		m := head.Manifest
		next, checked := parsed{domain: m.Domain(), deltas: map[deltaText]Delta{}}, map[string][]bool{}
		if known.domain != next.domain { // the known parts contain keys of files, which depend on the domain
			known = parsed{}
		}
		sameBase := known.baseText != "" && string(head.Base) == known.baseText
		if sameBase {
			next.baseText, next.base = known.baseText, known.base
		} else if head.Base != nil {
			next.baseText = string(head.Base)
			if err = jsonv2.Unmarshal(head.Base, &next.base, jsonv2.RejectUnknownMembers(true)); err != nil {
				return nil, parsed{}, fmt.Errorf("it is not a manifest: base_snapshot: %w", err)
			}
		}
		m.BaseSnapshot = next.base
		for _, list := range []struct {
			name, tier string
			texts      []jsontext.Value
			to         *[]Delta
		}{{"l1", TierL1, head.L1, &m.L1}, {"l0_deltas", TierL0, head.L0, &m.L0}} {
			for i, text := range list.texts {
				d, ok := known.deltas[deltaText{list.tier, string(text)}]
				if !ok {
					err = jsonv2.Unmarshal(text, &d, jsonv2.RejectUnknownMembers(true))
				}
				if err != nil {
					return nil, parsed{}, fmt.Errorf("it is not a manifest: %s[%d]: %w", list.name, i, err)
				}
				next.deltas[deltaText{list.tier, string(text)}] = d
				*list.to, checked[list.tier] = append(*list.to, d), append(checked[list.tier], ok)
			}
		}
		return &m, next, m.validate(func(tier string, i int, _ *Delta) bool {
			if tier == TierBase {
				return sameBase
			}
			return checked[tier][i]
		})
	}
	// A newer format explains any other error, so check the version first.
	var version struct {
		SchemaVersion int `json:"schema_version"`
	}
	if headErr := json.Unmarshal(data, &version); headErr != nil {
		return nil, parsed{}, fmt.Errorf("it is not a JSON object: %w", headErr)
	}
	if version.SchemaVersion < 1 || version.SchemaVersion > SchemaVersion {
		return nil, parsed{}, fmt.Errorf("its schema_version is %d, but this build reads 1 to %d; upgrade servo", version.SchemaVersion, SchemaVersion)
	}
	return nil, parsed{}, fmt.Errorf("it is not a manifest: %w", err)
}
