// Package e2e_test runs Servo as its users do, in processes. It kills some of these processes.
//
// `go test ./tests/e2e -full` runs the chaos tests and the large tests in full size; without
// -full they are smaller. Repeat a failing seed with -seed.
package e2e_test

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/embedded"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/repair"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

var (
	full = flag.Bool("full", false, "run the tests in full size")
	seed = flag.Uint64("seed", 0, "seed of random choices; 0: a new one each time")
)

// If the first argument is childArg, the test binary runs as the process under test.
const childArg = "run-as-child"

func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == childArg {
		os.Exit(childMain(os.Args[2]))
	}
	if len(os.Args) > 1 {
		if code, ok := programMain(os.Args[1], os.Args[2:]); ok {
			os.Exit(code)
		}
	}
	code := m.Run()
	if builtPrograms.Load() {
		if dir, _ := programs(); dir != "" {
			_ = os.RemoveAll(dir) // if this fails, the system removes the temporary folder
		}
	}
	os.Exit(code)
}

var acme = ids.Domain{Tenant: "acme", Workspace: "e2e"}

// job describes the work of a child: the child owns a state folder, and executes a run to its end.
type job struct {
	Dir, Root, RunKey string
	Concurrency       int
	// Layers is the number of layers of the run, and Width the number of assets in a layer. Each asset depends on Fan
	// assets of the previous layer.
	Layers, Width, Fan int
	// Command of each asset. {key} is replaced with the key. {ms} is replaced with a duration of 10 to 50 ms, in
	// seconds, that depends on the asset.
	Command []string
}

func (j *job) assets() []plan.Asset {
	var assets []plan.Asset
	for layer := range j.Layers {
		for i := range j.Width {
			a := plan.Asset{Key: ids.AssetKey{Namespace: "chaos", Name: fmt.Sprintf("l%02d_%03d", layer, i)}}
			fill := strings.NewReplacer("{key}", a.Key.Name, "{ms}", fmt.Sprintf("0.%03d", 10+(layer*31+i*17)%41))
			for _, word := range j.Command {
				a.Work.Command = append(a.Work.Command, fill.Replace(word))
			}
			for n := range min(j.Fan, j.Width) {
				if layer > 0 {
					a.Deps = append(a.Deps, ids.AssetKey{Namespace: "chaos", Name: fmt.Sprintf("l%02d_%03d", layer-1, (i+n)%j.Width)})
				}
			}
			assets = append(assets, a)
		}
	}
	return assets
}

func (j *job) tasks() int { return j.Layers * j.Width }

// progress is a line of JSON that a child prints when its progress changes.
type progress struct {
	RunID     string
	Succeeded int32
	State     state.RunState
	PeakKiB   int // peak of the memory in use; set when the process ends
}

func childMain(spec string) int {
	if err := childRun(context.Background(), spec); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func options(dir string, concurrency int, log io.Writer) embedded.Options {
	return embedded.Options{
		Dir: dir, Domain: acme, Clock: clock.System{}, Concurrency: concurrency, Environ: os.Environ(), Actor: "user:e2e",
		Logger: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
}

func childRun(ctx context.Context, spec string) error {
	var j job
	if err := json.Unmarshal([]byte(spec), &j); err != nil {
		return err
	}
	s, err := embedded.Start(ctx, options(j.Dir, j.Concurrency, os.Stderr))
	if err != nil {
		return err
	}
	handle, err := s.Run(ctx, engine.RunRequest{
		Plan: plan.Request{Root: j.Root, Assets: j.assets(), All: true}, RunKey: j.RunKey, Trigger: event.Trigger{Type: "manual"},
	})
	if err != nil {
		return err
	}
	out := json.NewEncoder(os.Stdout)
	p := progress{RunID: handle.RunID, Succeeded: -1}
	for snap, err := s.Current(ctx); ; snap, err = s.Await(ctx, snap.Revision) {
		if err != nil {
			return err
		}
		run := snap.State.Runs.Get(handle.RunID)
		if run.TasksSucceeded == p.Succeeded && !run.State.Terminal() {
			continue
		}
		p.Succeeded, p.State = run.TasksSucceeded, run.State
		if run.State.Terminal() {
			if err := s.Close(); err != nil {
				return err
			}
			if p.PeakKiB, err = peakMemory(); err != nil {
				return err
			}
			return out.Encode(p)
		}
		if err := out.Encode(p); err != nil {
			return err
		}
	}
}

// peakMemory returns the peak memory of this process in KiB.
func peakMemory() (int, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			var kib int
			_, err := fmt.Sscanf(rest, "%d", &kib)
			return kib, err
		}
	}
	return 0, fmt.Errorf("no VmHWM in /proc/self/status")
}

// child is a running child.
type child struct {
	cmd    *exec.Cmd
	lines  chan progress // closed when the child has ended
	stderr strings.Builder
}

func startChild(t *testing.T, j *job) *child {
	t.Helper()
	spec, err := json.Marshal(j)
	require.NoError(t, err)
	program, err := os.Executable()
	require.NoError(t, err)
	c := &child{cmd: exec.CommandContext(t.Context(), program, childArg, string(spec)), lines: make(chan progress, 10_000)}
	c.cmd.Stderr = &c.stderr
	stdout, err := c.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, c.cmd.Start())
	go func() {
		defer close(c.lines)
		scan := bufio.NewScanner(stdout)
		for scan.Scan() {
			var p progress
			if json.Unmarshal(scan.Bytes(), &p) != nil {
				return // the kill has truncated the line
			}
			c.lines <- p
		}
	}()
	return c
}

// kill sends SIGKILL to the child and waits for its end.
func (c *child) kill(t *testing.T) {
	t.Helper()
	require.NoError(t, c.cmd.Process.Kill())
	c.drain()
	_ = c.cmd.Wait() // the error names the signal
}

func (c *child) drain() (last progress) {
	for p := range c.lines {
		last = p
	}
	return last
}

// end waits for the child to exit and returns its last progress.
func (c *child) end(t *testing.T) progress {
	t.Helper()
	last := c.drain()
	require.NoError(t, c.cmd.Wait(), c.stderr.String())
	return last
}

func openParts(t *testing.T, dir string) *embedded.Workspace {
	t.Helper()
	p, err := embedded.Open(options(dir, 1, t.Output()))
	require.NoError(t, err)
	t.Cleanup(func() { _ = p.Close() })
	return p
}

func requireVerified(t *testing.T, p *embedded.Workspace) repair.Report {
	t.Helper()
	report, err := repair.Verify(t.Context(), repair.Config{
		Handle: p.Handle,
	})
	require.NoError(t, err)
	require.Empty(t, report.Problems)
	return report
}

// awaitRun waits until ok accepts the run, and returns the snapshot.
func awaitRun(t *testing.T, e *engine.Engine, runID string, ok func(*state.Run) bool) *snapshot.Snapshot {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	snap, err := e.Current(ctx)
	for err == nil {
		if run := snap.State.Runs.Get(runID); run != nil && ok(run) {
			return snap
		}
		snap, err = e.Await(ctx, snap.Revision)
	}
	require.NoError(t, err)
	return nil
}

func ended(run *state.Run) bool { return run.State.Terminal() }
