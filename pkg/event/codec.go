package event

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"unicode/utf8"

	"github.com/servo-orchestration/servo/pkg/ids"
)

// Reasons why an event or a group is not folded. They are a part of the closed
// list of dead-letter reasons.
const (
	ReasonMalformed   = "MALFORMED"   // not a line of UTF-8 with a JSON object
	ReasonUnsupported = "UNSUPPORTED" // a type or version that this build does not know
	ReasonTorn        = "TORN_GROUP"  // a group whose events are not all there
	ReasonTooLarge    = "TOO_LARGE"   // beyond the limits of a group
	ReasonBadPlan     = "BAD_PLAN"    // a cycle, a duplicate, an edge to nowhere
	ReasonInvalid     = "INVALID"     // a value that the schema does not allow
	ReasonClockAhead  = "CLOCK_AHEAD" // a name, an id or a timestamp that is far ahead of the store's clock
)

// maxDetail is the longest [DecodeError.Detail], in bytes: details are stored.
const maxDetail = 1024

// DecodeError says why an event or a group is refused.
type DecodeError struct {
	// Reason is one of the Reason constants.
	Reason string
	// EventID is the id of the event, as far as it could be read.
	EventID string
	// Group is the id of the event's group, where it has one that could be read.
	Group string
	// Detail names the JSON path at fault and what is wrong with it.
	Detail string
}

// Error implements error.
func (e *DecodeError) Error() string {
	if e.EventID == "" {
		return "event refused: " + e.Reason + ": " + e.Detail
	}
	return "event " + e.EventID + " refused: " + e.Reason + ": " + e.Detail
}

// refusal makes a [DecodeError] whose detail is bounded.
func refusal(reason, format string, args ...any) *DecodeError {
	detail := fmt.Sprintf(format, args...)
	if len(detail) > maxDetail {
		detail = string(bytes.ToValidUTF8([]byte(detail[:maxDetail]), nil)) + "…"
	}
	return &DecodeError{Reason: reason, Detail: detail}
}

// line is an envelope as it stands in a ledger entry.
type line struct {
	EventID        string          `json:"event_id"`
	EventType      string          `json:"event_type"`
	EventVersion   int32           `json:"event_version"`
	Timestamp      Time            `json:"timestamp"`
	Source         string          `json:"source"`
	TenantID       string          `json:"tenant_id"`
	WorkspaceID    string          `json:"workspace_id"`
	IdempotencyKey string          `json:"idempotency_key"`
	CorrelationID  string          `json:"correlation_id,omitempty"`
	CausationID    string          `json:"causation_id,omitempty"`
	Actor          string          `json:"actor,omitempty"`
	Group          string          `json:"group,omitempty"`
	GroupSize      int32           `json:"group_size,omitempty"`
	Payload        json.RawMessage `json:"payload"`
}

var errNoPayload = errors.New("it has no payload")

// Encode appends e to dst as one line of JSON, ending in a newline. The same
// event always gives the same bytes. It does not judge e: see [Validate].
func Encode(dst []byte, e *Envelope) ([]byte, error) {
	if e.Payload == nil {
		return dst, fmt.Errorf("encode event %s: %w", e.ID, errNoPayload)
	}
	payload, err := encodeJSON(nil, e.Payload)
	if err != nil {
		return dst, fmt.Errorf("encode payload of event %s: %w", e.ID, err)
	}
	out, err := encodeJSON(dst, line{
		EventID:        e.ID,
		EventType:      e.Payload.Type(),
		EventVersion:   int32(e.Payload.Version()),
		Timestamp:      e.Time,
		Source:         e.Source,
		TenantID:       e.Domain.Tenant,
		WorkspaceID:    e.Domain.Workspace,
		IdempotencyKey: e.IdempotencyKey(),
		CorrelationID:  e.CorrelationID,
		CausationID:    e.CausationID,
		Actor:          e.Actor,
		Group:          e.Group,
		GroupSize:      int32(e.GroupSize),
		Payload:        payload,
	})
	if err != nil {
		return dst, fmt.Errorf("encode event %s: %w", e.ID, err)
	}
	return out, nil
}

// encodeJSON appends v and a newline. Unlike [json.Marshal] it leaves <, > and &
// as they are: the ledger is read by people, too.
func encodeJSON(dst []byte, v any) ([]byte, error) {
	buf := bytes.NewBuffer(dst)
	enc := json.NewEncoder(buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return dst, err
	}
	return buf.Bytes(), nil
}

