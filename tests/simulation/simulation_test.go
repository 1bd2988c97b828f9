// Package simulation_test runs simulated worlds: new worlds, worlds that once failed and, on request, many worlds or
// a given one. See docs/reliability.md.
package simulation_test

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/sim"
)

var (
	seeds = flag.Int("seeds", 30, "number of worlds to run")
	first = flag.Uint64("first", 1, "seed of the first world; 0: derived from the current time")
	world = flag.String("world", "", "world to run, as printed by a failure")
	large = flag.Bool("large", false, "run large worlds: see internal/sim/large.go")
	merge = flag.Bool("merging", false, "run worlds that merge small outputs: see internal/sim/merging.go")
	most  = flag.Duration("most", 0, "CPU time after which a world is stopped and counted as not ended; 0: unlimited")
	tries = flag.Int("shrink", 150, "number of smaller worlds to try after a failure")
)

// run runs a world in its own bubble.
func run(t *testing.T, w sim.World) *sim.Result {
	t.Helper()
	sim.Prepare()
	b := sim.Bubble{Scratch: scratch(t), Keys: keys(t)}
	if *most > 0 {
		began := cpuTime(t)
		b.GiveUp = func() bool { return cpuTime(t)-began > *most }
	}
	var r *sim.Result
	synctest.Test(t, func(*testing.T) {
		b.Wait = synctest.Wait
		r = sim.Run(b, w)
	})
	return r
}

// scratch returns a temporary folder, in memory if possible.
func scratch(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "servo-sim-") //nolint:usetesting // a folder in memory
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// keys returns a file of constant signing keys.
func keys(t *testing.T) string {
	t.Helper()
	data, err := json.Marshal(map[string]any{
		"current": "k1", "secrets": map[string]string{"k1": base64.StdEncoding.EncodeToString([]byte(strings.Repeat("s", 32)))},
	})
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "keys.json")
	require.NoError(t, os.WriteFile(path, data, 0o600))
	return path
}

// maxShrink bounds the search for a smaller failing world.
const maxShrink = 2 * time.Minute

// explain fails a test. The message contains the smallest failing world that explain finds, the end of its trace, and
// the command that runs the world again.
func explain(t *testing.T, w sim.World, found *sim.Result) {
	t.Helper()
	if *tries > 0 {
		// The search runs up to *tries worlds and may take minutes, so print the failure first.
		fmt.Fprintf(os.Stdout, "%v\n\nrun the world again with\n  make simulate WORLD='%s'\nlooking for a smaller world\n", found.Err(), w.Text())
		left, until := *tries, time.Now().Add(maxShrink) //nolint:forbidigo // real time, outside of worlds
		more := func() bool {
			left--
			return left >= 0 && time.Now().Before(until) //nolint:forbidigo // see above
		}
		smaller, again := sim.Shrink(w, more, func(w sim.World) *sim.Result { return run(t, w) })
		if again.Err() != nil {
			w, found = smaller, again
		}
	}
	path := filepath.Join(os.TempDir(), fmt.Sprintf("servo-simulation-%d.trace", w.Seed))
	require.NoError(t, os.WriteFile(path, []byte(strings.Join(found.Tail, "\n")+"\n"), 0o600))
	const lines = 40
	t.Errorf("%s\n\n%v\n\nthe end of the trace is in %s; run the world again with\n  make simulate WORLD='%s'",
		strings.Join(found.Tail[max(0, len(found.Tail)-lines):], "\n"), found.Err(), path, w.Text())
}

// draw returns the world of a seed.
func draw(seed uint64) sim.World {
	if *large {
		return sim.DrawLarge(seed)
	}
	if *merge {
		return sim.DrawMerging(seed)
	}
	return sim.Draw(seed)
}

// cpuTime returns the CPU time of this process so far.
func cpuTime(t *testing.T) time.Duration {
	t.Helper()
	var used syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &used))
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

func TestWorldsKeepPromises(t *testing.T) {
	if *world != "" {
		t.Skip("a world is given")
	}
	sum := newTally()
	defer func() {
		sum.CPU = cpuTime(t)
		require.NoError(t, sum.save())
	}()
	for i := *lane; i < *seeds && !stopped(); i += *lanes {
		w := draw(*first + uint64(i)) //nolint:gosec // not negative
		began := cpuTime(t)
		r := run(t, w)
		sum.add(w, r)
		if *large { // a large world may take several minutes
			fmt.Fprintf(os.Stdout, "seed %d: %d tasks in %d runs, %d revisions, %d calls, %.1f s of CPU; assets deployed: %t, schedules or backfills: %t, ended: %t, violations: %d; %s\n",
				w.Seed, r.Completions, r.Runs, r.Revisions, r.Calls, (cpuTime(t) - began).Seconds(), r.Deployed, r.Automated, !r.GaveUp, len(r.Violations),
				strings.Join(w.Features(), ", "))
		}
		if r.Err() != nil {
			stop()
			explain(t, w, r)
			return
		}
	}
}

