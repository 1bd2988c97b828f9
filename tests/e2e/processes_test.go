package e2e_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/embedded"
	"github.com/servo-orchestration/servo/pkg/state"
)

// waitLimit bounds the wait for an expected event.
const waitLimit = time.Minute

// asset is an asset in the project of a [folder]. Its command is a shell script.
type asset struct {
	name, script string
	deps         []string
	// heartbeat is the heartbeat timeout; "" means the default of several minutes.
	heartbeat string
}

// folder is a project with a state folder, and the folders outside of it in which tasks write marks and wait for
// gates.
type folder struct {
	*witness
	dir, state, gates string
}

// newFolder creates a project whose state is in stateDir. Each execution of a task first
// writes a line to a file with the task's name.
func newFolder(t *testing.T, stateDir string, assets ...asset) *folder {
	t.Helper()
	type listed struct {
		Asset            string         `json:"asset"`
		Deps             []string       `json:"deps,omitempty"`
		HeartbeatTimeout string         `json:"heartbeat_timeout,omitempty"`
		Retries          map[string]any `json:"retries"`
		Run              map[string]any `json:"run"`
	}
	marks, gates := t.TempDir(), t.TempDir()
	var list struct {
		Assets []listed `json:"assets"`
	}
	for _, a := range assets {
		l := listed{
			Asset: "chaos/" + a.name, HeartbeatTimeout: a.heartbeat, Retries: map[string]any{"max_attempts": 3, "initial_delay": "100ms"},
			Run: map[string]any{"command": []string{"sh", "-c", "GATES=" + gates + "; echo x >> " + marks + "/" + a.name + "; " + a.script}},
		}
		for _, dep := range a.deps {
			l.Deps = append(l.Deps, "chaos/"+dep)
		}
		list.Assets = append(list.Assets, l)
	}
	data, err := json.Marshal(list) // JSON is valid YAML
	require.NoError(t, err)
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "assets"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "assets", "all.yaml"), data, 0o600))
	config := fmt.Sprintf("tenant: %s\nworkspace: %s\nworkers: {concurrency: 4}\n", acme.Tenant, acme.Workspace)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "servo.yaml"), []byte(config), 0o600))
	return &folder{
		dir: dir, state: stateDir, gates: gates,
		witness: &witness{t: t, marks: marks, parts: openParts(t, stateDir), finished: map[string]int{}},
	}
}

// gate returns a script that waits until [folder.open] is called with the same name.
func gate(name string) string { return "while ! test -e $GATES/" + name + "; do sleep 0.02; done" }

// open opens a gate, so that the tasks that wait for it continue.
func (f *folder) open(name string) {
	f.t.Helper()
	require.NoError(f.t, os.WriteFile(filepath.Join(f.gates, name), nil, 0o600))
}

// awaitBegun waits until the tasks have begun.
func (f *folder) awaitBegun(names ...string) {
	f.t.Helper()
	require.Eventually(f.t, func() bool {
		begun := f.executions()
		for _, name := range names {
			if begun["chaos/"+name] == 0 {
				return false
			}
		}
		return true
	}, waitLimit, 10*time.Millisecond, "%v have not begun", names)
}

// process is a running servo program.
type process struct {
	t      *testing.T
	cmd    *exec.Cmd
	ended  chan struct{}
	mu     sync.Mutex
	stderr bytes.Buffer
}

// Write records the program's output.
func (p *process) Write(data []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stderr.Write(data)
}

// String returns the program's output.
func (p *process) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stderr.String()
}

// servo starts the program on the folder.
func (f *folder) servo(args ...string) *process {
	f.t.Helper()
	p := &process{t: f.t, cmd: program(f.t, "servo", append([]string{"-C", f.dir, "--state", f.state}, args...)...), ended: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = p, p
	require.NoError(f.t, p.cmd.Start())
	go func() {
		defer close(p.ended)
		_ = p.cmd.Wait() // ignore the error: end reads the exit code from ProcessState
	}()
	f.t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.ended
	})
	return p
}

