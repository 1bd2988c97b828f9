package embedded_test

import (
	"bytes"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/embedded"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/state"
)

// newest returns the newest manifest of a folder.
func newest(t *testing.T, opts embedded.Options) *manifest.Manifest {
	t.Helper()
	p, err := embedded.Open(opts)
	require.NoError(t, err)
	defer func() { require.NoError(t, p.Close()) }()
	m, err := p.Manifests.Load(t.Context())
	require.NoError(t, err)
	return m
}

func TestStartContinuesWhenStateIsAheadOfClock(t *testing.T) {
	dir := t.TempDir()
	opts := options(t, dir)
	opts.Clock = ahead{by: 2 * 365 * 24 * time.Hour}
	s, err := embedded.Start(t.Context(), opts)
	require.NoError(t, err)
	first := run(t, s.Engine, "", command("raw/a", "true"))
	await(t, s.Engine, first.RunID, ended)
	require.NoError(t, s.Sweep(t.Context()))
	require.NoError(t, s.Close())
	before := newest(t, options(t, dir))

	var logged bytes.Buffer
	opts = options(t, dir)
	opts.Logger = slog.New(slog.NewTextHandler(&logged, nil))
	s, err = embedded.Start(t.Context(), opts)
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close() })
	require.Contains(t, logged.String(), "the state is ahead of this machine's clock")
	second := run(t, s.Engine, "", command("raw/a", "true"))
	snap := await(t, s.Engine, second.RunID, ended)
	require.Equal(t, state.RunSucceeded, snap.State.Runs.Get(second.RunID).State)
	require.Greater(t, second.RunID, first.RunID, "new ids sort after recorded ids")
	require.NoError(t, s.Sweep(t.Context()))
	require.NoError(t, s.Close())
	after := newest(t, options(t, dir))
	require.Greater(t, after.FoldTime, before.FoldTime, "the state's time advances")
	verify(t, dir)
}
