package fold

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/state"
)

// The fold has no calendar, and its state does not contain the staleness of partitions (ADR 071). So an automator
// judges a deadline with its snapshot of the state, and supplies the next deadline. The fold accepts this verdict
// unless the partitions have changed since the snapshot. Freshness and SLAs need neither the calendar nor staleness,
// so the fold judges them when the wake timer fires.

// Items of alerts about freshness limits and SLAs.
const (
	itemFreshness = "freshness"
	itemSLA       = "sla"
)

// Names of the limits of an SLA. [state.Task.SLAMissed] lists the names of the limits that a task has missed.
const (
	slaOfRun  = "run"
	slaOfTask = "task"
)

// defineDeadlines replaces the current deadlines, freshness limits and SLAs with those of a deployment.
func (f *folder) defineDeadlines(all []event.WatchedAsset) {
	watched, limited := make(map[string]bool, len(all)), map[string]bool{}
	for i := range all {
		w := &all[i]
		watched[w.Asset] = true
		row := state.Promise{AssetKey: w.Asset}
		old := f.st.Promises.Get(w.Asset)
		if old != nil {
			row = *old
		}
		f.defineDeadline(&row, w.Deadline)
		f.defineFreshness(&row, w.MaxLagSec)
		if row.RunSec != w.RunSec || row.TaskSec != w.TaskSec {
			row.RunSec, row.TaskSec, limited[w.Asset] = w.RunSec, w.TaskSec, true
		}
		if old == nil || *old != row {
			put(f, f.st.Promises, &row)
		}
	}
	var gone []state.Promise
	for row := range f.st.Promises.All {
		if !watched[row.AssetKey] {
			gone = append(gone, *row)
		}
	}
	for i := range gone {
		f.endPromise(gone[i].AssetKey, event.CauseDeadlineMissed, event.CauseFreshnessMissed, event.CauseSLAMissed)
		f.endMisses(gone[i].AssetKey)
		remove(f, f.st.Promises, &gone[i])
	}
	f.limitTasks(limited)
}

// limitTasks applies changed SLAs of assets to their live tasks.
func (f *folder) limitTasks(assets map[string]bool) {
	if len(assets) == 0 {
		return
	}
	var changed []state.Task
	for t := range f.st.Tasks.All {
		if assets[t.AssetKey] && f.slaAt(t) != t.SLAAt {
			changed = append(changed, *t)
		}
	}
	for i := range changed {
		f.putTask(&changed[i], changed[i].State)
	}
}

// defineDeadline sets the deadline of an asset. A new deadline applies from the deployment on.
func (f *folder) defineDeadline(row *state.Promise, d *event.Deadline) {
	version := ""
	if d != nil {
		version = d.Version()
	}
	if version == row.Version {
		return
	}
	row.Version, row.Spec, row.Period, row.DueAt, row.NextAt, row.WantedAt, row.Error, row.Errors = version, "", "", 0, 0, 0, "", 0
	if d == nil {
		f.endPromise(row.AssetKey, event.CauseDeadlineMissed)
		f.endMisses(row.AssetKey)
		return
	}
	row.Spec, row.WantedAt = jsonOf(d), f.st.FoldTime
}

// defineFreshness sets the maximum age of an asset's newest output.
func (f *folder) defineFreshness(row *state.Promise, maxLagSec int64) {
	if row.MaxLagSec == maxLagSec {
		return
	}
	f.endPromise(row.AssetKey, event.CauseFreshnessMissed)
	if row.MaxLagSec = maxLagSec; maxLagSec == 0 {
		row.DataAt, row.LagAt = 0, 0
		return
	}
	if row.DataAt == 0 {
		row.DataAt = f.st.FoldTime // the newest output may be in history, which the fold does not read
		newest := event.Time(0)
		f.st.Partitions.Ascend(state.Key2{A: row.AssetKey}, func(p *state.Partition) bool {
			if p.AssetKey != row.AssetKey {
				return false
			}
			newest = max(newest, p.MaterializedAt)
			return true
		})
		row.DataAt = cmp.Or(min(newest, row.DataAt), row.DataAt)
	}
	row.LagAt = row.DataAt.Add(time.Duration(maxLagSec) * time.Second)
}

// endPromise deletes the alerts about a deadline, a freshness limit or an SLA that no longer exists.
func (f *folder) endPromise(asset string, causes ...string) {
	var gone []state.Alert
	f.st.AlertsOf(subjectAsset+asset, func(row *state.Alert) bool {
		if slices.Contains(causes, row.Cause) {
			gone = append(gone, *row)
		}
		return true
	})
	for i := range gone {
		remove(f, f.st.Alerts, &gone[i])
	}
}

// endMisses closes the rows of an asset's missed deadlines, because the asset no longer has a deadline.
func (f *folder) endMisses(asset string) {
	for _, old := range f.st.MissesOf(asset) {
		row := *old
		row.MetAt = f.st.FoldTime
		put(f, f.st.DeadlineMisses, &row)
	}
}

