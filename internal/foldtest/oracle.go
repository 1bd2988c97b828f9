package foldtest

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/state"
)

// Check returns an error if a state breaks a rule that must hold after every group. It checks each rule on the rows
// themselves, without the fold's indexes. It visits every row, so it is suitable only for small states.
func Check(s *state.State) error {
	var errs []error
	for run := range s.Runs.All {
		errs = append(errs, checkRun(s, run))
	}
	for task := range s.Tasks.All {
		errs = append(errs, checkTask(s, task))
	}
	return errors.Join(append(errs,
		checkCandidates(s), checkHistory(s), checkStatistics(s), checkEdges(s), checkOutbox(s), checkRetryTimers(s), checkLiveness(s), checkAdmission(s), CheckBackfills(s), s.Verify())...)
}

// checkRun compares the counters and the state of a run with its tasks.
func checkRun(s *state.State, run *state.Run) error {
	n := map[state.TaskState]int32{}
	total, ended, slots := int32(0), int32(0), 0
	s.TasksOf(run.RunID, func(t *state.Task) bool {
		if t.AdmittedAt != 0 {
			slots++
		}
		if t.Kind == event.KindGroup {
			return true
		}
		n[t.State]++
		total++
		if t.State.Terminal() {
			ended++
		}
		return true
	})
	have := []int32{
		run.TasksTotal, run.TasksBlocked, run.TasksReady, run.TasksDispatch, run.TasksRunning, run.TasksRetryWait,
		run.TasksSkipped, run.TasksCancelled, run.TasksFailed, run.TasksSucceeded,
	}
	want := []int32{
		total, n[state.TaskBlocked], n[state.TaskReady], n[state.TaskDispatched], n[state.TaskRunning],
		n[state.TaskRetryWait], n[state.TaskSkipped], n[state.TaskCancelled], n[state.TaskFailed], n[state.TaskSucceeded],
	}
	switch {
	case fmt.Sprint(have) != fmt.Sprint(want):
		return fmt.Errorf("run %s has the counters %v, want %v from its tasks", run.RunID, have, want)
	case total > 0 && (ended == total) != run.State.Terminal():
		return fmt.Errorf("run %s is %s with %d of %d tasks ended", run.RunID, run.State, ended, total)
	case run.State.Terminal() != (run.CompletedAt != 0):
		return fmt.Errorf("run %s is %s, but its completion time is %q", run.RunID, run.State, run.CompletedAt)
	case run.State == state.RunCancelling && total > ended+n[state.TaskRunning]:
		return fmt.Errorf("run %s is CANCELLING, but %d of its tasks may still start", run.RunID, total-ended-n[state.TaskRunning])
	case slots > 0 && run.State == state.RunPending:
		return fmt.Errorf("run %s is PENDING, but uses %d slots", run.RunID, slots)
	}
	return nil
}

// checkTask compares a task with its attempt, its heartbeat and its outbox row.
func checkTask(s *state.State, t *state.Task) error {
	attempt := s.Attempts.Get(state.AttemptKey{RunID: t.RunID, TaskKey: t.TaskKey, Attempt: t.Attempt})
	row := s.Outbox.Get(ids.DispatchID(t.RunID, t.TaskKey, t.Attempt))
	beat := s.Heartbeats.Get(t.Key())
	fail := func(what string) error { return fmt.Errorf("task %s %s: %s", t.TaskKey, t.State, what) }
	admitted := t.AdmittedAt != 0
	waits := admitted && (t.State == state.TaskReady || t.State == state.TaskDispatched)
	switch {
	case t.Kind == event.KindGroup && (admitted || t.Attempt != 0):
		return fail("a group node was dispatched")
	case t.Attempt > 0 && t.AttemptID != ids.AttemptID(s.Domain, t.RunID, t.TaskKey, t.Attempt):
		return fail("its attempt id is not derived from its key")
	case admitted && !waits && t.State != state.TaskRunning:
		return fail("it must not have slots")
	case !admitted && (t.State == state.TaskDispatched || t.State == state.TaskRunning):
		return fail("it has no slots")
	case waits != (row != nil):
		return fail("a task must have an outbox row if and only if it waits for a worker")
	case row != nil && (row.AttemptID != t.AttemptID || row.Status != state.DispatchPending && row.Status != state.DispatchCreated):
		return fail("its outbox row is " + string(row.Status) + " for attempt " + row.AttemptID)
	case (beat != nil) != (t.State == state.TaskRunning):
		return fail("a task must have a heartbeat if and only if it is running")
	case beat != nil && beat.AttemptID != t.AttemptID:
		return fail("its heartbeat belongs to another attempt")
	case waits && (attempt == nil || attempt.State != state.AttemptAdmitted):
		return fail("its attempt is not ADMITTED")
	case t.State == state.TaskRunning && (attempt == nil || attempt.State != state.AttemptRunning):
		return fail("its attempt is not RUNNING")
	case !admitted && attempt != nil && attempt.State != state.AttemptClosed:
		return fail("its attempt is not CLOSED")
	case t.State.Terminal() != (t.CompletedAt != 0):
		return fail("completed_at is " + t.CompletedAt.String())
	case t.GrantedAttempts < 0 || t.GrantedAttempts > fold.MaxGrantedAttempts || t.MaxAttempts <= t.GrantedAttempts:
		return fail(fmt.Sprintf("%d of its %d attempts are granted", t.GrantedAttempts, t.MaxAttempts))
	case t.Kind == event.KindCheck && (t.OutputURI != "" || t.MaterializationID != "" || t.Quality != ""):
		return fail("a task that only checks must not materialize anything")
	case t.OutputURI != "" && t.State != state.TaskSucceeded:
		return fail("it must not have an output")
	}
	return nil
}

