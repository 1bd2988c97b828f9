package fold_test

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/state"
)

// drawDAG draws tasks and group nodes, with edges to earlier ones only.
func drawDAG(r *rapid.T, most int) []event.TaskDef {
	defs := make([]event.TaskDef, rapid.IntRange(1, most).Draw(r, "tasks"))
	for i := range defs {
		def := event.TaskDef{TaskKey: string(rune('a' + i)), AssetKey: fmt.Sprintf("test/a%d", i%3)}
		def.TriggerRule = rapid.SampledFrom([]string{"", event.RuleNoneFailed, event.RuleAllDone}).Draw(r, "rule")
		if rapid.IntRange(0, 5).Draw(r, "kind") == 0 {
			def.Kind, def.AssetKey = event.KindGroup, ""
		}
		def.MaxAttempts = rapid.Int32Range(1, 3).Draw(r, "attempts")
		for j := range i {
			if rapid.IntRange(0, 2).Draw(r, "edge") == 0 {
				def.DependsOn = append(def.DependsOn, defs[j].TaskKey)
			}
		}
		defs[i] = def
	}
	return defs
}

// history contains the facts of a run and the final states of its tasks, which a model computes without the fold.
type history struct {
	facts []*event.Envelope
	ends  map[string]state.TaskState
	// failures contains the tasks that were skipped because of a failure.
	failures map[string]bool
}

// simulate executes a run to its end, task by task.
func simulate(r *rapid.T, w *foldtest.World, run string, defs []event.TaskDef) history {
	h := history{ends: map[string]state.TaskState{}, failures: map[string]bool{}}
	for i := range defs {
		def := &defs[i]
		runs, end := h.rule(def)
		switch {
		case !runs:
			h.ends[def.TaskKey] = end
		case def.Kind == event.KindGroup:
			h.ends[def.TaskKey] = state.TaskSucceeded
		default:
			h.ends[def.TaskKey] = h.attempts(r, w, run, def)
		}
	}
	return h
}

// rule applies the trigger rule of a task whose upstreams have ended. It returns whether the task runs and, if not,
// its final state.
func (h *history) rule(def *event.TaskDef) (bool, state.TaskState) {
	failed, skipped := false, false
	for _, up := range def.DependsOn {
		failed = failed || h.ends[up] == state.TaskFailed || h.failures[up]
		skipped = skipped || h.ends[up] == state.TaskSkipped
	}
	h.failures[def.TaskKey] = failed && def.TriggerRule != event.RuleAllDone
	switch def.TriggerRule {
	case event.RuleAllDone:
		return true, ""
	case event.RuleNoneFailed:
		return !failed, state.TaskSkipped
	}
	return !failed && !skipped, state.TaskSkipped
}

// attempts executes the attempts of a task and returns its final state.
func (h *history) attempts(r *rapid.T, w *foldtest.World, run string, def *event.TaskDef) state.TaskState {
	record := func(p event.Payload) {
		h.facts = append(h.facts, w.Event(p))
		w.Pass(time.Second)
	}
	granted := int32(0)
	for n := int32(1); ; n++ {
		started := w.Started(run, def.TaskKey, n)
		started.GrantedAttempts = granted
		record(started)
		for range rapid.IntRange(0, 2).Draw(r, "beats") {
			beat := w.Beat(run, def.TaskKey, n)
			beat.GrantedAttempts = granted
			record(beat)
		}
		outcome := rapid.SampledFrom([]event.Outcome{event.Succeeded, event.Failed, event.Failed, event.Skipped}).Draw(r, "outcome")
		finished := w.Finished(run, def.TaskKey, n, outcome)
		finished.StartedAt, finished.GrantedAttempts = started.StartedAt, granted
		lost := outcome == event.Failed && granted < fold.MaxGrantedAttempts && rapid.IntRange(0, 2).Draw(r, "lost") == 0
		last := n-granted >= def.MaxAttempts
		if outcome == event.Failed {
			finished.Error.Retryable = !last || lost || rapid.Bool().Draw(r, "retryable")
		}
		if lost {
			finished.Error.Code = fold.CodeWorkerInterrupted
			granted++
		}
		record(finished)
		switch {
		case outcome == event.Succeeded:
			return state.TaskSucceeded
		case outcome == event.Skipped:
			return state.TaskSkipped
		case last && !lost:
			return state.TaskFailed
		}
	}
}

