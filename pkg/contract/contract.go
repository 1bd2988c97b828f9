// Package contract defines the worker contract, version 1.1: the envelope that the queue
// pushes to a worker, the callbacks that the worker sends, and the commit marker that decides
// which execution's output counts. It contains data types and signatures only.
// This package is a stable API.
//
// testdata/signatures.json contains test vectors of the signatures, for workers in other
// languages.
package contract

import (
	"strings"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
)

// Version is the version of the contract. A new optional field does not change it.
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

	// PlanRef is the object key of the plan, which describes the task's work.
	PlanRef           string `json:"plan_ref"`
	AssetKey          string `json:"asset_key,omitempty"`
	PartitionKey      string `json:"partition_key,omitempty"`
	MaterializationID string `json:"materialization_id"`

	TimeoutSec          int32 `json:"timeout_sec,omitempty"` // 0: none
	HeartbeatTimeoutSec int32 `json:"heartbeat_timeout_sec"`

	Callbacks Callbacks `json:"callbacks"`
	// AdmittedUntil is set if the sender verified that the attempt is the current one. A worker that begins the task
	// before this time need not wait for the response to the started callback. If the attempt ends before the worker
	// has reported its start, the worker may respond with 200 and [Finished] instead of sending callbacks. If
	// AdmittedUntil is 0, the worker must wait for the response to the started callback before it begins the task, and
	// must report the end with a callback.
	AdmittedUntil event.Time `json:"admitted_until,omitzero"`
	// LogBytes is how many bytes of a log [Finished] may contain. 0: the sender accepts no log.
	LogBytes int32 `json:"log_bytes,omitempty"`
	// Without describes the upstream tasks that did not succeed, if the trigger rule lets the task start nevertheless.
	// The task must not read the outputs of these upstream tasks.
	Without Without `json:"without,omitempty"`
	// CausalToken is a ULID smaller than every id that this dispatch causes.
	CausalToken string `json:"causal_token,omitempty"`
	// Traceparent and Tracestate identify the dispatch span (W3C Trace Context).
	Traceparent string `json:"traceparent,omitempty"`
	Tracestate  string `json:"tracestate,omitempty"`
}

// Auth is the signature of an envelope: HMAC-SHA-256 over its canonical JSON (RFC 8785)
// without the signature.
type Auth struct {
	KeyID     string     `json:"key_id"`
	ExpiresAt event.Time `json:"expires_at"`
	Signature string     `json:"signature,omitempty"` // base64url, no padding
}

// Callbacks are the URLs to which an attempt reports.
type Callbacks struct {
	Started   string `json:"started,omitempty"`
	Heartbeat string `json:"heartbeat,omitempty"`
	Finished  string `json:"finished,omitempty"`
	// Authorization contains the signatures of the URLs. If it is empty, the URLs contain their signatures, as in
	// contract 1.0.
	Authorization Authorization `json:"authorization,omitzero"`
}

// Authorization is the Authorization header of each callback. The headers are secret. The URLs are not secret, because
// logs and proxies record URLs.
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