// checkEdges compares each edge with its upstream task, and the counters of each task with its edges. The counters of a
// task that has ended need not include edges that were resolved later.
func checkEdges(s *state.State) error {
	resolved, satisfied := map[state.Key2]int32{}, map[state.Key2]int32{}
	for d := range s.Deps.All {
		up := s.Tasks.Get(state.Key2{A: d.RunID, B: d.Upstream})
		want := Resolution(up.State)
		if reader := s.Tasks.Get(state.Key2{A: d.RunID, B: d.Downstream}); up.Quality == state.Degraded && up.State == state.TaskSucceeded &&
			strings.Contains(reader.RequireQuality, strconv.Quote(up.AssetKey)) {
			want = state.ResolvedSkipped
		}
		if d.Resolution != want {
			return fmt.Errorf("edge %s→%s is %q, but its upstream is %s", d.Upstream, d.Downstream, d.Resolution, up.State)
		}
		down := state.Key2{A: d.RunID, B: d.Downstream}
		if d.Resolution != "" {
			resolved[down]++
		}
		if d.Satisfied != (d.Resolution == state.ResolvedSuccess) {
			return fmt.Errorf("edge %s→%s is %q, but its field satisfied is %t", d.Upstream, d.Downstream, d.Resolution, d.Satisfied)
		}
		if d.Satisfied {
			satisfied[down]++
		}
	}
	for t := range s.Tasks.All {
		if t.State.Terminal() && t.DepsResolved <= resolved[t.Key()] && t.DepsSatisfied <= satisfied[t.Key()] {
			continue
		}
		if t.DepsResolved != resolved[t.Key()] || t.DepsSatisfied != satisfied[t.Key()] {
			return fmt.Errorf("task %s counts %d resolved and %d satisfied edges, want %d and %d",
				t.TaskKey, t.DepsResolved, t.DepsSatisfied, resolved[t.Key()], satisfied[t.Key()])
		}
	}
	return nil
}

// Resolution returns how the outgoing edges of a task in the given state are resolved, or "" if the task has not
// ended.
func Resolution(s state.TaskState) state.Resolution {
	return map[state.TaskState]state.Resolution{
		state.TaskSucceeded: state.ResolvedSuccess, state.TaskFailed: state.ResolvedFailed,
		state.TaskSkipped: state.ResolvedSkipped, state.TaskCancelled: state.ResolvedCancelled,
	}[s]
}

// checkCandidates checks that a partition has at most one pending candidate, and that the candidate is
// later than the visible output.
func checkCandidates(s *state.State) error {
	pending := map[state.Key2]string{}
	for c := range s.Candidates.All {
		key := state.Key2{A: c.AssetKey, B: c.PartitionKey}
		visible := s.Partitions.Get(key)
		switch {
		case (c.State == state.CandidatePending) != (c.ResolvedAt == 0):
			return fmt.Errorf("candidate %s is %s, but its resolution time is %q", c.MaterializationID, c.State, c.ResolvedAt)
		case c.State != state.CandidatePending:
			continue
		case pending[key] != "":
			return fmt.Errorf("partition %s %s has two pending candidates", key.A, key.B)
		case visible != nil && (visible.RunID > c.RunID || visible.RunID == c.RunID && visible.TaskKey >= c.TaskKey):
			return fmt.Errorf("candidate %s of run %s is pending, but run %s has a later output", c.MaterializationID, c.RunID, visible.RunID)
		}
		pending[key] = c.MaterializationID
	}
	return nil
}

// checkHistory checks that no quality check compares an output with measurements of a hidden output.
func checkHistory(s *state.State) error {
	for row := range s.CheckHistory.All {
		var values []state.HistoryValue
		if err := json.Unmarshal([]byte(row.Values), &values); err != nil {
			return fmt.Errorf("history of check %s of %s: %w", row.Check, row.AssetKey, err)
		}
		for _, v := range values {
			if visible := s.Partitions.Get(state.Key2{A: row.AssetKey, B: v.Partition}); visible != nil && visible.RunID == v.Run && s.Hidden(visible) && !madeTwice(s, visible) {
				return fmt.Errorf("check %s of %s compares with the output of run %s, which is marked as missing", row.Check, row.AssetKey, v.Run)
			}
		}
	}
	return nil
}

