// Package event defines what the ledger is made of: the envelope, the sealed
// set of payloads, and their encoding.
//
// An event says what somebody wants (intent, command) or what has happened
// (acknowledgement, worker fact, automation fact). What follows from it, a task
// becoming ready or a run completing, is never an event: the fold derives it.
//
// The JSON Schemas in ledger-schemas are the source of truth for the encoding.
// A released version never changes but by optional fields.
package event

import (
	"fmt"
	"math"
	"time"

	"github.com/servo-orchestration/servo/pkg/ids"
)

// Limits of a group. What exceeds them is refused before it is appended.
const (
	MaxGroupBytes  = 1 << 20
	MaxGroupEvents = 1000
	// MaxEntryEvents is the most events that one ledger entry has.
	MaxEntryEvents = 5000
)

// Envelope is one event: one line of a ledger entry.
type Envelope struct {
	// ID is the event's ULID. It identifies, and orders nothing: see ADR 024.
	ID string
	// Time is the wall clock of whoever received the fact.
	Time Time
	// Domain is the tenant and workspace that the event belongs to.
	Domain ids.Domain
	// Source names the writer: "servo/{tenant}/{workspace}", with a suffix for a service.
	Source string
	// CorrelationID is the run's id, where there is one.
	CorrelationID string
	// CausationID is the event or entry that led to this one.
	CausationID string
	// Actor is the person or service on whose behalf the event was written.
	Actor string
	// Group names the events that are folded all or none; empty: this one alone.
	Group string
	// GroupSize is how many events the group has; 0 and 1 both mean one.
	GroupSize int
	// Payload is what the event says.
	Payload Payload
}

// IdempotencyKey is the event's natural key: "{verb}:{…}". Folding a second
// event with the same key changes nothing.
func (e *Envelope) IdempotencyKey() string { return e.Payload.Key() }

// GroupID is the group that the event belongs to: its own id when it is alone.
func (e *Envelope) GroupID() string {
	if e.Group != "" {
		return e.Group
	}
	return e.ID
}

// Time is a point in time in microseconds since 1970-01-01 UTC; 0 is "none". It
// is what the projections store, and integers keep clocks, zones and floats out
// of the fold.
type Time int64

// At is t in microseconds; a zero t is "none".
func At(t time.Time) Time {
	if t.IsZero() {
		return 0
	}
	return Time(t.UnixMicro())
}

// Time is the time as the standard library has it, in UTC.
func (t Time) Time() time.Time {
	if t == 0 {
		return time.Time{}
	}
	return time.UnixMicro(int64(t)).UTC()
}

// Add is t later by d, to the microsecond.
func (t Time) Add(d time.Duration) Time { return t + Time(d.Microseconds()) }

// Sub is the time from u to t, or the longest duration there is (292 years) where
// that is less.
func (t Time) Sub(u Time) time.Duration {
	const most = Time(math.MaxInt64 / int64(time.Microsecond))
	return time.Duration(min(max(t-u, -most), most)) * time.Microsecond
}

// timeLayout is RFC 3339 in UTC with microseconds, always of one length, so
// that text order is time order.
const timeLayout = "2006-01-02T15:04:05.000000Z"

// String is the time in RFC 3339 with microseconds, or "" for none.
func (t Time) String() string {
	return string(t.AppendTo(nil))
}

// AppendTo appends the time as String gives it.
func (t Time) AppendTo(dst []byte) []byte {
	if t == 0 {
		return dst
	}
	return t.Time().AppendFormat(dst, timeLayout)
}

// MarshalText implements [encoding.TextMarshaler].
func (t Time) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler]: any RFC 3339 time.
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
