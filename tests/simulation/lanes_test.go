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

	"github.com/servo-orchestration/servo/internal/sim"
)

// A lane is a process that runs its share of the worlds on one processor. On one processor, goroutines always run in
// the same order, so that each seed has exactly one trace. A world is also a third faster on one processor.
var (
	lane   = flag.Int("lane", 0, "index of this process's lane")
	lanes  = flag.Int("lanes", 0, "number of lanes; 0: start a process per processor")
	shared = flag.String("shared", "", "folder for the results of lanes")
)

func TestMain(m *testing.M) {
	flag.Parse()
	if *first == 0 {
		*first = uint64(time.Now().UnixNano()) //nolint:gosec,forbidigo // the time is positive; a failing test prints its world, so it can be repeated
	}
	if *lanes == 0 && flag.Lookup("test.list").Value.String() == "" {
		os.Exit(split(max(1, runtime.GOMAXPROCS(0))))
	}
	*lanes = max(1, *lanes)
	runtime.GOMAXPROCS(1)
	// Worlds produce much garbage, and the machine has enough memory to collect it rarely. With the default setting,
	// garbage collection takes a third of the time.
	debug.SetGCPercent(800)
	os.Exit(m.Run())
}

// split runs this program once per lane, and adds up the results.
func split(n int) int {
	dir, err := os.MkdirTemp("", "servo-simulation-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	began := time.Now() //nolint:forbidigo // needed to print the speed
	var running []*exec.Cmd
	code := 0
	for i := range n {
		args := slices.DeleteFunc(slices.Clone(os.Args[1:]), func(arg string) bool {
			return strings.HasPrefix(arg, "-test.testlogfile") // each process needs a file of its own
		})
		c := exec.Command(os.Args[0], append(args, "-lane", fmt.Sprint(i), "-lanes", fmt.Sprint(n), "-shared", dir, "-first", fmt.Sprint(*first))...) //nolint:gosec // the program is this one
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

// mine reports whether this lane runs the i-th world.
func mine(i int) bool { return i%*lanes == *lane }

// stop prevents all lanes from starting another world.
func stop() {
	if *shared != "" {
		_ = os.WriteFile(filepath.Join(*shared, "stop"), nil, 0o600) // without the file, other lanes only run longer
	}
}

func stopped() bool {
	_, err := os.Stat(filepath.Join(*shared, "stop"))
	return *shared != "" && err == nil
}

// tally adds up results.
type tally struct {
	Worlds, Done, Steps int
	// Deployed counts the ended tasks in worlds that deployed assets. Automated counts the ended tasks in worlds in
	// which schedules ticked or backfills were created. A task may be counted in both.
	Deployed, Automated int
	// GaveUp counts the worlds that were stopped because they took too much CPU time. Left counts the tasks that had
	// ended in these worlds before they were stopped. Done does not include these tasks.
	GaveUp, Left int
	Virtual, CPU time.Duration
	Faults       map[string]int
	Features     map[string]int // by feature: number of ended tasks in worlds with this feature
}

func newTally() *tally { return &tally{Faults: map[string]int{}, Features: map[string]int{}} }

func (y *tally) add(w sim.World, r *sim.Result) {
	if r.GaveUp {
		y.plus(&tally{GaveUp: 1, Left: r.Completions})
		return
	}
	o := tally{Worlds: 1, Done: r.Completions, Steps: r.Steps, Virtual: r.Virtual, Faults: r.Faults, Features: map[string]int{}}
	for _, name := range w.Features() {
		o.Features[name] = r.Completions
	}
	if r.Deployed {
		o.Deployed = r.Completions
	}
	if r.Automated {
		o.Automated = r.Completions
	}
	y.plus(&o)
}

func (y *tally) plus(o *tally) {
	y.Worlds += o.Worlds
	y.Done += o.Done
	y.Steps += o.Steps
	y.Deployed += o.Deployed
	y.Automated += o.Automated
	y.Virtual += o.Virtual
	y.CPU += o.CPU
	y.GaveUp += o.GaveUp
	y.Left += o.Left
	for name, n := range o.Faults {
		y.Faults[name] += n
	}
	for name, n := range o.Features {
		y.Features[name] += n
	}
}

// save writes the tally to a file, from which the process that started this lane reads it. Without lanes, save does
// nothing.
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

// printTallies prints the sum of all lanes.
func printTallies(dir string, took time.Duration) error {
	paths, err := filepath.Glob(filepath.Join(dir, "tally-*"))
	if err != nil {
		return err
	}
	sum := newTally()
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
	sum.print(took)
	return nil
}

func (y *tally) print(took time.Duration) {
	if y.Worlds+y.GaveUp == 0 {
		return
	}
	fmt.Fprintf(os.Stdout, "simulated %d worlds from seed %d: %d tasks ended, %d steps, %s of virtual time, in %.1f s: %.0f worlds and %.0f tasks a minute\n",
		y.Worlds, *first, y.Done, y.Steps, y.Virtual.Round(time.Second), took.Seconds(),
		float64(y.Worlds)/took.Minutes(), float64(y.Done)/took.Minutes())
	fmt.Fprintf(os.Stdout, "  %d tasks in worlds with deployed assets, %d in worlds with schedules or backfills; %.0f s of CPU, %.1f ms a task\n",
		y.Deployed, y.Automated, y.CPU.Seconds(), float64(y.CPU.Milliseconds())/float64(max(1, y.Done)))
	if y.GaveUp > 0 {
		fmt.Fprintf(os.Stdout, "  %d further worlds took too much CPU time and were stopped; the sums do not include their %d ended tasks\n", y.GaveUp, y.Left)
	}
	for _, name := range slices.Sorted(maps.Keys(y.Features)) {
		fmt.Fprintf(os.Stdout, "  %8d tasks in worlds with %s\n", y.Features[name], name)
	}
	for _, name := range slices.Sorted(maps.Keys(y.Faults)) {
		fmt.Fprintf(os.Stdout, "  %8d %s\n", y.Faults[name], name)
	}
}
