// Package queue is the port to a task queue with the semantics of Cloud Tasks:
// named HTTP tasks, delivered at least once, at or after a scheduled time. This package is not a
// stable API.
//
// A queue is a hint, not a record: it may deliver twice, deliver minutes late, or lose a task. Its users repair such
// failures from the projections.
package queue

import (
	"context"
	"errors"
	"time"
)

// Errors that callers branch on.
var (
	// ErrExists reports that the name is in use or was recently used: the queue has, or
	// had, that task. Callers with deterministic names treat it as success.
	ErrExists = errors.New("a queue task with this name exists or existed recently")
	// ErrInvalid reports that the queue will never accept this task.
	ErrInvalid = errors.New("invalid queue task")
)

// Limits of Cloud Tasks, which every queue enforces.
const (
	// MaxTaskBytes is the maximum size of a task, as returned by [Task.Size].
	MaxTaskBytes = 100_000
	// MaxSchedule is how far ahead a task may be scheduled.
	MaxSchedule = 30 * 24 * time.Hour
)

// Task is one HTTP request to make.
type Task struct {
	// Queue is the name of the queue: [A-Za-z0-9-]{1,100}.
	Queue string
	// Name is unique in the queue: [A-Za-z0-9_-]{1,500}.
	Name string
	// URL is the target of the POST.
	URL    string
	Header map[string]string
	Body   []byte
	// ScheduleTime is when the first delivery is due; zero or past means now.
	ScheduleTime time.Time
	// DispatchDeadline is how long a delivery may take before it counts as failed: 15 s to
	// 30 min; 0 means 10 min.
	DispatchDeadline time.Duration
	// Turn decides which of several due tasks is delivered first. Cloud Tasks ignores it: only a queue in this process
	// orders due tasks.
	Turn Turn
	// Prepare, if set, is called before each delivery, and returns the body to send instead of Body. If it returns
	// wanted = false, the task ends without a delivery. Only a queue in this process can call Prepare; other queues
	// reject the task with ErrInvalid.
	Prepare func(ctx context.Context) (body []byte, wanted bool, err error)
	// OnResponse, if set, receives the body of each answer with status 200. If it returns an error, the delivery has
	// failed. As with Prepare, queues outside this process reject the task.
	OnResponse func(ctx context.Context, body []byte) error
}

// Turn decides the order of a task among the due tasks of its queue. A queue in this process delivers tasks of a
// greater priority first. Groups of equal priority take turns. In a group, older tasks go first.
type Turn struct {
	Priority int32
	Group    string
	// Since is the time from which the age of the task is counted. Zero means the time when the task is due.
	Since time.Time
}

// Queue accepts tasks. It is safe for concurrent use. After an error other than ErrExists and ErrInvalid, the outcome
// of the call is unknown: retry with the same name.
type Queue interface {
	// Create adds a task.
	Create(ctx context.Context, t Task) error
	// Delete removes a task that has not been delivered. Deleting an absent task is not an error. The name of a deleted
	// task stays reserved.
	Delete(ctx context.Context, queue, name string) error
	// Exists reports whether the task is waiting or being delivered.
	Exists(ctx context.Context, queue, name string) (bool, error)
}
