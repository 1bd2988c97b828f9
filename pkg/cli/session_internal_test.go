package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/embedded"
	"github.com/servo-orchestration/servo/pkg/engine"
)

// record writes owner.json.
func record(t *testing.T, dir string, o embedded.Owner) {
	t.Helper()
	data, err := json.Marshal(o)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "owner.json"), data, 0o600))
}

func TestLookNeedsProofThatOwnerHasEnded(t *testing.T) {
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	dir := t.TempDir()
	alive := embedded.Owner{PID: os.Getpid(), URL: "http://" + listener.Addr().String(), Token: "a"}
	record(t, dir, alive)
	require.Equal(t, serving, look(t.Context(), dir, alive))

	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	require.Equal(t, silent, look(cancelled, dir, alive), "a dial that was not completed proves nothing")
	unreadable := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(unreadable, "owner.json"), []byte("{"), 0o600))
	require.Equal(t, serving, look(t.Context(), unreadable, alive), "nor does a record that cannot be read")

	next := alive
	next.Token = "b"
	require.Equal(t, ended, look(t.Context(), dir, next), "another process owns the folder")
	require.Equal(t, ended, look(t.Context(), t.TempDir(), alive), "it has released the folder")
	dead := alive
	dead.PID = 1 << 30
	record(t, dir, dead)
	require.Equal(t, ended, look(t.Context(), dir, dead), "its process does not exist")
	record(t, dir, alive)
	require.NoError(t, listener.Close())
	require.Equal(t, ended, look(t.Context(), dir, alive), "its port refuses connections")
}

func TestFailedDialProvesEndOnlyIfRefused(t *testing.T) {
	dial := func(err error) error { return &net.OpError{Op: "dial", Net: "tcp", Err: err} }
	require.Equal(t, ended, afterFailedDial(dial(os.NewSyscallError("connect", syscall.ECONNREFUSED))))
	for _, err := range []error{os.ErrDeadlineExceeded, context.Canceled, syscall.EMFILE, syscall.EADDRNOTAVAIL, syscall.ECONNRESET} {
		require.Equal(t, silent, afterFailedDial(dial(err)), "%v", err)
	}
}

func TestUnconfirmedCommandIsNeverReportedAsLost(t *testing.T) {
	durable := unconfirmed(&lostError{fmt.Errorf("fold ledger entry x, %w: %w", engine.ErrDurable, context.Canceled)})
	require.ErrorIs(t, durable, errOwnerGone)
	require.ErrorContains(t, durable, "the command is recorded, and takes effect when")
	unknown := unconfirmed(&lostError{errors.New("append: context canceled")})
	require.ErrorIs(t, unknown, errOwnerGone)
	require.ErrorContains(t, unknown, "may or may not have taken effect")
}

// The operating system accepts connections on behalf of a suspended process, but the process never answers.
func TestSuspendedOwnerDoesNotAnswer(t *testing.T) {
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, listener.Close()) }()
	o := embedded.Owner{PID: os.Getpid(), URL: "http://" + listener.Addr().String(), Token: "t"}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	require.False(t, answers(ctx, o))
}
