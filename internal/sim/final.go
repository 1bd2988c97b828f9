package sim

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/domain"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/repair"
	"github.com/servo-orchestration/servo/pkg/state"
)

// final checks a world that has come to rest, after all processes have ended.
func (o *oracle) final() {
	for _, d := range o.w.domains {
		f := o.domains[d]
		o.checkOutcomes(f)
		o.checkEndedSchedules(f)
		o.checkChunkRequests(f)
		o.checkFreshness(f)
		o.checkEntries(f)
		o.checkRefusedInputs(f)
		o.checkReplay(f)
		o.bareLedger(f)
		o.checkStateCollection(f)
		o.checkOutputCollection(f)
		o.checkEntryCount(f)
	}
}

// checkOutcomes compares the outcome of each task with a simple model.
func (o *oracle) checkOutcomes(f *followed) {
	keys := map[string]string{}
	for run := range f.state.Runs.All {
		if other := keys[run.RunKey]; run.RunKey != "" && other != "" {
			o.violation("INV-2 run keys", "runs %s and %s have the same run key, %s", other, run.RunID, run.RunKey)
		}
		keys[run.RunKey] = run.RunID
	}
	for run := range f.state.Runs.All {
		f.state.TasksOf(run.RunID, func(t *state.Task) bool {
			if problem := o.outcome(f, run, t); problem != "" {
				o.violation("reference model", "task %s of run %s is %s at attempt %d of %d: %s",
					t.TaskKey, t.RunID, t.State, t.Attempt, t.MaxAttempts, problem)
			}
			return true
		})
	}
}

// outcome checks the state in which a task has ended, with one rule for each state. It returns the reason why the
// task should not have ended like this, or "".
func (o *oracle) outcome(f *followed, run *state.Run, t *state.Task) string {
	ended := map[state.TaskState]int{}
	for _, upstream := range f.index.upstreams[t.Key()] {
		ended[f.state.Tasks.Get(state.Key2{A: t.RunID, B: upstream}).State]++
	}
	switch t.State {
	case state.TaskSucceeded:
		if !mayStart(f, f.state, t) && !f.forgets(t) {
			return "its upstreams did not allow it to start"
		}
	case state.TaskSkipped:
		if t.TriggerRule == event.RuleAllDone || ended[state.TaskFailed]+ended[state.TaskSkipped] == 0 {
			return "none of its upstreams failed or was skipped"
		}
		if t.TriggerRule == event.RuleNoneFailed && t.Attempt == 0 && !failedAbove(f, f.state, t) {
			return "no task above it failed, and its rule ignores other outcomes"
		}
	case state.TaskCancelled:
		if !f.cancelled[t.RunID] && ended[state.TaskCancelled] == 0 {
			return "its run was not cancelled"
		}
	case state.TaskFailed:
		// If the folding order is lost, a rebuild folds the decisions of timers after all facts. As a result, a report on
		// an attempt that had timed out is accepted as if it had come in time.
		if t.ErrorCode == "GHOST" && !f.unordered {
			return "a stale report ended it"
		}
		if t.ErrorCode == "CHECK_FAILED" && !o.explainedByCheck(t) {
			return "its checks passed"
		}
		b := o.w.load.behaveTask(t.TaskKey)
		policy := o.w.load.policyOf(assetOf(t.TaskKey))
		if problem := spent(f, t, policy); problem != "" && !f.cancelled[run.RunID] {
			return problem + ": " + t.ErrorCode + " " + t.ErrorMessage
		}
		// If the folding order is lost, the attempt may have been cancelled by a run timeout that the rebuild folds only
		// later.
		if o.w.cfg.Faults.calm() && !f.unordered && o.w.damagedIn(t.ErrorMessage) == "" && (b.failures == 0 || policy.UserErrors && b.failures < policy.MaxAttempts) && !b.hangs && t.TimeoutSec == 0 && !o.explainedByCheck(t) &&
			!o.raced(run, t.ErrorCode, t.ErrorMessage) {
			return "its attempt should have succeeded: " + t.ErrorCode + " " + t.ErrorMessage
		}
	case state.TaskPlanned, state.TaskBlocked, state.TaskReady, state.TaskDispatched, state.TaskRunning, state.TaskRetryWait:
		return "it has not ended"
	}
	return ""
}

