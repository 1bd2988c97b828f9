package cli

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/embedded"
	"github.com/servo-orchestration/servo/pkg/project"
)

// Seen to fail: on a full disk `servo dev` ended without a word, with exit code 0.
func TestServingEndsWithTheReasonUnlessSomebodyAskedForIt(t *testing.T) {
	full := errors.New("the disk is full")
	for _, c := range []struct{ cause, want error }{
		{full, full},
		{errInterrupted, nil},
		{nil, nil}, // is context.Canceled
	} {
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, project.ConfigFile), nil, 0o600))
		a := &app{Env: Env{Clock: clock.System{}, Stderr: &bytes.Buffer{}}, logger: slog.New(slog.DiscardHandler)}
		p, err := project.LoadSettings(dir)
		require.NoError(t, err)
		stack, err := embedded.Start(t.Context(), a.options(p))
		require.NoError(t, err)
		s := a.own(stack, dir)
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(c.cause)
		require.ErrorIs(t, a.serve(ctx, s, &loaded{project: p}), c.want)
		require.NoError(t, s.close())
	}
}
