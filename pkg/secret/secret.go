// Package secret finds what references to secrets stand for, and hides it in what is
// written.
//
// Values are in memory only: no error and no log of this package has one.
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

// MaxBytes is how large a value may be: Secret Manager's own limit, and half of what
// Linux takes as one variable.
const MaxBytes = 64 << 10

// ErrRefused says that a secret is not there, may not be read, or is nothing that a
// variable can hold: asking again does not help. What is no such error may pass.
var ErrRefused = errors.New("no value")

// refuse is an error that is [ErrRefused], in other words.
func refuse(format string, args ...any) error { return refusedError{fmt.Errorf(format, args...)} }

type refusedError struct{ error }

func (refusedError) Is(target error) bool { return target == ErrRefused }
func (e refusedError) Unwrap() error      { return e.error }

// Source gives the value that a provider has under a name.
type Source func(ctx context.Context, name string) (string, error)

// Sources are the providers there are, by what references call them.
type Sources map[string]Source

// Resolve gives the value of a reference. The error names the reference.
func (s Sources) Resolve(ctx context.Context, reference string) (string, error) {
	ref, err := plan.ParseSecret(reference)
	if err != nil {
		return "", refuse("the reference to a secret cannot be read: %w", err)
	}
	source := s[ref.Provider]
	if source == nil {
		return "", refuse("secret %s: this worker has nothing that finds secrets of %s; that of servo-cloud has", reference, ref.Provider)
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

// check refuses what is no value of a variable.
func check(value string) error {
	switch {
	case value == "":
		return refuse("it is empty")
	case len(value) > MaxBytes:
		return refuse("it has more than %d bytes", MaxBytes)
	case strings.ContainsRune(value, 0):
		return refuse("it has a zero byte, which no variable can hold: encode it, as base64 for example")
	}
	return nil
}

// Variables are secrets in the environment of the process itself.
func Variables(lookup func(name string) (string, bool)) Source {
	return func(_ context.Context, name string) (string, error) {
		value, ok := lookup(name)
		if !ok {
			return "", refuse("the environment variable is not set: set it before starting the worker")
		}
		return value, nil
	}
}

// Files are secrets in the files of a folder, which is opened for each: what is mounted
// there may change. A line end at the end of a file is not part of the value. Dir may be "":
// there is no folder then.
func Files(dir string) Source {
	return func(_ context.Context, name string) (string, error) {
		if dir == "" {
			return "", refuse("the worker was not told of a folder of secrets: --secrets DIR, or SERVO_SECRETS, names it")
		}
		value, err := readFile(dir, name)
		if err != nil && !mayPass(err) {
			return "", refuse("%w", err)
		}
		return value, err
	}
}

// mayPass reports whether a file may be readable later, without anybody's doing.
func mayPass(err error) bool {
	code, ok := errors.AsType[syscall.Errno](err)
	return ok && (code.Temporary() || code == syscall.EIO || code == syscall.ESTALE)
}

func readFile(dir, name string) (value string, err error) {
	root, err := os.OpenRoot(dir) // nothing outside can be reached, by links neither
	if err != nil {
		return "", fmt.Errorf("open the folder of secrets: %w", err)
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	// One that is no file might have nothing to read for ever.
	f, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return "", fmt.Errorf("look into the folder of secrets %s: %w", dir, err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return "", fmt.Errorf("%s is no file", f.Name())
	}
	data, err := io.ReadAll(io.LimitReader(f, MaxBytes+int64(len("\r\n"))+1))
	if err != nil {
		return "", err
	}
	value, _ = strings.CutSuffix(string(data), "\n")
	value, _ = strings.CutSuffix(value, "\r")
	return value, nil
}
