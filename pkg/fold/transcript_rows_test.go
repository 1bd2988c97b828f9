package fold_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/state"
)

// cells are the columns of a row that a transcript shows, in order. Empty values are not shown.
type cells [][2]string

// text returns the cells as "column value, column value".
func (c cells) text() string {
	var parts []string
	for _, cell := range c {
		if cell[1] != "" {
			parts = append(parts, cell[0]+" "+cell[1])
		}
	}
	return strings.Join(parts, ", ")
}

// changed returns the cells that differ, as "column old → new".
func (c cells) changed(old cells) string {
	var parts []string
	for i, cell := range c {
		if old[i][1] != cell[1] {
			parts = append(parts, fmt.Sprintf("%s %s → %s", cell[0], orDash(old[i][1]), orDash(cell[1])))
		}
	}
	return strings.Join(parts, ", ")
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

// changes returns the rows that differ between two states, one per line.
func (s *story) changes(before, after *state.State) []string {
	var lines []string
	olds, news := s.rows(before), s.rows(after)
	for i := range olds {
		keys := maps.Clone(olds[i])
		maps.Copy(keys, news[i])
		for _, name := range slices.Sorted(maps.Keys(keys)) {
			was, had := olds[i][name]
			is, has := news[i][name]
			switch {
			case !has:
				lines = append(lines, "- "+name)
			case !had:
				lines = append(lines, strings.TrimRight(fmt.Sprintf("+ %-26s %s", name, is.text()), " "))
			case is.changed(was) != "":
				lines = append(lines, fmt.Sprintf("  %-26s %s", name, is.changed(was)))
			}
		}
	}
	return lines
}

// rows returns the rows of the tables by name, in the order of a transcript.
func (s *story) rows(st *state.State) []map[string]cells {
	return []map[string]cells{
		table(st.Limits.All, s.limitRow), table(st.RunKeys.All, s.runKeyRow), table(st.Conflicts.All, s.conflictRow),
		table(st.Runs.All, s.runRow), table(st.Tasks.All, s.taskRow), table(st.Deps.All, s.depRow), table(st.Attempts.All, s.attemptRow),
		table(st.Outbox.All, s.dispatchRow), table(st.Heartbeats.All, s.heartbeatRow), table(st.Timers.All, s.timerRow),
		table(st.Partitions.All, s.partitionRow), table(st.CheckResults.All, s.checkRow), table(st.AssetChecks.All, s.assetCheckRow),
		table(st.Deployments.All, s.deploymentRow), table(st.AcceptedCodes.All, acceptedRow),
		table(st.KeySets.All, keyBlockRow),
		table(st.Schedules.All, s.scheduleRow), table(st.Ticks.All, s.tickRow), table(st.Requests.All, s.requestRow),
		table(st.Backfills.All, s.backfillRow), table(st.Chunks.All, s.chunkRow),
		table(st.AlertRules.All, ruleRow), table(st.Alerts.All, alertRow), table(st.AlertChannels.All, channelRow),
		table(st.Notifications.All, notificationRow),
	}
}

func table[R any](all func(func(*R) bool), row func(*R) (string, cells)) map[string]cells {
	found := map[string]cells{}
	for r := range all {
		name, shown := row(r)
		found[name] = shown
	}
	return found
}

// offset returns a time as text, relative to the start of the story.
func offset(t event.Time) string {
	if t == 0 {
		return ""
	}
	return t.Time().Sub(foldtest.Epoch).String()
}

func count(n int32) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprint(n)
}

func (s *story) task(run, key string) string { return s.names[run] + "/" + key }

func (s *story) runRow(r *state.Run) (string, cells) {
	return "run " + s.names[r.RunID], cells{
		{"state", string(r.State)},
		{"error", r.ErrorCode},
		{"cancel requested", offset(r.CancelRequestedAt)},
		{"release", short(r.Release)},
		{"repeats", s.names[r.RootRun]},
		{"inputs", seq(r.InputsSeq)},
	}
}

func (s *story) taskRow(r *state.Task) (string, cells) {
	attempt, until, slot := "", "", ""
	if r.Attempt > 0 {
		attempt = fmt.Sprintf("%d of %d", r.Attempt, r.MaxAttempts)
	}
	if r.State == state.TaskRetryWait {
		until = offset(r.RetryNotBefore)
	}
	if r.AdmittedAt != 0 {
		slot = "taken"
	}
	return "task " + s.task(r.RunID, r.TaskKey), cells{
		{"state", string(r.State)},
		{"attempt", attempt},
		{"slot", slot},
		{"until", until},
		{"error", r.ErrorCode},
		{"left out at", seq(r.LeftOut)},
	}
}

