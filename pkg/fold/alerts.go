package fold

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/state"
)

// The fold function that makes a transition also applies the alert rules to the transition. Each transition is counted
// in exactly one notification for each channel of each rule that covers the transition (I-31). All times of alerts are
// fold times, which never move back.

// alertKept is how long an open alert is kept after its last transition.
const alertKept = 30 * 24 * time.Hour

// maxQuiet is the maximum number of ended alerts whose rows one transition removes.
const maxQuiet = 4

// Prefixes of the subjects of alerts.
const (
	subjectAsset    = "asset:"
	subjectSchedule = "schedule:"
	subjectBackfill = "backfill:"
	subjectRule     = "rule:"
)

// Items of alerts about schedules.
const (
	itemRun      = "run"
	itemOverlap  = "overlap"
	itemCalendar = "calendar"
	itemPaused   = "paused"
)

// transition is a change of state that alert rules may report, such as a failure or a recovery.
type transition struct {
	// subject is what the alert is about; "": the rule itself. asset is the asset of the transition: a rule that selects
	// assets reports the transition only if it selects this asset.
	subject, asset string
	// causes are the codes that apply, the most specific one first. A rule reports the first of these causes that it
	// names.
	causes []string
	// item is the part of the subject that has to recover before the alert ends, such as a partition. needsNoRecovery
	// means that there is no such part: the alert does not wait for a recovery.
	item            string
	needsNoRecovery bool
	// once means that the transition is not reported again until the item has recovered.
	once bool

	partition, runID, taskKey, code, message string
}

// defineAlerts replaces the current rules with those of a deployment. If the new deployment still has a muted rule,
// the rule stays muted.
func (f *folder) defineAlerts(rules []event.AlertRule) {
	defined := make(map[string]bool, len(rules))
	for i := range rules {
		r := &rules[i]
		defined[r.Name] = true
		row := state.AlertRule{Rule: r.Name}
		old := f.st.AlertRules.Get(r.Name)
		if old != nil {
			row = *old
		}
		row.Causes, row.Channels, row.Selection, row.GroupSec = strings.Join(r.On, " "), strings.Join(r.To, " "), r.Select, r.GroupSec
		if row.Assets = ""; len(r.Assets) > 0 {
			row.Assets = " " + strings.Join(r.Assets, " ") + " "
		}
		if old == nil || *old != row {
			put(f, f.st.AlertRules, &row)
		}
	}
	f.forgetAlerts(defined)
}

// forgetAlerts deletes the rules that are not defined, and their alerts. It also deletes every alert that has had no
// transition for the duration alertKept.
func (f *folder) forgetAlerts(defined map[string]bool) {
	var rules []state.AlertRule
	for row := range f.st.AlertRules.All {
		if !defined[row.Rule] {
			rules = append(rules, *row)
		}
	}
	for i := range rules {
		remove(f, f.st.AlertRules, &rules[i])
	}
	var alerts []state.Alert
	for row := range f.st.Alerts.All {
		if !defined[row.Rule] || f.st.FoldTime.Sub(row.LastAt) >= alertKept {
			alerts = append(alerts, *row)
		}
	}
	for i := range alerts {
		f.removeAlert(&alerts[i])
	}
}

// alerting reports whether any alert rules are defined.
func (f *folder) alerting() bool { return f.st.AlertRules.Len() > 0 }

// alert reports a transition to the rules that cover it.
func (f *folder) alert(t transition) {
	if !f.alerting() {
		return
	}
	f.forgetQuiet(maxQuiet)
	var rules []*state.AlertRule
	for row := range f.st.AlertRules.All {
		if row.Assets == "" || t.asset != "" && row.Covers(t.asset) {
			rules = append(rules, row)
		}
	}
	for _, old := range rules {
		on := old.On()
		i := slices.IndexFunc(t.causes, func(cause string) bool { return slices.Contains(on, cause) })
		if i < 0 {
			continue
		}
		f.report(old, orDefault(t.subject, subjectRule+old.Rule), t.causes[i], &t)
	}
}

// report counts a transition in the alert of a rule, and notifies the rule's channels unless the rule is muted.
func (f *folder) report(old *state.AlertRule, subject, cause string, t *transition) {
	now := f.st.FoldTime
	row := state.Alert{Subject: subject, Cause: cause, Rule: old.Rule, FirstAt: now}
	if was := f.st.Alerts.Get(row.Key()); was != nil {
		if row = *was; !row.Open() {
			row.Count, row.Reported, row.FirstAt, row.RecoveredAt = 0, false, now, 0
		}
	}
	open := f.st.AlertItems.Get(row.ItemKey(t.item)) != nil
	if t.once && open {
		return
	}
	switch {
	case t.needsNoRecovery, open:
	case row.Items >= state.MaxAlertItems:
		row.More++
	default:
		put(f, f.st.AlertItems, &state.AlertItem{Subject: row.Subject, Cause: row.Cause, Rule: row.Rule, Item: t.item})
		row.Items++
	}
	row.Count++
	row.LastAt, row.RunID, row.TaskKey, row.Partition, row.Code, row.Message = now, t.runID, t.taskKey, t.partition, t.code, brief(t.message)
	rule := *old
	rule.Transitions++
	if rule.MutedUntil > now {
		rule.Muted++
	} else {
		row.Reported = true
		f.notify(&rule, &row, t)
	}
	put(f, f.st.Alerts, &row)
	put(f, f.st.AlertRules, &rule)
}

