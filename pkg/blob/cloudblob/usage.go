package cloudblob

import (
	"maps"
	"strings"
	"sync"
)

// Count is what was asked of a store, whatever the answer: stores bill some of
// what they refuse, so what is billed is no more than this.
type Count struct {
	ClassA   int64 `json:"class_a"`           // create, replace, put, page of a listing
	ClassB   int64 `json:"class_b"`           // get, open, head
	Free     int64 `json:"free"`              // delete
	Refused  int64 `json:"refused,omitempty"` // with [ErrTooFast]; not billed
	BytesIn  int64 `json:"bytes_in"`
	BytesOut int64 `json:"bytes_out"`
}

// Add is the sum.
func (c Count) Add(d Count) Count {
	return Count{
		ClassA: c.ClassA + d.ClassA, ClassB: c.ClassB + d.ClassB, Free: c.Free + d.Free, Refused: c.Refused + d.Refused,
		BytesIn: c.BytesIn + d.BytesIn, BytesOut: c.BytesOut + d.BytesOut,
	}
}

// Operations is how often anything was asked.
func (c Count) Operations() int64 { return c.ClassA + c.ClassB + c.Free + c.Refused }

// Usage is what was asked, by the kind of object: what keys begin with, up to the
// first slash.
type Usage map[string]Count

// Total is that of all kinds.
func (u Usage) Total() Count {
	var total Count
	for _, c := range u {
		total = total.Add(c)
	}
	return total
}

// Add adds what was asked elsewhere.
func (u Usage) Add(more Usage) {
	for kind, c := range more {
		u[kind] = u[kind].Add(c)
	}
}

// Since is what was asked after an earlier reading.
func (u Usage) Since(earlier Usage) Usage {
	since := Usage{}
	for kind, c := range u {
		if e := earlier[kind]; c != e {
			since[kind] = c.Add(Count{
				ClassA: -e.ClassA, ClassB: -e.ClassB, Free: -e.Free, Refused: -e.Refused, BytesIn: -e.BytesIn, BytesOut: -e.BytesOut,
			})
		}
	}
	return since
}

// meter counts. The zero value is ready.
type meter struct {
	mu    sync.Mutex
	usage Usage
}

func (m *meter) add(key string, c Count) {
	kind, _, _ := strings.Cut(key, "/")
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.usage == nil {
		m.usage = Usage{}
	}
	m.usage[kind] = m.usage[kind].Add(c)
}

// Usage is what was asked of the store since it was made.
func (s *Store) Usage() Usage {
	s.meter.mu.Lock()
	defer s.meter.mu.Unlock()
	usage := maps.Clone(s.meter.usage)
	if usage == nil {
		usage = Usage{}
	}
	return usage
}
