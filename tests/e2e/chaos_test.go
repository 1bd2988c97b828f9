package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/embedded"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ledger"
	"github.com/servo-orchestration/servo/pkg/state"
	"github.com/servo-orchestration/servo/pkg/worker"
)

func randomness(t *testing.T) *rand.Rand {
	t.Helper()
	s := *seed
	if s == 0 {
		s = rand.Uint64()
	}
	t.Logf("seed %d; repeat with -seed=%d", s, s)
	return rand.New(rand.NewPCG(s, 0))
}

// witness observes, independently of the state, what is executed. It reads the commit markers, and it counts the
// executions of each task, because each execution writes a line to a file when it begins.
type witness struct {
	t       *testing.T
	parts   *embedded.Workspace
	marks   string
	markers map[string]marker
	// finished contains the tasks whose end is durable. It maps each task to the number of executions that had begun
	// when [witness.observe] found this end for the first time.
	finished map[string]int
}

type marker struct {
	content    string
	generation int64
}

// executions returns the number of executions of each task.
func (w *witness) executions() map[string]int {
	w.t.Helper()
	files, err := os.ReadDir(w.marks)
	require.NoError(w.t, err)
	begun := map[string]int{}
	for _, f := range files {
		data, err := os.ReadFile(filepath.Join(w.marks, f.Name()))
		require.NoError(w.t, err)
		begun["chaos/"+f.Name()] = strings.Count(string(data), "\n")
	}
	return begun
}

// observe fails the test if a finished task was executed again, or if a commit marker has changed since the last call.
// Then it records newly finished tasks and the current commit markers.
func (w *witness) observe() {
	w.t.Helper()
	begun := w.executions()
	for task, n := range w.finished {
		require.Equal(w.t, n, begun[task], "task %s was executed again after its end was durable", task)
	}
	for name, err := range ledger.List(w.t.Context(), w.parts.Folder, acme, "") {
		require.NoError(w.t, err)
		data, err := ledger.Read(w.t.Context(), w.parts.Folder, ledger.Key(acme, name.Entry))
		require.NoError(w.t, err)
		for _, g := range event.Groups(event.DecodeEntry(data)) {
			for _, e := range g.Events {
				if p, ok := e.Payload.(*event.TaskFinished); ok {
					if p.Outcome != event.Succeeded {
						require.Equal(w.t, worker.CodeInterrupted, p.Error.Code, "%+v", p.Error) // the attempt was killed with its process
						continue
					}
					if _, seen := w.finished[p.TaskKey]; !seen {
						w.finished[p.TaskKey] = begun[p.TaskKey]
					}
				}
			}
		}
	}
	now := map[string]marker{}
	for object, err := range w.parts.Folder.List(w.t.Context(), blob.ListOptions{Prefix: contract.AssetsPrefix(acme)}) {
		require.NoError(w.t, err)
		if strings.HasSuffix(object.Key, "/_commit.json") {
			data, object, err := w.parts.Folder.Get(w.t.Context(), object.Key)
			require.NoError(w.t, err)
			now[object.Key] = marker{string(data), object.Version}
		}
	}
	for key, was := range w.markers {
		require.Equal(w.t, was, now[key], "commit marker %s has changed", key)
	}
	w.markers = now
}