// end waits for the program to exit with the given code, and returns its output.
func (p *process) end(code int) string {
	p.t.Helper()
	select {
	case <-p.ended:
	case <-time.After(waitLimit): //nolint:forbidigo // a bound on the wait for another process
		require.NoError(p.t, errors.New("the process does not exit"), p.String())
	}
	require.Equal(p.t, code, p.cmd.ProcessState.ExitCode(), p.String())
	return p.String()
}

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Process.Signal(s), "the process has exited: %s", p)
}

// kill sends SIGKILL to the process and waits for its end.
func (p *process) kill() {
	p.t.Helper()
	p.signal(syscall.SIGKILL)
	<-p.ended
}

// awaitOwner waits until one of the processes owns the folder and serves requests. It returns this process, and the
// others.
func (f *folder) awaitOwner(processes ...*process) (owner *process, others []*process) {
	f.t.Helper()
	require.Eventually(f.t, func() bool {
		o, err := embedded.ReadOwner(f.state)
		owner, others = nil, nil
		for _, p := range processes {
			if err == nil && p.cmd.Process.Pid == o.PID {
				owner = p
			} else {
				others = append(others, p)
			}
		}
		return owner != nil
	}, waitLimit, 10*time.Millisecond)
	return owner, others
}

// requireDone checks that all tasks have succeeded, that each has one commit marker, and that `servo admin verify`
// finds no problem.
func (f *folder) requireDone(tasks int) {
	f.t.Helper()
	f.observe()
	require.Len(f.t, f.markers, tasks)
	require.Len(f.t, f.finished, tasks)
	snap, err := f.parts.Reader().Current(f.t.Context())
	require.NoError(f.t, err)
	for run := range snap.State.Runs.All {
		require.Equal(f.t, state.RunSucceeded, run.State)
	}
	require.Contains(f.t, f.servo("admin", "verify").end(0), "no differences")
	require.NoError(f.t, noTemporaries(f.state))
}

// requireOnce checks that no task was executed twice.
func (f *folder) requireOnce() {
	f.t.Helper()
	for task, n := range f.executions() {
		require.Equal(f.t, 1, n, "task %s began %d times", task, n)
	}
}

// stopped reports whether the operating system has stopped a process (SIGSTOP).
func stopped(p *process) bool {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	_, rest, found := strings.Cut(string(data), ") ")
	return err == nil && found && strings.HasPrefix(rest, "T")
}

// The owner of a folder is stopped for longer than the heartbeat timeout, and then continued. While it is stopped, no
// other process may take the folder. After it continues, it must report the tasks that ended in the meantime, and
// answer the other processes that wait for it. No running task may time out. Without the lock of the folder, this
// test would fail.
func TestOwnerContinuesAfterStop(t *testing.T) {
	t.Parallel()
	stops := []time.Duration{4 * time.Second}
	if *full {
		stops = []time.Duration{time.Second, 3500 * time.Millisecond, 4 * time.Second, 6 * time.Second, 12 * time.Second, 35 * time.Second}
	}
	var assets []asset
	for i := range stops {
		assets = append(assets,
			asset{name: fmt.Sprintf("ends%d", i), script: gate(fmt.Sprintf("ends%d", i)), deps: dep("lasts", i-1), heartbeat: "2s"},
			asset{name: fmt.Sprintf("lasts%d", i), script: gate(fmt.Sprintf("lasts%d", i)), deps: dep("ends", i-1), heartbeat: "2s"})
	}
	f := newFolder(t, filepath.Join(t.TempDir(), "state"), assets...)
	first := f.servo("run", "--all", "--run-key", "stops")
	var waiting []*process
	for i, stop := range stops {
		ends, lasts := fmt.Sprintf("ends%d", i), fmt.Sprintf("lasts%d", i)
		f.awaitBegun(ends, lasts)
		first.signal(syscall.SIGSTOP)
		require.Eventually(t, func() bool { return stopped(first) }, waitLimit, time.Millisecond)
		f.open(ends)
		waiting = append(waiting, f.servo("run", "--all", "--run-key", "stops"))
		// The test needs real time to pass while the process is stopped.
		require.NoError(t, clock.System{}.Sleep(t.Context(), stop))
		first.signal(syscall.SIGCONT)
		key := contract.AssetsPrefix(acme) + "chaos/" + ends
		require.Eventually(t, func() bool { f.observe(); return strings.Contains(strings.Join(f.markerKeys(), " "), key) }, waitLimit, 20*time.Millisecond)
		f.open(lasts)
	}
	require.Contains(t, first.end(0), "SUCCEEDED")
	for _, p := range waiting {
		require.Contains(t, p.end(0), "SUCCEEDED")
	}
	f.requireOnce()
	f.requireDone(len(assets))
}

