package cloudblob

import (
	"maps"
	"strings"
	"sync"
)

// Count is the number of requests to a store, whatever their outcome. It is an upper bound of the billed requests,
// because stores bill only some refused requests.
type Count struct {
	ClassA   int64 `json:"class_a"`           // requests to create, replace, put, and list a page
	ClassB   int64 `json:"class_b"`           // requests to get, open and head
	Free     int64 `json:"free"`              // requests to delete
	Refused  int64 `json:"refused,omitempty"` // requests that failed with [ErrTooFast]; not billed
	BytesIn  int64 `json:"bytes_in"`
	BytesOut int64 `json:"bytes_out"`
}

// Add returns the sum of two counts.
func (c Count) Add(d Count) Count {
	return Count{
		ClassA: c.ClassA + d.ClassA, ClassB: c.ClassB + d.ClassB, Free: c.Free + d.Free, Refused: c.Refused + d.Refused,
		BytesIn: c.BytesIn + d.BytesIn, BytesOut: c.BytesOut + d.BytesOut,
	}
}

// Operations returns the number of requests.
func (c Count) Operations() int64 { return c.ClassA + c.ClassB + c.Free + c.Refused }

// Usage counts the requests by kind of object. The kind is the part of the key before the first slash.
type Usage map[string]Count

// Total returns the sum over all kinds.
func (u Usage) Total() Count {
	var total Count
	for _, c := range u {
		total = total.Add(c)
	}
	return total
}

// Add adds the requests of another Usage.
func (u Usage) Add(more Usage) {
	for kind, c := range more {
		u[kind] = u[kind].Add(c)
	}
}

// Since returns the requests since an earlier reading.
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

// meter counts requests. The zero value is ready to use.
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

// Usage returns the requests since the store was created.
func (s *Store) Usage() Usage {
	s.meter.mu.Lock()
	defer s.meter.mu.Unlock()
	usage := maps.Clone(s.meter.usage)
	if usage == nil {
		usage = Usage{}
	}
	return usage
}
