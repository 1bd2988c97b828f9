package view

import (
	"cmp"
	"slices"

	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/quality"
	"github.com/servo-orchestration/servo/pkg/state"
)

// CheckInfo is the result of a check of a task.
type CheckInfo struct {
	Check    string `json:"check"`
	Phase    string `json:"phase,omitempty"`
	Severity string `json:"severity,omitempty"`
	Passed   bool   `json:"passed"`
	Broken   bool   `json:"broken,omitempty"`
	Failing  int64  `json:"failing,omitempty"`
	Message  string `json:"message,omitempty"`
	Sample   string `json:"sample,omitempty"`
}

// Verdict is passed, failed or broken.
func (c *CheckInfo) Verdict() string {
	switch {
	case c.Broken:
		return "broken"
	case c.Passed:
		return "passed"
	}
	return "failed"
}

func checkInfo(r *state.CheckResult) CheckInfo {
	return CheckInfo{
		Check: r.Check, Phase: r.Phase, Severity: r.Severity, Passed: r.Passed, Broken: r.Broken, Failing: r.Failing, Message: r.Message, Sample: r.Sample,
	}
}

// checksOf returns the results of a task's checks, failures first.
func checksOf(s *state.State, runID, taskKey string) []CheckInfo {
	var found []CheckInfo
	s.CheckResults.Ascend(state.Key3{A: runID, B: taskKey}, func(r *state.CheckResult) bool {
		if r.RunID != runID || r.TaskKey != taskKey {
			return false
		}
		found = append(found, checkInfo(r))
		return true
	})
	slices.SortStableFunc(found, func(a, b CheckInfo) int { return order(a.Passed) - order(b.Passed) })
	return found
}

func order(last bool) int {
	if last {
		return 1
	}
	return 0
}

// FailedCheck is a check of an asset that did not pass in a run, and the first of its results.
type FailedCheck struct {
	CheckInfo
	Asset string
	// Task is the first task in which the check did not pass. Tasks is the number of such tasks.
	Task  string
	Tasks int
}

// severityOrder is the order of severities in a report.
var severityOrder = []string{string(quality.Critical), string(quality.Error), string(quality.Warning), string(quality.Info)}

// FailedChecks returns the checks that did not pass in a run, the most severe first. It combines the results of a
// check for several partitions.
func FailedChecks(s *state.State, runID string) []FailedCheck {
	var found []FailedCheck
	at := map[[2]string]int{}
	s.CheckResults.Ascend(state.Key3{A: runID}, func(r *state.CheckResult) bool {
		if r.RunID != runID {
			return false
		}
		task := s.Tasks.Get(state.Key2{A: runID, B: r.TaskKey})
		if r.Passed || task == nil {
			return true
		}
		key := [2]string{task.AssetKey, r.Check}
		if i, ok := at[key]; ok {
			found[i].Tasks++
			return true
		}
		at[key] = len(found)
		found = append(found, FailedCheck{CheckInfo: checkInfo(r), Asset: task.AssetKey, Task: r.TaskKey, Tasks: 1})
		return true
	})
	slices.SortStableFunc(found, func(a, b FailedCheck) int {
		return cmp.Compare(slices.Index(severityOrder, a.Severity), slices.Index(severityOrder, b.Severity))
	})
	return found
}

// AssetCheck is a check that an asset declares, with its row of results.
type AssetCheck struct {
	Asset    string
	Check    string
	Kind     string
	Phase    string
	Severity string
	// Row is nil if there is no result yet.
	Row *state.AssetCheck
}

// AssetChecks returns the checks of an asset, in the order in which its file declares them.
func AssetChecks(s *state.State, asset *plan.Asset) []AssetCheck {
	found := make([]AssetCheck, len(asset.Work.Checks))
	for i := range asset.Work.Checks {
		c := &asset.Work.Checks[i]
		found[i] = AssetCheck{
			Asset: asset.Key.String(), Check: c.Name, Kind: c.Kind, Phase: c.PhaseOf(), Severity: string(c.SeverityOf()),
			Row: s.AssetChecks.Get(state.Key2{A: asset.Key.String(), B: c.Name}),
		}
	}
	return found
}

// Last is the verdict of the newest result. It is "" if there is no result.
func (c *AssetCheck) Last() string {
	switch {
	case c.Row == nil:
		return ""
	case c.Row.LastPassed:
		return "passed"
	}
	return "failed"
}

// TaskName returns the name of a partition of the asset in the form of a task key: "raw/events[date=2025-01-15]".
func (c *AssetCheck) TaskName(partition string) string {
	key, err := ids.ParseAssetKey(c.Asset)
	if err != nil {
		return c.Asset
	}
	return partitionName(key, partition)
}
