package simulation_test

import (
	"flag"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/sim"
)

var stride = flag.Int("stride", 0, "number of calls from one death of a process to the next; 0: chosen for about 25 deaths")

// ticking returns a world without faults, in which one schedule ticks for some minutes. The caller may set
// World.KillAt, so that a process dies.
func ticking(seed uint64) sim.World {
	return sim.World{
		Seed: seed, Compactors: 1, Dispatchers: 2, Workers: 1, Clients: 1, Domains: 1, Requests: 1, Tasks: 1, Minutes: 4, PageSize: 1000,
		MaxDeltas: 8, Keep: 60, KeepLedger: 60, KeepEntries: 30, ArchiveSpan: 600, Sweepers: 1, Schedules: 1,
	}
}

// A process may die at any of its calls: before it reads or writes, sends or receives, or sleeps. Even so, each
// instant of the schedule must have exactly one tick, and each tick must have at most one run.
func TestI26TicksSurviveDeathAtAnyCall(t *testing.T) {
	if *world != "" || *lanes > 1 && *lane > 0 {
		t.Skip("it runs in the first lane")
	}
	w := ticking(1)
	r := run(t, w)
	require.NoError(t, r.Err())
	t.Logf("%d calls, %d tasks ended in %d runs, %v", r.Calls, r.Completions, r.Runs, r.Faults)
	step := *stride
	if step == 0 {
		step = max(r.Calls/25, 1)
	}
	for w.KillAt = 1; w.KillAt <= r.Calls; w.KillAt += step {
		died := run(t, w)
		if died.Err() != nil {
			explain(t, w, died)
			return
		}
	}
}
