package host

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

// Garbage may grow to three times of what lives, which mostly is little: a fifth of the
// time went into collecting it. Of much that lives, as with a run of 100,000 tasks, that
// would be gigabytes: beyond 256 MiB of it, garbage may grow to half of what lives only.
const (
	mostPercent  = 300
	leastPercent = 50
	freeGarbage  = 256 << 20
)

// gcPercent is how much garbage may gather before it is collected, for so much that
// lives, in percent of that.
func gcPercent(live uint64) int {
	return max(leastPercent, min(mostPercent, int(freeGarbage*100/max(live, 1)))) //nolint:gosec // small
}

// tuneGarbage keeps that up, from collection to collection, unless GOGC says otherwise.
func tuneGarbage() {
	if os.Getenv("GOGC") != "" {
		return
	}
	debug.SetGCPercent(mostPercent)
	(&collected{percent: mostPercent}).again()
}

// collected is garbage, so that it hears of each collection.
type collected struct{ percent int }

func (c *collected) again() { runtime.SetFinalizer(c, (*collected).tune) }

func (c *collected) tune() {
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(sample)
	if percent := gcPercent(sample[0].Value.Uint64()); percent != c.percent {
		c.percent = percent
		debug.SetGCPercent(percent)
	}
	c.again()
}
