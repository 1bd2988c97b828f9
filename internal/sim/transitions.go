package sim

import (
	"context"
	"encoding/json"
	"math"
	"slices"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/state"
)

// checkTransitions checks the changes of one revision.
func (o *oracle) checkTransitions(f *followed, before, after *state.State) {
	o.checkDeployments(f, before, after)
	o.checkAudits(f, before, after)
	for was := range replaced(f, before.Runs) {
		is := after.Runs.Get(was.RunID)
		if is == nil {
			o.violation("I-15 nothing is lost", "run %s has vanished", was.RunID)
			continue
		}
		if was.State.Terminal() && *was != *is {
			o.violation("I-18 finished is final", "run %s was %s and is %s", was.RunID, was.State, is.State)
		}
	}
	for is := range changed(f, after.Tasks) {
		was := before.Tasks.Get(is.Key())
		if was == nil {
			was = &state.Task{}
		} else if was == is || *was == *is {
			continue
		}
		o.checkTransition(f, after, was, is)
		if run := before.Runs.Get(is.RunID); run != nil && run.State == state.RunCancelling && is.State == state.TaskSucceeded {
			o.violation("cancelled is cancelled", "task %s of run %s succeeds after the request to cancel it", is.TaskKey, is.RunID)
		}
	}
}

func (o *oracle) checkTransition(f *followed, s *state.State, was, is *state.Task) {
	switch {
	case was.State.Terminal(): // a final state must never change: history keeps the rows of closed runs as they are
		o.violation("I-18 finished is final", "task %s of run %s was %s and is %s", is.TaskKey, is.RunID, was.State, is.State)
	case is.Attempt < was.Attempt:
		o.violation("INV-8 attempts only grow", "task %s of run %s was at attempt %d and is at %d", is.TaskKey, is.RunID, was.Attempt, is.Attempt)
	case is.Attempt > is.MaxAttempts:
		o.violation("INV-8 attempts only grow", "task %s of run %s is at attempt %d of %d", is.TaskKey, is.RunID, is.Attempt, is.MaxAttempts)
	}
	begun := is.AdmittedAt != 0 && was.AdmittedAt == 0 || is.State == state.TaskRunning && was.State != state.TaskRunning
	if begun && !mayStart(f, s, is) {
		o.violation("INV-6 dependency order", "task %s of run %s is %s before its upstreams allow it", is.TaskKey, is.RunID, is.State)
	}
	if is.State == state.TaskSucceeded && was.State != state.TaskSucceeded {
		o.checkOutput(f, is)
	}
}

// mayStart reports whether a task may start. It is independent of the fold's rule.
func mayStart(f *followed, s *state.State, t *state.Task) bool {
	for _, upstream := range f.index.upstreams[t.Key()] {
		up := s.Tasks.Get(state.Key2{A: t.RunID, B: upstream})
		ok := up.State == state.TaskSucceeded
		switch t.TriggerRule {
		case event.RuleAllDone:
			ok = up.State.Terminal()
		case event.RuleNoneFailed:
			ok = ok || up.State == state.TaskSkipped && !failedAbove(f, s, up)
		}
		if !ok {
			return false
		}
	}
	return true
}

// failedAbove reports whether a task has failed, or was skipped because a task above it failed. It is independent of
// the fold's rule.
func failedAbove(f *followed, s *state.State, t *state.Task) bool {
	if t.State == state.TaskFailed || t.State != state.TaskSkipped || t.TriggerRule == event.RuleAllDone {
		return t.State == state.TaskFailed
	}
	return slices.ContainsFunc(f.index.upstreams[t.Key()], func(upstream string) bool {
		return failedAbove(f, s, s.Tasks.Get(state.Key2{A: t.RunID, B: upstream}))
	})
}

