// Package secret resolves references to secrets, and hides the values in logs and outputs. This
// package is not a stable API.
//
// Values are kept in memory only: no error and no log record of this package contains a value.
package secret

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"

	"github.com/servo-orchestration/servo/pkg/plan"
)

// MaxBytes is the maximum size of a value. It is Secret Manager's limit, and half of Linux's limit for one environment
// variable.
const MaxBytes = 64 << 10

// ErrRefused reports that a secret is missing, unreadable, or not a valid value of an
// environment variable. A retry does not help. Every other error may be transient.
var ErrRefused = errors.New("no value")

// refuse returns an error that matches [ErrRefused] but has its own text.
func refuse(format string, args ...any) error { return refusedError{fmt.Errorf(format, args...)} }

type refusedError struct{ error }

func (refusedError) Is(target error) bool { return target == ErrRefused }
func (e refusedError) Unwrap() error      { return e.error }

// Source returns the value of a provider's secret.
type Source func(ctx context.Context, name string) (string, error)

// Sources contains the source of each provider, by the name that the provider has in references.
type Sources map[string]Source

// Resolve returns the value of a reference. The error names the reference.
func (s Sources) Resolve(ctx context.Context, reference string) (string, error) {
	ref, err := plan.ParseSecret(reference)
	if err != nil {
		return "", refuse("invalid secret reference: %w", err)
	}
	source := s[ref.Provider]
	if source == nil {
		return "", refuse("secret %s: this worker does not support provider %s: use the worker of servo-cloud", reference, ref.Provider)
	}
	value, err := source(ctx, ref.Name)
	if err == nil {
		err = check(value)
	}
	if err != nil {
		return "", fmt.Errorf("secret %s: %w", reference, err)
	}
	return value, nil
}

// check rejects a value that an environment variable cannot have.
func check(value string) error {
	switch {
	case value == "":
		return refuse("the value is empty")
	case len(value) > MaxBytes:
		return refuse("the value has more than %d bytes", MaxBytes)
	case strings.ContainsRune(value, 0):
		return refuse("the value contains a zero byte, which an environment variable cannot contain: encode it, for example as base64")
	}
	return nil
}

// Variables returns a source that reads environment variables of this process.
func Variables(lookup func(name string) (string, bool)) Source {
	return func(_ context.Context, name string) (string, error) {
		value, ok := lookup(name)
		if !ok {
			return "", refuse("environment variable %s is not set: set it before starting servo", name)
		}
		return value, nil
	}
}

// Files returns a source that reads the files of a folder. It opens the folder for each
// secret, because a mounted folder may change. It trims one line end at the end of a file. An
// empty dir means that no folder is configured.
func Files(dir string) Source {
	return func(_ context.Context, name string) (string, error) {
		if dir == "" {
			return "", refuse("no folder of secrets is configured: set --secrets DIR or SERVO_SECRETS")
		}
		value, err := readFile(dir, name)
		if err != nil && !isTransient(err) {
			return "", refuse("%w", err)
		}
		return value, err
	}
}

// isTransient reports whether a retry may succeed even if nobody changes the file or folder.
func isTransient(err error) bool {
	code, ok := errors.AsType[syscall.Errno](err)
	return ok && (code.Temporary() || code == syscall.EIO || code == syscall.ESTALE)
}

func readFile(dir, name string) (value string, err error) {
	root, err := os.OpenRoot(dir) // a root rejects paths and links that lead out of the folder
	if err != nil {
		return "", fmt.Errorf("open the folder of secrets: %w", err)
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	// O_NONBLOCK: opening or reading a pipe could block forever.
	f, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return "", fmt.Errorf("folder of secrets %s: %w", dir, err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return "", fmt.Errorf("%s is not a regular file", f.Name())
	}
	data, err := io.ReadAll(io.LimitReader(f, MaxBytes+int64(len("\r\n"))+1))
	if err != nil {
		return "", err
	}
	value, _ = strings.CutSuffix(string(data), "\n")
	value, _ = strings.CutSuffix(value, "\r")
	return value, nil
}
