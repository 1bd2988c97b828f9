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

// Reasons why an event or a group is not folded. They belong to the closed list of
// dead-letter reasons.
const (
	ReasonMalformed   = "MALFORMED"   // the line is not a JSON object in UTF-8
	ReasonUnsupported = "UNSUPPORTED" // an unknown event type, or a newer version of a known one
	ReasonTorn        = "TORN_GROUP"  // a group that is incomplete
	ReasonTooLarge    = "TOO_LARGE"   // a group beyond the limits
	ReasonBadPlan     = "BAD_PLAN"    // a plan with a cycle, a duplicate task, or an edge to an unknown task
	ReasonInvalid     = "INVALID"     // a value that the schema does not allow
	ReasonClockAhead  = "CLOCK_AHEAD" // a name, id or timestamp far ahead of the store's clock
)

// maxDetail is the maximum size of [DecodeError.Detail], in bytes. There is a limit because details are stored.
const maxDetail = 1024

// DecodeError states why an event or a group is rejected.
type DecodeError struct {
	// Reason is one of the Reason constants.
	Reason string
	// EventID is the id of the event, or empty if it is unreadable.
	EventID string
	// Group is the id of the event's group, or empty if the event has no group or the id is unreadable.
	Group string
	// Detail is the JSON path of the invalid value, and the problem.
	Detail string
}

// Error implements error.
func (e *DecodeError) Error() string {
	if e.EventID == "" {
		return "event rejected: " + e.Reason + ": " + e.Detail
	}
	return "event " + e.EventID + " rejected: " + e.Reason + ": " + e.Detail
}

// refusal returns a [DecodeError], and truncates its detail if it is too long.
func refusal(reason, format string, args ...any) *DecodeError {
	detail := fmt.Sprintf(format, args...)
	if len(detail) > maxDetail {
		detail = string(bytes.ToValidUTF8([]byte(detail[:maxDetail]), nil)) + "…"
	}
	return &DecodeError{Reason: reason, Detail: detail}
}

// line is the JSON form of an envelope in a ledger entry.
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

var errNoPayload = errors.New("no payload")

// Encode appends e to dst as one line of JSON that ends in a newline. Equal events have equal
// bytes. Encode does not validate e: see [Validate].
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

// encodeJSON appends v and a newline. Unlike [json.Marshal] it does not escape <, > and &, because people also read
// the ledger.
func encodeJSON(dst []byte, v any) ([]byte, error) {
	buf := bytes.NewBuffer(dst)
	enc := json.NewEncoder(buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return dst, err
	}
	return buf.Bytes(), nil
}

// DecodeLine reads and validates one line of a ledger entry, with or without its newline. It ignores unknown fields,
// because a newer build may have added optional fields to a payload without changing its version. The error is a
// [*DecodeError].
func DecodeLine(data []byte) (*Envelope, error) {
	e, err := decodeLine(data)
	if err != nil {
		return nil, err
	}
	return e, nil
}

func decodeLine(data []byte) (*Envelope, *DecodeError) {
	if len(data) > MaxGroupBytes {
		return nil, refusal(ReasonTooLarge, "the line has %d bytes: at most %d are allowed", len(data), MaxGroupBytes)
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

// peek returns the ULID in a field of a rejected line, or "".
func peek(fields members, name string) string {
	var s string
	raw, _ := fields.get(name)
	if err := json.Unmarshal(raw, &s); err != nil || !ids.Valid(s) {
		return ""
	}
	return s
}

func decodeFields(fields members) (*Envelope, *DecodeError) {
	// Check the type first: the other rules may not apply to an event of a newer build.
	payload, refused := newPayload(fields)
	if refused != nil {
		return nil, refused
	}
	var l line
	if err := layouts.object(reflect.ValueOf(&l).Elem(), fields); err != nil {
		return nil, refusal(ReasonInvalid, "%v", err)
	}
	if err := layouts.assign(reflect.ValueOf(payload).Elem(), l.Payload); err != nil {
		return nil, refusal(ReasonInvalid, "%v", atPath("payload", err))
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
		return nil, refusal(ReasonInvalid, "idempotency_key: %.600q does not match the payload: expected %.600q", l.IdempotencyKey, key)
	}
	return e, nil
}

// newPayload returns an empty payload of the type and version of a line.
func newPayload(fields members) (Payload, *DecodeError) {
	var head struct {
		EventType    string `json:"event_type"`
		EventVersion int32  `json:"event_version"`
	}
	if err := layouts.object(reflect.ValueOf(&head).Elem(), fields); err != nil {
		return nil, refusal(ReasonInvalid, "%v", err)
	}
	if head.EventVersion < 1 {
		return nil, refusal(ReasonInvalid, "event_version: %d is less than 1", head.EventVersion)
	}
	known, ok := payloads[head.EventType]
	if !ok {
		return nil, refusal(ReasonUnsupported, "event_type: unknown type %.100q: upgrade servo", head.EventType)
	}
	if int(head.EventVersion) > known.Version() {
		return nil, refusal(ReasonUnsupported, "event_version: %d of %s is newer than %d, the latest known version: upgrade servo",
			head.EventVersion, head.EventType, known.Version())
	}
	p, _ := reflect.TypeAssert[Payload](reflect.New(reflect.TypeOf(known).Elem()))
	return p, nil
}

// payloads contains an empty payload for each type's name. It is immutable after initialization.
var payloads = func() map[string]Payload {
	named := map[string]Payload{}
	for _, p := range Payloads() {
		named[p.Type()] = p
	}
	return named
}()

// Payloads returns an empty payload of each type, in the order of declaration.
func Payloads() []Payload {
	return []Payload{
		&RunTriggered{}, &PlanCreated{}, &RunCancelRequested{}, &LimitSet{}, &ProjectDeployed{}, &QuarantineResolved{},
		&PartitionsChanged{},
		&PartitionsMarked{},
		&RunRequested{}, &RequestRefused{}, &SchedulesDefined{}, &CalendarAdvanced{}, &AutomationCommand{}, &RevisionPinned{}, &AssetsForgotten{}, &BackfillCreated{},
		&NotificationEnded{}, &DeadlineJudged{},
		&DispatchRequested{}, &DispatchEnqueued{}, &DispatchFailed{},
		&TimerRequested{}, &TimerEnqueued{}, &TimerFired{},
		&TaskStarted{}, &TaskHeartbeat{}, &TaskFinished{},
	}
}
