package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"connectrpc.com/connect"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/servov1"
)

// problemKind is a kind of problem, with its representation in each protocol.
type problemKind struct {
	name   string // the end of the type: "not-found"
	title  string
	status int // of REST
	code   connect.Code
	// retryable means that the same call may succeed later.
	retryable bool
}

// The kinds of problems. A test compares them with the reference.
var (
	invalidRequest  = problemKind{"invalid-request", "Invalid request", http.StatusBadRequest, connect.CodeInvalidArgument, false}
	permissionLacks = problemKind{"permission-denied", "Permission denied", http.StatusForbidden, connect.CodePermissionDenied, false}
	notFound        = problemKind{"not-found", "Not found", http.StatusNotFound, connect.CodeNotFound, false}
	conflict        = problemKind{"conflict", "Conflict", http.StatusConflict, connect.CodeAlreadyExists, false}
	wrongState      = problemKind{"wrong-state", "Not possible in this state", http.StatusConflict, connect.CodeFailedPrecondition, false}
	outdated        = problemKind{"precondition-failed", "Changed since it was read", http.StatusPreconditionFailed, connect.CodeFailedPrecondition, false}
	pageExpired     = problemKind{"page-token-expired", "Page token expired", http.StatusGone, connect.CodeAborted, false}
	revisionGone    = problemKind{"revision-gone", "Revision not kept", http.StatusGone, connect.CodeNotFound, false}
	notAcceptable   = problemKind{"not-acceptable", "Not acceptable", http.StatusNotAcceptable, connect.CodeInvalidArgument, false}
	unsupportedType = problemKind{"unsupported-media-type", "Unsupported media type", http.StatusUnsupportedMediaType, connect.CodeInvalidArgument, false}
	notBuilt        = problemKind{"not-implemented", "Not implemented", http.StatusNotImplemented, connect.CodeUnimplemented, false}
	tooManyQueries  = problemKind{"too-many-queries", "Too many queries", http.StatusTooManyRequests, connect.CodeResourceExhausted, true}
	tooManyStreams  = problemKind{"too-many-streams", "Too many streams", http.StatusTooManyRequests, connect.CodeResourceExhausted, true}
	unavailable     = problemKind{"unavailable", "Unavailable", http.StatusServiceUnavailable, connect.CodeUnavailable, true}
	cancelled       = problemKind{"cancelled", "Cancelled by the caller", 499, connect.CodeCanceled, true}
	internal        = problemKind{"internal", "Internal error", http.StatusInternalServerError, connect.CodeInternal, false}
)

// problemKinds lists the kinds in the order of their statuses.
func problemKinds() []problemKind {
	return []problemKind{
		invalidRequest, permissionLacks, notFound, notAcceptable, conflict, wrongState, pageExpired, revisionGone, outdated, unsupportedType,
		tooManyStreams, tooManyQueries, cancelled, internal, notBuilt, unavailable,
	}
}

// typePrefix is the prefix of the type of each problem.
const typePrefix = "urn:servo:problem:"

// problemError is an error with its kind.
type problemError struct {
	kind       problemKind
	err        error
	violations []*servov1.Problem_FieldViolation
	retryAfter time.Duration
}

// Error implements error.
func (p *problemError) Error() string { return p.err.Error() }

// Unwrap returns the cause.
func (p *problemError) Unwrap() error { return p.err }

func refuse(kind problemKind, format string, args ...any) error {
	return &problemError{kind: kind, err: fmt.Errorf(format, args...)}
}

// withKind returns an error with a kind.
func withKind(kind problemKind, err error) error { return &problemError{kind: kind, err: err} }

// invalid returns an error about a field of the request.
func invalid(field, format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	return &problemError{
		kind: invalidRequest, err: fmt.Errorf("%s: %w", field, err),
		violations: []*servov1.Problem_FieldViolation{{Field: field, Description: err.Error()}},
	}
}

// kindOf returns the kind of an error of a handler.
func kindOf(err error) problemKind {
	var own *problemError
	var badInput *engine.InvalidError
	switch {
	case errors.As(err, &own):
		return own.kind
	case errors.As(err, &badInput):
		return invalidRequest
	case errors.Is(err, engine.ErrNotFound):
		return notFound
	case errors.Is(err, engine.ErrConflict):
		return conflict
	case errors.Is(err, engine.ErrOutdated):
		return outdated
	case errors.Is(err, engine.ErrChanged), errors.Is(err, engine.ErrEnded), errors.Is(err, engine.ErrRequestEnded), errors.Is(err, engine.ErrNoEffect),
		errors.Is(err, engine.ErrLiveRetry), errors.Is(err, engine.ErrOtherFolder), errors.Is(err, engine.ErrMissingInput), errors.Is(err, engine.ErrResolved),
		errors.Is(err, engine.ErrNothing), errors.Is(err, engine.ErrPaused):
		return wrongState
	case errors.Is(err, context.Canceled):
		return cancelled
	case errors.Is(err, context.DeadlineExceeded):
		return unavailable
	}
	return internal
}

// problemOf returns the problem that describes an error of a handler.
func problemOf(err error) *servov1.Problem {
	kind := kindOf(err)
	p := &servov1.Problem{
		Type: typePrefix + kind.name, Title: kind.title, Status: int32(kind.status), //nolint:gosec // an HTTP status
		Detail: err.Error(), Retryable: kind.retryable,
	}
	if own, ok := errors.AsType[*problemError](err); ok {
		p.FieldViolations = own.violations
		p.RetryAfterMs = own.retryAfter.Milliseconds()
	}
	if kind.retryable {
		p.RetryAfterMs = cmp.Or(p.RetryAfterMs, time.Second.Milliseconds())
	}
	return p
}

// connectError returns an error of a handler in the form that Connect sends.
func connectError(err error) error {
	if _, ok := errors.AsType[*connect.Error](err); ok {
		return err
	}
	out := connect.NewError(kindOf(err).code, err)
	if detail, detailErr := connect.NewErrorDetail(problemOf(err)); detailErr == nil {
		out.AddDetail(detail)
	}
	return out
}

// gone reports whether an error means that a file of an earlier revision has been deleted.
func gone(err error) bool { return errors.Is(err, blob.ErrNotFound) || manifest.Damaged(err) }
