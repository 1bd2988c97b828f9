package sim

import (
	"math"
	"strings"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/state"
)

// The oracle derives the number of transitions from the changed rows of a revision. It compares this number with the
// counts of alert rules that report a single kind of transition. A revision may contain several transitions of one row.
// If the rows do not show how many there were, the oracle uses a lower and an upper bound.

// transitionCount contains bounds on the number of transitions that a revision reports to a rule.
type transitionCount struct{ least, most int64 }

func exactly(n int64) transitionCount { return transitionCount{n, n} }

// causesOfRules contains the alert rules that report a single kind of transition. It maps each of these rules to the
// causes that the rule reports.
var causesOfRules = map[string][]string{
	ruleOfTasks: {event.CauseTaskFailed},
	"runs":      {event.CauseRunFailed},
	"checks":    {event.CauseCheckFailed, event.CauseQuarantined},
	"deploys":   {event.CauseDeploy},
	"deadlines": {event.CauseDeadlineMissed},
	"freshness": {event.CauseFreshnessMissed},
	"slas":      {event.CauseSLAMissed},
	"paused":    {event.CauseSchedulePaused},
	"blocked":   {event.CauseScheduleBlocked},
	"backfills": {event.CauseBackfillPaused},
	"recovered": {event.CauseRecovered},
}

// checkRuleCounts checks that each rule has counted the transitions of a revision.
func (o *oracle) checkRuleCounts(f *followed, before, after *state.State) {
	counts := countTransitions(f, before, after)
	for rule := range causesOfRules {
		was, is := before.AlertRules.Get(rule), after.AlertRules.Get(rule)
		if was == nil || is == nil {
			continue
		}
		got, want := is.Transitions-was.Transitions, counts[rule]
		if got < want.least || got > want.most {
			o.violation(everyTransition, "rule %s of %s counts %d transitions in revision %d, but the rows show at least %d and at most %d",
				rule, f.domain, got, f.manifest.Revision, want.least, want.most)
		}
		if got > 0 {
			o.w.counts["alerts of rule "+rule] += int(got)
		}
	}
}

// countTransitions counts the transitions of a revision, by rule.
func countTransitions(f *followed, before, after *state.State) map[string]transitionCount {
	counts := map[string]transitionCount{}
	tasks, checks, slas := int64(0), int64(0), int64(0)
	for is := range changed(f, after.Tasks) {
		was := before.Tasks.Get(is.Key())
		if was == is || is.AssetKey == "" || is.Kind == event.KindGroup {
			continue
		}
		missed := len(strings.Fields(is.SLAMissed))
		if was != nil {
			missed -= len(strings.Fields(was.SLAMissed))
		}
		slas += int64(missed)
		if was != nil && was.State.Terminal() {
			continue
		}
		switch {
		case is.State == state.TaskFailed:
			tasks++
			if is.ErrorCode == "CHECK_FAILED" {
				checks++
			}
		case is.State == state.TaskSucceeded && is.Quality == state.Degraded && is.Kind != event.KindCheck:
			checks++
		}
	}
	counts[ruleOfTasks], counts["checks"], counts["slas"] = exactly(tasks), exactly(checks), exactly(slas)
	deploys, misses := int64(0), int64(0)
	for d := range changed(f, after.Deployments) {
		if d.Kind != event.DeployLocal && before.Deployments.Get(d.DeployID) == nil {
			deploys++
		}
	}
	for m := range changed(f, after.DeadlineMisses) {
		if before.DeadlineMisses.Get(m.MissID) == nil {
			misses++
		}
	}
	counts["deploys"], counts["deadlines"] = exactly(deploys), exactly(misses)
	counts["freshness"] = countLags(f, before, after)
	countSchedules(f, before, after, counts)
	counts["recovered"] = countRecovered(f, before, after)
	return counts
}

// countLags counts the assets whose newest output has become too old. A task that succeeds in the same revision may
// have replaced such an output, so each success raises the upper bound.
func countLags(f *followed, before, after *state.State) (n transitionCount) {
	for is := range changed(f, after.Promises) {
		was := before.Promises.Get(is.AssetKey)
		if was == nil || was.LagAt == 0 || was.LagAt > after.FoldTime {
			continue
		}
		if is.LagAt == 0 && is.MaxLagSec > 0 {
			n.least++
		}
		if is.LagAt != was.LagAt {
			n.most++
		}
	}
	for is := range changed(f, after.Tasks) {
		if was := before.Tasks.Get(is.Key()); was != is && is.State == state.TaskSucceeded && after.Promises.Get(is.AssetKey) != nil {
			n.most++
		}
	}
	n.most = max(n.most, n.least)
	return n
}

// countSchedules counts failed runs and ticks, and the transitions that they cause.
func countSchedules(f *followed, before, after *state.State, counts map[string]transitionCount) {
	failed, ended, blocked := int64(0), int64(0), int64(0)
	for is := range changed(f, after.Runs) {
		if was := before.Runs.Get(is.RunID); was == is || !is.State.Terminal() || was != nil && was.State.Terminal() {
			continue
		}
		ended++
		if is.State == state.RunFailed || is.State == state.RunTimedOut {
			failed++
		}
	}
	for is := range changed(f, after.Ticks) {
		was := before.Ticks.Get(is.TickID)
		if was != nil && was.Outcome == is.Outcome {
			continue
		}
		switch is.Outcome { //nolint:exhaustive // other outcomes need no alert
		case state.TickRefused:
			failed++
			ended++
		case state.TickSkipped, state.TickDropped:
			blocked++
		}
	}
	paused := int64(0)
	for is := range changed(f, after.Schedules) {
		was := before.Schedules.Get(is.ScheduleID)
		if strings.Contains(is.Reason, "failures in a row") && is.Paused && (was == nil || !was.Paused) {
			paused++
		}
		if blocked += is.TicksDropped; was != nil {
			blocked -= was.TicksDropped
		}
		if is.Error != "" && (was == nil || was.Error != is.Error) {
			blocked++
		}
	}
	stopped := int64(0)
	for is := range changed(f, after.Backfills) {
		was := before.Backfills.Get(is.BackfillID)
		if is.State == state.BackfillPaused && is.PausedBy == "" && is.PauseReason != "" && (was == nil || was.State != state.BackfillPaused) {
			stopped++
		}
	}
	counts["runs"] = exactly(failed)
	counts["paused"] = transitionCount{paused, paused + ended}
	counts["blocked"] = transitionCount{0, blocked}
	counts["backfills"] = transitionCount{stopped, stopped + ended + int64(after.Deployments.Len()-before.Deployments.Len())}
}

// countRecovered counts the alerts that have ended in a revision, by subject and cause. If a subject recovers and
// fails again in one revision, no row shows the recovery, so the number has no upper bound.
func countRecovered(f *followed, before, after *state.State) transitionCount {
	over := map[[2]string]bool{}
	for is := range changed(f, after.Alerts) {
		was := before.Alerts.Get(is.Key())
		if is.RecoveredAt != 0 && is.Reported && was != is && (was == nil || was.RecoveredAt != is.RecoveredAt) {
			over[[2]string{is.Subject, is.Cause}] = true
		}
	}
	return transitionCount{int64(len(over)), math.MaxInt64}
}
