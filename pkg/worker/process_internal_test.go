package worker

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/duckdb/duckdb-go/v2"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/servo-orchestration/servo/pkg/event"
)

// beWorker is the argument that makes the test binary act as a worker: it runs a command and waits to be killed.
const beWorker = "be-a-worker"

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == beWorker {
		w := &Worker{starter: newStarter()}
		if _, err := w.launch(&exec.Cmd{Path: "/bin/sh", Args: []string{"sh", "-c", os.Args[2]}, Dir: "/"}, ""); err != nil {
			panic(err)
		}
		select {}
	}
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"),
		goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"))
}

func TestCommandDiesWithKilledWorker(t *testing.T) {
	fifo := t.TempDir() + "/fifo"
	require.NoError(t, syscall.Mkfifo(fifo, 0o600))
	cmd := exec.CommandContext(t.Context(), os.Args[0], beWorker, "exec 3>"+fifo+"; echo here >&3; exec sleep 10000")
	require.NoError(t, cmd.Start())
	pipe, err := os.Open(fifo)
	require.NoError(t, err)
	defer pipe.Close()
	said := make([]byte, 5)
	_, err = io.ReadFull(pipe, said)
	require.NoError(t, err)
	require.NoError(t, cmd.Process.Kill())
	rest, err := io.ReadAll(pipe) // the read ends when no process has the pipe open
	require.NoError(t, err)
	require.Empty(t, rest)
	require.Error(t, cmd.Wait())
}

func TestLogKeepsBeginningAndEnd(t *testing.T) {
	for _, chunk := range []int{999, 1 << 20, 7 << 20, 23 << 20} {
		total := max(24<<20/chunk, 1) * chunk
		whole := make([]byte, total)
		for i := range whole {
			whole[i] = byte('a' + i%23)
		}
		var l boundedLog
		for at := 0; at < total; at += chunk {
			if n, err := l.Write(whole[at : at+chunk]); n != chunk || err != nil {
				t.Fatalf("wrote %d bytes, %v", n, err)
			}
		}
		got := l.bytes()
		require.True(t, bytes.HasPrefix(got, whole[:logEnd]), "chunks of %d", chunk)
		require.True(t, bytes.HasSuffix(got, whole[total-logEnd:]), "chunks of %d", chunk)
		require.LessOrEqual(t, cap(l.head)+cap(l.tail.ring), 3*logEnd)
	}
	var l boundedLog
	l.printf("%s", "short")
	require.Equal(t, "short", string(l.bytes()))
}

func TestFollowedLogEqualsTheStoredOne(t *testing.T) {
	for _, total := range []int{0, 7, logEnd, logEnd + 1, 2 * logEnd, 2*logEnd + 1, 23 << 20} {
		whole := make([]byte, total)
		for i := range whole {
			whole[i] = byte('a' + i%23)
		}
		var l boundedLog
		_, _ = l.Write(whole[:total/3])
		_, _ = l.Write(whole[total/3:])
		l.close()
		var got bytes.Buffer
		require.NoError(t, l.follow(t.Context(), &got, nil))
		require.True(t, bytes.Equal(l.bytes(), got.Bytes()), "%d bytes", total)
	}
}

func TestBoundedCutsBetweenCharacters(t *testing.T) {
	got := bounded(strings.Repeat("é", 20_000) + "\xff")
	require.LessOrEqual(t, len(got), 16<<10)
	require.True(t, strings.HasSuffix(got, "é…"))
	require.Equal(t, "a?b", bounded("a\xffb"))
}

func TestCacheEvictsLeastRecentlyUsed(t *testing.T) {
	c := newCache[int](10)
	c.put("a", 1, 4)
	c.put("b", 2, 4)
	_, ok := c.get("a")
	require.True(t, ok)
	c.put("c", 3, 4)
	c.put("huge", 4, 11)
	for key, want := range map[string]bool{"a": true, "b": false, "c": true, "huge": false} {
		_, ok := c.get(key)
		require.Equal(t, want, ok, key)
	}
}

func TestFullDiskIsReportedAsDiskFull(t *testing.T) {
	for _, err := range []error{
		fail(CodeStore, CategoryInfrastructure, fmt.Errorf("store output: %w", syscall.ENOSPC)),
		sqlFailure(&duckdb.Error{Type: duckdb.ErrorTypeIO, Msg: "IO Error: could not write: No space left on device"}),
	} {
		outcome, told := verdict(t.Context(), nil, err)
		require.Equal(t, event.Failed, outcome)
		require.Equal(t, CodeDiskFull, told.Code)
		require.Equal(t, CategoryResource, told.Category)
		require.True(t, told.Retryable)
	}
}

func TestVerdictFollowsStopCause(t *testing.T) {
	for _, c := range []struct {
		cause   error
		outcome event.Outcome
		code    string
	}{
		{cancelledError{"enough"}, event.Cancelled, CodeCancelled},
		{timedOutError{time.Second}, event.TimedOut, CodeTimeout},
		{errInterrupted, event.Failed, CodeInterrupted},
		{nil, event.Failed, CodeInterrupted},
	} {
		ctx, stop := context.WithCancelCause(t.Context())
		stop(c.cause)
		outcome, told := verdict(ctx, nil, &failure{code: CodeSQL, err: io.EOF})
		require.Equal(t, c.outcome, outcome)
		require.Equal(t, c.code, told.Code)
	}
}
