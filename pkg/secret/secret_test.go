package secret_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/secret"
)

// folder returns a folder of secrets, which contains the given files and a subfolder.
func folder(t *testing.T, files map[string]string) (dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "secrets")
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "folder"), 0o700))
	for name, text := range files {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	return dir
}

func TestFilesTrimLastLineEnd(t *testing.T) {
	most := strings.Repeat("x", secret.MaxBytes)
	dir := folder(t, map[string]string{
		"plain": "hunter2", "line": "hunter2\n", "windows": "hunter2\r\n", "lines": "one\ntwo\n\n", "most": most + "\n",
	})
	// This is the layout of a secret that Kubernetes mounts.
	require.NoError(t, os.Mkdir(filepath.Join(dir, "..2026"), 0o700))
	require.NoError(t, os.Rename(filepath.Join(dir, "plain"), filepath.Join(dir, "..2026", "mounted")))
	require.NoError(t, os.Symlink("..2026", filepath.Join(dir, "..data")))
	require.NoError(t, os.Symlink("..data/mounted", filepath.Join(dir, "mounted")))
	s := secret.Sources{"file": secret.Files(dir)}
	for name, want := range map[string]string{
		"mounted": "hunter2", "line": "hunter2", "windows": "hunter2", "lines": "one\ntwo\n", "most": most,
	} {
		got, err := s.Resolve(t.Context(), "file:"+name)
		require.NoError(t, err, name)
		require.Equal(t, want, got, name)
	}
}

func TestFilesRejectInvalidFiles(t *testing.T) {
	dir := folder(t, map[string]string{
		"empty": "", "only-a-line-end": "\n", "large": strings.Repeat("x", secret.MaxBytes+1) + "\n", "zero": "hunter2\x00",
	})
	outside := filepath.Join(filepath.Dir(dir), "outside")
	require.NoError(t, os.WriteFile(outside, []byte("hunter2"), 0o600))
	require.NoError(t, os.Symlink(outside, filepath.Join(dir, "absolute")))
	require.NoError(t, os.Symlink("../outside", filepath.Join(dir, "relative")))
	require.NoError(t, os.Symlink("loop", filepath.Join(dir, "loop")))
	require.NoError(t, syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o600))
	s := secret.Sources{"file": secret.Files(dir)}
	for name, want := range map[string]string{
		"file:missing":         "no such file",
		"file:empty":           "the value is empty",
		"file:only-a-line-end": "the value is empty",
		"file:large":           "more than 65536 bytes",
		"file:zero":            "a zero byte",
		"file:folder":          "is not a regular file",
		"file:fifo":            "is not a regular file",
		"file:absolute":        "escapes",
		"file:relative":        "escapes",
		"file:loop":            "too many levels of symbolic links",
		"file:../outside":      "invalid secret reference: file: expects a plain file name",
		"env:HOME":             "secret env:HOME: this worker does not support provider env",
	} {
		value, err := s.Resolve(t.Context(), name)
		require.ErrorIs(t, err, secret.ErrRefused, name)
		require.ErrorContains(t, err, want, name)
		require.Empty(t, value)
		require.NotContains(t, err.Error(), "hunter2")
		if !strings.Contains(name, "..") {
			require.ErrorContains(t, err, "secret "+name)
		}
	}
	_, err := secret.Sources{"file": secret.Files("")}.Resolve(t.Context(), "file:x")
	require.ErrorIs(t, err, secret.ErrRefused)
	require.EqualError(t, err, "secret file:x: no folder of secrets is configured: set --secrets DIR or SERVO_SECRETS")
	_, err = secret.Sources{"file": secret.Files(dir + "/nowhere")}.Resolve(t.Context(), "file:x")
	require.ErrorIs(t, err, secret.ErrRefused)
	require.ErrorContains(t, err, "open the folder of secrets: ")
}

func TestVariablesReadEnvironment(t *testing.T) {
	s := secret.Sources{"env": secret.Variables(func(name string) (string, bool) { return "v of " + name, name != "NONE" })}
	got, err := s.Resolve(t.Context(), "env:A")
	require.NoError(t, err)
	require.Equal(t, "v of A", got)
	_, err = s.Resolve(t.Context(), "env:NONE")
	require.ErrorIs(t, err, secret.ErrRefused)
	require.EqualError(t, err, "secret env:NONE: environment variable NONE is not set: set it before starting servo")
	_, err = s.Resolve(t.Context(), "env:SERVO_KEYS")
	require.ErrorIs(t, err, secret.ErrRefused)
}

func TestResolveKeepsTransientErrors(t *testing.T) {
	away := errors.New("no response")
	s := secret.Sources{"gcp": func(context.Context, string) (string, error) { return "", away }}
	_, err := s.Resolve(t.Context(), "gcp:projects/p/secrets/k")
	require.ErrorIs(t, err, away)
	require.NotErrorIs(t, err, secret.ErrRefused)
	require.EqualError(t, err, "secret gcp:projects/p/secrets/k: no response")
}
