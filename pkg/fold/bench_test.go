package fold_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/state"
)

// apply folds payloads as one group, without checking the state.
func apply(w *foldtest.World, payloads ...event.Payload) { fold.Apply(w.State, w.Group(payloads...)) }

// triggered starts a run of tasks without checking the state.
func triggered(w *foldtest.World, defs ...event.TaskDef) string {
	p := &event.RunTriggered{}
	apply(w, w.Triggered(p, defs...)...)
	return p.RunID
}

// fill starts ten runs with n tasks in total, all in pool db.
func fill(w *foldtest.World, n int) {
	for range 10 {
		defs := make([]event.TaskDef, n/10)
		for i := range defs {
			defs[i] = foldtest.Task(fmt.Sprintf("t%05d", i))
			defs[i].Pool = "db"
		}
		triggered(w, defs...)
	}
}

// first returns the first row of the outbox.
func first(s *state.State) *state.Dispatch {
	for row := range s.Outbox.All {
		return row
	}
	return nil
}

// BenchmarkFan measures a whole run: one task, then a thousand tasks, then one task.
func BenchmarkFan(b *testing.B) {
	const width = 1000
	defs := []event.TaskDef{foldtest.Task("first")}
	last := foldtest.Task("last")
	for i := range width {
		key := fmt.Sprintf("fan%04d", i)
		defs = append(defs, foldtest.Task(key, "first"))
		last.DependsOn = append(last.DependsOn, key)
	}
	defs = append(defs, last)
	b.ReportAllocs()
	events := 0
	for b.Loop() {
		w := foldtest.New(b)
		run := triggered(w, defs...)
		for i := range defs {
			apply(w, w.Started(run, defs[i].TaskKey, 1))
			apply(w, w.Finished(run, defs[i].TaskKey, 1, event.Succeeded))
		}
		events += 2*len(defs) + 2
		if w.RunState(run) != state.RunSucceeded {
			b.Fatalf("the run is %s, want SUCCEEDED", w.RunState(run))
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(events), "ns/event")
}

// BenchmarkChainHop measures one hop of a chain: a task ends, and the next one is admitted and
// dispatched.
func BenchmarkChainHop(b *testing.B) {
	const length = 1000
	defs := make([]event.TaskDef, length)
	for i := range defs {
		defs[i] = foldtest.Task(fmt.Sprintf("t%04d", i))
		if i > 0 {
			defs[i].DependsOn = []string{defs[i-1].TaskKey}
		}
	}
	w := foldtest.New(b)
	run, next := "", length
	b.ReportAllocs()
	for b.Loop() {
		if next == length {
			b.StopTimer()
			run, next = triggered(w, defs...), 0
			b.StartTimer()
		}
		apply(w, w.Finished(run, defs[next].TaskKey, 1, event.Succeeded))
		next++
	}
}

// BenchmarkAdmission measures the time to assign a free slot of a pool to the next waiting task. This time must not
// depend on the number of waiting tasks.
func BenchmarkAdmission(b *testing.B) {
	for _, waiting := range []int{100, 10_000, 100_000} {
		b.Run(fmt.Sprintf("waiting=%d", waiting), func(b *testing.B) {
			w := foldtest.New(b)
			apply(w, &event.LimitSet{CommandID: w.ID(), Scope: event.ScopePool, Name: "db", Slots: 1})
			fill(w, waiting)
			full := w.State
			b.ReportAllocs()
			for n := 0; b.Loop(); n++ {
				if n%(waiting/2) == 0 {
					w.State = full.Copy() // half of the tasks have ended: begin with a new state
				}
				row := first(w.State)
				apply(w, w.Finished(row.RunID, row.TaskKey, 1, event.Succeeded))
			}
		})
	}
}

// BenchmarkCopyAndFold copies a state with 100,000 live tasks, and then folds one group, which copies the changed
// parts of the state.
func BenchmarkCopyAndFold(b *testing.B) {
	w := foldtest.New(b)
	fill(w, 100_000)
	running := first(w.State)
	apply(w, w.Started(running.RunID, running.TaskKey, 1))
	b.ReportAllocs()
	for b.Loop() {
		w.State = w.State.Copy()
		w.Pass(time.Microsecond)
		apply(w, w.Beat(running.RunID, running.TaskKey, 1))
	}
}
