package event

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/servo-orchestration/servo/pkg/ids"
)

// Limits of an event's fields, in bytes and counts.
const (
	MaxMessage    = 32 << 10 // error messages, heartbeat messages, reasons
	MaxName       = 256      // names and ids that are not Servo's own
	MaxRunKey     = 256
	ReservedKeys  = "servo/retry/" // the prefix of run keys that callers cannot use
	MaxRef        = 2048           // object keys and URIs
	MaxLabels     = 64
	MaxLabelValue = 1024
	MaxSelection  = 10_000 // the number of root assets, and of selected partitions
	MaxChecks     = 1000
	MaxMetrics    = 256
	MaxLog        = 256      // bytes of a log in an event
	MaxTimerData  = 64 << 10 // the payload of a timer
	MaxDetails    = 4 << 10  // details of an error

	// MaxRetryAfterMS is the longest delay that an error may ask for: a week.
	MaxRetryAfterMS = 7 * 24 * 3600 * 1000
	maxTimerID      = 1024
	maxPermille     = 1_000_000
)

// maxTime is the last time with a four-digit year.
var maxTime = At(time.Date(9999, 12, 31, 23, 59, 59, 999_999_000, time.UTC))

// Validate returns the first error of an event: a [*DecodeError] that names the JSON path.
// Events are validated before they are appended and after they are decoded.
func Validate(e *Envelope) error {
	if err := validate(e); err != nil {
		err.EventID, err.Group = e.ID, e.Group
		return err
	}
	return nil
}

func validate(e *Envelope) *DecodeError {
	c := &checker{}
	c.ulid("event_id", e.ID)
	c.time("timestamp", e.Time)
	c.name("source", e.Source)
	if err := e.Domain.Validate(); err != nil {
		c.fail("tenant_id, workspace_id", "%v", err)
	}
	c.text("correlation_id", e.CorrelationID, MaxName)
	c.text("causation_id", e.CausationID, MaxName)
	c.text("actor", e.Actor, MaxName)
	c.optionalULID("group", e.Group)
	c.atMost("group_size", int64(e.GroupSize), MaxGroupEvents)
	if e.Group == "" && e.GroupSize > 1 {
		c.fail("group_size", "is %d, but the event has no group", e.GroupSize)
	}
	if e.Payload == nil {
		c.fail("payload", "%v", errMissing)
		return c.err
	}
	c.payload(e.Payload)
	return c.err
}

// checker keeps the first error.
type checker struct{ err *DecodeError }

func (c *checker) fail(path, format string, args ...any) {
	c.refuse(ReasonInvalid, path, format, args...)
}

func (c *checker) refuse(reason, path, format string, args ...any) {
	if c.err == nil {
		c.err = refusal(reason, "%s: %s", path, fmt.Sprintf(format, args...))
	}
}

func (c *checker) ulid(path, id string) {
	if !ids.Valid(id) {
		c.fail(path, "%.40q is not a ULID (26 upper-case characters)", id)
	}
}

func (c *checker) optionalULID(path, id string) {
	if id != "" {
		c.ulid(path, id)
	}
}

func (c *checker) time(path string, t Time) {
	if t <= 0 || t > maxTime {
		c.fail(path, "%d is not a time in microseconds between 1970 and 9999", int64(t))
	}
}

func (c *checker) optionalTime(path string, t Time) {
	if t != 0 {
		c.time(path, t)
	}
}

func (c *checker) text(path, s string, limit int) {
	switch {
	case len(s) > limit:
		c.fail(path, "has %d bytes: at most %d are allowed", len(s), limit)
	case !utf8.ValidString(s):
		c.fail(path, "is not UTF-8")
	}
}

// runKey validates the key of a run or a command.
func (c *checker) runKey(path, s string) {
	if strings.HasPrefix(s, ReservedKeys) {
		c.fail(path, "begins with %s, which is reserved: use another key", ReservedKeys)
	}
	c.text(path, s, MaxRunKey)
}

