package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/secret"
)

// Error codes of reports. They are part of the contract: alerts depend on them.
const (
	CodeSQL               = "SQL_ERROR"
	CodeOutOfMemory       = "OUT_OF_MEMORY"
	CodeDiskFull          = "DISK_FULL"
	CodeResourcesExceeded = "RESOURCES_EXCEEDED"
	CodeCommandNotFound   = "COMMAND_NOT_FOUND"
	CodeExitStatus        = "EXIT_STATUS"
	CodeSignal            = "SIGNAL"
	CodeTimeout           = "TASK_TIMEOUT"
	CodeCancelled         = "CANCELLED"
	CodeInterrupted       = "WORKER_INTERRUPTED"
	CodeMissingInput      = "MISSING_INPUT"
	CodeInvalidInput      = "INVALID_INPUT"
	CodeInvalidOutput     = "INVALID_OUTPUT"
	CodeInvalidMarker     = "INVALID_MARKER"
	CodeSecretMissing     = "SECRET_MISSING"
	CodePlanMissing       = "PLAN_MISSING"
	CodePlanUnreadable    = "PLAN_UNREADABLE"
	CodeProjectMissing    = "PROJECT_MISSING"
	CodeStore             = "STORE_UNAVAILABLE"
	CodeSecretUnavailable = "SECRET_UNAVAILABLE"
	CodeWorker            = "WORKER_ERROR"
	CodeCheckFailed       = "CHECK_FAILED"
	CodeCheckError        = "CHECK_ERROR"
	CodeExtensionMissing  = "EXTENSION_MISSING"
	CodeSourceDenied      = "SOURCE_DENIED"
	CodeNetwork           = "NETWORK_ERROR"
)

// Categories of errors. Some codes always have the same category: see categoryOf.
const (
	CategoryUser           = event.CategoryUser
	CategoryResource       = event.CategoryResource
	CategoryInfrastructure = event.CategoryInfrastructure
	CategoryCancelled      = event.CategoryCancelled
	CategoryQuality        = event.CategoryQuality
)

// failure is an error with the fields of a report.
type failure struct {
	code      string
	category  string
	retryable bool
	err       error
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// permanent returns a failure that a retry cannot fix.
func permanent(code, format string, args ...any) error {
	return &failure{code, categoryOf(code, CategoryUser), false, fmt.Errorf(format, args...)}
}

// fail returns a retryable failure. If err is already a failure, it returns err. For a full disk, the code is always
// DISK_FULL.
func fail(code, category string, err error) error {
	var known *failure
	switch {
	case errors.As(err, &known):
		return err
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return &failure{CodeDiskFull, CategoryResource, true, fmt.Errorf("%w: free some space, or give the worker a larger disk", err)}
	}
	return &failure{code, categoryOf(code, category), true, err}
}

// categoryOf returns the fixed category of a code, or the given category if the code has none.
func categoryOf(code, category string) string { return cmp.Or(event.CategoryOf(code), category) }

// These errors, and cancelledError, are the reasons to stop an execution. The cause with which the context of the
// execution ends is one of them.
var (
	// errReplaced means that a later attempt is current. The execution then reports nothing.
	errReplaced    = errors.New("the attempt was replaced by a later one")
	errInterrupted = errors.New("the worker is shutting down; the task can be retried")
)

// timedOutError reports that an execution has reached its timeout.
type timedOutError struct{ limit time.Duration }

func (e timedOutError) Error() string {
	return fmt.Sprintf("timed out after %s, the timeout of the asset", e.limit)
}

type cancelledError struct{ reason string }

func (e cancelledError) Error() string {
	if e.reason == "" {
		return "the run was cancelled"
	}
	return "the run was cancelled: " + e.reason
}

// verdict returns the outcome and the error in the report of a failed execution. The parameter stopped is the context
// of the execution. mask masks secrets in the error.
func verdict(stopped context.Context, mask *secret.Mask, err error) (event.Outcome, *event.Error) {
	cause := context.Cause(stopped)
	var cancelled cancelledError
	var timedOut timedOutError
	switch {
	case errors.As(cause, &cancelled):
		return event.Cancelled, &event.Error{Code: CodeCancelled, Category: CategoryCancelled, Message: bounded(cancelled.Error())}
	case errors.As(cause, &timedOut):
		return event.TimedOut, &event.Error{Code: CodeTimeout, Category: event.CategoryTimeout, Message: timedOut.Error(), Retryable: true}
	case cause != nil: // Close interrupted the execution, or stopped waiting for it and killed it
		return event.Failed, &event.Error{
			Code: CodeInterrupted, Category: CategoryInfrastructure, Message: errInterrupted.Error(), Retryable: true,
		}
	}
	var f *failure
	if !errors.As(err, &f) {
		f = &failure{CodeWorker, CategoryInfrastructure, true, err}
	}
	e := &event.Error{Code: f.code, Category: f.category, Message: bounded(mask.String(f.err.Error())), Retryable: f.retryable}
	if d, ok := errors.AsType[describedError](f.err); ok {
		e.Details, e.SuggestedAction, e.RetryAfterMS = mask.String(d.details), mask.String(d.suggestion), d.retryAfterMS
	}
	return event.Failed, e
}

const ellipsis = "…"

// bounded returns the message as valid UTF-8 of at most MaxErrorMessage bytes.
func bounded(message string) string {
	message = strings.ToValidUTF8(message, "?")
	if len(message) <= contract.MaxErrorMessage {
		return message
	}
	cut := contract.MaxErrorMessage - len(ellipsis)
	for !utf8.RuneStart(message[cut]) {
		cut--
	}
	return message[:cut] + ellipsis
}
