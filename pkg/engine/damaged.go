package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/state"
)

// DamagedError means that a document that the state names is missing, or that its content does not match its hash. A
// retry does not help: the document must be restored.
type DamagedError struct{ Err error }

// Error describes the document.
func (e *DamagedError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *DamagedError) Unwrap() error { return e.Err }

// unreadable returns the error for a document that could not be read.
func unreadable(what string, err error) error {
	err = fmt.Errorf("read %s: %w", what, err)
	if errors.Is(err, blob.ErrNotFound) {
		return &DamagedError{err}
	}
	return err
}

// DamagedDocuments reads the documents that runs, schedules and backfills need: the plans of the runs in the live state,
// the deployed release and, for each backfill that has not ended, its release and its list of partitions. It returns
// sorted descriptions of the missing or damaged documents.
func DamagedDocuments(ctx context.Context, store blob.Store, d ids.Domain, st *state.State) ([]string, error) {
	problems := map[string]bool{}
	note := func(err error) error {
		if _, ok := errors.AsType[*DamagedError](err); ok {
			problems[err.Error()] = true
			return nil
		}
		return err
	}
	for run := range st.Runs.All {
		if run.PlanRef == "" {
			continue
		}
		if _, err := readPlan(ctx, store, run); note(err) != nil {
			return nil, err
		}
	}
	needed := map[string]bool{st.Release(): true}
	for b := range st.Backfills.All {
		if b.State.Ended() {
			continue
		}
		needed[b.Release] = true
		if _, err := ReadChunks(ctx, store, b.ChunksRef); note(err) != nil {
			return nil, err
		}
	}
	delete(needed, "")
	for sha := range needed {
		if _, _, err := ReadRelease(ctx, store, d, sha); note(err) != nil {
			return nil, err
		}
	}
	return slices.Sorted(maps.Keys(problems)), nil
}
