package worker

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/servo-orchestration/servo/pkg/event"
)

// errorFile is the file in which a command may describe its error. The environment variable SERVO_ERROR contains the
// path.
const errorFile = "error.json"

// maxErrorFile is the maximum size of the error file, in bytes.
const maxErrorFile = 32 << 10

// commandError is the content of the error file. All members are optional.
type commandError struct {
	Code            string          `json:"code"`
	Category        string          `json:"category"`
	Message         string          `json:"message"`
	Retryable       *bool           `json:"retryable"`
	Details         json.RawMessage `json:"details"`
	SuggestedAction string          `json:"suggested_action"`
	RetryAfterMS    int64           `json:"retry_after_ms"`
}

// describedError is an error with the fields that a command has added.
type describedError struct {
	error

	details, suggestion string
	retryAfterMS        int64
}

func (e describedError) Unwrap() error { return e.error }

// exitCodes are the default categories of exit statuses, from sysexits.h. They apply to statuses that the asset does
// not declare.
var exitCodes = map[string]string{"75": event.CategoryTransient, "78": event.CategoryConfiguration}

// classify completes the failure of a command: it sets the category for the exit status, and then the fields that the
// command has written to SERVO_ERROR, which take precedence.
func (a *attempt) classify(err error, declared map[string]string) error {
	f, ok := errors.AsType[*failure](err)
	if !ok || f.code != CodeExitStatus && f.code != CodeSignal {
		return err
	}
	result := *f
	if status, ok := errors.AsType[exitStatusError](f.err); ok {
		text := strconv.Itoa(status.status)
		if category, known := declared[text]; known {
			result.category = category
		} else if category, known := exitCodes[text]; known {
			result.category = category
		}
		result.retryable = event.RetryableCategory(result.category)
	}
	described, err := readCommandError(filepath.Join(a.dir, errorFile))
	switch {
	case err != nil:
		result.err = fmt.Errorf("%w\nthe file SERVO_ERROR is not valid: %w", result.err, err)
	case described != nil:
		described.apply(&result)
	}
	return &result
}

// readCommandError returns the content of the file, or nil if the command wrote none.
func readCommandError(path string) (*commandError, error) {
	// The command may have created a named pipe. Without O_NONBLOCK, opening it would wait for a writer forever.
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) //nolint:gosec // a file of the scratch folder
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil //nolint:nilnil // documented above
	}
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("it must be a regular file")
	}
	var data []byte
	if err == nil {
		data, err = io.ReadAll(io.LimitReader(file, maxErrorFile+1))
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return nil, err
	}
	if len(data) > maxErrorFile {
		return nil, fmt.Errorf("it has more than %d bytes", maxErrorFile)
	}
	// Replace invalid UTF-8 before the lengths are checked. The report cannot contain invalid UTF-8, and the
	// replacement may be longer than the original text.
	data = bytes.ToValidUTF8(data, []byte("\uFFFD"))
	if len(bytes.TrimSpace(data)) == 0 {
		return nil, nil //nolint:nilnil // the command created the file and wrote nothing
	}
	var e commandError
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&e); err != nil {
		return nil, err
	}
	return &e, e.check()
}

// codesOfCommands are those of Servo's own codes that a command may report. The other codes describe failures of
// Servo itself, and some of them grant the task another attempt.
var codesOfCommands = []string{
	"RATE_LIMITED", "NETWORK_ERROR", "SERVICE_UNAVAILABLE", CodeOutOfMemory, CodeDiskFull, CodeInvalidInput, CodeExitStatus,
}

// check returns an error about the first invalid member of e.
func (e *commandError) check() error {
	own := strings.HasPrefix(e.Code, event.UserCode) && event.ValidCode(e.Code)
	switch {
	case e.Code != "" && !own && !slices.Contains(codesOfCommands, e.Code):
		return fmt.Errorf("code %.100q: write X_ followed by A-Z, 0-9 and _, or one of %s", e.Code, strings.Join(codesOfCommands, ", "))
	case e.Category != "" && (!slices.Contains(event.Categories(), e.Category) || e.Category == event.CategoryCancelled):
		return fmt.Errorf("category %.100q: write one of %s", e.Category, strings.Join(event.Categories()[1:], ", "))
	case len(e.Details) > event.MaxDetails:
		return fmt.Errorf("details have %d bytes: at most %d are allowed", len(e.Details), event.MaxDetails)
	case len(e.Details) > 0 && e.Details[0] != '{':
		return errors.New("details must be an object")
	case len(e.SuggestedAction) > event.MaxRef:
		return fmt.Errorf("suggested_action has %d bytes: at most %d are allowed", len(e.SuggestedAction), event.MaxRef)
	case e.RetryAfterMS < 0 || e.RetryAfterMS > event.MaxRetryAfterMS:
		return fmt.Errorf("retry_after_ms is %d: write 0 to %d", e.RetryAfterMS, event.MaxRetryAfterMS)
	}
	return nil
}

// apply overwrites the fields of a failure with the members that the command has written.
func (e *commandError) apply(f *failure) {
	if e.Code != "" {
		f.code = e.Code
		if category := event.CategoryOf(e.Code); category != "" {
			f.category = category
		}
	}
	if e.Category != "" {
		f.category = e.Category
	}
	f.retryable = event.RetryableCategory(f.category)
	if e.Retryable != nil {
		f.retryable = *e.Retryable
	}
	if e.Message != "" {
		f.err = errors.New(e.Message)
	}
	f.err = describedError{f.err, string(e.Details), e.SuggestedAction, e.RetryAfterMS}
}

// exitStatusError is the error of a command that ended with a status other than 0.
type exitStatusError struct {
	error

	status int
}
