package view

import (
	"slices"
	"strings"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/state"
)

// Repeat counts the failed tasks of a run by what a user must do to repeat them.
type Repeat struct {
	Total int
	// Checks is the number of tasks that failed because of a check. A retry would check the same data again, so a new
	// run of the asset is needed.
	Checks int
	// Code is the number of tasks whose code failed permanently. A retry would execute the same code with the same
	// inputs.
	Code int
	// OnlyChecks means that the run checks outputs and materializes nothing, so it cannot be retried.
	OnlyChecks bool
	// Approved is the number of failed tasks whose output was approved. These tasks need not be repeated, and Total does
	// not count them.
	Approved int
	// Skipped means that the run has skipped tasks.
	Skipped bool
	// Assets are the first assets whose check tasks failed.
	Assets []string
}

// codeCheckFailed is the error code of tasks that failed because of a check.
const codeCheckFailed = "CHECK_FAILED"

// codesOfCode are the error codes of tasks that fail again until their code is changed.
var codesOfCode = map[string]bool{"SQL_ERROR": true, "CHECK_ERROR": true, "INVALID_OUTPUT": true}

// RepeatOf returns the [Repeat] of a run.
func RepeatOf(s *state.State, runID string) (f Repeat) {
	s.TasksOf(runID, func(t *state.Task) bool {
		f.OnlyChecks = f.OnlyChecks || t.Kind == event.KindCheck
		f.Skipped = f.Skipped || t.State == state.TaskSkipped
		switch {
		case t.State != state.TaskFailed:
		case QuarantineOf(s, t).Approved():
			f.Approved++
		default:
			f.Add(t)
		}
		return true
	})
	return f
}

// Add counts a failed task.
func (f *Repeat) Add(t *state.Task) {
	f.Total++
	if t.Kind == event.KindCheck && len(f.Assets) < maxNames && !slices.Contains(f.Assets, t.AssetKey) {
		f.Assets = append(f.Assets, t.AssetKey)
	}
	switch {
	case t.ErrorCode == codeCheckFailed:
		f.Checks++
	case codesOfCode[t.ErrorCode]:
		f.Code++
	}
}

// Actions of a [Step].
const (
	StepRetry = "retry" // repeat the tasks of a run, with the code and the inputs of the run
	StepRun   = "run"   // start a new run of the failed partitions
	StepFix   = "fix"   // change the data or the code first
)

// Step is an action that repeats failed tasks.
type Step struct {
	Action  string `json:"action"`
	Command string `json:"command"`
	// Reason explains in one sentence why this action helps.
	Reason string `json:"reason"`
}

// Steps returns the actions that repeat the failed tasks of a run, in the order in which the user must perform them.
// A retry is offered only if it can succeed.
func (f Repeat) Steps(runID string) []Step {
	if f.OnlyChecks {
		return []Step{{StepFix, f.checkedAgain(), "The run only checked outputs: fix the data that the checks reject, then materialize it again."}}
	}
	var steps []Step
	if reason := f.incurable(); reason != "" {
		steps = append(steps, Step{StepRun, "servo run --failed-only", reason})
	}
	if f.OnlyApproved() {
		if !f.Skipped {
			return nil
		}
		return []Step{{StepRun, "servo run --stale", "The blocked outputs were approved: run the assets that read them."}}
	}
	if others := f.Total - f.Checks - f.Code; others > 0 || f.Total == 0 {
		reason := "A retry repeats the tasks that did not succeed, with the code and the inputs of that run."
		if len(steps) > 0 {
			reason = "A retry can help only " + Count(others, "other failed task") + ": it uses the code and the inputs of that run."
		}
		steps = append(steps, Step{StepRetry, "servo retry " + runID + " --failed", reason})
	}
	return steps
}

// checkedAgain returns the command that materializes the assets of failed check tasks again.
func (f Repeat) checkedAgain() string {
	if len(f.Assets) == 0 {
		return "servo run --stale"
	}
	return "servo run " + strings.Join(f.Assets, " ")
}

// OnlyApproved reports whether the outputs of all failed tasks were approved.
func (f Repeat) OnlyApproved() bool { return f.Approved > 0 && f.Total == 0 }

// StepOf returns the action that repeats the failed tasks of an asset. A retry is offered only if it can succeed and
// if all the tasks belong to one run.
func (f Repeat) StepOf(asset, runID string, oneRun bool) Step {
	run := Step{StepRun, "servo run " + asset + " --failed-only", f.incurable()}
	switch {
	case run.Reason != "":
		return run
	case !oneRun:
		run.Reason = "The failed tasks belong to several runs, so a new run repeats all of them."
		return run
	}
	return f.Steps(runID)[0]
}

// incurable returns the reason why a retry would fail again, or "".
func (f Repeat) incurable() string {
	switch {
	case f.Checks > 0 && f.Code > 0:
		return "A retry would repeat the same code with the same data: fix the code and the data, then run the failed partitions again."
	case f.Checks > 0:
		return "A retry would check the same data again: fix the data that the checks reject, then run the failed partitions again."
	case f.Code > 0:
		return "A retry would execute the same code again: fix the code, then run the failed partitions again."
	}
	return ""
}