func (s *story) checkRow(r *state.CheckResult) (string, cells) {
	return "check " + s.task(r.RunID, r.TaskKey) + " " + r.Check, cells{
		{"attempt", count(r.Attempt)}, {"severity", r.Severity}, {"verdict", verdictOf(r.Passed)}, {"failing", count(int32(r.Failing))},
	}
}

func (s *story) assetCheckRow(r *state.AssetCheck) (string, cells) {
	return "check of " + r.AssetKey + " " + r.Check, cells{
		{"passed", count(int32(r.Passed))},
		{"failed", count(int32(r.Failed))},
		{"last", verdictOf(r.LastPassed)},
		{"last failure", s.names[r.FailedRunID]},
	}
}

func verdictOf(passed bool) string {
	if passed {
		return "passed"
	}
	return "failed"
}

func (s *story) depRow(r *state.Dep) (string, cells) {
	return "edge " + s.task(r.RunID, r.Upstream) + " → " + r.Downstream, cells{{"resolved", string(r.Resolution)}}
}

func (s *story) attemptRow(r *state.Attempt) (string, cells) {
	return fmt.Sprintf("attempt %s#%d", s.task(r.RunID, r.TaskKey), r.Attempt), cells{
		{"state", string(r.State)}, {"outcome", r.Outcome}, {"error", r.ErrorCode}, {"retried by", r.RetryReason},
	}
}

func (s *story) dispatchRow(r *state.Dispatch) (string, cells) {
	return fmt.Sprintf("dispatch %s#%d", s.task(r.RunID, r.TaskKey), r.Attempt), cells{
		{"status", string(r.Status)}, {"generation", count(r.Generation)},
	}
}

func (s *story) heartbeatRow(r *state.Heartbeat) (string, cells) {
	return "heartbeat " + s.task(r.RunID, r.TaskKey), cells{{"at", offset(r.LastHeartbeatAt)}}
}

func (s *story) timerRow(r *state.Timer) (string, cells) {
	name := "timer " + strings.ToLower(r.TimerType)
	if r.TaskKey != "" {
		name += fmt.Sprintf(" %s#%d", s.task(r.RunID, r.TaskKey), r.Attempt)
	}
	return name, cells{{"state", string(r.State)}, {"fires at", offset(r.FireAt)}, {"generation", count(r.Generation)}}
}

func (s *story) runKeyRow(r *state.RunKey) (string, cells) {
	return "run key " + r.RunKey, cells{{"run", s.names[r.RunID]}}
}

func (s *story) conflictRow(r *state.RunKeyConflict) (string, cells) {
	return "conflict of " + r.RunKey, cells{{"rejected", s.names[r.RunID]}, {"existing", s.names[r.ExistingRunID]}}
}

func (s *story) limitRow(r *state.Limit) (string, cells) {
	slots := fmt.Sprint(r.Slots)
	if r.Removed {
		slots = "removed"
	}
	return strings.TrimSpace("limit of " + r.Scope + " " + r.Name), cells{{"slots", slots}}
}

func (s *story) partitionRow(r *state.Partition) (string, cells) {
	shown := cells{{"from", s.task(r.RunID, r.TaskKey)}, {"code", short(r.Code)}, {"quality", r.Quality}}
	if r.Code != "" || r.InputsSeq > 0 { // most stories have outputs without versions
		shown = append(shown, cells{
			{"version", seq(r.VersionSeq)},
			{"inputs", seq(r.InputsSeq)},
			{"chain of", s.names[r.RootRun]},
			{"left out at", seq(r.LeftOut)},
		}...)
	}
	return "output of " + r.AssetKey, shown
}

func (s *story) deploymentRow(r *state.Deployment) (string, cells) {
	return "deployment " + s.names[r.DeployID], cells{
		{"release", short(r.Release)}, {"kind", r.Kind}, {"superseded by", s.names[r.SupersededBy]},
	}
}

func acceptedRow(r *state.AcceptedCode) (string, cells) {
	var accepted []string
	for digits := range strings.SplitSeq(strings.Trim(r.Accepts, `[]"`), `","`) {
		accepted = append(accepted, short(digits))
	}
	return "code " + short(r.Code) + " of " + r.AssetKey, cells{{"accepts", strings.Join(accepted, " ")}}
}

func keyBlockRow(r *state.KeyBlock) (string, cells) {
	var has, removed []string
	for k := range r.All() {
		text := k.Key
		if k.ChangedSeq > 0 {
			text += "@" + seq(k.ChangedSeq)
		}
		if k.Removed {
			removed = append(removed, text)
		} else {
			has = append(has, text)
		}
	}
	return strings.TrimSpace("keys of " + r.Set + " " + r.First), cells{{"has", strings.Join(has, " ")}, {"removed", strings.Join(removed, " ")}}
}

// short returns the first digit of a hash. In stories, all digits of a hash are equal.
func short(hash string) string { return hash[:min(1, len(hash))] }

func seq(n int64) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprint(n)
}
