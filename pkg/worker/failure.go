package worker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/secret"
)

// Error codes of reports. They are part of the contract: people alert on them.
const (
	CodeSQL               = "SQL_ERROR"
	CodeOutOfMemory       = "OUT_OF_MEMORY"
	CodeDiskFull          = "DISK_FULL"
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
)

// Categories of errors: who is to act.
const (
	CategoryUser           = "user"           // the query, the command, the data
	CategoryResource       = "resource"       // memory, disk, time
	CategoryInfrastructure = "infrastructure" // storage, network, the worker
	CategoryCancelled      = "cancelled"
)

// failure is an error as it is reported.
type failure struct {
	code      string
	category  string
	retryable bool
	err       error
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// refuse is a failure that repeating does not mend.
func refuse(code, format string, args ...any) error {
	return &failure{code, CategoryUser, false, fmt.Errorf(format, args...)}
}

// fail is a failure of an operation, for the reason that err gives, if any.
func fail(code, category string, err error) error {
	var known *failure
	switch {
	case errors.As(err, &known):
		return err
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return &failure{CodeDiskFull, CategoryResource, true, fmt.Errorf("%w: free some space, or give the worker a larger disk", err)}
	}
	return &failure{code, category, true, err}
}

// Why an execution is stopped: the causes of its context.
var (
	// errReplaced: another attempt has taken over, and nobody waits for a report.
	errReplaced    = errors.New("the attempt was replaced by another one")
	errTimedOut    = errors.New("the task timed out")
	errInterrupted = errors.New("the worker is shutting down; the task is to be retried")
)

type cancelledError struct{ reason string }

func (e cancelledError) Error() string {
	if e.reason == "" {
		return "the run was cancelled"
	}
	return "the run was cancelled: " + e.reason
}

// verdict is how a failed execution is reported; stopped is the context that it
// ran under, and mask hides its secrets.
func verdict(stopped context.Context, mask *secret.Mask, err error) (event.Outcome, *event.Error) {
	cause := context.Cause(stopped)
	var cancelled cancelledError
	switch {
	case errors.As(cause, &cancelled):
		return event.Cancelled, &event.Error{Code: CodeCancelled, Category: CategoryCancelled, Message: bounded(cancelled.Error())}
	case errors.Is(cause, errTimedOut):
		return event.TimedOut, &event.Error{Code: CodeTimeout, Category: CategoryResource, Message: errTimedOut.Error(), Retryable: true}
	case cause != nil: // interrupted, or killed on the way out
		return event.Failed, &event.Error{
			Code: CodeInterrupted, Category: CategoryInfrastructure, Message: errInterrupted.Error(), Retryable: true,
		}
	}
	var f *failure
	if !errors.As(err, &f) {
		f = &failure{CodeWorker, CategoryInfrastructure, true, err}
	}
	return event.Failed, &event.Error{Code: f.code, Category: f.category, Message: bounded(mask.String(f.err.Error())), Retryable: f.retryable}
}

const leftOut = "…"

// bounded is a message that every receiver takes: UTF-8 of a bounded length.
func bounded(message string) string {
	message = strings.ToValidUTF8(message, "?")
	if len(message) <= contract.MaxErrorMessage {
		return message
	}
	cut := contract.MaxErrorMessage - len(leftOut)
	for !utf8.RuneStart(message[cut]) {
		cut--
	}
	return message[:cut] + leftOut
}
