package foldtest

import (
	"errors"
	"fmt"
	"time"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/state"
)

// Check reports what is wrong with a state that a fold has left: what must hold
// after every group, said again without the fold's cleverness. It looks at
// everything, so it is for small states.
func Check(s *state.State) error {
	var errs []error
	for run := range s.Runs.All {
		errs = append(errs, checkRun(s, run))
	}
	for task := range s.Tasks.All {
		errs = append(errs, checkTask(s, task))
	}
	return errors.Join(append(errs,
		checkEdges(s), checkOutbox(s), checkRetryTimers(s), checkLiveness(s), checkAdmission(s), s.Verify())...)
}

// checkRun compares a run's counters, and its end, with its tasks.
func checkRun(s *state.State, run *state.Run) error {
	n := map[state.TaskState]int32{}
	total, ended, held := int32(0), int32(0), 0
	s.TasksOf(run.RunID, func(t *state.Task) bool {
		if t.AdmittedAt != 0 {
			held++
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
		return fmt.Errorf("run %s: its counters are %v, its tasks %v", run.RunID, have, want)
	case total > 0 && (ended == total) != run.State.Terminal():
		return fmt.Errorf("run %s is %s with %d of %d tasks ended", run.RunID, run.State, ended, total)
	case run.State.Terminal() != (run.CompletedAt != 0):
		return fmt.Errorf("run %s is %s, completed at %q", run.RunID, run.State, run.CompletedAt)
	case run.State == state.RunCancelling && total > ended+n[state.TaskRunning]:
		return fmt.Errorf("run %s is CANCELLING, and %d of its tasks may still begin", run.RunID, total-ended-n[state.TaskRunning])
	case held > 0 && run.State == state.RunPending:
		return fmt.Errorf("run %s is PENDING and holds %d slots", run.RunID, held)
	}
	return nil
}

// checkTask compares a task with its attempt, its heartbeat and its outbox row.
func checkTask(s *state.State, t *state.Task) error {
	attempt := s.Attempts.Get(state.AttemptKey{RunID: t.RunID, TaskKey: t.TaskKey, Attempt: t.Attempt})
	row := s.Outbox.Get(ids.DispatchID(t.RunID, t.TaskKey, t.Attempt))
	beat := s.Heartbeats.Get(t.Key())
	fail := func(what string) error { return fmt.Errorf("task %s %s: %s", t.TaskKey, t.State, what) }
	holds := t.AdmittedAt != 0
	waits := holds && (t.State == state.TaskReady || t.State == state.TaskDispatched)
	switch {
	case t.Kind == event.KindGroup && (holds || t.Attempt != 0):
		return fail("a group was dispatched")
	case t.Attempt > 0 && t.AttemptID != ids.AttemptID(s.Domain, t.RunID, t.TaskKey, t.Attempt):
		return fail("its attempt id is not derived from its key")
	case holds && !waits && t.State != state.TaskRunning:
		return fail("it holds slots")
	case !holds && (t.State == state.TaskDispatched || t.State == state.TaskRunning):
		return fail("it holds no slots")
	case waits != (row != nil):
		return fail("a task that waits for its worker, and no other, has an outbox row")
	case row != nil && (row.AttemptID != t.AttemptID || row.Status != state.DispatchPending && row.Status != state.DispatchCreated):
		return fail("its outbox row is " + string(row.Status) + " for attempt " + row.AttemptID)
	case (beat != nil) != (t.State == state.TaskRunning):
		return fail("a running task, and no other, has a heartbeat")
	case beat != nil && beat.AttemptID != t.AttemptID:
		return fail("its heartbeat is of another attempt")
	case waits && (attempt == nil || attempt.State != state.AttemptAdmitted):
		return fail("its attempt is not ADMITTED")
	case t.State == state.TaskRunning && (attempt == nil || attempt.State != state.AttemptRunning):
		return fail("its attempt is not RUNNING")
	case !holds && attempt != nil && attempt.State != state.AttemptClosed:
		return fail("its attempt is not CLOSED")
	case t.State.Terminal() != (t.CompletedAt != 0):
		return fail("it completed at " + t.CompletedAt.String())
	case t.GrantedAttempts < 0 || t.GrantedAttempts > fold.MaxGrantedAttempts || t.MaxAttempts <= t.GrantedAttempts:
		return fail(fmt.Sprintf("%d of its %d attempts are granted", t.GrantedAttempts, t.MaxAttempts))
	case t.OutputURI != "" && t.State != state.TaskSucceeded:
		return fail("it has an output")
	}
	return nil
}

// checkEdges compares each edge with its upstream, and the downstreams' counters
// with their edges.
func checkEdges(s *state.State) error {
	resolved, satisfied := map[state.Key2]int32{}, map[state.Key2]int32{}
	for d := range s.Deps.All {
		up := s.Tasks.Get(state.Key2{A: d.RunID, B: d.Upstream})
		if want := Resolution(up.State); d.Resolution != want {
			return fmt.Errorf("edge %s→%s is %q; its upstream is %s", d.Upstream, d.Downstream, d.Resolution, up.State)
		}
		down := state.Key2{A: d.RunID, B: d.Downstream}
		if d.Resolution != "" {
			resolved[down]++
		}
		if d.Satisfied != (d.Resolution == state.ResolvedSuccess) {
			return fmt.Errorf("edge %s→%s is %q, satisfied: %t", d.Upstream, d.Downstream, d.Resolution, d.Satisfied)
		}
		if d.Satisfied {
			satisfied[down]++
		}
	}
	for t := range s.Tasks.All {
		if t.DepsResolved != resolved[t.Key()] || t.DepsSatisfied != satisfied[t.Key()] {
			return fmt.Errorf("task %s counts %d resolved edges, %d satisfied; there are %d and %d",
				t.TaskKey, t.DepsResolved, t.DepsSatisfied, resolved[t.Key()], satisfied[t.Key()])
		}
	}
	return nil
}

// Resolution is what edges of a task in this state say; "" while it has not ended.
func Resolution(s state.TaskState) state.Resolution {
	return map[state.TaskState]state.Resolution{
		state.TaskSucceeded: state.ResolvedSuccess, state.TaskFailed: state.ResolvedFailed,
		state.TaskSkipped: state.ResolvedSkipped, state.TaskCancelled: state.ResolvedCancelled,
	}[s]
}

// checkOutbox finds outbox rows of attempts that are not current.
func checkOutbox(s *state.State) error {
	for row := range s.Outbox.All {
		t := s.Tasks.Get(state.Key2{A: row.RunID, B: row.TaskKey})
		if t == nil || t.Attempt != row.Attempt {
			return fmt.Errorf("outbox row %s is of no current attempt", row.DispatchID)
		}
		if want := ids.QueueTaskID(ids.KindDispatch, s.Domain, row.DispatchID, row.Generation); row.CloudTaskID != want {
			return fmt.Errorf("outbox row %s generation %d is named %s", row.DispatchID, row.Generation, row.CloudTaskID)
		}
	}
	return nil
}

// checkRetryTimers compares the tasks that wait for a retry with the timers.
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
			return fmt.Errorf("task %s waits for a retry with %d timers", t.TaskKey, timers[t.Key()])
		}
	}
	if waiting != len(timers) {
		return fmt.Errorf("%d tasks wait for a retry, but there are timers for %d", waiting, len(timers))
	}
	return nil
}

