package snapshot_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold/foldtest"
)

// A reader that has a revision reads on to the next: a run of one task that was triggered,
// beside so many tasks that live.
func BenchmarkRefresh(b *testing.B) {
	for _, live := range []int{0, 10_000, 100_000} {
		b.Run(fmt.Sprintf("live=%d", live), func(b *testing.B) {
			w := newWorld(b)
			w.live(live)
			_, err := w.reader.Current(b.Context())
			require.NoError(b, err)
			for b.Loop() {
				b.StopTimer()
				w.run(foldtest.Task("a"))
				b.StartTimer()
				if _, err := w.reader.Current(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkLoad is a cold start: all of a state is read.
func BenchmarkLoad(b *testing.B) {
	for _, live := range []int{100, 10_000} {
		b.Run(fmt.Sprintf("live=%d", live), func(b *testing.B) {
			w := newWorld(b)
			w.live(live)
			for b.Loop() {
				if _, err := w.newReader().Current(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// live triggers runs with so many tasks together.
func (w *world) live(tasks int) {
	const perRun = 500 // as many as an event has
	defs := make([]event.TaskDef, 0, perRun)
	for i := range perRun {
		defs = append(defs, foldtest.Task(fmt.Sprintf("t%d", i)))
	}
	for ; tasks > 0; tasks -= perRun {
		w.run(defs[:min(perRun, tasks)]...)
	}
}
