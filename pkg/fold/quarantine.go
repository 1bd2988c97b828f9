package fold

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/state"
)

// A candidate is an output that a check has blocked and that is waiting for a decision. These invariants hold:
//
//   - A partition has at most one pending candidate.
//   - The visible output of a partition precedes the pending candidate in the order of
//     [folder.materialized]: a later success supersedes a candidate, and a candidate that arrives after a
//     later success is superseded immediately.
//
// So an approval never has to compare the candidate with the visible output, whose row may exist only in history.

// quarantine records the output of a task that has failed because of its checks.
func (f *folder) quarantine(t *state.Task, p *event.TaskFinished) {
	if t.QuarantineSec == 0 || p.Output == nil || t.AssetKey == "" || t.Kind == event.KindCheck {
		return
	}
	batch := f.st.BatchOf(t.RunID, t.TaskKey)
	if batch == nil {
		f.quarantinePartition(t, p, t.PartitionKey, p.Output.URI, event.OutputCell{RowCount: p.Output.RowCount, ByteSize: p.Output.ByteSize})
		return
	}
	if len(p.Output.Cells) != len(batch) {
		return
	}
	for i, key := range batch {
		f.quarantinePartition(t, p, key, ids.CellURI(p.Output.URI, key), p.Output.Cells[i])
	}
}

// quarantinePartition records the output of one partition of a task.
func (f *folder) quarantinePartition(t *state.Task, p *event.TaskFinished, partition, uri string, cell event.OutputCell) {
	run := f.peekRun(t.RunID)
	row := &state.Candidate{
		AssetKey: t.AssetKey, PartitionKey: partition, MaterializationID: ids.MaterializationID(f.domain(), t.RunID, t.TaskKey),
		State: state.CandidatePending, RunID: t.RunID, TaskKey: t.TaskKey,
		OutputURI: uri, RowCount: cell.RowCount, ByteSize: cell.ByteSize, SchemaHash: p.Output.SchemaHash,
		Code: t.Code, InputsSeq: readUpTo(run, t), RootRun: run.RootRun, LeftOut: t.LeftOut, MadeSeq: f.seq,
		FailedChecks: jsonOf(failedChecks(t, p.CheckResults)), BlockedAt: f.at(),
		Measured:  measuredText(p.CheckResults),
		ExpiresAt: f.at().Add(time.Duration(t.QuarantineSec) * time.Second), ApproveOnExpiry: t.QuarantineApprove,
	}
	switch later := f.laterThan(t, partition); {
	case later != "":
		f.conclude(row, state.CandidateSuperseded, "", "run "+later+" has a later output")
	case f.st.PendingCandidates() >= state.MaxCandidates:
		f.conclude(row, state.CandidateRejected, "", fmt.Sprintf("the quarantine is full: %d outputs wait for a decision: approve or reject some of them", state.MaxCandidates))
	default:
		f.supersede(t, partition)
		put(f, f.st.Candidates, row)
	}
}

// laterThan looks in a partition for a visible output or a pending candidate that is later than the output of the task
// t. It returns the run that made the later output, or "". It need not search history: an output whose row is only in
// history is never later, because its run was triggered before all live runs.
func (f *folder) laterThan(t *state.Task, partition string) (run string) {
	if visible := f.st.Partitions.Get(state.Key2{A: t.AssetKey, B: partition}); visible != nil && isLater(visible.RunID, visible.TaskKey, t) {
		return visible.RunID
	}
	f.st.CandidatesOf(t.AssetKey, partition, func(c *state.Candidate) bool {
		if isLater(c.RunID, c.TaskKey, t) {
			run = c.RunID
		}
		return run == ""
	})
	return run
}

// isLater reports whether the output of one task, given by its run and its key, is later than the output of another
// task t. The run that was triggered later has the later output. Within a run, the task with the greater key has the
// later output.
func isLater(runID, taskKey string, t *state.Task) bool {
	return cmp.Or(cmp.Compare(runID, t.RunID), cmp.Compare(taskKey, t.TaskKey)) > 0
}

// supersede marks the pending candidate of a partition of t as superseded, unless the candidate is from a later task.
func (f *folder) supersede(t *state.Task, partition string) {
	if f.st.Candidates.Len() == 0 { // avoid an allocation in the usual case
		return
	}
	var older []*state.Candidate
	f.st.CandidatesOf(t.AssetKey, partition, func(c *state.Candidate) bool {
		if !isLater(c.RunID, c.TaskKey, t) {
			older = append(older, c)
		}
		return true
	})
	for _, c := range older {
		row := *c
		f.conclude(&row, state.CandidateSuperseded, "", "run "+t.RunID+" has a later output")
	}
}

