package manifest

import (
	"errors"
	"fmt"
	"slices"

	jsonv2 "github.com/go-json-experiment/json"
)

// Encode is the manifest as it is stored. The same manifest always gives the
// same bytes.
func Encode(m *Manifest) ([]byte, error) {
	data, _, err := texts(nil).encode(m)
	return data, err
}

// texts are the deltas of the manifest that was encoded last, as JSON: from one
// revision to the next nearly all of them stay, and with the rows in them they
// are nearly all of the text. A delta that is known has been checked.
type texts map[deltaKey][]byte

// deltaKey tells deltas apart, and what is left of one in different manifests: which of
// its rows those are, their checksums say. A publish that failed may have left out others.
type deltaKey struct {
	tier, id              string
	revision, rows, bytes int64
	sums                  uint64
}

func (d *Delta) key(tier string) deltaKey {
	const prime = 1_099_511_628_211 // of FNV
	sums := uint64(len(d.Inline))
	for i := range d.Inline {
		sums = (sums ^ uint64(d.Inline[i].CRC32C)) * prime
	}
	return deltaKey{tier, d.ID, d.Revision, d.Rows, d.Bytes, sums}
}

func (t texts) has(tier string, _ int, d *Delta) bool {
	_, ok := t[d.key(tier)]
	return ok
}

// deltaShare is the part of a manifest, one in so many, that a new delta may take before
// the rest is copied for it.
const deltaShare = 4

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
	for _, text := range t { // about what there will be: one delta comes, or some become one
		size += len(text) + 1
	}
	data = slices.Grow(data[:len(data)-1], size+size/deltaShare) // without its brace
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
		return nil, nil, fmt.Errorf("encode manifest of %s, revision %d: it has %d bytes; at most %d are allowed; `servo admin rebuild` makes a state of few files",
			m.Domain(), m.Revision, len(data), maxBytes)
	}
	return data, next, nil
}

// encode is the delta as JSON. Its rows are copied byte for byte, as their checksum
// has them.
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
			text = text[:len(text)-1] // its brace
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