// checkLiveness finds whether the liveness timer is missing, late, or one of two.
func checkLiveness(s *state.State) error {
	var timer *state.Timer
	for row := range s.Timers.All {
		if row.TimerType != event.TimerLiveness || row.State != state.TimerScheduled {
			continue
		}
		if timer != nil {
			return fmt.Errorf("two liveness timers wait: %s and %s", timer.TimerID, row.TimerID)
		}
		timer = row
	}
	next, ok := s.NextDeadline()
	switch {
	case !ok:
		return nil
	case timer == nil:
		return fmt.Errorf("%+v is the next deadline, and no liveness timer waits", next)
	}
	latest := next.At.Add(max(min(next.Timeout/10, 30*time.Second), time.Second))
	if next.At <= s.FoldTime {
		latest = max(latest, s.FoldTime.Add(fold.LateRetry))
	}
	if timer.FireAt > latest {
		return fmt.Errorf("%+v is the next deadline, but the liveness timer fires at %s", next, timer.FireAt)
	}
	return nil
}

// checkAdmission finds tasks that could have been admitted and were not.
func checkAdmission(s *state.State) error {
	for t := range s.Tasks.All {
		if Admissible(s, t) {
			return fmt.Errorf("task %s waits for a slot, though one is free", t.TaskKey)
		}
	}
	return nil
}

// Admissible reports whether a task may be admitted now under every limit,
// counting the slots by hand.
func Admissible(s *state.State, t *state.Task) bool {
	run := s.Runs.Get(t.RunID)
	if t.State != state.TaskReady || t.AdmittedAt != 0 || run.State != state.RunPending && run.State != state.RunRunning {
		return false
	}
	all, inRun, inPool := Held(s, t.RunID, t.Pool)
	workspace, _ := s.Slots(event.ScopeWorkspace, "")
	pool, limited := s.Slots(event.ScopePool, t.Pool)
	return all < workspace && (run.MaxParallelism == 0 || inRun < run.MaxParallelism) && (!limited || inPool < pool)
}

// Held counts the slots that are held: in all, by a run, and in a pool.
func Held(s *state.State, runID, pool string) (all, inRun, inPool int32) {
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