// recovered removes items from the alerts about a subject. If an alert has no items left, recovered ends it, and
// reports that its cause is over.
func (f *folder) recovered(subject, asset string, causes []string, items ...string) {
	if f.st.Alerts.Len() == 0 {
		return
	}
	var open []*state.Alert
	f.st.AlertsOf(subject, func(row *state.Alert) bool {
		if row.Open() && slices.Contains(causes, row.Cause) {
			open = append(open, row)
		}
		return true
	})
	var over []string
	for _, old := range open {
		row := *old
		for _, item := range items {
			if was := f.st.AlertItems.Get(row.ItemKey(item)); was != nil {
				gone := *was
				remove(f, f.st.AlertItems, &gone)
				row.Items--
			}
		}
		if row.Items == old.Items {
			continue
		}
		if !row.Open() {
			row.More, row.RecoveredAt = 0, f.st.FoldTime
			if row.Reported && !slices.Contains(over, row.Cause) {
				over = append(over, row.Cause)
			}
		}
		put(f, f.st.Alerts, &row)
	}
	for _, cause := range over {
		f.alert(transition{
			subject: subject, asset: asset, causes: []string{event.CauseRecovered}, needsNoRecovery: true, code: cause, message: cause + " is over",
		})
	}
}

// dropAlerts deletes the alerts about a subject that no longer exists.
func (f *folder) dropAlerts(subject string) {
	var gone []state.Alert
	f.st.AlertsOf(subject, func(row *state.Alert) bool {
		gone = append(gone, *row)
		return true
	})
	for i := range gone {
		f.removeAlert(&gone[i])
	}
}

// removeAlert deletes an alert and its items.
func (f *folder) removeAlert(row *state.Alert) {
	var items []state.AlertItem
	f.st.ItemsOf(row, func(item *state.AlertItem) bool {
		items = append(items, *item)
		return true
	})
	for i := range items {
		remove(f, f.st.AlertItems, &items[i])
	}
	remove(f, f.st.Alerts, row)
}

// forgetQuiet removes the rows of alerts that have ended.
func (f *folder) forgetQuiet(limit int) {
	for _, old := range f.st.QuietAlerts(f.st.FoldTime, limit) {
		row := *old
		remove(f, f.st.Alerts, &row)
	}
}

// reportTransitions reports to the alert rules which tasks and runs have ended.
func (f *folder) reportTransitions() {
	tasks, runs := f.endedTasks, f.endedRuns
	f.endedTasks, f.endedRuns = nil, nil
	if !f.alerting() {
		return
	}
	for _, t := range tasks {
		f.reportTask(t)
	}
	for _, run := range runs {
		f.reportRun(run)
	}
}

// reportTask reports the end of a task.
func (f *folder) reportTask(t *state.Task) {
	if t.AssetKey == "" || t.Kind == event.KindGroup {
		return
	}
	// In alerts, a task that only checks has an item of its own: "check " and the partition. Its success does not prove
	// that the partition can be materialized, so it must not end an alert about a failed materialization.
	item, ofCheck := t.PartitionKey, "check "+t.PartitionKey
	subject := subjectAsset + t.AssetKey
	failed := transition{
		subject: subject, asset: t.AssetKey, item: item, partition: t.PartitionKey, runID: t.RunID, taskKey: t.TaskKey,
		code: t.ErrorCode, message: t.ErrorMessage,
	}
	switch {
	case t.State == state.TaskFailed:
		failed.causes = f.causesOf(t)
		if t.Kind == event.KindCheck {
			failed.item = ofCheck
		}
		f.alert(failed)
	case t.Kind == event.KindCheck:
		f.reportChecks(t, failed, ofCheck)
	case t.Quality == state.Degraded:
		f.recovered(subject, t.AssetKey, []string{event.CauseTaskFailed, event.CauseQuarantined, event.CauseSLAMissed}, f.itemsOfTask(t, item, ofCheck)...)
		failed.causes = []string{event.CauseCheckFailed}
		failed.code, failed.message = CodeCheckFailed, f.firstFailedCheck(t)
		f.alert(failed)
	default:
		f.recovered(subject, t.AssetKey, []string{event.CauseTaskFailed, event.CauseQuarantined, event.CauseCheckFailed, event.CauseSLAMissed},
			f.itemsOfTask(t, item, ofCheck)...)
	}
}