// dep returns a list of dependencies that contains only the asset with this name and number. If i is negative, the
// list is empty.
func dep(name string, i int) []string {
	if i < 0 {
		return nil
	}
	return []string{fmt.Sprintf("%s%d", name, i)}
}

func (w *witness) markerKeys() []string {
	keys := make([]string, 0, len(w.markers))
	for key := range w.markers {
		keys = append(keys, key)
	}
	return keys
}

// layered returns short assets in layers. Each asset depends on two assets of the previous layer.
func layered(prefix string, layers, width int) []asset {
	var assets []asset
	for layer := range layers {
		for i := range width {
			a := asset{name: fmt.Sprintf("%s%02d_%02d", prefix, layer, i), script: fmt.Sprintf("sleep 0.%02d", 5+(layer*7+i*5)%20)}
			for n := range min(2, width) {
				if layer > 0 {
					a.deps = append(a.deps, fmt.Sprintf("%s%02d_%02d", prefix, layer-1, (i+n)%width))
				}
			}
			assets = append(assets, a)
		}
	}
	return assets
}

// selected returns command-line arguments that select assets.
func selected(assets []asset) []string {
	var names []string
	for _, a := range assets {
		names = append(names, "chaos/"+a.name)
	}
	return names
}

// Two processes start at the same moment and request the same assets. One of them executes the tasks, each task once.
// Without the lock of the folder, this test would fail.
func TestTwoProcessesExecuteSameRequestOnce(t *testing.T) {
	t.Parallel()
	layers, rounds := 3, 1
	if *full {
		layers, rounds = 20, 5
	}
	for range rounds {
		assets := layered("t", layers, 4)
		f := newFolder(t, filepath.Join(t.TempDir(), "state"), assets...)
		processes := []*process{f.servo("run", "--all", "--run-key", "same"), f.servo("run", "--all", "--run-key", "same")}
		for _, p := range processes {
			require.Contains(t, p.end(0), "SUCCEEDED")
		}
		f.requireOnce()
		f.requireDone(len(assets))
	}
}

// Two processes start one run each in the same folder. The owner of the folder executes both runs, and exits after
// both have ended. No task is interrupted or executed twice.
func TestTwoProcessesCompleteOneRunEach(t *testing.T) {
	t.Parallel()
	layers := 3
	if *full {
		layers = 20
	}
	short, long := layered("short", 1, 2), layered("long", layers, 4)
	long[0].script = gate("long")
	f := newFolder(t, filepath.Join(t.TempDir(), "state"), append(short, long...)...)
	first := f.servo(append([]string{"run"}, selected(short)...)...)
	f.awaitOwner(first)
	second := f.servo(append([]string{"run"}, selected(long)...)...)
	f.awaitBegun("long00_00")
	f.open("long")
	require.Contains(t, second.end(0), "SUCCEEDED")
	require.Contains(t, first.end(0), "SUCCEEDED")
	f.requireOnce()
	f.requireDone(len(short) + len(long))
}