// watch handles a limit or a deadline that is due: it judges an SLA or a freshness limit, and requests a verdict about
// a deadline.
func (f *folder) watch(w state.Watch, now event.Time) {
	switch {
	case w.TaskKey != "":
		f.lateTask(f.st.Tasks.Get(state.Key2{A: w.RunID, B: w.TaskKey}), now)
	case w.RunID != "":
		f.lateRun(w.RunID)
	case w.Lag:
		row := *f.st.Promises.Get(w.Asset)
		row.LagAt = 0
		put(f, f.st.Promises, &row)
		f.alert(transition{
			subject: subjectAsset + w.Asset, asset: w.Asset, causes: []string{event.CauseFreshnessMissed}, item: itemFreshness, once: true,
			code: "FRESHNESS", message: fmt.Sprintf("no output since %s: at most %s are allowed", row.DataAt, time.Duration(row.MaxLagSec)*time.Second),
		})
	default:
		row := *f.st.Promises.Get(w.Asset)
		row.NextAt, row.WantedAt = 0, now
		put(f, f.st.Promises, &row)
	}
}

// deadlineJudged applies verdicts, and sets the next deadlines.
func (f *folder) deadlineJudged(p *event.DeadlineJudged) verdict {
	for i := range p.Items {
		f.judge(&p.Items[i])
	}
	if !f.changed {
		return stale("the deadlines have already been judged, or the deadlines or their partitions have changed")
	}
	return folded
}

func (f *folder) judge(item *event.JudgedDeadline) {
	if miss := f.st.DeadlineMisses.Get(f.missID(item)); miss != nil && miss.Unnamed() && miss.Open(f.st.FoldTime) {
		f.judgeAgain(miss, item)
		return
	}
	old := f.st.Promises.Get(item.Asset)
	if old == nil || old.Version != item.Version || old.WantedAt == 0 || old.Period != item.Period || old.DueAt != item.DueAt {
		return
	}
	row := *old
	if item.Error != "" {
		row.Error, row.WantedAt = item.Error, 0
		row.NextAt = f.st.FoldTime.Add(min(minCalendarDelay<<min(row.Errors, maxDoublings), maxCalendarDelay))
		row.Errors++
		put(f, f.st.Promises, &row)
		return
	}
	if item.DueAt != 0 && item.Verdict == "" {
		return // the deadline is due, but the event has no verdict
	}
	if item.Verdict == event.DeadlineMissed {
		if !f.stillMissing(item) {
			return // the verdict is outdated: an automator judges again
		}
		f.miss(item)
	}
	row.Period, row.DueAt, row.NextAt, row.WantedAt, row.Error, row.Errors = item.Next, item.NextAt, item.NextAt, 0, "", 0
	put(f, f.st.Promises, &row)
}

// judgeAgain applies a further verdict about a missed deadline: it records which partitions are still missing. If there
// are none, the miss is over. It ignores a verdict whose writer had not seen the last change of the row of the missed
// deadline: the change may have removed a partition that the verdict calls missing.
func (f *folder) judgeAgain(old *state.DeadlineMiss, item *event.JudgedDeadline) {
	if item.Verdict == "" || item.ObservedSeq < old.Seq || item.Verdict == event.DeadlineMissed && !f.stillMissing(item) {
		return // the verdict is outdated: an automator judges again
	}
	row := *old
	if row.Missing, row.More = jsonOfList(item.Missing), item.More; item.Verdict == event.DeadlineMet {
		f.meet(&row)
	}
	put(f, f.st.DeadlineMisses, &row)
}

// meet closes the row of a missed deadline, and reports the recovery to the alert rules.
func (f *folder) meet(row *state.DeadlineMiss) {
	row.MetAt, row.More = f.st.FoldTime, 0
	f.recovered(subjectAsset+row.AssetKey, row.AssetKey, []string{event.CauseDeadlineMissed}, row.Period)
}

// stillMissing reports whether a verdict still holds: at least one partition that the verdict calls missing has not
// changed since the automator read the state.
func (f *folder) stillMissing(item *event.JudgedDeadline) bool {
	return slices.ContainsFunc(item.Missing, func(key string) bool {
		row := f.st.Partitions.Get(state.Key2{A: item.Asset, B: key})
		return row == nil || row.Seq <= item.ObservedSeq
	})
}

// missID returns the id of the row of a missed deadline.
func (f *folder) missID(item *event.JudgedDeadline) string {
	return ids.NotificationID(f.domain(), "miss|"+item.Asset+"|"+item.Period, item.DueAt.Time())
}

