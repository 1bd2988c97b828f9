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
	// Code is the number of tasks that fail again until their code or settings are changed. A retry would use the code
	// and the settings of the run.
	Code int
	// NoFiles means that at least one of the tasks that Code counts read files that did not exist.
	NoFiles bool
	// Inputs is the number of tasks that fail again until their inputs are materialized again. A retry would read the
	// inputs of the run.
	Inputs int
	// Unclear is the number of tasks for which both a retry and a new run may help: their errors may be temporary, or
	// errors of the code, the inputs or the settings.
	Unclear int
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

// noFiles is a part of DuckDB's message about a query that reads files that do not exist.
const noFiles = "No files found that match the pattern"

// A remedy is what a failed task needs before it can succeed.
type remedy int

const (
	remedyRetry   remedy = iota // nothing: the cause ends by itself
	remedyData                  // other data, because a check rejects it
	remedyCode                  // other code or settings, in a new run
	remedyInputs                // new inputs, in a new run
	remedyUnclear               // the error does not say whether a retry suffices
)

// remedies contains the remedies of those error codes whose remedy differs from that of their category.
var remedies = map[string]remedy{
	"SQL_ERROR": remedyCode, "COMMAND_NOT_FOUND": remedyCode, codeCheckFailed: remedyData, "CHECK_ERROR": remedyCode,
	// The cause may be outside of the project: a worker, or the provider of secrets.
	"SECRET_MISSING": remedyUnclear, "EXTENSION_MISSING": remedyUnclear, "PROJECT_MISSING": remedyUnclear,
	// An upstream's output may be gone for ever, and the timeout and the memory of a task belong to its settings.
	"MISSING_INPUT": remedyUnclear, "OUT_OF_MEMORY": remedyUnclear, "TASK_TIMEOUT": remedyUnclear,
}

// remedyOf returns the remedy of an error. A command takes its arguments from the plan of the run. It takes its files
// from the release of the run, or from the project's folder if the run has no release. A retry of a failed command
// therefore sees some changes of the code, but not all. So the remedy of most errors of commands is unclear.
func remedyOf(code string) remedy {
	if r, ok := remedies[code]; ok {
		return r
	}
	switch event.CategoryOf(code) {
	case event.CategoryInput:
		return remedyInputs
	case event.CategoryConfiguration:
		return remedyCode
	case event.CategoryUser:
		return remedyUnclear
	}
	if strings.HasPrefix(code, event.UserCode) {
		return remedyUnclear
	}
	return remedyRetry
}

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
	switch remedyOf(t.ErrorCode) {
	case remedyData:
		f.Checks++
	case remedyCode:
		f.Code++
		f.NoFiles = f.NoFiles || strings.Contains(t.ErrorMessage, noFiles)
	case remedyInputs:
		f.Inputs++
	case remedyUnclear:
		f.Unclear++
	case remedyRetry:
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
	switch reason := f.incurable(); {
	case reason != "":
		steps = append(steps, Step{StepRun, runFailed, reason})
	case f.Unclear > 0:
		steps = append(steps, Step{StepRun, runFailed, "If the code, the inputs or the settings caused the failure, fix them, then run the failed partitions again."})
	}
	if f.OnlyApproved() {
		if !f.Skipped {
			return nil
		}
		return []Step{{StepRun, "servo run --stale", "The blocked outputs were approved: run the assets that read them."}}
	}
	if others := f.retryable(); others > 0 || f.Total == 0 {
		reason := retryReason
		if others < f.Total {
			reason = "A retry can help only " + Count(others, "other failed task") + ": it uses the code and the inputs of that run."
		}
		steps = append(steps, Step{StepRetry, "servo retry " + runID + " --failed", reason})
	}
	return steps
}

// runFailed is the command that runs the failed partitions with the current code and inputs.
const runFailed = "servo run --failed-only"

const retryReason = "A retry repeats the tasks that did not succeed, with the code and the inputs of that run."

// retryable returns the number of failed tasks that a retry can help.
func (f Repeat) retryable() int { return f.Total - f.Checks - f.Code - f.Inputs }

// Advice returns the actions of [Repeat.Steps] as lines for a terminal.
func (f Repeat) Advice(runID string) (lines []string) {
	if f.OnlyChecks {
		return []string{"The run only checked outputs: fix the data that the checks reject, then materialize it again with `" + f.checkedAgain() + "`"}
	}
	for _, fix := range []struct {
		tasks int
		text  string
	}{
		{f.Checks, "fix the data that the failed checks reject, run the assets that read the corrected data, then run the failed partitions again: "},
		{f.Code, "fix the code or the settings of the failed tasks, " + f.delivery() + "then run the failed partitions again: "},
		{f.Inputs, "materialize the inputs of the failed tasks again, then run the failed partitions again: "},
		{f.Unclear, "if the code, the inputs or the settings caused the failure, fix them, then run the failed partitions again: "},
	} {
		if fix.tasks > 0 {
			lines = append(lines, fix.text+runFailed)
		}
	}
	for _, step := range f.Steps(runID) {
		switch {
		case f.OnlyApproved():
			lines = append(lines, "run the assets that read the approved outputs: "+step.Command)
		case step.Action != StepRetry:
		case f.Unclear > 0:
			lines = append(lines, "if the cause was temporary, retry the failed tasks, with the code of that run: "+step.Command)
		default:
			lines = append(lines, "retry the failed tasks, with the code of that run: "+step.Command)
		}
	}
	return lines
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
	steps := f.Steps(runID)
	step := steps[len(steps)-1]
	if f.Unclear > 0 {
		step.Reason += " If the code, the inputs or the settings caused the failure, fix them and start a new run instead: " + run.Command
	}
	return step
}

// incurable returns the reason why a retry would fail again, or "".
func (f Repeat) incurable() string {
	switch {
	case min(f.Checks, 1)+min(f.Code, 1)+min(f.Inputs, 1) > 1:
		return "A retry would repeat the same code with the same data: fix the code and the data, run the assets that read the corrected data, then run the failed partitions again."
	case f.Checks > 0:
		return "A retry would check the same data again: fix the data that the checks reject, run the assets that read the corrected data, then run the failed partitions again."
	case f.Code > 0:
		return "A retry would execute the same code again: fix the code or the settings, " + f.delivery() + "then run the failed partitions again."
	case f.Inputs > 0:
		return "A retry would read the same inputs again: materialize the inputs again, then run the failed partitions again."
	}
	return ""
}

// delivery returns the advice for files that do not exist, or "".
func (f Repeat) delivery() string {
	if f.NoFiles {
		return "or deliver the missing files, "
	}
	return ""
}