// Two processes follow one run. The test repeatedly kills one of them, the owner of the folder or the other process,
// and starts a new process. The run must continue in the surviving process.
func TestChaosRunSurvivesKillsOfOneProcess(t *testing.T) {
	t.Parallel()
	kills, layers := 2, 6
	if *full {
		kills, layers = 15, 40
	}
	random := randomness(t)
	assets := layered("t", layers, 4)
	f := newFolder(t, filepath.Join(t.TempDir(), "state"), assets...)
	start := func() *process { return f.servo("run", "--all", "--run-key", "pair") }
	processes := []*process{start(), start()}
	for i := range kills {
		owner, others := f.awaitOwner(processes...)
		threshold := (i + 1) * len(assets) / (kills + 2)
		require.Eventually(t, func() bool { return len(f.executions()) >= threshold }, waitLimit, 5*time.Millisecond)
		victim, survivor := owner, others[0]
		if random.IntN(3) == 0 {
			victim, survivor = others[0], owner
		}
		victim.kill()
		f.observe()
		t.Logf("kill %d at %d executions, owner: %t; %d ends are durable", i+1, threshold, victim == owner, len(f.finished))
		processes = []*process{survivor, start()}
	}
	for _, p := range processes {
		require.Contains(t, p.end(0), "SUCCEEDED")
	}
	f.requireDone(len(assets))
	for task, n := range f.executions() {
		require.LessOrEqual(t, n, kills+1, task)
	}
}

// disk mounts a file system in memory with a size in KiB.
func disk(t *testing.T, kib int) string {
	t.Helper()
	dir := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "mount", "-t", "tmpfs", "-o", fmt.Sprintf("size=%dk", kib), "tmpfs", dir).CombinedOutput(); err != nil {
		t.Skipf("needs root to mount a small disk: %v: %s", err, out)
	}
	t.Cleanup(func() {
		out, err := exec.Command("umount", "-l", dir).CombinedOutput()
		require.NoError(t, err, "%s", out)
	})
	return dir
}

// fill writes a file that fills a disk. free deletes it.
func fill(t *testing.T, dir string) (free func()) {
	t.Helper()
	name := filepath.Join(dir, "ballast")
	file, err := os.Create(name) //nolint:gosec // the test created this file
	require.NoError(t, err)
	for err == nil {
		_, err = file.Write(make([]byte, 4<<10))
	}
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.NoError(t, file.Close())
	return func() { require.NoError(t, os.Remove(name)) }
}

// A run on a full disk fails at its start with an error that names the disk.
func TestRunFailsOnFullDisk(t *testing.T) {
	t.Parallel()
	small := disk(t, 4<<10)
	f := newFolder(t, filepath.Join(small, "state"), layered("t", 2, 2)...)
	free := fill(t, small)
	said := f.servo("run", "--all").end(1)
	require.Contains(t, said, "no space left on device")
	require.Contains(t, said, small)
	free()
	require.Contains(t, f.servo("run", "--all").end(0), "SUCCEEDED")
	f.requireOnce()
	f.requireDone(4)
}

// A run stops when the disk is full. If the disk soon has space again, the run continues. Otherwise the process exits
// with an error that says what to do. An earlier version of Servo failed this test in full size: a process that was
// started while the disk was full waited forever.
func TestRunSurvivesFullDisk(t *testing.T) {
	t.Parallel()
	small := disk(t, 4<<10)
	held := asset{name: "held", script: gate("held") + `; echo made > "$SERVO_OUTPUT/out.txt"`, deps: []string{"before"}, heartbeat: "1s"}
	f := newFolder(t, filepath.Join(small, "state"), asset{name: "before", script: "true"}, held, asset{name: "after", script: "true", deps: []string{"held"}})
	p := f.servo("run", "--all")
	f.awaitBegun("held")
	free := fill(t, small)
	if *full {
		said := p.end(1)
		last := said[strings.LastIndex(said, "servo: "):]
		require.Regexp(t, "^servo: the state folder "+f.state+" has not been writable for 1[0-9.]+ s: .*: no space left on device .*; "+
			"free space on the disk, and run the same command again: nothing is lost\n$", last)
		require.Contains(t, f.servo("run", "--resume").end(1), "no space left on device")
		free()
		p = f.servo("run", "--resume")
	} else {
		// Wait until heartbeats are due. They cannot be written, because the disk is full.
		require.NoError(t, clock.System{}.Sleep(t.Context(), 1500*time.Millisecond))
		free()
	}
	f.open("held")
	require.Contains(t, p.end(0), "SUCCEEDED")
	require.Equal(t, 1, f.executions()["chaos/before"])
	f.requireDone(3)
}
