package worker_test

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/blob/fileblob"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/worker"
)

// partStore reports each stored part of a log. The first two writes of parts fail: one has no effect, and one
// succeeds but reports a failure.
type partStore struct {
	*fileblob.Store
	failures chan error
	stored   chan string
}

var errUnknown = errors.New("no response")

// Put implements [blob.Store].
func (s *partStore) Put(ctx context.Context, key string, data []byte) (blob.Object, error) {
	if !strings.Contains(key, ".log.") {
		return s.Store.Put(ctx, key, data)
	}
	select {
	case err := <-s.failures:
		if errors.Is(err, errUnknown) {
			_, _ = s.Store.Put(ctx, key, data)
		}
		return blob.Object{}, err
	default:
	}
	o, err := s.Store.Put(ctx, key, data)
	s.stored <- string(data)
	return o, err
}

// inParts returns a fixture whose command runs the script, and the store of the fixture.
func inParts(t *testing.T, script string) (*fixture, *partStore) {
	t.Helper()
	files, err := fileblob.Open(t.TempDir(), fileblob.Options{NoSync: true})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, files.Close()) })
	store := &partStore{files, make(chan error, 10), make(chan string, 10)}
	w := newFixture(t, store, map[string]plan.Work{"a/b": shellWithSecrets(script, map[string]string{"TOKEN": "file:token"})}, task("a/b", "", nil))
	w.config.Secrets = (&vault{}).resolve
	w.worker, w.server = w.open(w.config)
	return w, store
}

var logKey = contract.LogKey(domain, runID, "a/b", 1, attemptID)

// parts returns the stored parts of the log.
func (w *fixture) parts() []string {
	w.t.Helper()
	return w.keysBelow(logKey + ".")
}

func TestLogPartsAreStoredWhileTheCommandRuns(t *testing.T) {
	w, store := inParts(t, `echo "begun $TOKEN"; printf 'then hunt'; cat one; printf 'er2-canary\n'; cat two; echo x > $SERVO_OUTPUT/x`)
	one, two := w.pipe("one"), w.pipe("two")
	status := w.deliverLater("a/b")

	// The worker stores the first line one interval after it was printed, while the command still runs. It holds back
	// text that is the first half of a secret.
	w.clock.fire(t, worker.LogPartInterval)
	first := <-store.stored
	require.Contains(t, []string{"begun ***\n", "begun ***\nthen "}, first, "the second text may arrive later")
	require.Zero(t, w.control.calls("finished"))
	require.Len(t, w.parts(), 1)

	one()
	var parts engine.LogParts
	text, err := parts.Next(t.Context(), store, logKey)
	require.NoError(t, err)
	for got := first; got != "begun ***\nthen ***\n"; {
		w.clock.fire(t, worker.LogPartInterval)
		require.True(t, strings.HasPrefix(got, string(text)))
		got = <-store.stored
		require.NotContains(t, got, "hunt")
		more, err := parts.Next(t.Context(), store, logKey)
		require.NoError(t, err)
		text = append(text, more...)
		require.Equal(t, got, string(text), "a reader sees each text once")
	}
	require.Len(t, w.parts(), 1, "a small part is replaced by a longer one")

	// The whole log replaces the parts.
	two()
	require.Equal(t, http.StatusOK, <-status)
	require.NoError(t, w.worker.Close(t.Context()))
	require.Equal(t, "begun ***\nthen ***\n", w.log("a/b"))
	require.Empty(t, w.parts())
}

