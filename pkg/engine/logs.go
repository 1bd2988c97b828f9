package engine

import (
	"context"
	"errors"
	"fmt"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/state"
)

// Log is the log of an attempt.
type Log struct {
	RunID   string
	TaskKey string
	Attempt int32
	State   state.AttemptState
	Outcome string
	Text    []byte
	// Partial means that Text consists of the parts that the worker has stored so far. If the attempt has ended, its
	// worker died before it stored the remaining text.
	Partial bool
}

// ReadLog reads the log of a task's attempt. Attempt 0 means the last attempt that has started. When the attempt ends,
// the worker stores the log, or includes it in its report if the log is short. Before that, or if the worker died, the
// log consists of the parts that the worker has stored so far.
func ReadLog(ctx context.Context, store blob.Store, s *state.State, task *state.Task, attempt int32) (Log, error) {
	row, err := FindAttempt(s, task, attempt)
	if err != nil {
		if log, found := unreportedLog(ctx, store, s, task, attempt); found {
			return log, nil
		}
		return Log{}, err
	}
	log := Log{RunID: row.RunID, TaskKey: row.TaskKey, Attempt: row.Attempt, State: row.State, Outcome: row.Outcome}
	if log.Text = []byte(row.Log); row.Log != "" {
		return log, nil // a short log is in the worker's report of the end
	}
	key := contract.LogKey(s.Domain, row.RunID, row.TaskKey, row.Attempt, row.AttemptID)
	log.Text, _, err = store.Get(ctx, key)
	if errors.Is(err, blob.ErrNotFound) {
		var parts LogParts
		switch text, partErr := parts.Next(ctx, store, key); {
		case partErr != nil:
			return Log{}, fmt.Errorf("read log of attempt %d of %s: %w", row.Attempt, row.TaskKey, partErr)
		case len(text) > 0:
			log.Text, log.Partial = text, true
			return log, nil
		}
	}
	switch {
	case errors.Is(err, blob.ErrNotFound) && row.State != state.AttemptClosed:
		return Log{}, fmt.Errorf("log of attempt %d of %s: %w yet: the attempt is %s, and its log is stored when it ends; follow it with `servo logs -f`",
			row.Attempt, row.TaskKey, ErrNotFound, row.State)
	case errors.Is(err, blob.ErrNotFound) && row.Outcome == string(event.Succeeded):
		return log, nil // the task printed nothing, like most tasks that succeed
	case errors.Is(err, blob.ErrNotFound):
		return Log{}, fmt.Errorf("log of attempt %d of %s: %w: the task printed nothing, or its worker could not store the log as %s; `servo explain` shows how the attempt ended",
			row.Attempt, row.TaskKey, ErrNotFound, key)
	case err != nil:
		return Log{}, fmt.Errorf("read log of attempt %d of %s: %w", row.Attempt, row.TaskKey, err)
	}
	return log, nil
}

// unreportedLog returns the log parts of an attempt that no report has mentioned yet. Workers report the start of an
// attempt late, so a worker may have stored parts and been killed before it reported the start.
func unreportedLog(ctx context.Context, store blob.Store, s *state.State, task *state.Task, attempt int32) (Log, bool) {
	current := max(1, task.Attempt)
	if attempt != 0 && attempt != current {
		return Log{}, false
	}
	var parts LogParts
	text, err := parts.Next(ctx, store, contract.LogKey(s.Domain, task.RunID, task.TaskKey, current, ids.AttemptID(s.Domain, task.RunID, task.TaskKey, current)))
	log := Log{RunID: task.RunID, TaskKey: task.TaskKey, Attempt: current, State: state.AttemptAdmitted, Text: text, Partial: true}
	return log, err == nil && len(text) > 0
}

// FindAttempt returns an attempt of a task. Attempt 0 means the last attempt that has started.
func FindAttempt(s *state.State, task *state.Task, attempt int32) (*state.Attempt, error) {
	var found, started *state.Attempt
	s.AttemptsOf(task.RunID, task.TaskKey, func(a *state.Attempt) bool {
		if a.Attempt == attempt {
			found = a
		}
		if a.StartedAt != 0 {
			started = a
		}
		return true
	})
	switch {
	case attempt == 0 && started != nil:
		return started, nil
	case attempt == 0:
		return nil, fmt.Errorf("log of %s: %w: the task is %s and no attempt has started; `servo explain` shows why",
			task.TaskKey, ErrNotFound, task.State)
	case found == nil:
		return nil, fmt.Errorf("log of attempt %d of %s: %w: the newest attempt of the task is %d", attempt, task.TaskKey, ErrNotFound, task.Attempt)
	}
	return found, nil
}
