package memory

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

// While the live heap is small, GOGC is 300: with the default of 100, garbage collection took a fifth of the CPU time.
// As the live heap grows, GOGC falls to a minimum of 50. Until this minimum, there are at most 256 MiB of garbage. With
// a constant 300, a run of 100,000 tasks would need gigabytes.
const (
	mostPercent  = 300
	leastPercent = 50
	freeGarbage  = 256 << 20
	// startPercent applies until the first collection. The runtime assumes 4 MiB of live heap at the start, so the first
	// collection starts at 64 MiB. With 300, two collections would run while a server loads its state, and would free
	// little memory.
	startPercent = 1600
)

// gcPercent returns the value of GOGC for the size of the live heap in bytes.
func gcPercent(live uint64) int {
	return max(leastPercent, min(mostPercent, int(freeGarbage*100/max(live, 1)))) //nolint:gosec // at most freeGarbage*100
}

// TuneGarbage adjusts GOGC after each collection, unless the variable GOGC is set.
func TuneGarbage() {
	if os.Getenv("GOGC") != "" {
		return
	}
	debug.SetGCPercent(startPercent)
	(&collected{percent: startPercent, set: debug.SetGCPercent}).again()
}

// collected is an unreachable object. Its finalizer runs after each collection; the runtime has no other way to run
// code at that time.
//
// The struct must contain a pointer. The runtime packs small objects without pointers into shared blocks, and runs the
// finalizer of such an object only if the whole block is unreachable.
type collected struct {
	percent int
	set     func(percent int) int
}

func (c *collected) again() { runtime.SetFinalizer(c, (*collected).tune) }

func (c *collected) tune() {
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(sample)
	if percent := gcPercent(sample[0].Value.Uint64()); percent != c.percent {
		c.percent = percent
		c.set(percent)
	}
	c.again()
}
