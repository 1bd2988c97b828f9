package secret_test

import (
	"bytes"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/secret"
)

func TestRedactorHidesAddedValues(t *testing.T) {
	var out bytes.Buffer
	var r secret.Redactor
	logger := slog.New(slog.NewTextHandler(r.Writer(&out), nil))
	require.Nil(t, r.Mask())
	logger.Info("before", "password", "hunter2")
	require.Contains(t, out.String(), "hunter2", "before the value is added")
	out.Reset()

	r.Add("hunter2", "line\nbreak")
	r.Add("hunter2")
	logger.Info("with hunter2", "error", "no hunter2", "json", "line\nbreak")
	require.NotContains(t, out.String(), "hunter2")
	require.NotContains(t, out.String(), "break")
	require.Contains(t, out.String(), `msg="with ***" error="no ***" json="***"`)

	require.Equal(t, "*** and ***", r.Mask("swordfish").String("hunter2 and swordfish"))
	require.Equal(t, "*** and swordfish", r.Mask().String("hunter2 and swordfish"))
	n, err := r.Writer(&out).Write([]byte("hunter2"))
	require.NoError(t, err)
	require.Equal(t, len("hunter2"), n, "the length of the input, not of the output")
}