// spent uses the recorded attempts of a failed task to check that the task had no attempts left. It returns "", or the
// reason why the task should have been retried. Servo grants another attempt for each loss, but at most ten.
func spent(f *followed, t *state.Task, policy plan.Retries) string {
	const most = 10
	lost, last := int32(0), &state.Attempt{}
	f.state.AttemptsOf(t.RunID, t.TaskKey, func(a *state.Attempt) bool {
		last = a
		switch a.ErrorCode {
		case "WORKER_INTERRUPTED", "HEARTBEAT_TIMEOUT", "UNDISPATCHABLE", "STORE_UNAVAILABLE":
			if a.Retryable {
				lost++
			}
		}
		return true
	})
	if f.unordered {
		lost = t.GrantedAttempts // a rebuild may have lost the error codes of some timeouts
	}
	switch {
	case !last.Retryable, t.ErrorCode == "EXIT_STATUS" && !policy.UserErrors:
		return "" // not retryable
	case t.Attempt-min(lost, most) < policy.MaxAttempts:
		return fmt.Sprintf("it had attempts left: its policy has %d, and %d were lost to infrastructure", policy.MaxAttempts, lost)
	case !f.unordered && t.MaxAttempts-t.GrantedAttempts != policy.MaxAttempts:
		return fmt.Sprintf("it had %d attempts, %d of them granted for losses, but its policy has %d", t.MaxAttempts, t.GrantedAttempts, policy.MaxAttempts)
	}
	return ""
}

func (o *oracle) repairs(f *followed, blobs blob.Store) repair.Config {
	o.repaired++ // each rebuild has its own seed, so that no two rebuilds write files with the same names
	source := ids.NewSource(o.w.now, &entropy{rng: random(o.w.cfg.Seed, "repair", o.repaired)})
	return repair.Config{
		Handle:  domain.Open(domain.Handle{Domain: f.domain, Store: blobs, Codec: o.w.codec, IDs: source, Clock: o.w.clock}),
		Writer:  "oracle",
		Wakeups: true,
	}
}

// checkReplay verifies that a replay of the ledger in the recorded order yields the same rows.
func (o *oracle) checkReplay(f *followed) {
	if f.manifest == nil {
		return
	}
	report, err := repair.Verify(context.Background(), o.repairs(f, o.w.maybeUnsummed()))
	if err != nil {
		o.violation("I-17 rebuildable", "verify %s: %v", f.domain, err)
		return
	}
	for _, problem := range o.otherProblems(f, report) {
		o.violation("I-17 rebuildable", "%s", problem)
	}
}

// bareLedger rebuilds the state from the ledger alone. The state must be valid, and no finished
// task may run again.
func (o *oracle) bareLedger(f *followed) {
	if f.manifest == nil {
		return
	}
	ctx := context.Background()
	bare := o.w.blobs.Copy()
	for object, err := range o.w.blobs.List(ctx, blob.ListOptions{}) {
		kept := strings.HasPrefix(object.Key, "ledger/") || strings.HasPrefix(object.Key, "archive/") ||
			strings.HasPrefix(object.Key, "plans/") || strings.HasPrefix(object.Key, "assets/")
		if err == nil && !kept {
			err = bare.Delete(ctx, object.Key)
		}
		if err != nil {
			o.violation("I-17 rebuildable", "%v", err)
			return
		}
	}
	cfg := o.repairs(f, bare)
	cfg.Bare = true
	if _, err := repair.Rebuild(ctx, cfg); err != nil {
		o.violation("I-17 rebuildable", "rebuild %s: %v", f.domain, err)
		return
	}
	m, err := cfg.Manifests.Load(ctx)
	if err != nil {
		o.violation("I-17 rebuildable", "%v", err)
		return
	}
	s, err := o.whole(cfg.Manifests, m)
	if err != nil {
		o.violation("I-17 rebuildable", "%v", err)
		return
	}
	if err := foldtest.Check(s); err != nil {
		o.violation("I-17 rebuildable", "rebuilt from the ledger alone, %s is not valid: %v", f.domain, err)
	}
	o.sameAutomation(f, s)
	for run := range f.state.Runs.All {
		again := s.Runs.Get(run.RunID)
		switch {
		case again == nil && leftNoTrace(f.state, run) && s.RunKeys.Get(run.RunKey) != nil:
		case again == nil && run.CancelReason == replacedByTick && !wasExecuted(f.state, run):
			// The rebuild decided that a later tick replaced the run's request. No fact contradicts this decision.
		case again == nil && cancelledFirst(s, run) && !wasExecuted(f.state, run):
			// A person cancelled the request at about the time at which an automator planned it. The names of the two entries,
			// and so the clocks of their writers, decide which came first.
		case again == nil && slices.Contains(cancelledWithBackfill, run.CancelReason) && !wasExecuted(f.state, run):
			// A command about the backfill ended the run's chunk before a worker began a task. No fact shows whether the run
			// or the command came first.
		case again == nil:
			o.violation("I-17 rebuildable", "rebuilt from the ledger alone, run %s is missing; its request %s is %s", run.RunID, run.RequestID, stateOf(s.Requests.Get(run.RequestID)))
		case run.CancelReason == replacedByTick, slices.Contains(cancelledWithBackfill, run.CancelReason):
			// The run was cancelled by a decision, not by a fact: a rebuild may decide differently.
		case run.State == state.RunCancelled && (again.State == state.RunPending || again.State == state.RunRunning):
			o.violation("I-17 rebuildable", "rebuilt from the ledger alone, run %s, which was cancelled, is %s", run.RunID, again.State)
		}
	}
	// Timeouts are decisions, not facts: a rebuild may decide them differently.
	for t := range f.state.Tasks.All {
		again := s.Tasks.Get(t.Key())
		if again != nil && t.State == state.TaskSucceeded && again.AdmittedAt != 0 {
			o.violation("I-17 rebuildable", "rebuilt from the ledger alone, task %s of run %s, which succeeded, is %s at attempt %d",
				t.TaskKey, t.RunID, again.State, again.Attempt)
		}
	}
}

