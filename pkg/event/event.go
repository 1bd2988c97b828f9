// Package event defines the events of the ledger: the envelope, the sealed set of payloads,
// and their encoding. This package is a stable API.
//
// An event records a request (intent, command) or a fact (acknowledgement, worker fact, automation fact). The fold
// derives all consequences, for example that a task becomes ready or a run completes. A consequence is never an
// event.
//
// The JSON Schemas in ledger-schemas are the source of truth for the encoding. A released
// version changes only by gaining optional fields.
package event

import (
	"fmt"
	"math"
	"time"

	"github.com/servo-orchestration/servo/pkg/ids"
)

// Limits of a group and of an entry. An append beyond them is rejected.
const (
	MaxGroupBytes  = 1 << 20
	MaxGroupEvents = 1000
	// MaxEntryEvents limits the number of events in one ledger entry.
	MaxEntryEvents = 5000
)

// Envelope is one event: one line of a ledger entry.
type Envelope struct {
	// ID is the event's ULID. It identifies the event but does not order it: see ADR 024.
	ID string
	// Time is the wall-clock time of the process that received the fact.
	Time Time
	// Domain is the event's tenant and workspace.
	Domain ids.Domain
	// Source names the writer: "servo/{tenant}/{workspace}", with a suffix for a service.
	Source string
	// CorrelationID is the id of the run, if the event belongs to a run.
	CorrelationID string
	// CausationID is the id of the event or entry that caused this one.
	CausationID string
	// Actor is the person or service on whose behalf the event was written.
	Actor string
	// Group is the id of the event's group, which is folded atomically. Empty: the event is
	// a group of its own.
	Group string
	// GroupSize is the number of events in the group; 0 and 1 both mean one.
	GroupSize int
	// Payload is the content of the event.
	Payload Payload
}

// IdempotencyKey returns the event's natural key: "{verb}:{…}". Folding a second event with
// the same key changes nothing.
func (e *Envelope) IdempotencyKey() string { return e.Payload.Key() }

// GroupID returns the id of the event's group: its own id if it is a group of its own.
func (e *Envelope) GroupID() string {
	if e.Group != "" {
		return e.Group
	}
	return e.ID
}

// Time is a point in time in microseconds since 1970-01-01 UTC; 0 means none. The projections
// store it in this form. Integers keep clocks, time zones and floats out of the fold.
type Time int64

// At converts t to microseconds. A zero t becomes 0.
func At(t time.Time) Time {
	if t.IsZero() {
		return 0
	}
	return Time(t.UnixMicro())
}

// Time converts t to a [time.Time] in UTC.
func (t Time) Time() time.Time {
	if t == 0 {
		return time.Time{}
	}
	return time.UnixMicro(int64(t)).UTC()
}

// Add returns t plus d, truncated to microseconds.
func (t Time) Add(d time.Duration) Time { return t + Time(d.Microseconds()) }

// Sub returns t minus u, limited to the range of [time.Duration] (292 years).
func (t Time) Sub(u Time) time.Duration {
	const most = Time(math.MaxInt64 / int64(time.Microsecond))
	return time.Duration(min(max(t-u, -most), most)) * time.Microsecond
}

// timeLayout is RFC 3339 in UTC with microseconds. Because all texts have the same length, they sort like the times.
const timeLayout = "2006-01-02T15:04:05.000000Z"

// String returns the time in RFC 3339 with microseconds, or "" for 0.
func (t Time) String() string {
	return string(t.AppendTo(nil))
}

// AppendTo appends the text that String returns.
func (t Time) AppendTo(dst []byte) []byte {
	if t == 0 {
		return dst
	}
	return t.Time().AppendFormat(dst, timeLayout)
}

// MarshalText implements [encoding.TextMarshaler].
func (t Time) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler]. It accepts any RFC 3339 time.
func (t *Time) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*t = 0
		return nil
	}
	parsed, err := time.Parse(time.RFC3339Nano, string(text))
	if err != nil {
		return fmt.Errorf("time %q is not RFC 3339: %w", text, err)
	}
	*t = At(parsed)
	return nil
}