func TestLogPartsSurviveKilledWorkerAndFailedWrites(t *testing.T) {
	w, store := inParts(t, `head -c 70000 /dev/zero | tr '\0' a; cat one; printf "$TOKEN-end"; cat two; echo x > $SERVO_OUTPUT/x`)
	one, two := w.pipe("one"), w.pipe("two")
	store.failures <- errors.New("disk full")
	store.failures <- errUnknown
	status := w.deliverLater("a/b")
	for range 2 {
		w.clock.fire(t, worker.LogPartInterval) // a failed write is repeated even without new text
	}
	a := strings.Repeat("a", 70_000)
	var parts engine.LogParts
	shown := ""
	await := func(want string) {
		t.Helper()
		for shown != want {
			w.clock.fire(t, worker.LogPartInterval)
			<-store.stored
			more, err := parts.Next(t.Context(), store, logKey)
			require.NoError(t, err)
			shown += string(more)
			require.True(t, strings.HasPrefix(want, shown), "%.100q", shown)
		}
	}
	await(a)
	one()
	await(a + "***-end")
	require.Len(t, w.parts(), 2, "the first part is complete")

	// If the worker is killed now, these parts remain, and a second execution stores its own parts next to them.
	killed := w.parts()
	_, err := store.Store.Put(t.Context(), contract.LogPartKey(logKey, "n0", 1), []byte("of the killed worker"))
	require.NoError(t, err)
	text, err := parts.Next(t.Context(), store, logKey)
	require.NoError(t, err)
	require.Equal(t, "of the killed worker", string(text), "the newest part decides which execution is shown")
	require.True(t, parts.Restarted)

	two()
	require.Equal(t, http.StatusOK, <-status)
	require.NoError(t, w.worker.Close(t.Context()))
	require.Equal(t, a+"***-end", w.log("a/b"))
	require.Equal(t, []string{contract.LogPartKey(logKey, "n0", 1)}, w.parts(), "an execution deletes its own parts only: %v", killed)
}

// A worker was killed after its command had printed text. The second execution of the attempt prints nothing.
func TestSilentExecutionDeletesPartsOfKilledWorker(t *testing.T) {
	for name, c := range map[string]struct {
		script string
		answer int // the status of the response to the report of the end
		kept   int
	}{
		"succeeded": {`echo x > $SERVO_OUTPUT/x`, http.StatusOK, 0},
		"failed":    {`exit 1`, http.StatusOK, 0},
		"replaced":  {`echo x > $SERVO_OUTPUT/x`, http.StatusConflict, 1},
	} {
		t.Run(name, func(t *testing.T) {
			w, store := inParts(t, c.script)
			w.control.answer = func(verb string, _ int) (int, any) {
				if verb == contract.VerbFinished {
					return c.answer, nil
				}
				return 0, nil
			}
			key := contract.LogPartKey(logKey, "n0", 1)
			_, err := store.Store.Put(t.Context(), key, []byte("of the killed worker"))
			require.NoError(t, err)
			require.Equal(t, http.StatusOK, w.deliver("a/b"))
			require.NoError(t, w.worker.Close(t.Context()))
			require.Len(t, w.parts(), c.kept)
		})
	}
}

// Another execution commits first. The execution whose command prints nothing adopts that output, so it must keep the
// log parts of the other execution.
func TestSilentExecutionKeepsPartsOfTheOutputThatItAdopts(t *testing.T) {
	w, store := inParts(t, `if mkdir first; then cat go; fi 2> /dev/null; echo x > $SERVO_OUTPUT/x`)
	w.pipe("go")
	status := w.deliverLater("a/b")
	gate, err := os.OpenFile(filepath.Join(w.root, "go"), os.O_WRONLY, 0) // OpenFile blocks until the command opens the pipe
	require.NoError(t, err)

	other, server := w.open(w.config)
	code, _ := post(t, server.URL, w.envelope("a/b", 1))
	require.Equal(t, http.StatusOK, code)
	require.NoError(t, other.Close(t.Context()))
	committed := w.marker("a/b").Nonce
	_, err = store.Store.Put(t.Context(), contract.LogPartKey(logKey, committed, 1), []byte("of the output"))
	require.NoError(t, err)

	require.NoError(t, gate.Close())
	require.Equal(t, http.StatusOK, <-status)
	require.NoError(t, w.worker.Close(t.Context()))
	require.Equal(t, 2, w.control.calls(contract.VerbFinished))
	require.Equal(t, committed, w.marker("a/b").Nonce)
	require.Len(t, w.parts(), 1)
}
