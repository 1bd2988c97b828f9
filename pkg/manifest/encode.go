package manifest

import (
	"errors"
	"fmt"
	"slices"

	jsonv2 "github.com/go-json-experiment/json"
)

// Encode returns the bytes to store for a manifest. It is deterministic.
func Encode(m *Manifest) ([]byte, error) {
	data, _, err := texts(nil).encode(m)
	return data, err
}

// texts maps the deltas of the last encoded manifest to their JSON. Deltas are most of
// a manifest's text and rarely change, so the next manifest reuses them. Every delta in texts has been validated.
type texts map[deltaKey][]byte

// deltaKey identifies the content of a delta. The same inline delta may have different content in two manifests: later
// manifests drop some of its rows, and a failed publish may have dropped other rows than the published manifest. The
// checksums of the rows distinguish these versions.
type deltaKey struct {
	tier, id              string
	revision, rows, bytes int64
	sums                  uint64
}

func (d *Delta) key(tier string) deltaKey {
	const prime = 1_099_511_628_211 // the prime of the FNV hash
	sums := uint64(len(d.Inline))
	for i := range d.Inline {
		sums = (sums ^ uint64(d.Inline[i].CRC32C)) * prime
	}
	return deltaKey{tier, d.ID, d.Revision, d.Rows, d.Bytes, sums}
}

func (t texts) has(tier string, _ int, d *Delta) bool {
	if tier == TierBase {
		return false
	}
	_, ok := t[d.key(tier)]
	return ok
}

// deltaShare sets the spare capacity of the buffer: a quarter of the expected size. The buffer is not copied if a new
// delta fits into this capacity.
const deltaShare = 4

// encode returns the manifest's bytes and the texts of its deltas. It encodes only
// deltas that are not in t.
func (t texts) encode(m *Manifest) (data []byte, next texts, err error) {
	if err := m.validate(t.has); err != nil {
		return nil, nil, fmt.Errorf("encode manifest of %s, revision %d: %w", m.Domain(), m.Revision, err)
	}
	head := *m
	head.L1, head.L0 = nil, nil
	data, err = jsonv2.Marshal(&head, jsonv2.Deterministic(true))
	if err != nil {
		return nil, nil, fmt.Errorf("encode manifest of %s, revision %d: %w", m.Domain(), m.Revision, err)
	}
	next = texts{}
	size := len(data) + 1
	for _, text := range t { // estimate the size: a publish adds one delta, or merges some
		size += len(text) + 1
	}
	data = slices.Grow(data[:len(data)-1], size+size/deltaShare) // without the closing brace
	for _, list := range []struct {
		name, tier string
		deltas     []Delta
	}{{"l1", TierL1, m.L1}, {"l0_deltas", TierL0, m.L0}} {
		for i := range list.deltas {
			d := &list.deltas[i]
			text, ok := t[d.key(list.tier)]
			if !ok {
				if text, err = d.encode(); err != nil {
					return nil, nil, fmt.Errorf("encode manifest of %s, revision %d: delta %s: %w", m.Domain(), m.Revision, d.ID, err)
				}
			}
			next[d.key(list.tier)] = text
			if i == 0 {
				data = append(data, `,"`+list.name+`":[`...)
			} else {
				data = append(data, ',')
			}
			data = append(data, text...)
		}
		if len(list.deltas) > 0 {
			data = append(data, ']')
		}
	}
	if data = append(data, "}\n"...); len(data) > maxBytes {
		return nil, nil, fmt.Errorf("encode manifest of %s, revision %d: it has %d bytes, at most %d are allowed; run `servo admin rebuild` to merge the state into few files",
			m.Domain(), m.Revision, len(data), maxBytes)
	}
	return data, next, nil
}

// encode returns the delta as JSON. It copies inline rows byte for byte, because their checksum
// covers the bytes.
func (d *Delta) encode() ([]byte, error) {
	head := *d
	head.Inline = nil
	text, err := jsonv2.Marshal(&head)
	for i, rows := range d.Inline {
		part, partErr := jsonv2.Marshal(struct {
			Table  string `json:"table"`
			CRC32C uint32 `json:"crc32c"`
			Count  int64  `json:"count"`
		}{rows.Table, rows.CRC32C, rows.Count})
		if err = errors.Join(err, partErr); err != nil {
			return nil, err
		}
		separator := ","
		if i == 0 {
			text = text[:len(text)-1] // without the closing brace
			separator = `,"inline":[`
		}
		text = append(append(text, separator...), part[:len(part)-1]...)
		text = append(append(append(text, `,"rows":`...), rows.JSON...), '}')
	}
	if len(d.Inline) > 0 {
		text = append(text, "]}"...)
	}
	return text, err
}
