package snapshot_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/event"
)

// BenchmarkRefresh measures how long a reader takes to read one new revision, which adds a run of one task, for
// states with different numbers of live tasks.
func BenchmarkRefresh(b *testing.B) {
	for _, live := range []int{0, 10_000, 100_000} {
		b.Run(fmt.Sprintf("live=%d", live), func(b *testing.B) {
			fx := newFixture(b)
			fx.live(live)
			_, err := fx.reader.Current(b.Context())
			require.NoError(b, err)
			for b.Loop() {
				b.StopTimer()
				fx.run(foldtest.Task("a"))
				b.StartTimer()
				if _, err := fx.reader.Current(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkLoad reads a whole state, as a process does at its start.
func BenchmarkLoad(b *testing.B) {
	for _, live := range []int{100, 10_000} {
		b.Run(fmt.Sprintf("live=%d", live), func(b *testing.B) {
			fx := newFixture(b)
			fx.live(live)
			for b.Loop() {
				if _, err := fx.newReader().Current(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// live triggers runs that together have the given number of tasks.
func (fx *fixture) live(tasks int) {
	const perRun = 500 // the maximum number of tasks in an event
	defs := make([]event.TaskDef, 0, perRun)
	for i := range perRun {
		defs = append(defs, foldtest.Task(fmt.Sprintf("t%d", i)))
	}
	for ; tasks > 0; tasks -= perRun {
		fx.run(defs[:min(perRun, tasks)]...)
	}
}
