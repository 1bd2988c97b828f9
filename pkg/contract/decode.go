package contract

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"path"
	"reflect"
	"strings"
	"unicode/utf8"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
)

// Limits of bodies and fields, in bytes and counts.
const (
	MaxEnvelopeBytes     = 100_000 // task queues do not accept larger bodies
	MaxCallbackBytes     = 256 << 10
	MaxCommitMarkerBytes = 8 << 20
	MaxResponseBytes     = 64 << 10
	MaxHeaderBytes       = 32 << 10 // maximum size of the headers of a request

	// MaxErrorMessage is the maximum size of an error's message; a worker truncates longer messages.
	MaxErrorMessage = 16 << 10
	MaxMetrics      = 100
	// MaxFiles is the maximum number of files of one output.
	MaxFiles = 10_000
)

// maxText is the maximum length of an error text in a response or a log, in bytes.
const maxText = 300

// Truncate truncates a text to 300 bytes, so that responses and logs never repeat a caller's input at full length.
func Truncate(text string) string {
	if len(text) <= maxText {
		return text
	}
	const mark = "…"
	end := maxText - len(mark)
	for end > 0 && !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + mark
}

// FieldError names the invalid field of a body and the reason. Field is empty if the body as
// a whole is invalid.
type FieldError struct {
	Field string
	Msg   string
}

// Error implements error.
func (e *FieldError) Error() string {
	if e.Field == "" {
		return e.Msg
	}
	return e.Field + ": " + e.Msg
}

// DecodeEnvelope reads an envelope and checks its fields. It ignores unknown fields, and does
// not verify the signature: [Open] does.
func DecodeEnvelope(data []byte) (*Envelope, error) {
	var env Envelope
	if err := decode(data, MaxEnvelopeBytes, &env, "auth.expires_at"); err != nil {
		return nil, err
	}
	c := &checker{}
	if major, _, _ := strings.Cut(env.ContractVersion, "."); major != "1" {
		c.fail("contract_version", "version %.20q is not supported: expected 1.x", env.ContractVersion)
	}
	if err := env.Domain().Validate(); err != nil {
		c.fail("tenant_id, workspace_id", "%v", err)
	}
	c.name("auth.key_id", env.Auth.KeyID)
	c.time("auth.expires_at", env.Auth.ExpiresAt)
	c.name("auth.signature", env.Auth.Signature)
	c.ulid("run_id", env.RunID)
	if err := ids.ValidateTaskKey(env.TaskKey); err != nil {
		c.fail("task_key", "%v", err)
	}
	c.between("attempt", int64(env.Attempt), 1, 1<<31-1)
	c.between("max_attempts", int64(env.MaxAttempts), 0, 1<<31-1)
	c.between("timeout_sec", int64(env.TimeoutSec), 0, 1<<31-1)
	c.between("heartbeat_timeout_sec", int64(env.HeartbeatTimeoutSec), 0, 1<<31-1)
	if c.err == nil {
		c.derived("attempt_id", env.AttemptID, ids.AttemptID(env.Domain(), env.RunID, env.TaskKey, env.Attempt))
		c.derived("materialization_id", env.MaterializationID, ids.MaterializationID(env.Domain(), env.RunID, env.TaskKey))
	}
	c.required("plan_ref", env.PlanRef, event.MaxRef)
	if _, err := ids.ParseAssetKey(env.AssetKey); err != nil {
		c.fail("asset_key", "%v", err)
	}
	if _, err := ids.ParsePartition(env.PartitionKey); err != nil {
		c.fail("partition_key", "%v", err)
	}
	c.url("callbacks.started", env.Callbacks.Started)
	c.url("callbacks.heartbeat", env.Callbacks.Heartbeat)
	c.url("callbacks.finished", env.Callbacks.Finished)
	c.text("callbacks.authorization.started", env.Callbacks.Authorization.Started, event.MaxName)
	c.text("callbacks.authorization.heartbeat", env.Callbacks.Authorization.Heartbeat, event.MaxName)
	c.text("callbacks.authorization.finished", env.Callbacks.Authorization.Finished, event.MaxName)
	if env.Callbacks.Started == "" {
		c.fail("callbacks.started", "is missing")
	}
	if _, _, err := env.Without.Tasks(); err != nil {
		c.fail("without", "%v", err)
	}
	c.text("traceparent", env.Traceparent, event.MaxName)
	c.text("tracestate", env.Tracestate, event.MaxRef)
	if c.err != nil {
		return nil, c.err
	}
	return &env, nil
}