func TestGivenWorldKeepsPromises(t *testing.T) {
	if *world == "" {
		t.Skip("no world is given")
	}
	w, err := sim.Parse(*world)
	require.NoError(t, err)
	r := run(t, w)
	fmt.Fprintf(os.Stdout, "%d tasks ended in %d runs, %d revisions, %d steps, %s of virtual time\n", r.Completions, r.Runs, r.Revisions, r.Steps, r.Virtual)
	if r.Err() != nil {
		explain(t, w, r)
	}
}

// Every world that ever failed must pass now.
func TestFailedWorldsKeepPromises(t *testing.T) {
	file, err := os.Open("testdata/failed.txt")
	require.NoError(t, err)
	defer file.Close()
	lines := bufio.NewScanner(file)
	for n := 1; lines.Scan(); n++ {
		text, why, _ := strings.Cut(lines.Text(), " # ")
		if strings.HasPrefix(text, "#") || text == "" {
			continue
		}
		w, err := sim.Parse(text)
		require.NoError(t, err, "line %d", n)
		if !mine(n) {
			continue
		}
		t.Run(fmt.Sprintf("line %d", n), func(t *testing.T) {
			if r := run(t, w); r.Err() != nil {
				t.Errorf("%s\n%v\n  make simulate WORLD='%s'", why, r.Err(), text)
			}
		})
	}
	require.NoError(t, lines.Err())
}

// largeWorld is the seed of the large world that every test run simulates.
const largeWorld = 3

// slowedWorld is the seed of a large world with slow compactors.
const slowedWorld = 4

// batchedWorlds is how many worlds with batches run in addition to the worlds of the other tests.
const batchedWorlds = 12

// In the worlds of this test, some assets materialize their partitions in batches, and other assets read these
// partitions.
func TestBatchedWorldsKeepPromises(t *testing.T) {
	shown, worlds := 0, 0
	for i := range batchedWorlds {
		if !mine(i) {
			continue
		}
		w := sim.Draw(88_000 + uint64(i)) //nolint:gosec // small
		w.Overtaken, w.Chained, w.Batched = 0, 3+i%5, 2+i%3
		w.Tasks = min(w.Tasks, 8)
		r := run(t, w)
		worlds++
		shown += r.Faults["partitions of batches"]
		if r.Err() != nil {
			t.Errorf("%v\n  make simulate WORLD='%s'", r.Err(), w.Text())
		}
	}
	require.GreaterOrEqual(t, shown, worlds, "the worlds must make batches")
}

// mergingWorlds are the seeds of worlds with merged files. These worlds run in addition to the worlds that other tests
// draw. The first two worlds have no faults, so each of them certainly publishes merged files and reads from them.
var mergingWorlds = []uint64{120_015, 120_010, 120_003, 120_009, 120_002, 120_007}

func TestMergingWorldsKeepPromises(t *testing.T) {
	published, read := 0, 0
	for i, seed := range mergingWorlds {
		if !mine(i) {
			continue
		}
		w := sim.DrawMerging(seed)
		if i < 2 {
			w.Faults = sim.Faults{}
		}
		r := run(t, w)
		published, read = published+r.Faults["merged file published"], read+r.Faults["rows read from a merged file"]
		if r.Err() != nil {
			t.Errorf("%v\n  make simulate WORLD='%s'", r.Err(), w.Text())
		}
	}
	require.Positive(t, published)
	require.Positive(t, read)
}

// A large world has many tasks of partitioned assets, and a plan that is so large that the compactor reads it from the
// store.
func TestLargeWorldKeepsPromises(t *testing.T) {
	if !mine(0) {
		t.Skip("another lane runs it")
	}
	w := sim.DrawLarge(largeWorld)
	w.Large, w.Days, w.Schedules, w.Minutes = 300, 40, 1, 3
	r := run(t, w)
	if r.Err() != nil {
		t.Errorf("%v\n  make simulate WORLD='%s'", r.Err(), w.Text())
	}
	const least = 600 // a plan of up to 500 tasks is stored in its ledger entry; a larger one is an object
	require.Greater(t, r.Completions, least)
	require.Positive(t, r.Faults["tasks of partitioned assets"])
}

