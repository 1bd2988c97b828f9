package sim

import (
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/state"
)

// checkApprovals checks that the approval of a partition ends the alerts about its failure. If a task failed after the
// approval, the alert about this failure rightly stays open. The order within one revision is unknown, so the oracle
// skips an asset if one of its tasks failed in the same revision as the approval.
func (o *oracle) checkApprovals(f *followed, before, after *state.State) {
	failed := map[string]bool{}
	for is := range changed(f, after.Tasks) {
		if was := before.Tasks.Get(is.Key()); is.State == state.TaskFailed && (was == nil || was.State != state.TaskFailed) {
			failed[is.AssetKey] = true
		}
	}
	for is := range changed(f, after.Candidates) {
		was := before.Candidates.Get(is.Key())
		if is.State != state.CandidateApproved || was == nil || was.State != state.CandidatePending || failed[is.AssetKey] {
			continue
		}
		o.w.fault("approval ends alerts")
		after.AlertsOf("asset:"+is.AssetKey, func(row *state.Alert) bool {
			about := row.Cause == event.CauseQuarantined || row.Cause == event.CauseTaskFailed || row.Cause == event.CauseCheckFailed
			if about && after.AlertItems.Get(row.ItemKey(is.PartitionKey)) != nil {
				o.violation(everyTransition, "the output of run %s of %s was approved, but its alert %s is open", is.RunID, is.TaskKey, row.Cause)
			}
			return true
		})
	}
}