// facts returns the rows of a state without the columns that depend on the order of folding. These are the times at
// which tasks became ready or were admitted, their last heartbeats, and the end times of tasks that never ran.
func facts(s *state.State) *state.Rows {
	var (
		runs       []*state.Run
		tasks      []*state.Task
		deps       []*state.Dep
		attempts   []*state.Attempt
		partitions []*state.Partition
		timers     []*state.Timer
	)
	for row := range s.Runs.All {
		run := *row
		run.Meta, run.StartedAt, run.LastActivityAt = state.Meta{}, 0, 0
		runs = append(runs, &run)
	}
	for row := range s.Tasks.All {
		task := *row
		task.Meta, task.ReadyAt, task.LastHeartbeatAt, task.LeftOut = state.Meta{}, 0, 0, 0
		if task.Attempt == 0 {
			task.CompletedAt = 0
		}
		if task.State.Terminal() {
			task.DepsResolved, task.DepsSatisfied = 0, 0 // depend on which edges were resolved before the task ended
		}
		tasks = append(tasks, &task)
	}
	for row := range s.Deps.All {
		dep := *row
		dep.Meta = state.Meta{}
		if dep.SatisfyingAttempt == 0 {
			dep.SatisfiedAt = 0
		}
		deps = append(deps, &dep)
	}
	for row := range s.Attempts.All {
		attempt := *row
		attempt.Meta, attempt.CreatedAt = state.Meta{}, 0
		attempts = append(attempts, &attempt)
	}
	for row := range s.Partitions.All {
		partition := *row
		partition.Meta, partition.VersionSeq, partition.LeftOut = state.Meta{}, 0, 0
		partitions = append(partitions, &partition)
	}
	for row := range s.Timers.All {
		if row.State == state.TimerScheduled {
			timers = append(timers, row)
		}
	}
	rows := state.Set(&state.Rows{}, runs)
	state.Set(rows, tasks)
	state.Set(rows, deps)
	state.Set(rows, attempts)
	state.Set(rows, partitions)
	state.Set(rows, timers)
	state.Set(rows, s.Outbox.Rows())
	return state.Set(rows, s.Heartbeats.Rows())
}

// I-14. This test failed with each of these mutants of the fold: it keeps the output of a failed attempt;
// recordSuperseded does not set the start time; a run ends only at the end of a group; taskFinished treats an earlier
// attempt as the current one.
func TestI14FactsCommute(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		w := foldtest.New(r)
		defs := drawDAG(r, 7)
		run := w.Run(defs...)
		seed := w.State.Copy()
		h := simulate(r, w, run, defs)

		for _, f := range h.facts {
			w.Apply(fold.Group{Entry: w.ID(), ID: f.ID, Events: []*event.Envelope{f}})
		}
		for key, want := range h.ends {
			if got := w.Task(run, key).State; got != want {
				r.Fatalf("task %s is %s, want %s", key, got, want)
			}
		}
		if !w.RunState(run).Terminal() {
			r.Fatalf("the run is %s after all facts", w.RunState(run))
		}
		want := facts(w.State)

		w.State = seed
		shuffled := rapid.Permutation(h.facts).Draw(r, "order")
		for len(shuffled) > 0 {
			n := rapid.IntRange(1, min(4, len(shuffled))).Draw(r, "batch")
			g := fold.Group{Entry: w.ID(), ID: shuffled[0].ID, Events: shuffled[:n]}
			shuffled = shuffled[n:]
			w.Apply(g)
			if rapid.IntRange(0, 3).Draw(r, "again") == 0 {
				g.Entry = w.ID() // the same facts in another entry
				before := foldtest.Effects(w.State)
				if row := w.Apply(g).Row; row.Outcome == state.Folded || foldtest.Compare(foldtest.Effects(w.State), before) != "" {
					r.Fatalf("folding facts a second time: outcome %s, or a row changed", row.Outcome)
				}
			}
		}
		if diff := foldtest.Compare(facts(w.State), want); diff != "" {
			r.Fatalf("another order of facts changes rows: %s", diff)
		}
	})
}