// The test kills the process repeatedly: each time, it waits until a given number of tasks have succeeded, and then
// for a short random delay. Some kills hit a process that is still starting. The run must end as if nothing had
// happened: no finished task is executed again, and no commit marker changes.
func TestChaosRunSurvivesKills(t *testing.T) {
	kills, layers, width := 5, 6, 10
	if *full {
		kills, layers, width = 20, 20, 10
	}
	random := randomness(t)
	dir, marks := filepath.Join(t.TempDir(), "state"), t.TempDir()
	j := &job{
		Dir: dir, Root: t.TempDir(), RunKey: "chaos", Concurrency: 8, Layers: layers, Width: width, Fan: 2,
		Command: []string{"sh", "-c", `echo x >> ` + marks + `/{key}; sleep {ms}; echo {key} > "$SERVO_OUTPUT/out.txt"`},
	}
	w := &witness{t: t, marks: marks, parts: openParts(t, dir), finished: map[string]int{}}
	thresholds := make([]int, kills)
	for i := range thresholds {
		thresholds[i] = random.IntN(j.tasks() - width/2)
	}
	slices.Sort(thresholds)
	began := clock.System{}.Now()
	for i, threshold := range thresholds {
		c := startChild(t, j)
		reached := c.await(t, threshold)
		// A short random delay, so that the kill can hit any line of the code.
		extra := time.Duration(random.IntN(40)) * time.Millisecond
		require.NoError(t, clock.System{}.Sleep(t.Context(), extra))
		c.kill(t)
		w.observe()
		t.Logf("kill %d at %d tasks (wanted %d) and %s: %d ends are durable, %d markers", i+1, reached, threshold, extra, len(w.finished), len(w.markers))
	}
	last := startChild(t, j).end(t)
	require.Equal(t, state.RunSucceeded, last.State)
	w.observe()
	require.Len(t, w.markers, j.tasks())
	require.Len(t, w.finished, j.tasks())
	report := requireVerified(t, w.parts)
	require.Equal(t, j.tasks(), report.Outputs)
	repeated := 0
	for _, n := range w.executions() {
		repeated += n - 1
	}
	t.Logf("%d tasks, %d kills, %d executions interrupted and repeated, %s",
		j.tasks(), kills, repeated, clock.System{}.Now().Sub(began).Round(time.Millisecond))
}

// await waits until threshold tasks have succeeded. If earlier children have already completed that many tasks, await
// returns almost immediately. So some children are killed while they start.
func (c *child) await(t *testing.T, threshold int) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		select {
		case <-ctx.Done():
			require.NoError(t, fmt.Errorf("%d tasks have not succeeded: %w\n%s", threshold, ctx.Err(), c.stderr.String()))
		case p, ok := <-c.lines:
			require.True(t, ok, "the child exited: %s", c.stderr.String())
			require.False(t, p.State.Terminal(), "the run ended before it was killed: its thresholds are too high")
			if int(p.Succeeded) >= threshold {
				return int(p.Succeeded)
			}
		}
	}
}

// A process may be killed at any moment of its start. The next process must still be able to start in the same
// folder.
func TestChaosStartsSurviveKills(t *testing.T) {
	starts := 4
	if *full {
		starts = 12
	}
	random := randomness(t)
	dir, marks := filepath.Join(t.TempDir(), "state"), t.TempDir()
	j := &job{
		Dir: dir, Root: t.TempDir(), RunKey: "starts", Concurrency: 4, Layers: 3, Width: 4, Fan: 2,
		Command: []string{"sh", "-c", `echo x >> ` + marks + `/{key}; sleep {ms}`},
	}
	w := &witness{t: t, marks: marks, parts: openParts(t, dir), finished: map[string]int{}}
	for range starts {
		c := startChild(t, j)
		require.NoError(t, clock.System{}.Sleep(t.Context(), time.Duration(random.IntN(250))*time.Millisecond))
		if err := c.cmd.Process.Kill(); !errors.Is(err, os.ErrProcessDone) {
			require.NoError(t, err)
		}
		c.drain()
		_ = c.cmd.Wait() // an error is expected if the process was killed
		w.observe()
	}
	require.Equal(t, state.RunSucceeded, startChild(t, j).end(t).State)
	w.observe()
	requireVerified(t, w.parts)
	require.NoError(t, noTemporaries(dir))
}

// noTemporaries returns an error if a state folder has scratch folders left. The file "lock" guards their removal.
func noTemporaries(dir string) error {
	left, err := filepath.Glob(filepath.Join(dir, "scratch", "*-*"))
	if err == nil && len(left) > 0 {
		err = fmt.Errorf("%d scratch folders are left, for example %s", len(left), filepath.Base(left[0]))
	}
	return err
}
