package manifest

import (
	"errors"
	"fmt"
	"strings"
)

// CorruptError reports that a stored object differs from what was written.
type CorruptError struct {
	Key    string
	Reason string

	lost bool // see [Lost]
	past bool // the damaged manifest belongs to an earlier revision
}

// Error implements error.
func (e *CorruptError) Error() string {
	switch {
	case e.lost:
		return e.what() + ": " + adviceBare
	case e.past:
		return e.what() + "; this does not affect other revisions"
	}
	return e.what() + "; unless another version of servo wrote it, " + advice(e.Key)
}

func (e *CorruptError) what() string {
	if e.lost {
		return e.Reason
	}
	return fmt.Sprintf("object %s is damaged: %s", e.Key, e.Reason)
}

// missingError reports a state file that does not exist. It wraps [ErrMissing].
type missingError struct{ key string }

func (e *missingError) Error() string {
	return e.what() + "; unless its revision was collected, " + advice(e.key)
}

func (e *missingError) what() string  { return fmt.Sprintf("read state file %s: %v", e.key, ErrMissing) }
func (e *missingError) Unwrap() error { return ErrMissing }

const (
	adviceRebuild = "run `servo admin rebuild`"
	adviceBare    = "restore manifests/ and state/ from a backup, or rebuild the state from the ledger alone with `servo admin rebuild --bare`"
)

// advice says how to repair a damaged or missing object. It depends on the object, because a rebuild in the recorded
// order needs the newest manifest and the rows of ledger_entries.
func advice(key string) string {
	state, isState := strings.CutPrefix(key, states)
	if isState && !strings.Contains(state, "/ledger_entries/") {
		return adviceRebuild
	}
	return adviceBare
}

// Problem returns the message of err without the advice that a damaged object adds to it.
func Problem(err error) string {
	text := err.Error()
	if damaged, ok := errors.AsType[interface {
		error
		what() string
	}](err); ok {
		text = strings.Replace(text, damaged.Error(), damaged.what(), 1)
	}
	return text
}

// Lost reports whether an error of [Store.Load] means that revisions were published, but none of
// them exists any more.
func Lost(err error) bool {
	corrupt, ok := errors.AsType[*CorruptError](err)
	return ok && corrupt.lost
}

// Damaged reports whether err means that a stored object is missing or damaged.
// Retrying does not help.
func Damaged(err error) bool {
	var corrupt *CorruptError
	return errors.Is(err, ErrMissing) || errors.As(err, &corrupt)
}

// markPast marks the error of a damaged manifest that belongs to an earlier revision.
func markPast(err error) error {
	if corrupt, ok := errors.AsType[*CorruptError](err); ok {
		corrupt.past = true
	}
	return err
}