// StartedResponse is the body of a 200 response to started. A 409 response means that the worker must not execute the
// task.
type StartedResponse struct {
	// StartedAt is the start of the attempt as the receiver recorded it. The worker repeats it in the finished callback,
	// so that both reports agree.
	StartedAt event.Time `json:"started_at,omitempty,omitzero"`
	// Callbacks are renewed URLs, valid for the task's timeout plus an hour.
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

// HeartbeatResponse is the body of a 200 response to heartbeat.
type HeartbeatResponse struct {
	ShouldCancel bool   `json:"should_cancel"`
	Reason       string `json:"reason,omitempty"`
	// Callbacks are renewed URLs.
	Callbacks Callbacks `json:"callbacks"`
}

// Finished is the body of the finished callback.
type Finished struct {
	AttemptID string        `json:"attempt_id"`
	WorkerID  string        `json:"worker_id"`
	Outcome   event.Outcome `json:"outcome"`
	Error     *event.Error  `json:"error,omitempty"`
	// Output is the output of a success. In the report of a failure, it is the output in quarantine.
	Output            *event.Output       `json:"output,omitempty"`
	MaterializationID string              `json:"materialization_id,omitempty"`
	CheckResults      []event.CheckResult `json:"check_results,omitempty"`
	// CodeChanged means that the task may have executed code that differs from the plan's. The output is then stale.
	CodeChanged bool             `json:"code_changed,omitempty"`
	Metrics     map[string]int64 `json:"metrics,omitempty"`
	// Log is the whole log of a task that has printed little. Such a log is not stored as an object.
	Log         string     `json:"log,omitempty"`
	StartedAt   event.Time `json:"started_at"`
	CompletedAt event.Time `json:"completed_at"`
}

// Problem is the body of an error response (RFC 9457).
type Problem struct {
	Type   string `json:"type,omitempty"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`
	// CurrentAttemptID is set in the 409 response to a stale attempt.
	CurrentAttemptID string `json:"current_attempt_id,omitempty"`
	// Field is the invalid field, in a 400 response.
	Field string `json:"field,omitempty"`
}

// CommitMarker is the commit marker of a materialization. It is created once, with a create-if-absent write: the
// execution that creates it wins, and every other execution adopts the winner's output.
type CommitMarker struct {
	MaterializationID string `json:"materialization_id"`
	RunID             string `json:"run_id"`
	TaskKey           string `json:"task_key"`
	AssetKey          string `json:"asset_key"`
	PartitionKey      string `json:"partition_key,omitempty"`
	Attempt           int32  `json:"attempt"`
	AttemptID         string `json:"attempt_id"`
	// Nonce distinguishes executions of one attempt.
	Nonce string `json:"nonce"`
	// URI is the object key of the winning directory, ending in "/".
	URI        string             `json:"uri"`
	Files      []CommitMarkerFile `json:"files"`
	RowCount   int64              `json:"row_count"`
	ByteSize   int64              `json:"byte_size"`
	SchemaHash string             `json:"schema_hash,omitempty"`
	// Columns are the columns that all Parquet files of the output have. The list is empty if the columns are not
	// known.
	Columns []CommitMarkerColumn `json:"columns,omitempty"`
	// Cells are the partitions of a batch, in the order in which its task lists them. If Cells is empty, the output
	// belongs to PartitionKey alone. The directory has a folder for each cell: see [CellURI].
	Cells []CommitMarkerCell `json:"cells,omitempty"`
	// Checks are the results of the asset's checks, in the order in which the asset declares them. The checks run before
	// the marker is created. An execution that adopts the marker reports these results.
	Checks []event.CheckResult `json:"checks,omitempty"`
	// CodeChanged has the same meaning as in [Finished].
	CodeChanged bool       `json:"code_changed,omitempty"`
	CommittedAt event.Time `json:"committed_at"`
	// StartedAt is when the winning execution began.
	StartedAt event.Time `json:"started_at"`
}

// CommitMarkerFile is one file of an output.
type CommitMarkerFile struct {
	Name   string `json:"name"` // the path below the directory
	Size   int64  `json:"size"` // bytes
	CRC32C uint32 `json:"crc32c"`
	Rows   int64  `json:"rows,omitempty"`
}

// Limits of the columns in a marker. The marker of an output with more columns, or with longer names, lists no columns.
const (
	MaxColumns     = 2_000
	MaxColumnBytes = 512       // maximum size of a name, and of a type
	MaxColumnsText = 128 << 10 // maximum size of all names and types together
)

// CommitMarkerColumn is a column of an output.
type CommitMarkerColumn struct {
	Name string `json:"name"` // inside a nested column: the path of a field, with dots
	Type string `json:"type"`
}

// CommitMarkerCell is one partition of a batch.
type CommitMarkerCell struct {
	PartitionKey string `json:"partition_key"`
	// Files is how many files the partition has. The marker lists the files of the first cell first, then those of the
	// second, and so on.
	Files    int   `json:"files"`
	RowCount int64 `json:"row_count"`
	ByteSize int64 `json:"byte_size"`
}

// Output returns the winner's output in the form in which a worker reports it.
func (m *CommitMarker) Output() *event.Output {
	out := &event.Output{URI: m.URI, RowCount: m.RowCount, ByteSize: m.ByteSize, SchemaHash: m.SchemaHash}
	for i := range m.Cells {
		out.Cells = append(out.Cells, event.OutputCell{RowCount: m.Cells[i].RowCount, ByteSize: m.Cells[i].ByteSize})
	}
	return out
}

// For returns the part of the marker that describes the output at uri: the marker itself or, if uri is the folder of
// one partition of a batch, the part for this partition. It returns nil if the marker does not name the output.
func (m *CommitMarker) For(uri string) *CommitMarker {
	if m.URI == uri {
		return m
	}
	if batch, ok := BatchOf(uri); !ok || batch != m.URI {
		return nil
	}
	first := 0
	for i := range m.Cells {
		if CellURI(m.URI, m.Cells[i].PartitionKey) == uri {
			return m.cell(i, first)
		}
		first += m.Cells[i].Files
	}
	return nil
}

// Cell returns the part of the marker that describes a partition: the marker itself if it has no cells. It returns nil
// if the batch does not have the partition.
func (m *CommitMarker) Cell(partitionKey string) *CommitMarker {
	if len(m.Cells) == 0 {
		return m
	}
	first := 0
	for i := range m.Cells {
		if m.Cells[i].PartitionKey == partitionKey {
			return m.cell(i, first)
		}
		first += m.Cells[i].Files
	}
	return nil
}

// cell returns the marker of one partition as if the partition were an output of its own. firstFile is the index in
// m.Files of the partition's first file.
func (m *CommitMarker) cell(i, firstFile int) *CommitMarker {
	c, one := &m.Cells[i], *m
	folder := ids.PartitionSegment(c.PartitionKey) + "/"
	one.PartitionKey, one.URI, one.RowCount, one.ByteSize, one.Cells = c.PartitionKey, m.URI+folder, c.RowCount, c.ByteSize, nil
	one.Files = make([]CommitMarkerFile, c.Files)
	for n := range one.Files {
		one.Files[n] = m.Files[firstFile+n]
		one.Files[n].Name = strings.TrimPrefix(one.Files[n].Name, folder)
	}
	return &one
}
