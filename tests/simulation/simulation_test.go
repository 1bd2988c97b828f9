// Package simulation_test runs simulated systems: fresh ones, every one that
// ever failed, and, on demand, many or a given one. See docs/reliability.md.
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
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/sim"
)

var (
	seeds = flag.Int("seeds", 30, "how many worlds to run")
	first = flag.Uint64("first", 1, "the seed of the first world; 0: a fresh one, from the time of day")
	world = flag.String("world", "", "a world to run, as a failure prints it")
	tries = flag.Int("shrink", 150, "how many smaller worlds to try when one fails")
)

// Worlds leave much behind, and the machine has room for it: a third of the time
// went into collecting garbage.
func TestMain(m *testing.M) {
	debug.SetGCPercent(800)
	os.Exit(m.Run())
}

// run runs a world in a bubble of its own.
func run(t *testing.T, w sim.World) *sim.Result {
	t.Helper()
	b := sim.Bubble{Scratch: scratch(t), Keys: keys(t)}
	var r *sim.Result
	synctest.Test(t, func(*testing.T) {
		b.Wait = synctest.Wait
		r = sim.Run(b, w)
	})
	return r
}

// scratch is a folder, in memory where there is one.
func scratch(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "servo-sim-") //nolint:usetesting // not where other temporary files are
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// keys is a file of signing keys that never changes.
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

// explain fails a test with the smallest world found in which something goes
// wrong, its trace, and how to run it again.
func explain(t *testing.T, w sim.World, found *sim.Result) {
	t.Helper()
	if *tries > 0 {
		smaller, again := sim.Shrink(w, *tries, func(w sim.World) *sim.Result { return run(t, w) })
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

// tally adds up results.
type tally struct {
	mu                  sync.Mutex
	worlds, done, steps int
	virtual             time.Duration
	faults              map[string]int
}

func (y *tally) add(r *sim.Result) {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.worlds++
	y.done += r.Completions
	y.steps += r.Steps
	y.virtual += r.Virtual
	for name, n := range r.Faults {
		y.faults[name] += n
	}
}

func (y *tally) print(from uint64, took time.Duration) {
	fmt.Fprintf(os.Stdout, "simulated %d worlds from seed %d: %d tasks ended, %d steps, %s of virtual time, in %.1f s: %.0f worlds and %.0f tasks a minute\n",
		y.worlds, from, y.done, y.steps, y.virtual.Round(time.Second), took.Seconds(), float64(y.worlds)/took.Minutes(), float64(y.done)/took.Minutes())
	for _, name := range slices.Sorted(maps.Keys(y.faults)) {
		fmt.Fprintf(os.Stdout, "  %8d %s\n", y.faults[name], name)
	}
}

func TestWorldsKeepEveryPromise(t *testing.T) {
	if *world != "" {
		t.Skip("a world is given")
	}
	from := *first
	began := time.Now() //nolint:forbidigo // the speed is printed, and a failure prints its world
	if from == 0 {
		from = uint64(began.UnixNano()) //nolint:gosec // positive
	}
	sum := tally{faults: map[string]int{}}
	var next atomic.Int64
	t.Run("worlds", func(t *testing.T) {
		for i := range runtime.GOMAXPROCS(0) {
			t.Run(fmt.Sprint("lane ", i), func(t *testing.T) {
				t.Parallel()
				for !t.Failed() {
					i := next.Add(1) - 1
					if i >= int64(*seeds) {
						return
					}
					w := sim.Draw(from + uint64(i)) //nolint:gosec // not negative
					r := run(t, w)
					sum.add(r)
					if r.Err() != nil {
						next.Store(int64(*seeds))
						explain(t, w, r)
					}
				}
			})
		}
	})
	sum.print(from, time.Since(began)) //nolint:forbidigo // see above
}

func TestTheGivenWorldKeepsEveryPromise(t *testing.T) {
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

// Every world that ever failed, with what it found.
func TestWorldsThatOnceFailedKeepEveryPromise(t *testing.T) {
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
		t.Run(fmt.Sprintf("line %d", n), func(t *testing.T) {
			t.Parallel()
			if r := run(t, w); r.Err() != nil {
				t.Errorf("%s\n%v\n  make simulate WORLD='%s'", why, r.Err(), text)
			}
		})
	}
	require.NoError(t, lines.Err())
}

// Parquet libraries keep channels, which may not leave a bubble: these worlds
// share one.
func TestWorldsOnParquetFilesKeepEveryPromise(t *testing.T) {
	b := sim.Bubble{Scratch: scratch(t), Keys: keys(t)}
	synctest.Test(t, func(t *testing.T) {
		b.Wait = synctest.Wait
		for seed := range uint64(4) {
			w := sim.Draw(seed)
			w.Parquet, w.Tasks, w.Requests, w.Minutes = true, min(w.Tasks, 8), min(w.Requests, 3), min(w.Minutes, 6)
			if r := sim.Run(b, w); r.Err() != nil {
				t.Errorf("%v\n  make simulate WORLD='%s'", r.Err(), w.Text())
			}
		}
	})
}

// mayPart is how many of 50 worlds may give two traces. None of 400 did when this
// was last looked into; but one of 60 large ones did once, in a way not found yet.
const mayPart = 1

func TestTheSameWorldGivesTheSameTrace(t *testing.T) {
	var parted atomic.Int32
	t.Run("worlds", func(t *testing.T) {
		for i := range 50 {
			t.Run(fmt.Sprint("seed ", i), func(t *testing.T) {
				t.Parallel()
				w := sim.Draw(uint64(i)) //nolint:gosec // not negative
				w.Tasks, w.Requests, w.Minutes = min(w.Tasks, 10), min(w.Requests, 5), min(w.Minutes, 6)
				one, two := run(t, w), run(t, w)
				if one.Hash == two.Hash {
					return
				}
				parted.Add(1)
				at := 0
				for at < min(len(one.Tail), len(two.Tail)) && one.Tail[at] == two.Tail[at] {
					at++
				}
				t.Logf("the traces part after %s:\n  %s\n  %s",
					one.Tail[max(0, at-1)], one.Tail[min(at, len(one.Tail)-1)], two.Tail[min(at, len(two.Tail)-1)])
			})
		}
	})
	require.LessOrEqual(t, parted.Load(), int32(mayPart))
}
