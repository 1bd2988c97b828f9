// Package contract is the worker contract, version 1.1: what the queue pushes
// to a worker, what the worker calls back with, and the commit marker that
// decides which execution's output counts. It is data and signatures only.
package contract

import (
	"github.com/servo-orchestration/servo/pkg/event"
)

// Version of the contract. Additions of optional fields keep it.
const Version = "1.1"

// Envelope is the body of a queue task: POST /execute at a worker.
type Envelope struct {
	ContractVersion string `json:"contract_version"`
	Auth            Auth   `json:"auth"`
	Tenant          string `json:"tenant_id"`
	Workspace       string `json:"workspace_id"`
	RunID           string `json:"run_id"`
	TaskKey         string `json:"task_key"`
	TaskID          string `json:"task_id"`

	Attempt     int32  `json:"attempt"`
	AttemptID   string `json:"attempt_id"`
	MaxAttempts int32  `json:"max_attempts"`

	// PlanRef is the object key of the plan that says what the task does.
	PlanRef           string `json:"plan_ref"`
	AssetKey          string `json:"asset_key,omitempty"`
	PartitionKey      string `json:"partition_key,omitempty"`
	MaterializationID string `json:"materialization_id"`

	TimeoutSec          int32 `json:"timeout_sec,omitempty"` // 0: none
	HeartbeatTimeoutSec int32 `json:"heartbeat_timeout_sec"`

	Callbacks Callbacks `json:"callbacks"`
	// AdmittedUntil: the attempt was found to be the current one when this was sent, and
	// need not be reported as started before it begins, if it begins before then. One that
	// ends before its start was reported may be reported by the answer: 200, with
	// [Finished]. 0: neither.
	AdmittedUntil event.Time `json:"admitted_until,omitzero"`
	// CausalToken is a ULID smaller than every id that is to follow from this dispatch.
	CausalToken string `json:"causal_token,omitempty"`
	// Traceparent and Tracestate name the span of the dispatch (W3C Trace Context).
	Traceparent string `json:"traceparent,omitempty"`
	Tracestate  string `json:"tracestate,omitempty"`
}

// Auth signs an envelope: HMAC-SHA-256 over its canonical JSON (RFC 8785)
// without the signature.
type Auth struct {
	KeyID     string     `json:"key_id"`
	ExpiresAt event.Time `json:"expires_at"`
	Signature string     `json:"signature,omitempty"` // base64url, no padding
}

// Callbacks are the URLs that an attempt reports to.
type Callbacks struct {
	Started   string `json:"started,omitempty"`
	Heartbeat string `json:"heartbeat,omitempty"`
	Finished  string `json:"finished,omitempty"`
	// Authorization signs them. Without it the URLs themselves are signed, as in contract 1.0.
	Authorization Authorization `json:"authorization,omitzero"`
}

// Authorization is the Authorization header of each callback: a secret, which URLs are not.
type Authorization struct {
	Started   string `json:"started,omitempty"`
	Heartbeat string `json:"heartbeat,omitempty"`
	Finished  string `json:"finished,omitempty"`
}

// Started is the body of the started callback.
type Started struct {
	AttemptID string     `json:"attempt_id"`
	WorkerID  string     `json:"worker_id"`
	StartedAt event.Time `json:"started_at"`
}

// StartedAnswer is what started answers with 200. A 409 means: do not execute.
type StartedAnswer struct {
	// StartedAt is when the attempt started as the receiver has it; the worker
	// reports it with finished, so that both say the same.
	StartedAt event.Time `json:"started_at,omitempty,omitzero"`
	// Callbacks are renewed URLs: valid for the task's time-out and an hour.
	Callbacks Callbacks `json:"callbacks"`
}

// Heartbeat is the body of the heartbeat callback.
type Heartbeat struct {
	AttemptID   string     `json:"attempt_id"`
	WorkerID    string     `json:"worker_id"`
	HeartbeatAt event.Time `json:"heartbeat_at"`
	Progress    int32      `json:"progress,omitempty"`
	Message     string     `json:"message,omitempty"`
}

// HeartbeatAnswer is what heartbeat answers.
type HeartbeatAnswer struct {
	ShouldCancel bool   `json:"should_cancel"`
	Reason       string `json:"reason,omitempty"`
	// Callbacks are renewed URLs.
	Callbacks Callbacks `json:"callbacks"`
}

// Finished is the body of the finished callback.
type Finished struct {
	AttemptID         string              `json:"attempt_id"`
	WorkerID          string              `json:"worker_id"`
	Outcome           event.Outcome       `json:"outcome"`
	Error             *event.Error        `json:"error,omitempty"`
	Output            *event.Output       `json:"output,omitempty"`
	MaterializationID string              `json:"materialization_id,omitempty"`
	CheckResults      []event.CheckResult `json:"check_results,omitempty"`
	Metrics           map[string]int64    `json:"metrics,omitempty"`
	StartedAt         event.Time          `json:"started_at"`
	CompletedAt       event.Time          `json:"completed_at"`
}

// Problem is an error answer (RFC 9457).
type Problem struct {
	Type   string `json:"type,omitempty"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`
	// CurrentAttemptID comes with a 409 to a stale attempt.
	CurrentAttemptID string `json:"current_attempt_id,omitempty"`
	// Field is the field at fault, with a 400.
	Field string `json:"field,omitempty"`
}

// Marker is the commit marker of a materialization: created if absent, once.
// Whoever creates it decides the bytes; everybody else adopts it.
type Marker struct {
	MaterializationID string `json:"materialization_id"`
	RunID             string `json:"run_id"`
	TaskKey           string `json:"task_key"`
	AssetKey          string `json:"asset_key"`
	PartitionKey      string `json:"partition_key,omitempty"`
	Attempt           int32  `json:"attempt"`
	AttemptID         string `json:"attempt_id"`
	// Nonce tells executions of one attempt apart.
	Nonce string `json:"nonce"`
	// URI is the object key of the winning directory, ending in "/".
	URI         string       `json:"uri"`
	Files       []MarkerFile `json:"files"`
	RowCount    int64        `json:"row_count"`
	ByteSize    int64        `json:"byte_size"`
	SchemaHash  string       `json:"schema_hash,omitempty"`
	CommittedAt event.Time   `json:"committed_at"`
	// StartedAt is when the winning execution began.
	StartedAt event.Time `json:"started_at"`
}

// MarkerFile is one file of an output.
type MarkerFile struct {
	Name   string `json:"name"` // below the directory
	Size   int64  `json:"size"` // bytes
	CRC32C uint32 `json:"crc32c"`
	Rows   int64  `json:"rows,omitempty"`
}

// Output is what the marker's winner made, as a worker reports it.
func (m *Marker) Output() *event.Output {
	return &event.Output{URI: m.URI, RowCount: m.RowCount, ByteSize: m.ByteSize, SchemaHash: m.SchemaHash}
}
