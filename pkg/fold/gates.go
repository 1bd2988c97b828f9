package fold

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/state"
)

// Only checks of these severities affect the outcome of a task. The definition of the task lists these checks.
const (
	severityCritical = "CRITICAL"
	severityError    = "ERROR"
)

// gate applies the checks of a task to the report of a success, regardless of the conclusion of the worker. A failed
// check of severity CRITICAL fails the attempt. If the result of a check of severity CRITICAL or ERROR is missing
// from the report, the worker did not run the check. In this case, the attempt fails, and may be retried. gate
// returns the quality of the output, which is empty for a task without such checks.
//
// If the worker reports a failure, a failed check of severity CRITICAL makes the failure final and changes its code
// to CHECK_FAILED, because another attempt would read the same inputs.
//
// gate depends only on the definition of the task and on the report. So its decision is the same for a late report.
func gate(t *state.Task, p *event.TaskFinished, c *closing) (quality string) {
	if t.Checks == "" && t.ErrorChecks == "" {
		return ""
	}
	if p.Outcome != event.Succeeded {
		gateFailure(t, p, c)
		return ""
	}
	results := make(map[string]*event.CheckResult, len(p.CheckResults))
	for i := range p.CheckResults {
		results[p.CheckResults[i].Name] = &p.CheckResults[i]
	}
	critical, errors := namesOf(t.Checks), namesOf(t.ErrorChecks)
	var missing, failed []string
	for _, name := range slices.Concat(critical, errors) {
		if results[name] == nil {
			missing = append(missing, name)
		}
	}
	for _, name := range critical {
		if r := results[name]; r != nil && !r.Passed {
			failed = append(failed, name)
		}
	}
	switch {
	case len(failed) > 0:
		c.outcome, c.code, c.retryable = event.Failed, CodeCheckFailed, false
		c.message = fmt.Sprintf("check %s: %s", failed[0], results[failed[0]].Message)
		return ""
	case len(missing) > 0:
		c.outcome, c.code, c.retryable = event.Failed, CodeChecksMissing, true
		c.message = "the worker reported a success without results of checks: " + strings.Join(missing, ", ")
		return ""
	}
	if slices.ContainsFunc(errors, func(name string) bool { return !results[name].Passed }) {
		return state.Degraded
	}
	return state.Passed
}

// gateFailure applies the checks of a task to the report of a failure. A check that could not be executed does not
// make the failure final, so the attempt may be retried.
func gateFailure(t *state.Task, p *event.TaskFinished, c *closing) {
	if p.Outcome != event.Failed || t.Checks == "" {
		return
	}
	critical := namesOf(t.Checks)
	for i := range p.CheckResults {
		if r := &p.CheckResults[i]; !r.Passed && !r.Broken && slices.Contains(critical, r.Name) {
			c.code, c.category, c.retryable = CodeCheckFailed, event.CategoryQuality, false
			return
		}
	}
}

// jsonOfList encodes a list as JSON. For an empty list, it returns "".
func jsonOfList(list []string) string {
	if len(list) == 0 {
		return ""
	}
	return jsonOf(list)
}

// namesOf decodes the list of check names that a row stores as JSON.
func namesOf(list string) []string {
	var names []string
	if list != "" {
		if err := json.Unmarshal([]byte(list), &names); err != nil {
			panic("fold: names of checks: " + err.Error()) // jsonOf writes only valid JSON
		}
	}
	return names
}

// severityOf returns the severity of a check. If the task's definition lists the check as critical or error, that
// severity applies. Otherwise the reported severity applies.
func severityOf(t *state.Task, r *event.CheckResult) string {
	switch {
	case slices.Contains(namesOf(t.Checks), r.Name):
		return severityCritical
	case slices.Contains(namesOf(t.ErrorChecks), r.Name):
		return severityError
	}
	return r.Severity
}

// recordChecks replaces the results of a task's checks with the results of its current attempt, and counts them for
// the asset.
func (f *folder) recordChecks(t *state.Task, p *event.TaskFinished) {
	if len(p.CheckResults) == 0 && f.st.CheckResults.Len() == 0 {
		return
	}
	named := make(map[string]bool, len(p.CheckResults))
	for i := range p.CheckResults {
		named[p.CheckResults[i].Name] = true
	}
	var earlier []*state.CheckResult
	f.st.CheckResults.Ascend(state.Key3{A: t.RunID, B: t.TaskKey}, func(row *state.CheckResult) bool {
		if row.RunID != t.RunID || row.TaskKey != t.TaskKey {
			return false
		}
		if !named[row.Check] {
			earlier = append(earlier, row)
		}
		return true
	})
	for _, row := range earlier {
		gone := *row
		remove(f, f.st.CheckResults, &gone)
	}
	for i := range p.CheckResults {
		r := &p.CheckResults[i]
		put(f, f.st.CheckResults, &state.CheckResult{
			RunID: t.RunID, TaskKey: t.TaskKey, Check: r.Name, Attempt: t.Attempt, Phase: r.Phase, Severity: severityOf(t, r), Passed: r.Passed,
			Broken: r.Broken, Failing: r.Failing, Actual: r.Actual, Expected: r.Expected, Message: r.Message, Sample: r.Sample, CheckedAt: f.at(),
		})
		f.countCheck(t, r)
	}
}

// countCheck updates the row of an asset's check.
func (f *folder) countCheck(t *state.Task, r *event.CheckResult) {
	if t.AssetKey == "" {
		return
	}
	row := state.AssetCheck{AssetKey: t.AssetKey, Check: r.Name}
	if old := f.st.AssetChecks.Get(row.Key()); old != nil {
		row = *old
	}
	row.Severity, row.Phase = severityOf(t, r), r.Phase
	row.LastRunID, row.LastPartition, row.LastAt, row.LastPassed = t.RunID, t.PartitionKey, f.at(), r.Passed
	if r.Passed {
		row.Passed++
	} else {
		row.Failed++
		row.FailedRunID, row.FailedPartition, row.FailedAt = t.RunID, t.PartitionKey, f.at()
		row.FailedMessage, row.FailedSample = r.Message, r.Sample
	}
	put(f, f.st.AssetChecks, &row)
}