// cancelledFirst reports whether a rebuilt state has cancelled the request of a run.
func cancelledFirst(rebuilt *state.State, run *state.Run) bool {
	r := rebuilt.Requests.Get(run.RequestID)
	return r != nil && r.State == state.RequestCancelled
}

// wasExecuted reports whether a worker has begun a task of a run.
func wasExecuted(st *state.State, run *state.Run) bool {
	for a := range st.Attempts.All {
		if a.RunID == run.RunID && a.StartedAt != 0 {
			return true
		}
	}
	return false
}

// leftNoTrace reports whether a run with a run key did nothing except time out. The ledger does not show that such a
// run won the key.
func leftNoTrace(st *state.State, run *state.Run) bool {
	said := run.RunKey == "" || run.CancelEventID != ""
	for d := range st.Outbox.All {
		said = said || d.RunID == run.RunID && (d.EnqueuedAt != 0 || d.Error != "" || d.Generation > 0)
	}
	for a := range st.Attempts.All {
		said = said || a.RunID == run.RunID && a.StartedAt != 0
	}
	return !said
}

// checkEntryCount checks that the number of entries is within a bound that depends on attempts, tasks and time: no
// repair may cause further repairs without end.
func (o *oracle) checkEntryCount(f *followed) {
	attempts := f.state.Attempts.Len()
	minutes := int((o.w.elapsed() - o.w.cfg.Faults.outage()).Minutes())
	most := 50 + 12*attempts + 12*f.state.Tasks.Len() + 20*minutes*(1+o.w.cfg.Workers)
	if f.entries > most {
		o.violation("I-16 bounded work", "%d ledger entries for %d attempts at %d tasks in %d minutes", f.entries, attempts, f.state.Tasks.Len(), minutes)
	}
}

// count adds up the statistics of the world.
func (o *oracle) count(r *Result) {
	if o.w.counts["archive files"] > 0 {
		o.w.counts["worlds with an archive"]++
	}
	for _, d := range o.w.domains {
		f := o.domains[d]
		r.Runs += f.state.Runs.Len()
		r.Deployed = r.Deployed || f.state.Deployments.Len() > 0
		r.Automated = r.Automated || len(f.ticks) > 0 || f.state.Backfills.Len() > 0
		for t := range f.state.Tasks.All {
			if t.State.Terminal() {
				r.Completions++
				o.w.counts["tasks "+strings.ToLower(string(t.State))]++
			}
			if t.PartitionKey != "" || f.state.Batches.Get(t.Key()) != nil {
				o.w.counts["tasks of partitioned assets"]++
			}
		}
		for run := range f.state.Runs.All {
			if _, _, chunk := state.ParseChunkRequest(run.RequestID); chunk || run.ScheduleID != "" {
				o.w.counts["tasks of runs of schedules and backfills"] += int(run.TasksTotal)
			}
		}
		if f.manifest != nil {
			r.Revisions += f.manifest.Revision
			o.w.counts["closed runs in history"] += int(f.manifest.History["runs"].Rows)
			o.w.counts["paged partitions"] += int(f.manifest.History["partition_status"].Rows)
			for run := range f.state.Runs.All {
				if run.RunID < f.manifest.BaseSnapshot.RunsFrom {
					o.w.counts["runs not kept any more"]++
				}
			}
		}
	}
}
