// Package queue is the port to a task queue with the semantics of Cloud Tasks:
// named HTTP tasks, delivered at least once, at or after a scheduled time.
//
// A queue is a hint, never a record: it may deliver twice, minutes late, or
// lose a task, and whoever uses it repairs that from the projections.
package queue

import (
	"context"
	"errors"
	"time"
)

// Errors that callers branch on.
var (
	// ErrExists says that the name is in use, or was lately: the queue has, or
	// had, that task. To a caller with deterministic names that is success.
	ErrExists = errors.New("a queue task of that name exists or existed lately")
	// ErrInvalid says that the queue will never take this task.
	ErrInvalid = errors.New("invalid queue task")
)

// Limits that every queue enforces, those of Cloud Tasks.
const (
	// MaxTaskBytes bounds a task as a whole, as [Task.Size] counts it.
	MaxTaskBytes = 100_000
	// MaxSchedule is how far ahead a task may be scheduled.
	MaxSchedule = 30 * 24 * time.Hour
)

// Task is one HTTP request to be made.
type Task struct {
	// Queue is the name of the queue: [A-Za-z0-9-]{1,100}.
	Queue string
	// Name is unique in the queue: [A-Za-z0-9_-]{1,500}.
	Name string
	// URL is where the body is POSTed.
	URL    string
	Header map[string]string
	Body   []byte
	// ScheduleTime is when the first delivery is due; zero or past: now.
	ScheduleTime time.Time
	// DispatchDeadline is how long a delivery may take before it counts as
	// failed: 15 s to 30 min; 0 means 10 min.
	DispatchDeadline time.Duration
	// Prepare, if it is set, gives the body of a delivery, in the place of Body, or says
	// that none is wanted any more, which ends the task. Only a queue in this process can
	// ask; others do not take such a task.
	Prepare func(ctx context.Context) (body []byte, wanted bool, err error)
	// Answered, if it is set, takes the body of an answer of 200. Its error makes the
	// delivery a failure. It goes with Prepare.
	Answered func(ctx context.Context, body []byte) error
}

// Queue takes tasks. It is safe for concurrent use. Any error but ErrExists and
// ErrInvalid leaves the outcome unknown: repeat under the same name.
type Queue interface {
	// Create adds a task.
	Create(ctx context.Context, t Task) error
	// Delete removes a task that has not been delivered; that it is absent is no error.
	// The name stays used.
	Delete(ctx context.Context, queue, name string) error
	// Exists reports whether the task waits for a delivery or is being delivered.
	Exists(ctx context.Context, queue, name string) (bool, error)
}