// reportChecks reports the success of a task that only checks. Checks of severity ERROR may have failed nevertheless.
func (f *folder) reportChecks(t *state.Task, failed transition, item string) {
	message := f.firstFailedCheck(t)
	if message == "" {
		f.recovered(failed.subject, t.AssetKey, []string{event.CauseCheckFailed, event.CauseTaskFailed}, item)
		return
	}
	f.recovered(failed.subject, t.AssetKey, []string{event.CauseTaskFailed}, item)
	failed.causes, failed.item, failed.code, failed.message = []string{event.CauseCheckFailed}, item, CodeCheckFailed, message
	f.alert(failed)
}

// causesOf returns the causes that apply to a failed task.
func (f *folder) causesOf(t *state.Task) []string {
	if t.ErrorCode != CodeCheckFailed {
		return []string{event.CauseTaskFailed}
	}
	key := state.Key3{A: t.AssetKey, B: t.PartitionKey, C: ids.MaterializationID(f.domain(), t.RunID, t.TaskKey)}
	if c := f.st.Candidates.Get(key); c != nil && c.State == state.CandidatePending {
		return []string{event.CauseQuarantined, event.CauseCheckFailed, event.CauseTaskFailed}
	}
	return []string{event.CauseCheckFailed, event.CauseTaskFailed}
}

// firstFailedCheck describes the first check of severity ERROR that a task did not pass.
func (f *folder) firstFailedCheck(t *state.Task) (text string) {
	f.st.CheckResults.Ascend(state.Key3{A: t.RunID, B: t.TaskKey}, func(row *state.CheckResult) bool {
		if row.RunID != t.RunID || row.TaskKey != t.TaskKey {
			return false
		}
		if !row.Passed && row.Severity == severityError {
			text = "check " + row.Check + ": " + row.Message
		}
		return text == ""
	})
	return text
}

// reportRun reports the end of a run. The alert about the runs of a schedule ends when one of these runs, or a retry of
// one, succeeds. For a run without a schedule, nothing has to recover before the alert ends. Alerts about the assets of
// the run are separate, and wait for a recovery.
func (f *folder) reportRun(run *state.Run) {
	schedule := ScheduleOf(run)
	t := transition{
		causes: []string{event.CauseRunFailed}, item: itemRun, needsNoRecovery: schedule == "", runID: run.RunID,
		code: run.ErrorCode, message: orDefault(run.ErrorMessage, fmt.Sprintf("%d of %d tasks failed", run.TasksFailed, run.TasksTotal)),
	}
	if schedule != "" {
		t.subject = subjectSchedule + schedule
	} else if b, _ := f.chunkOf(run.RequestID); b != nil {
		t.subject = subjectBackfill + b.BackfillID
	}
	switch {
	case run.State == state.RunFailed, run.State == state.RunTimedOut:
		f.alert(t)
	case run.State == state.RunSucceeded && schedule != "":
		f.recovered(t.subject, "", []string{event.CauseRunFailed}, itemRun)
		f.recovered(t.subject, "", []string{event.CauseScheduleBlocked}, itemOverlap)
		f.recovered(t.subject, "", []string{event.CauseSLAMissed}, itemSLA)
	}
}

// ScheduleOf returns the schedule of the first run in a run's chain of retries, or "". The trigger of a retry names
// the schedule, because the first run of the chain may have left the live state.
func ScheduleOf(run *state.Run) string {
	if run.ScheduleID != "" || run.ParentRunID == "" {
		return run.ScheduleID
	}
	var cause event.Trigger
	if json.Unmarshal([]byte(run.Trigger), &cause) != nil {
		panic("fold: trigger of run " + run.RunID + " is not JSON") // runTriggered writes only valid JSON
	}
	return cause.ScheduleID
}

// reportRefused reports a tick whose run could not be planned.
func (f *folder) reportRefused(r *state.RunRequest) {
	if r.ScheduleID == "" {
		return
	}
	f.alert(transition{
		subject: subjectSchedule + r.ScheduleID, causes: []string{event.CauseRunFailed}, item: itemRun, code: r.ErrorCode, message: r.ErrorMessage,
	})
}

// reportBlocked reports that a schedule does not tick as it should. Further reports have no effect until the schedule
// has recovered.
func (f *folder) reportBlocked(schedule, item, code, message string) {
	f.alert(transition{
		subject: subjectSchedule + schedule, causes: []string{event.CauseScheduleBlocked}, item: item, once: true, code: code, message: message,
	})
}

// alertCommand applies a command about a rule or a channel.
func (f *folder) alertCommand(p *event.AutomationCommand) verdict {
	if p.Verb == event.VerbTest {
		return f.testChannel(p)
	}
	old := f.st.AlertRules.Get(p.Name)
	switch {
	case old == nil:
		return stale("the rule does not exist")
	case p.CommandID == old.CommandID:
		return noChange
	case p.CommandID < old.CommandID:
		return stale("a later command has muted or unmuted the rule")
	}
	row := *old
	row.CommandID, row.MutedUntil, row.MutedBy, row.MuteReason = p.CommandID, p.Until, f.ev.Actor, p.Reason
	put(f, f.st.AlertRules, &row)
	return folded
}