// conclude puts a candidate into a final state.
func (f *folder) conclude(row *state.Candidate, s state.CandidateState, by, reason string) {
	row.State, row.ResolvedAt, row.ResolvedBy, row.Reason = s, f.at(), by, reason
	put(f, f.st.Candidates, row)
}

// maxFailedChecks limits the number of failed checks in the row of a candidate. maxFailedMessage limits the length of
// their messages in bytes.
const (
	maxFailedChecks  = 10
	maxFailedMessage = 300
)

// failedChecks returns the first checks of severity CRITICAL that did not pass.
func failedChecks(t *state.Task, results []event.CheckResult) []state.FailedCheck {
	failed := []state.FailedCheck{}
	for i := range results {
		r := &results[i]
		if r.Passed || severityOf(t, r) != severityCritical {
			continue
		}
		if len(failed) == maxFailedChecks {
			break
		}
		message := r.Message
		if len(message) > maxFailedMessage {
			message = strings.ToValidUTF8(message[:maxFailedMessage], "") + "…"
		}
		failed = append(failed, state.FailedCheck{Check: r.Name, Message: message, Sample: r.Sample})
	}
	return failed
}

// quarantineResolved applies a decision about a candidate.
func (f *folder) quarantineResolved(p *event.QuarantineResolved) verdict {
	old := f.st.Candidates.Get(state.Key3{A: p.Asset, B: p.Partition, C: p.MaterializationID})
	switch {
	case old == nil:
		return stale("the output is not in quarantine")
	case old.CommandID == p.CommandID:
		return noChange
	case old.State != state.CandidatePending:
		return stale("the output is " + string(old.State))
	}
	if f.at() >= old.ExpiresAt {
		// The timer has not fired yet, although the candidate has expired. A rebuild may fold the timer before the
		// decision. So the expiry must win, whichever of them is folded first.
		f.expire(old)
		return stale("the output has expired")
	}
	for _, one := range f.candidatesOf(old) {
		row := *one
		row.CommandID = p.CommandID
		if p.Decision == event.DecisionApprove {
			f.approve(&row, f.ev.Actor, p.Reason)
		} else {
			f.conclude(&row, state.CandidateRejected, f.ev.Actor, p.Reason)
		}
	}
	return folded
}

// candidatesOf returns the pending candidates of an output. For a batch, it returns the candidates of all partitions,
// because a decision covers the whole batch. A candidate that a later output has superseded is no longer pending, so it
// is omitted.
func (f *folder) candidatesOf(one *state.Candidate) (rows []*state.Candidate) {
	f.st.Candidates.Ascend(state.Key3{A: one.AssetKey}, func(row *state.Candidate) bool {
		if row.AssetKey != one.AssetKey {
			return false
		}
		if row.MaterializationID == one.MaterializationID && row.State == state.CandidatePending {
			rows = append(rows, row)
		}
		return true
	})
	return rows
}

// approve makes a candidate the visible output of its partition. No task has read the output before, so its version is
// the sequence number of the approval. If the task read the outputs of all upstreams, the candidate's LeftOut is 0.
// approve then sets LeftOut to the sequence number at which the candidate was made: other runs of the chain of retries
// may have made outputs between then and the approval, and the task cannot have read these. approve also ends the
// alerts about the partition, as a success does.
func (f *folder) approve(row *state.Candidate, by, reason string) {
	f.conclude(row, state.CandidateApproved, by, reason)
	f.recovered(subjectAsset+row.AssetKey, row.AssetKey,
		[]string{event.CauseTaskFailed, event.CauseQuarantined, event.CauseCheckFailed, event.CauseSLAMissed}, row.PartitionKey)
	f.learnFrom(row)
	f.show(&state.Partition{
		AssetKey: row.AssetKey, PartitionKey: row.PartitionKey, Status: state.Materialized,
		MaterializationID: row.MaterializationID, MaterializedAt: f.at(), RunID: row.RunID, TaskKey: row.TaskKey,
		OutputURI: row.OutputURI, RowCount: row.RowCount, ByteSize: row.ByteSize, SchemaHash: row.SchemaHash, Quality: state.Approved,
		Code: row.Code, VersionSeq: f.seq, InputsSeq: row.InputsSeq, RootRun: row.RootRun, LeftOut: orDefault(row.LeftOut, row.MadeSeq),
	})
}

// expire ends a pending candidate for which no decision was made in time.
func (f *folder) expire(pending *state.Candidate) {
	row := *pending
	reason := "expired after " + row.ExpiresAt.Sub(row.BlockedAt).String()
	if row.ApproveOnExpiry {
		f.approve(&row, "", reason)
	} else {
		f.conclude(&row, state.CandidateRejected, "", reason)
	}
}