// miss records a deadline that was missed.
func (f *folder) miss(item *event.JudgedDeadline) {
	row := &state.DeadlineMiss{
		MissID:   f.missID(item),
		AssetKey: item.Asset, Period: item.Period, DueAt: item.DueAt, Missing: jsonOf(item.Missing), More: item.More, MissedAt: f.st.FoldTime,
	}
	if f.st.DeadlineMisses.Get(row.MissID) != nil {
		return
	}
	put(f, f.st.DeadlineMisses, row)
	missing := "1 partition of %s was missing or stale at %s"
	if n := int64(len(item.Missing)) + item.More; n != 1 {
		missing = strconv.FormatInt(n, 10) + " partitions of %s were missing or stale at %s"
	}
	f.alert(transition{
		subject: subjectAsset + item.Asset, asset: item.Asset, causes: []string{event.CauseDeadlineMissed}, item: item.Period,
		partition: item.Missing[0], code: "DEADLINE",
		message: fmt.Sprintf(missing, orDefault(item.Period, "the asset"), item.DueAt),
	})
}

// delivered handles an output that has become visible. It removes the output's partition from the missed deadlines of
// the asset. If this output is the newest of the asset, the freshness of the asset is measured from it.
func (f *folder) delivered(p *state.Partition) {
	row := f.st.Promises.Get(p.AssetKey)
	if row == nil {
		return
	}
	if row.MaxLagSec > 0 && p.MaterializedAt > row.DataAt {
		next := *row
		next.DataAt = p.MaterializedAt
		next.LagAt = next.DataAt.Add(time.Duration(next.MaxLagSec) * time.Second)
		put(f, f.st.Promises, &next)
		f.recovered(subjectAsset+p.AssetKey, p.AssetKey, []string{event.CauseFreshnessMissed}, itemFreshness)
	}
	for _, old := range f.st.MissesOf(p.AssetKey) {
		missing := namesOf(old.Missing)
		i := slices.Index(missing, p.PartitionKey)
		if i < 0 || !old.Open(f.st.FoldTime) {
			continue
		}
		miss := *old
		// If the row does not name all missing partitions (More), the miss stays open, and an automator lists the rest.
		if miss.Missing = jsonOfList(slices.Delete(missing, i, i+1)); miss.Missing == "" && miss.More == 0 {
			f.meet(&miss)
		}
		put(f, f.st.DeadlineMisses, &miss)
	}
}

// slaAt returns when the SLA of a task must be judged next: the earliest limit that the task has not missed yet.
func (f *folder) slaAt(t *state.Task) (at event.Time) {
	w := f.st.Promises.Get(t.AssetKey)
	if w == nil || t.State.Terminal() || t.Kind != event.KindTask {
		return 0
	}
	by := func(part string, since event.Time, sec int64) {
		if sec == 0 || since == 0 || strings.Contains(t.SLAMissed, part) {
			return
		}
		if due := since.Add(time.Duration(sec) * time.Second); at == 0 || due < at {
			at = due
		}
	}
	by(slaOfRun, f.peekRun(t.RunID).CreatedAt, w.RunSec)
	by(slaOfTask, t.AdmittedAt, w.TaskSec)
	return at
}

// lateTask reports a task that has not ended within its SLA.
func (f *folder) lateTask(old *state.Task, now event.Time) {
	if old == nil || old.State.Terminal() {
		return
	}
	t := *old
	w, run := f.st.Promises.Get(t.AssetKey), f.peekRun(t.RunID)
	late := func(part string, since event.Time, sec int64) bool {
		return sec > 0 && since != 0 && !strings.Contains(t.SLAMissed, part) && since.Add(time.Duration(sec)*time.Second) <= now
	}
	what := ""
	switch {
	case w == nil:
	case late(slaOfRun, run.CreatedAt, w.RunSec):
		t.SLAMissed = strings.TrimSpace(t.SLAMissed + " " + slaOfRun)
		what = fmt.Sprintf("has not ended %s after its run was triggered", time.Duration(w.RunSec)*time.Second)
	case late(slaOfTask, t.AdmittedAt, w.TaskSec):
		t.SLAMissed = strings.TrimSpace(t.SLAMissed + " " + slaOfTask)
		what = fmt.Sprintf("has not ended %s after it was admitted", time.Duration(w.TaskSec)*time.Second)
	}
	f.putTask(&t, old.State) // putTask also sets when the SLA is judged next
	if what != "" {
		f.alert(transition{
			subject: subjectAsset + t.AssetKey, asset: t.AssetKey, causes: []string{event.CauseSLAMissed}, item: t.PartitionKey,
			partition: t.PartitionKey, runID: t.RunID, taskKey: t.TaskKey, code: "SLA", message: "task " + t.TaskKey + " " + what,
		})
	}
}

// lateRun reports to the alert rules that a run has not ended within the SLA of its schedule.
func (f *folder) lateRun(runID string) {
	run := f.run(runID)
	bound := run.SLAAt.Sub(run.CreatedAt)
	run.SLAAt = 0
	f.flushRuns()
	f.alert(transition{
		subject: subjectSchedule + run.ScheduleID, causes: []string{event.CauseSLAMissed}, item: itemSLA, runID: runID, code: "SLA",
		message: fmt.Sprintf("run %s has not ended %s after it was triggered", runID, bound),
	})
}