// In a world with slow compactors, many tasks must end in each revision.
func TestSlowedWorldKeepsPromises(t *testing.T) {
	if !mine(1) {
		t.Skip("another lane runs it")
	}
	const least, atOnce = 700, 4
	w := sim.DrawLarge(slowedWorld)
	w.Large, w.Days, w.Backfills, w.Schedules, w.Domains, w.Minutes, w.Faults = 60, 60, 2, 0, 1, 5, sim.Faults{}
	require.Positive(t, w.Slowed)
	r := run(t, w)
	if r.Err() != nil {
		t.Errorf("%v\n  make simulate WORLD='%s'", r.Err(), w.Text())
	}
	require.Greater(t, r.Completions, least)
	require.Greater(t, int64(r.Completions), atOnce*r.Revisions)
	require.Positive(t, r.Faults["backfill created"])
	require.Positive(t, r.Faults["tasks of runs of schedules and backfills"])
	require.Contains(t, w.Features(), "slow compactors")
}

// A world that takes too much time is stopped. The tally must count the world, but not its tasks.
func TestWorldThatTakesTooLongIsCounted(t *testing.T) {
	if !mine(2) {
		t.Skip("another lane runs it")
	}
	w := sim.DrawLarge(slowedWorld)
	b := sim.Bubble{Scratch: scratch(t), Keys: keys(t), GiveUp: func() bool { return true }}
	sim.Prepare()
	var r *sim.Result
	synctest.Test(t, func(*testing.T) {
		b.Wait = synctest.Wait
		r = sim.Run(b, w)
	})
	require.True(t, r.GaveUp)
	require.NoError(t, r.Err())
	sum := newTally()
	sum.add(w, r)
	require.Equal(t, 1, sum.GaveUp)
	require.Zero(t, sum.Worlds)
	require.Zero(t, sum.Done)
}

// The Parquet library keeps channels, which must not be used outside of the synctest bubble in which they were
// created. So these worlds share one bubble.
func TestParquetWorldsKeepPromises(t *testing.T) {
	sim.Prepare()
	b := sim.Bubble{Scratch: scratch(t), Keys: keys(t)}
	synctest.Test(t, func(t *testing.T) {
		b.Wait = synctest.Wait
		for seed := range uint64(4) {
			if !mine(int(seed)) { //nolint:gosec // small
				continue
			}
			w := sim.Draw(seed)
			w.Parquet, w.Tasks, w.Requests, w.Minutes = true, min(w.Tasks, 8), min(w.Requests, 3), min(w.Minutes, 6)
			w.KeepRuns = 0 // keep all runs: the oracle loads each state from its files, which lack dropped runs
			if r := sim.Run(b, w); r.Err() != nil {
				t.Errorf("%v\n  make simulate WORLD='%s'", r.Err(), w.Text())
			}
		}
	})
}

// maxUnequal is how many of a lane's worlds may have different traces in different runs. Traces differ for one reason:
// if one event wakes several goroutines of a process, the scheduler decides which of them takes a lock first. On one
// processor, the scheduler always decides in the same way, unless it preempts a goroutine that has run for 10 ms.
// Such a preemption happens in one of 60 large worlds, in one of about 1,000 small worlds, and more often on a busy
// machine. So a world whose first two traces differ gets four more runs, and five of the six traces must be equal.
const (
	maxUnequal = 1
	moreRuns   = 4
	minEqual   = 5
)

// equalTraces runs a world moreRuns more times. It returns how often the most frequent trace occurs in these and in
// the given runs.
func equalTraces(t *testing.T, w sim.World, runs ...*sim.Result) int {
	t.Helper()
	for range moreRuns {
		runs = append(runs, run(t, w))
	}
	times := map[string]int{}
	for _, r := range runs {
		times[r.Hash]++
	}
	return slices.Max(slices.Collect(maps.Values(times)))
}

func TestTheSameWorldGivesTheSameTrace(t *testing.T) {
	unequal := 0
	for i := range 50 {
		if !mine(i) {
			continue
		}
		w := sim.Draw(uint64(i)) //nolint:gosec // small
		if i%5 > 0 {
			w.Tasks, w.Requests, w.Minutes = min(w.Tasks, 10), min(w.Requests, 5), min(w.Minutes, 6)
		}
		one, two := run(t, w), run(t, w)
		if one.Hash == two.Hash || equalTraces(t, w, one, two) >= minEqual {
			continue
		}
		unequal++
		at := 0
		for at < min(len(one.Tail), len(two.Tail)) && one.Tail[at] == two.Tail[at] {
			at++
		}
		t.Logf("seed %d: the traces differ after %s:\n  %s\n  %s", i,
			one.Tail[max(0, at-1)], one.Tail[min(at, len(one.Tail)-1)], two.Tail[min(at, len(two.Tail)-1)])
	}
	require.LessOrEqual(t, unequal, maxUnequal)
}