// DecodeStarted reads the body of the started callback.
func DecodeStarted(data []byte) (*Started, error) {
	var s Started
	if err := decode(data, MaxCallbackBytes, &s, "started_at"); err != nil {
		return nil, err
	}
	c := &checker{}
	c.ulid("attempt_id", s.AttemptID)
	c.text("worker_id", s.WorkerID, event.MaxName)
	c.time("started_at", s.StartedAt)
	return ifValid(&s, c)
}

// DecodeHeartbeat reads the body of the heartbeat callback.
func DecodeHeartbeat(data []byte) (*Heartbeat, error) {
	var h Heartbeat
	if err := decode(data, MaxCallbackBytes, &h, "heartbeat_at"); err != nil {
		return nil, err
	}
	c := &checker{}
	c.ulid("attempt_id", h.AttemptID)
	c.text("worker_id", h.WorkerID, event.MaxName)
	c.time("heartbeat_at", h.HeartbeatAt)
	c.between("progress", int64(h.Progress), 0, 100)
	c.text("message", h.Message, MaxErrorMessage)
	return ifValid(&h, c)
}

// DecodeFinished reads the body of the finished callback.
func DecodeFinished(data []byte) (*Finished, error) {
	var f Finished
	if err := decode(data, MaxCallbackBytes, &f, "started_at", "completed_at"); err != nil {
		return nil, err
	}
	c := &checker{}
	c.ulid("attempt_id", f.AttemptID)
	c.text("worker_id", f.WorkerID, event.MaxName)
	switch f.Outcome {
	case event.Succeeded, event.Failed, event.Skipped, event.Cancelled, event.TimedOut:
	case "":
		c.fail("outcome", "is missing")
	default:
		c.fail("outcome", "%.40q is not one of succeeded, failed, skipped, cancelled, timed_out", string(f.Outcome))
	}
	c.failure(f.Error)
	c.output(f.Output)
	if f.MaterializationID != "" {
		c.ulid("materialization_id", f.MaterializationID)
	}
	c.checkResults("check_results", f.CheckResults)
	c.between("metrics (count)", int64(len(f.Metrics)), 0, MaxMetrics)
	for key := range f.Metrics {
		c.name("metrics (a key)", key)
	}
	c.text("log", f.Log, event.MaxLog)
	if f.StartedAt != 0 {
		c.time("started_at", f.StartedAt)
	}
	if f.CompletedAt != 0 {
		c.time("completed_at", f.CompletedAt)
	}
	return ifValid(&f, c)
}

// DecodeCommitMarker reads a commit marker and checks that its fields agree with each other.
func DecodeCommitMarker(data []byte) (*CommitMarker, error) {
	var m CommitMarker
	if err := decode(data, MaxCommitMarkerBytes, &m, "committed_at", "started_at"); err != nil {
		return nil, err
	}
	c := &checker{}
	c.ulid("materialization_id", m.MaterializationID)
	c.ulid("attempt_id", m.AttemptID)
	c.name("nonce", m.Nonce)
	c.required("uri", m.URI, event.MaxRef)
	if !strings.HasSuffix(m.URI, "/"+m.MaterializationID+"/"+path.Base(m.URI)+"/") {
		c.fail("uri", "%.200q is not a directory of materialization %.40s", m.URI, m.MaterializationID)
	}
	c.between("files (count)", int64(len(m.Files)), 0, MaxFiles)
	for i, f := range m.Files {
		if !ValidFileName(f.Name) {
			c.fail(fmt.Sprintf("files[%d].name", i), "%.100q is not a clean relative path", f.Name)
		}
		c.between(fmt.Sprintf("files[%d].size", i), f.Size, 0, 1<<62)
	}
	c.cells(&m)
	c.between("columns (count)", int64(len(m.Columns)), 0, MaxColumns)
	for i, column := range m.Columns {
		c.text(fmt.Sprintf("columns[%d].name", i), column.Name, MaxColumnBytes)
		c.text(fmt.Sprintf("columns[%d].type", i), column.Type, MaxColumnBytes)
	}
	c.between("row_count", m.RowCount, 0, 1<<62)
	c.between("byte_size", m.ByteSize, 0, 1<<62)
	c.checkResults("checks", m.Checks)
	return ifValid(&m, c)
}

