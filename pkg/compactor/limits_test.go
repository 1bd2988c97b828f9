package compactor_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/blob/fileblob"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/domain"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
	"github.com/servo-orchestration/servo/pkg/repair"
	"github.com/servo-orchestration/servo/pkg/state"
)

// raw stores bytes as a ledger entry and returns its name.
func (w *world) raw(data []byte) string {
	w.t.Helper()
	w.clock.pass(time.Millisecond)
	entry := w.ids.New()
	_, err := w.blobs.Create(w.t.Context(), ledger.Key(foldtest.Domain, entry), data)
	require.NoError(w.t, err)
	return entry
}

// rowsOf returns the rows of an entry in a state, by group.
func rowsOf(st *state.State, entry string) map[string]*state.Entry {
	rows := map[string]*state.Entry{}
	st.Entries.Ascend(state.Key2{A: entry}, func(row *state.Entry) bool {
		if row.Entry == entry {
			rows[row.Group] = row
		}
		return row.Entry == entry
	})
	return rows
}

func (w *world) rows(c *compactor.Compactor, entry string) map[string]*state.Entry {
	snap, _ := c.Latest().Get()
	return rowsOf(snap.State, entry)
}

// This test fails if the compactor reads and decodes entries above the limits.
func TestI15EntryAboveALimitIsOneDeadLetter(t *testing.T) {
	bytesDetail := fmt.Sprintf("the entry has %d bytes, at most %d are allowed: it was not read", ledger.MaxEntryBytes+1, ledger.MaxEntryBytes)
	for name, test := range map[string]struct {
		data   []byte
		detail string
	}{
		"bytes":  {bytes.Repeat([]byte("x"), ledger.MaxEntryBytes+1), bytesDetail},
		"events": {bytes.Repeat([]byte("1\n"), 1<<20), "the entry has more than 5000 events"},
	} {
		for _, how := range []string{"listed", "announced", "handed over"} {
			t.Run(name+" "+how, func(t *testing.T) {
				w := newWorld(t)
				c := w.open("one")
				run, before := w.trigger(foldtest.Task("a"))
				entry := w.raw(test.data)
				after := w.append(w.Started(run, "a", 1))
				request := compactor.Request{Entries: []compactor.Entry{{ID: before.ID}, {ID: entry}, {ID: after.ID}}}
				switch how {
				case "listed":
					request = compactor.Request{Barrier: true}
				case "handed over":
					request.Entries[1].Data = test.data
				}
				_, err := c.Step(t.Context(), request)
				require.NoError(t, err)
				rows := w.rows(c, entry)
				require.Len(t, rows, 1)
				row := rows[compactor.WholeEntry]
				require.Equal(t, state.DeadLetter, row.Outcome)
				require.Equal(t, event.ReasonTooLarge, row.Reason)
				require.Equal(t, test.detail, row.Detail)
				require.EqualValues(t, len(test.data), row.Bytes)
				require.False(t, row.Waits())
				require.Equal(t, []string{"a=RUNNING"}, w.states(c, run))
				w.verify()

				_, err = repair.Rebuild(t.Context(), w.repair())
				require.NoError(t, err)
				w.verify()
				rebuildBare(t, w)
				c = w.open("two")
				require.Equal(t, row.Detail, w.rows(c, entry)[compactor.WholeEntry].Detail)
				require.Equal(t, []string{"a=RUNNING"}, w.states(c, run))
				w.verify()
			})
		}
	}
}

func TestPlanAboveALimitFailsItsRun(t *testing.T) {
	for name, test := range map[string]struct {
		plan []byte
		says string
	}{
		"tasks":  {[]byte(`{"Tasks":[` + strings.Repeat("{},", 400_000) + `{}]}`), "it has more than 200000 tasks"},
		"hidden": {[]byte(`{"tasks":[],"a":[{"b":1}],"tasks":[` + strings.Repeat("{},", 400_000) + `{}]}`), "duplicate"},
		"cut":    {[]byte(`{"tasks":[` + strings.Repeat("{},", 400_000)), "cannot be decoded"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			c := w.open("one")
			ref := compactor.PlanPrefix(foldtest.Domain) + "large.json"
			_, err := w.blobs.Create(t.Context(), ref, test.plan)
			require.NoError(t, err)
			payloads := w.Triggered(&event.RunTriggered{RunID: w.ids.New()})
			created, ok := payloads[1].(*event.PlanCreated)
			require.True(t, ok)
			created.PlanRef, created.Tasks = ref, nil
			w.step(c, w.append(payloads...))
			snap, _ := c.Latest().Get()
			row := snap.State.Runs.Get(created.RunID)
			require.Equal(t, state.RunFailed, row.State)
			require.Equal(t, fold.CodePlanUnreadable, row.ErrorCode)
			require.Contains(t, row.ErrorMessage, test.says)
			w.verify()
		})
	}
}

const (
	refusalFolder = "SERVO_TEST_REFUSAL_FOLDER"
	// refusalMemory is how much memory a process may use while it refuses objects that are too large.
	refusalMemory = 150 << 20
)

// A separate process folds a ledger of objects that are far too large. The test measures the peak resident memory of
// this process.
func TestRefusedEntriesTakeLittleMemory(t *testing.T) {
	if dir := os.Getenv(refusalFolder); dir != "" { //nolint:forbidigo // set for the second process
		refuseAll(t, dir)
		return
	}
	if testing.Short() {
		t.Skip("it runs a second process")
	}
	dir := t.TempDir()
	store, err := fileblob.Open(dir, fileblob.Options{})
	require.NoError(t, err)
	source := ids.NewSource(clock.System{}.Now, nil)
	for range 3 {
		_, err = store.Create(t.Context(), ledger.Key(foldtest.Domain, source.New()), bytes.Repeat([]byte("1\n"), 1<<20))
		require.NoError(t, err)
	}
	require.NoError(t, store.Close())
	huge, err := os.Create(filepath.Join(dir, ledger.Key(foldtest.Domain, source.New())))
	require.NoError(t, err)
	require.NoError(t, huge.Truncate(100<<20))
	require.NoError(t, huge.Close())

	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v") //nolint:gosec // runs this test
	child.Env = append(os.Environ(), refusalFolder+"="+dir)
	output, err := child.CombinedOutput()
	require.NoError(t, err, "%s", output)
	usage, ok := child.ProcessState.SysUsage().(*syscall.Rusage)
	require.True(t, ok)
	peak := usage.Maxrss
	if runtime.GOOS != "darwin" { // macOS counts bytes, other systems KiB
		peak <<= 10
	}
	t.Logf("peak: %d MiB", peak>>20)
	require.Less(t, peak, int64(refusalMemory))
}

// refuseAll folds the ledger of a folder in which every entry is too large.
func refuseAll(t *testing.T, dir string) {
	t.Helper()
	store, err := fileblob.Open(dir, fileblob.Options{})
	require.NoError(t, err)
	source := ids.NewSource(clock.System{}.Now, nil)
	c, err := compactor.Open(t.Context(), compactor.Config{
		Handle: domain.Open(domain.Handle{Domain: foldtest.Domain, Store: store, Codec: codec, IDs: source, Clock: clock.System{}}),
		Writer: "child",
	})
	require.NoError(t, err)
	result, err := c.Step(t.Context(), compactor.Request{Barrier: true})
	require.NoError(t, err)
	require.Equal(t, 4, result.Folded)
	snap, _ := c.Latest().Get()
	for row := range snap.State.Entries.All {
		require.Equal(t, event.ReasonTooLarge, row.Reason)
	}
	require.NoError(t, store.Close())
}