// checkOutput verifies that each task takes effect exactly once. If the task has succeeded, its row must agree with the
// commit marker and with the files of its output.
func (o *oracle) checkOutput(f *followed, t *state.Task) {
	if t.Kind == event.KindGroup {
		return
	}
	asset, err := ids.ParseAssetKey(t.AssetKey)
	if err != nil {
		o.violation("INV-4 effects once", "task %s: %v", t.TaskKey, err)
		return
	}
	o.checkSucceeded(t)
	key := contract.CommitMarkerKey(f.domain, asset, t.PartitionKey, ids.MaterializationID(f.domain, t.RunID, t.TaskKey))
	data, _, err := o.w.blobs.Get(context.Background(), key)
	if o.w.load.bare(t.AssetKey) {
		if err == nil || t.OutputURI != "" {
			o.violation("INV-4 effects once", "task %s of run %s has no output, but the row says %q", t.TaskKey, t.RunID, t.OutputURI)
		}
		return
	}
	if err != nil {
		o.violation("INV-4 effects once", "task %s of run %s succeeded without a commit marker: %v", t.TaskKey, t.RunID, err)
		return
	}
	var marker contract.CommitMarker
	if err := json.Unmarshal(data, &marker); err != nil || marker.URI != t.OutputURI {
		o.violation("INV-4 effects once", "task %s of run %s has the output %s, but its marker names %s (%v)",
			t.TaskKey, t.RunID, t.OutputURI, marker.URI, err)
		return
	}
	if len(marker.Cells) > 0 || f.state.BatchOf(t.RunID, t.TaskKey) != nil {
		o.checkBatchOutput(f, t, &marker)
	}
	row := f.state.Partitions.Get(state.Key2{A: t.AssetKey, B: t.PartitionKey})
	if t.SchemaHash != marker.SchemaHash || row != nil && row.MaterializationID == t.MaterializationID && row.SchemaHash != marker.SchemaHash {
		o.violation("INV-4 effects once", "task %s of run %s has schema %q, its partition %+v, its marker %q",
			t.TaskKey, t.RunID, t.SchemaHash, row, marker.SchemaHash)
	}
	for _, file := range marker.Files {
		data, _, err := o.w.blobs.Get(context.Background(), marker.URI+file.Name)
		if (err != nil || blob.CRC32C(data) != file.CRC32C) && !o.w.damaged[marker.URI+file.Name] {
			o.violation("INV-4 effects once", "file %s of task %s of run %s differs from its marker (%v)", file.Name, t.TaskKey, t.RunID, err)
		}
	}
}

// checkSucceeded checks that the workload lets the attempt of a task succeed.
func (o *oracle) checkSucceeded(t *state.Task) {
	if b := o.w.load.behaveTask(t.TaskKey); b.failures >= t.Attempt {
		o.violation("reference model", "task %s of run %s succeeded at attempt %d, but the first %d attempts fail", t.TaskKey, t.RunID, t.Attempt, b.failures)
	}
}

// checkLimits checks that the admissions of a revision exceed no limit. The parameter occupied contains the slots that
// were in use in the previous revision.
func (o *oracle) checkLimits(f *followed, before, after *state.State, occupied slotCount) {
	now := f.index.slots
	var admitted []*state.Task
	// If the folding order is lost, a report may come from an attempt that the old timeline admitted. Such an attempt
	// occupies a slot even if this exceeds a limit in the new timeline.
	reported := newSlotCount()
	for t := range changed(f, after.Tasks) {
		switch was := before.Tasks.Get(t.Key()); {
		case t == was || t.AdmittedAt == 0 || was != nil && was.AdmittedAt == t.AdmittedAt && was.Attempt == t.Attempt:
		case f.unordered && t.State == state.TaskRunning:
			reported.count(t)
		default:
			admitted = append(admitted, t)
		}
	}
	for _, t := range admitted {
		run := after.Runs.Get(t.RunID)
		workspace := limit(before, after, event.ScopeWorkspace, "")
		pool := limit(before, after, event.ScopePool, t.Pool)
		switch {
		case reported.all == 0 && now.all > max(workspace, occupied.all):
			o.violation("limits", "%d tasks of %s hold slots; the limit is %d", now.all, f.domain, workspace)
		case reported.run[t.RunID] == 0 && run.MaxParallelism > 0 && now.run[t.RunID] > run.MaxParallelism:
			o.violation("limits", "%d tasks of run %s hold slots; the limit is %d", now.run[t.RunID], t.RunID, run.MaxParallelism)
		case reported.pool[t.Pool] == 0 && now.pool[t.Pool] > max(pool, occupied.pool[t.Pool]):
			o.violation("limits", "%d tasks of pool %s hold slots; the limit is %d", now.pool[t.Pool], t.Pool, pool)
		}
	}
}

// limit returns the limit before or after a revision, whichever is higher, because the revision may admit tasks under
// either limit.
func limit(before, after *state.State, scope, name string) int32 {
	most := int32(math.MaxInt32)
	if slots, limited := after.SlotLimit(scope, name); limited {
		most = slots
	}
	if slots, limited := before.SlotLimit(scope, name); !limited {
		return math.MaxInt32
	} else if slots > most {
		return slots
	}
	return most
}

// slotCount counts the slots that tasks occupy.
type slotCount struct {
	all       int32
	run, pool map[string]int32
}

func newSlotCount() slotCount { return slotCount{run: map[string]int32{}, pool: map[string]int32{}} }

func (h *slotCount) count(t *state.Task) { h.add(t, 1) }

// add adds n slots if a task occupies one. It keeps no counts of zero.
func (h *slotCount) add(t *state.Task, n int32) {
	if t == nil || t.AdmittedAt == 0 {
		return
	}
	h.all += n
	if h.run[t.RunID] += n; h.run[t.RunID] == 0 {
		delete(h.run, t.RunID)
	}
	if h.pool[t.Pool] += n; h.pool[t.Pool] == 0 {
		delete(h.pool, t.Pool)
	}
}