// name validates a required text of at most [MaxName] bytes.
func (c *checker) name(path, s string) {
	if s == "" {
		c.fail(path, "is empty")
	}
	c.text(path, s, MaxName)
}

func (c *checker) oneOf(path, s string, allowed ...string) {
	if slices.Contains(allowed, s) {
		return
	}
	c.fail(path, "%.40q is not one of %s", s, strings.Join(allowed, ", "))
}

func (c *checker) optionalOneOf(path, s string, allowed ...string) {
	if s != "" {
		c.oneOf(path, s, allowed...)
	}
}

func (c *checker) atMost(path string, n, high int64) {
	if n < 0 || n > high {
		c.fail(path, "%d is not between 0 and %d", n, high)
	}
}

// count validates a number that must not be negative.
func (c *checker) count(path string, n int64) {
	if n < 0 {
		c.fail(path, "%d is negative", n)
	}
}

func (c *checker) taskKey(path, key string) {
	if err := ids.ValidateTaskKey(key); err != nil {
		c.fail(path, "%v", err)
	}
	c.text(path, key, ids.MaxTaskKey)
}

func (c *checker) assetKey(path, key string) {
	if _, err := ids.ParseAssetKey(key); err != nil {
		c.fail(path, "%v", err)
	}
	c.text(path, key, ids.MaxTaskKey)
}

func (c *checker) dispatch(id, runID, taskKey string, attempt, generation int32) {
	c.ulid("payload.run_id", runID)
	c.taskKey("payload.task_key", taskKey)
	c.attempt(attempt)
	c.count("payload.generation", int64(generation))
	if want := ids.DispatchID(runID, taskKey, attempt); id != want {
		c.fail("payload.dispatch_id", "%.100q does not match the run, task and attempt: expected %q", id, want)
	}
}

func (c *checker) attempt(n int32) {
	if n < 1 {
		c.fail("payload.attempt", "%d is less than 1", n)
	}
}

func (c *checker) timer(id string, generation int32) {
	if !strings.HasPrefix(id, "timer:") {
		c.fail("payload.timer_id", "%.100q does not begin with timer:", id)
	}
	c.text("payload.timer_id", id, maxTimerID)
	c.count("payload.generation", int64(generation))
}

func (c *checker) cloudTaskID(id string) {
	c.name("payload.queue_task_name", id)
	for _, b := range []byte(id) {
		if !isTaskNameByte(b) {
			c.fail("payload.queue_task_name", "%q contains %q: only letters, digits, _ and - are allowed", id, b)
			return
		}
	}
}

func isTaskNameByte(b byte) bool {
	return b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9' || b == '_' || b == '-'
}

func (c *checker) worker(r AttemptRef) {
	c.ulid("payload.run_id", r.RunID)
	c.taskKey("payload.task_key", r.TaskKey)
	c.attempt(r.Attempt)
	c.ulid("payload.attempt_id", r.AttemptID)
	c.text("payload.worker_id", r.WorkerID, MaxName)
	c.atMost("payload.granted_attempts", int64(r.GrantedAttempts), MaxGrantedAttempts)
	if r.GrantedAttempts >= r.Attempt {
		c.fail("payload.granted_attempts", "%d must be less than the number of the attempt, %d", r.GrantedAttempts, r.Attempt)
	}
}

func (c *checker) failure(path string, e *Error) {
	if e == nil {
		return
	}
	c.text(path+".code", e.Code, MaxName)
	c.text(path+".category", e.Category, MaxName)
	c.text(path+".message", e.Message, MaxMessage)
	c.text(path+".details", e.Details, MaxDetails)
	c.text(path+".suggested_action", e.SuggestedAction, MaxRef)
	c.atMost(path+".retry_after_ms", e.RetryAfterMS, MaxRetryAfterMS)
}