// cells checks the partitions of a batch: each file must be in the folder of its partition.
func (c *checker) cells(m *CommitMarker) {
	if IsBatchURI(m.URI) != (len(m.Cells) > 0) {
		c.fail("cells (count)", "%d does not fit the directory %.200q: only the marker of a batch lists partitions, and it lists at least one", len(m.Cells), m.URI)
		return
	}
	c.between("cells (count)", int64(len(m.Cells)), 0, event.MaxBatch)
	next := 0
	for i := range m.Cells {
		cell, path := &m.Cells[i], fmt.Sprintf("cells[%d]", i)
		if _, err := ids.ParsePartition(cell.PartitionKey); err != nil {
			c.fail(path+".partition_key", "%v", err)
		}
		c.between(path+".row_count", cell.RowCount, 0, 1<<62)
		c.between(path+".byte_size", cell.ByteSize, 0, 1<<62)
		c.between(path+".files", int64(cell.Files), 0, int64(len(m.Files)-next))
		if c.err != nil {
			return
		}
		folder := ids.PartitionSegment(cell.PartitionKey) + "/"
		for _, f := range m.Files[next : next+cell.Files] {
			if !strings.HasPrefix(f.Name, folder) {
				c.fail(path+".files", "%.200q is not in the folder %.200q", f.Name, folder)
			}
		}
		next += cell.Files
	}
	if len(m.Cells) > 0 && next != len(m.Files) {
		c.fail("cells", "%d of %d files belong to no partition", len(m.Files)-next, len(m.Files))
	}
}

// maxFileName is the maximum length of the name of an output's file, in bytes.
const maxFileName = 512

// ValidFileName reports whether an output's file may have this name: a clean relative path of
// printable text, with "/" between folders.
func ValidFileName(name string) bool {
	return name != "" && len(name) <= maxFileName && utf8.ValidString(name) && name == path.Clean(name) &&
		name != "." && name != ".." && !strings.HasPrefix(name, "/") && !strings.HasPrefix(name, "../") &&
		!strings.ContainsFunc(name, func(r rune) bool { return r < 0x20 || r == 0x7f || r == '\\' })
}

func ifValid[T any](v *T, c *checker) (*T, error) {
	if c.err != nil {
		return nil, c.err
	}
	return v, nil
}

// decode reads a JSON object. timeFields lists the fields that contain times: the JSON package does not say which field
// contains an invalid time.
func decode(data []byte, limit int, v any, timeFields ...string) error {
	if len(data) > limit {
		return &FieldError{Msg: fmt.Sprintf("the body has %d bytes: at most %d are allowed", len(data), limit)}
	}
	if first := bytes.TrimLeft(data, " \t\r\n"); len(first) > 0 && first[0] == '{' {
		err := readJSON(data, v)
		if _, named := errors.AsType[*FieldError](err); err == nil || named {
			return err
		}
	}
	return explain(data, v, timeFields)
}

// explain returns why a body was rejected. It decodes the body again with encoding/json, whose errors name the field
// and the type. If invalid UTF-8 is the only problem, explain decodes the body into v.
func explain(data []byte, v any, timeFields []string) error {
	err := json.Unmarshal(data, reflect.New(reflect.TypeOf(v).Elem()).Interface())
	if err == nil {
		if first := bytes.TrimLeft(data, " \t\r\n"); first[0] != '{' {
			return &FieldError{Msg: "the body is not a JSON object"}
		}
		return tolerate(data, v)
	}
	if wrongType, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		if wrongType.Field == "" {
			return &FieldError{Msg: "the body is not a JSON object"}
		}
		return &FieldError{Field: wrongType.Field, Msg: fmt.Sprintf("expected a %s, got a JSON %s", wrongType.Type.Kind(), wrongType.Value)}
	}
	for _, field := range timeFields {
		if msg := badTime(data, field); msg != "" {
			return &FieldError{Field: field, Msg: msg}
		}
	}
	return &FieldError{Msg: fmt.Sprintf("the body is not JSON: %v", err)}
}

// tolerate reads a body that is not valid UTF-8 and replaces the invalid bytes: a worker may
// have truncated an error message in the middle of a character.
func tolerate(data []byte, v any) error {
	if !jsontext.Value(data).IsValid(jsontext.AllowInvalidUTF8(true)) {
		return &FieldError{Msg: "an object of the body has a duplicate name"}
	}
	if err := jsonv2.Unmarshal(data, v, jsontext.AllowInvalidUTF8(true)); err != nil {
		return &FieldError{Msg: fmt.Sprintf("the body cannot be read: %v", err)}
	}
	return CheckNames(data, v)
}

