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

// This test fails if `servo dev` hides the reason why it ended, for example a full disk, and exits with 0.
func TestServeReturnsReasonUnlessInterrupted(t *testing.T) {
	full := errors.New("the disk is full")
	for _, c := range []struct{ cause, want error }{
		{full, full},
		{errInterrupted, nil},
		{nil, nil}, // nil: the cause is context.Canceled
	} {
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, project.ConfigFile), nil, 0o600))
		a := &app{Env: Env{Clock: clock.System{}, Stderr: &bytes.Buffer{}}, logger: slog.New(slog.DiscardHandler)}
		p, err := project.LoadSettings(dir, project.Options{})
		require.NoError(t, err)
		stack, err := embedded.Start(t.Context(), a.options(p))
		require.NoError(t, err)
		s := a.ownSession(stack, dir)
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(c.cause)
		require.ErrorIs(t, a.serve(ctx, s, &loaded{project: p}), c.want)
		require.NoError(t, s.close())
	}
}

func TestDevKeepsTheLastGoodProject(t *testing.T) {
	root := t.TempDir()
	write := func(name, text string) {
		path := filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o750))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	}
	write("servo.yaml", "name: good\n")
	write("assets/a/one.sql", "SELECT 1 AS x")
	write("assets/a/two.sql", "SELECT x FROM a.one")
	var notes bytes.Buffer
	a := &app{Env: Env{Clock: clock.System{}, Stderr: &notes}, logger: slog.New(slog.DiscardHandler)}
	p, err := a.loadProject(t.Context(), root)
	require.NoError(t, err)
	stack, err := embedded.Start(t.Context(), a.options(p))
	require.NoError(t, err)
	s := a.ownSession(stack, root)
	defer func() { require.NoError(t, s.close()) }()
	current := &loaded{}
	current.set(p)

	queries := func() map[string]string {
		served, err := current.get()
		require.NoError(t, err)
		of := map[string]string{}
		for i := range served.Assets {
			require.Empty(t, served.Assets[i].Broken)
			of[served.Assets[i].Key.String()] = served.Assets[i].Work.SQL
		}
		return of
	}
	good := queries()
	require.Len(t, good, 2)
	// Each step checks the result of the previous change, and makes the next one.
	var looks []func()
	change := func(name, text string, want map[string]string, note string) {
		looks = append(looks, func() { notes.Reset(); write(name, text) }, func() {
			require.Equal(t, want, queries(), "after changing %s", name)
			require.Contains(t, notes.String(), note)
		})
	}
	kept := "keeping the last loaded project until the problems are fixed\n"
	change("assets/a/two.sql", "SELECT x FROM a.onee", good, kept)        // one asset is broken
	change("assets/a/one.sql", "SELEKT 1", good, kept)                    // its upstream is broken, too
	change("servo.yaml", "name: good\nretires: 3\n", good, kept)          // the settings are broken, too
	change("assets/a/one.sql", "SELECT 2 AS x", good, kept)               // one of three is fixed
	change("servo.yaml", "name: good\n", good, "assets/a/two.sql:1:15: ") // two are fixed
	repaired := map[string]string{"a/one": "SELECT 2 AS x", "a/two": "SELECT x + 1 AS x FROM a.one"}
	change("assets/a/two.sql", "SELECT x + 1 AS x FROM a.one", repaired, "project reloaded: 2 assets")
	a.Clock = &steps{todo: looks}
	err = a.watch(t.Context(), root, func() error { return nil }, func() []string { return nil }, func(ctx context.Context) error { return a.reload(ctx, s, current) })
	require.EqualError(t, err, "nothing more to do")
}
