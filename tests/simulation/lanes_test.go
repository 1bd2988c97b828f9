package simulation_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/servo-orchestration/servo/pkg/sim"
)

// A lane is a process of its own with its share of the worlds, on one processor:
// there goroutines run in one order, so that a seed gives one trace, and a world
// takes a third less time.
var (
	lane   = flag.Int("lane", 0, "which lane this process is")
	lanes  = flag.Int("lanes", 0, "how many lanes there are; 0: one a processor, each a process that this one starts")
	shared = flag.String("shared", "", "the folder in which lanes leave what they have to say")
)

func TestMain(m *testing.M) {
	flag.Parse()
	if *first == 0 {
		*first = uint64(time.Now().UnixNano()) //nolint:gosec,forbidigo // positive; a failure prints its world
	}
	if *lanes == 0 && flag.Lookup("test.list").Value.String() == "" {
		os.Exit(split(max(1, runtime.GOMAXPROCS(0))))
	}
	*lanes = max(1, *lanes)
	runtime.GOMAXPROCS(1)
	// Worlds leave much behind, and the machine has room for it: a third of the time
	// went into collecting garbage.
	debug.SetGCPercent(800)
	os.Exit(m.Run())
}

// split runs this program once a lane, and adds up what they say.
func split(n int) int {
	dir, err := os.MkdirTemp("", "servo-simulation-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	began := time.Now() //nolint:forbidigo // the speed is printed
	var running []*exec.Cmd
	code := 0
	for i := range n {
		args := slices.DeleteFunc(slices.Clone(os.Args[1:]), func(arg string) bool {
			return strings.HasPrefix(arg, "-test.testlogfile") // it is one process's
		})
		c := exec.Command(os.Args[0], append(args, "-lane", fmt.Sprint(i), "-lanes", fmt.Sprint(n), "-shared", dir, "-first", fmt.Sprint(*first))...) //nolint:gosec // this program, which ends by itself
		c.Stdout, c.Stderr = os.Stdout, os.Stderr
		if err := c.Start(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
			break
		}
		running = append(running, c)
	}
	for _, c := range running {
		if c.Wait() != nil {
			code = 1
		}
	}
	if err := printTallies(dir, time.Since(began)); err != nil { //nolint:forbidigo // see above
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	return code
}

// mine reports whether this lane takes the i-th of some worlds.
func mine(i int) bool { return i%*lanes == *lane }

// stop has no lane begin another world.
func stop() { _ = os.WriteFile(filepath.Join(*shared, "stop"), nil, 0o600) }

func stopped() bool {
	_, err := os.Stat(filepath.Join(*shared, "stop"))
	return *shared != "" && err == nil
}

// tally adds up results.
type tally struct {
	Worlds, Done, Steps int
	Virtual             time.Duration
	Faults              map[string]int
}

func (y *tally) add(r *sim.Result) {
	y.plus(&tally{1, r.Completions, r.Steps, r.Virtual, r.Faults})
}

func (y *tally) plus(o *tally) {
	y.Worlds += o.Worlds
	y.Done += o.Done
	y.Steps += o.Steps
	y.Virtual += o.Virtual
	for name, n := range o.Faults {
		y.Faults[name] += n
	}
}

// save leaves it for the process that started this one, if there is one.
func (y *tally) save() error {
	if *shared == "" {
		return nil
	}
	data, err := json.Marshal(y)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(*shared, fmt.Sprintf("tally-%d", *lane)), data, 0o600)
}

// printTallies prints what all lanes did.
func printTallies(dir string, took time.Duration) error {
	paths, err := filepath.Glob(filepath.Join(dir, "tally-*"))
	if err != nil {
		return err
	}
	sum := tally{Faults: map[string]int{}}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		var y tally
		if err := json.Unmarshal(data, &y); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		sum.plus(&y)
	}
	if sum.Worlds == 0 {
		return nil
	}
	fmt.Fprintf(os.Stdout, "simulated %d worlds from seed %d: %d tasks ended, %d steps, %s of virtual time, in %.1f s: %.0f worlds and %.0f tasks a minute\n",
		sum.Worlds, *first, sum.Done, sum.Steps, sum.Virtual.Round(time.Second), took.Seconds(),
		float64(sum.Worlds)/took.Minutes(), float64(sum.Done)/took.Minutes())
	for _, name := range slices.Sorted(maps.Keys(sum.Faults)) {
		fmt.Fprintf(os.Stdout, "  %8d %s\n", sum.Faults[name], name)
	}
	return nil
}