// madeTwice reports whether another task of the same run has materialized the same partition, which happens only in
// runs that a test generates at random. A recorded value of a check names only its run, so it may come from the other
// task.
func madeTwice(s *state.State, row *state.Partition) (twice bool) {
	s.Tasks.Ascend(state.Key2{A: row.RunID}, func(t *state.Task) bool {
		twice = t.RunID == row.RunID && t.AssetKey == row.AssetKey && t.PartitionKey == row.PartitionKey && t.TaskKey != row.TaskKey &&
			t.State == state.TaskSucceeded
		return t.RunID == row.RunID && !twice
	})
	return twice
}

// checkOutbox checks that every outbox row belongs to a current attempt and names its queue task.
func checkOutbox(s *state.State) error {
	for row := range s.Outbox.All {
		t := s.Tasks.Get(state.Key2{A: row.RunID, B: row.TaskKey})
		if t == nil || t.Attempt != row.Attempt {
			return fmt.Errorf("outbox row %s does not belong to a current attempt", row.DispatchID)
		}
		if want := ids.QueueTaskID(ids.KindDispatch, s.Domain, row.DispatchID, row.Generation); row.QueueTaskName != want {
			return fmt.Errorf("outbox row %s generation %d names queue task %s", row.DispatchID, row.Generation, row.QueueTaskName)
		}
	}
	return nil
}

// checkRetryTimers checks that every task that waits for a retry has a retry timer, and that no other task has one.
func checkRetryTimers(s *state.State) error {
	timers := map[state.Key2]int{}
	for row := range s.Timers.All {
		if row.TimerType == event.TimerRetry && row.State == state.TimerScheduled {
			timers[state.Key2{A: row.RunID, B: row.TaskKey}]++
		}
	}
	waiting := 0
	for t := range s.Tasks.All {
		if t.State != state.TaskRetryWait {
			continue
		}
		if waiting++; timers[t.Key()] != 1 {
			return fmt.Errorf("task %s waits for a retry, but has %d timers", t.TaskKey, timers[t.Key()])
		}
	}
	if waiting != len(timers) {
		return fmt.Errorf("%d tasks wait for a retry, but %d tasks have retry timers", waiting, len(timers))
	}
	return nil
}

// checkLiveness checks that at most one liveness timer is scheduled, and that it fires in time for the next deadline.
func checkLiveness(s *state.State) error {
	var timer *state.Timer
	for row := range s.Timers.All {
		if row.TimerType != event.TimerLiveness || row.State != state.TimerScheduled {
			continue
		}
		if timer != nil {
			return fmt.Errorf("two liveness timers are scheduled: %s and %s", timer.TimerID, row.TimerID)
		}
		timer = row
	}
	next, ok := s.NextDeadline()
	switch {
	case !ok:
		return nil
	case timer == nil:
		return fmt.Errorf("the next deadline is %+v, but no liveness timer is scheduled", next)
	}
	latest := next.At.Add(max(min(next.Timeout/10, 30*time.Second), time.Second))
	if next.At <= s.FoldTime {
		latest = max(latest, s.FoldTime.Add(fold.LateRetry))
	}
	if timer.FireAt > latest {
		return fmt.Errorf("the next deadline is %+v, but the liveness timer fires at %s", next, timer.FireAt)
	}
	return nil
}

// checkAdmission checks that no task waits for a slot although it may be admitted.
func checkAdmission(s *state.State) error {
	used := countSlots(s)
	for t := range s.Tasks.All {
		if used.admit(s, t) {
			return fmt.Errorf("task %s waits for a slot, but one is free", t.TaskKey)
		}
	}
	return nil
}

// usedSlots counts the admitted tasks in the workspace, in each run and in each pool.
type usedSlots struct {
	all       int32
	run, pool map[string]int32
}

func countSlots(s *state.State) usedSlots {
	used := usedSlots{run: map[string]int32{}, pool: map[string]int32{}}
	for t := range s.Tasks.All {
		if t.AdmittedAt != 0 {
			used.all++
			used.run[t.RunID]++
			used.pool[t.Pool]++
		}
	}
	return used
}

func (used usedSlots) admit(s *state.State, t *state.Task) bool {
	run := s.Runs.Get(t.RunID)
	if t.State != state.TaskReady || t.AdmittedAt != 0 || run.State != state.RunPending && run.State != state.RunRunning {
		return false
	}
	workspace, _ := s.SlotLimit(event.ScopeWorkspace, "")
	pool, limited := s.SlotLimit(event.ScopePool, t.Pool)
	return used.all < workspace && (run.MaxParallelism == 0 || used.run[t.RunID] < run.MaxParallelism) && (!limited || used.pool[t.Pool] < pool)
}

// SlotsInUse counts the admitted tasks in the workspace, in a run and in a pool.
func SlotsInUse(s *state.State, runID, pool string) (all, inRun, inPool int32) {
	for t := range s.Tasks.All {
		if t.AdmittedAt == 0 {
			continue
		}
		all++
		if t.RunID == runID {
			inRun++
		}
		if t.Pool == pool {
			inPool++
		}
	}
	return all, inRun, inPool
}