// DecodeLine reads one line of a ledger entry, with or without its newline, and
// validates it. Fields that this build does not know are passed over, since a
// released version may gain optional ones. Its errors are [*DecodeError].
func DecodeLine(data []byte) (*Envelope, error) {
	e, err := decodeLine(data)
	if err != nil {
		return nil, err
	}
	return e, nil
}

func decodeLine(data []byte) (*Envelope, *DecodeError) {
	if len(data) > MaxGroupBytes {
		return nil, refusal(ReasonTooLarge, "the line has %d bytes; at most %d are allowed", len(data), MaxGroupBytes)
	}
	if !utf8.Valid(data) {
		return nil, refusal(ReasonMalformed, "the line is not UTF-8")
	}
	fields, err := split(data)
	if err != nil {
		return nil, refusal(ReasonMalformed, "the line is not a JSON object: %v", err)
	}
	if fields == nil {
		return nil, refusal(ReasonMalformed, "the line is null, not a JSON object")
	}
	e, refused := decodeFields(fields)
	if refused != nil {
		refused.EventID, refused.Group = peek(fields, "event_id"), peek(fields, "group")
	}
	return e, refused
}

// peek is the ULID in a field of a line that is refused, or "".
func peek(fields members, name string) string {
	var s string
	raw, _ := fields.get(name)
	if err := json.Unmarshal(raw, &s); err != nil || !ids.Valid(s) {
		return ""
	}
	return s
}

func decodeFields(fields members) (*Envelope, *DecodeError) {
	// The type comes first: of an event that a later build wrote, nothing else
	// can be said to be wrong.
	payload, refused := newPayload(fields)
	if refused != nil {
		return nil, refused
	}
	var l line
	if err := layouts.object("", reflect.ValueOf(&l).Elem(), fields); err != nil {
		return nil, refusal(ReasonInvalid, "%v", err)
	}
	if err := layouts.assign("payload", reflect.ValueOf(payload).Elem(), l.Payload); err != nil {
		return nil, refusal(ReasonInvalid, "%v", err)
	}
	e := &Envelope{
		ID:            l.EventID,
		Time:          l.Timestamp,
		Domain:        ids.Domain{Tenant: l.TenantID, Workspace: l.WorkspaceID},
		Source:        l.Source,
		CorrelationID: l.CorrelationID,
		CausationID:   l.CausationID,
		Actor:         l.Actor,
		Group:         l.Group,
		GroupSize:     int(l.GroupSize),
		Payload:       payload,
	}
	if refused := validate(e); refused != nil {
		return nil, refused
	}
	if key := e.IdempotencyKey(); l.IdempotencyKey != key {
		return nil, refusal(ReasonInvalid, "idempotency_key: %.600q is not the payload's, %.600q", l.IdempotencyKey, key)
	}
	return e, nil
}

// newPayload is an empty payload of the type and version that a line names.
func newPayload(fields members) (Payload, *DecodeError) {
	var head struct {
		EventType    string `json:"event_type"`
		EventVersion int32  `json:"event_version"`
	}
	if err := layouts.object("", reflect.ValueOf(&head).Elem(), fields); err != nil {
		return nil, refusal(ReasonInvalid, "%v", err)
	}
	if head.EventVersion < 1 {
		return nil, refusal(ReasonInvalid, "event_version: %d is less than 1", head.EventVersion)
	}
	known, ok := payloads[head.EventType]
	if !ok {
		return nil, refusal(ReasonUnsupported, "event_type: %.100q is not known to this build; upgrade servo", head.EventType)
	}
	if int(head.EventVersion) > known.Version() {
		return nil, refusal(ReasonUnsupported, "event_version: %d of %s is newer than this build, which knows %d; upgrade servo",
			head.EventVersion, head.EventType, known.Version())
	}
	p, _ := reflect.TypeAssert[Payload](reflect.New(reflect.TypeOf(known).Elem()))
	return p, nil
}

// payloads are an empty payload of each type, by name. It is never written to after its
// initialization.
var payloads = func() map[string]Payload {
	named := map[string]Payload{}
	for _, p := range Payloads() {
		named[p.Type()] = p
	}
	return named
}()

// Payloads are an empty payload of each type, in the order of their declaration.
func Payloads() []Payload {
	return []Payload{
		&RunTriggered{}, &PlanCreated{}, &RunCancelRequested{}, &LimitSet{},
		&DispatchRequested{}, &DispatchEnqueued{}, &DispatchFailed{},
		&TimerRequested{}, &TimerEnqueued{}, &TimerFired{},
		&TaskStarted{}, &TaskHeartbeat{}, &TaskFinished{},
	}
}