// badTime returns what is wrong with the time at a dotted path, or "" if nothing is.
func badTime(data []byte, field string) string {
	raw := json.RawMessage(data)
	for name := range strings.SplitSeq(field, ".") {
		var object map[string]json.RawMessage
		if json.Unmarshal(raw, &object) != nil {
			return ""
		}
		raw = object[name]
	}
	var t event.Time
	if err := json.Unmarshal(raw, &t); len(raw) > 0 && err != nil {
		return fmt.Sprintf("%.60s is not a time in RFC 3339", raw)
	}
	return ""
}

// checker keeps the first error.
type checker struct{ err error }

func (c *checker) fail(field, format string, args ...any) {
	if c.err == nil {
		c.err = &FieldError{Field: field, Msg: fmt.Sprintf(format, args...)}
	}
}

func (c *checker) ulid(field, id string) {
	switch {
	case id == "":
		c.fail(field, "is missing")
	case !ids.Valid(id):
		c.fail(field, "%.40q is not a ULID (26 upper-case characters)", id)
	}
}

func (c *checker) derived(field, got, want string) {
	c.ulid(field, got)
	if got != want {
		c.fail(field, "%.40q does not match the run and task: expected %q", got, want)
	}
}

// name checks a required text of at most [event.MaxName] bytes.
func (c *checker) name(field, s string) { c.required(field, s, event.MaxName) }

func (c *checker) required(field, s string, limit int) {
	if s == "" {
		c.fail(field, "is missing")
	}
	c.text(field, s, limit)
}

func (c *checker) text(field, s string, limit int) {
	switch {
	case len(s) > limit:
		c.fail(field, "has %d bytes: at most %d are allowed", len(s), limit)
	case !utf8.ValidString(s):
		c.fail(field, "is not UTF-8")
	}
}

func (c *checker) time(field string, t event.Time) {
	switch {
	case t == 0:
		c.fail(field, "is missing")
	case t < 0 || t.Time().Year() > 9999:
		c.fail(field, "is not a time between 1970 and 9999")
	}
}

func (c *checker) between(field string, n, low, high int64) {
	if n < low || n > high {
		c.fail(field, "%d is not between %d and %d", n, low, high)
	}
}

func (c *checker) url(field, s string) {
	c.text(field, s, 2*event.MaxRef)
	if s != "" && !strings.HasPrefix(s, "https://") && !strings.HasPrefix(s, "http://") {
		c.fail(field, "%.40q is not an http or https URL", s)
	}
}

func (c *checker) failure(e *event.Error) {
	if e == nil {
		return
	}
	c.text("error.code", e.Code, event.MaxName)
	c.text("error.category", e.Category, event.MaxName)
	c.text("error.message", e.Message, MaxErrorMessage)
	c.text("error.details", e.Details, event.MaxDetails)
	c.text("error.suggested_action", e.SuggestedAction, event.MaxRef)
	c.between("error.retry_after_ms", e.RetryAfterMS, 0, event.MaxRetryAfterMS)
}

// checkResults validates the results of an asset's checks.
func (c *checker) checkResults(field string, results []event.CheckResult) {
	c.between(field+" (count)", int64(len(results)), 0, event.MaxChecks)
	for i, r := range results {
		at := fmt.Sprintf("%s[%d]", field, i)
		c.name(at+".name", r.Name)
		c.text(at+".severity", r.Severity, event.MaxName)
		c.text(at+".phase", r.Phase, event.MaxName)
		c.between(at+".failing", r.Failing, 0, math.MaxInt64)
		c.text(at+".actual", r.Actual, event.MaxRef)
		c.text(at+".expected", r.Expected, event.MaxRef)
		c.text(at+".message", r.Message, MaxErrorMessage)
		c.text(at+".sample", r.Sample, event.MaxRef)
	}
}

func (c *checker) output(o *event.Output) {
	if o == nil {
		return
	}
	c.required("output.uri", o.URI, event.MaxRef)
	c.between("output.row_count", o.RowCount, 0, 1<<62)
	c.between("output.byte_size", o.ByteSize, 0, 1<<62)
	c.text("output.schema_hash", o.SchemaHash, event.MaxName)
}
