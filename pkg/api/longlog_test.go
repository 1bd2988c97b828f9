package api_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/servov1"
)

// A client that has read a log with omitted text up to its current end can continue there, both while the attempt runs
// and after it has ended.
func TestLongLogIsReadFromAnyOffset(t *testing.T) {
	const printed = 14_888_896 // the number of bytes that seq prints
	gate := filepath.Join(t.TempDir(), "gate")
	f := serve(t, asset("raw/a", "seq 2000000; until [ -e "+gate+" ]; do sleep 0.02; done; echo the end"))
	c := f.connect(t)
	started, err := c.execution.TriggerRun(t.Context(), &servov1.TriggerRunRequest{All: true})
	require.NoError(t, err)
	require.Equal(t, "RUNNING", f.awaitAttempt(t, started.GetRunId(), "raw/a"))
	read := func(offset int64) *servov1.LogChunk {
		part, err := c.logs.ReadLog(t.Context(), &servov1.ReadLogRequest{RunId: started.GetRunId(), TaskKey: "raw/a", Offset: offset, Limit: 1 << 20})
		require.NoError(t, err)
		require.Equal(t, offset, part.GetOffset())
		return part
	}
	offset := int64(0)
	for last := ""; !strings.HasSuffix(last, "\n2000000\n"); {
		part := read(offset)
		if part.GetText() != "" {
			last = part.GetText()
		}
		require.False(t, part.GetComplete())
		offset = part.GetNextOffset()
	}
	require.GreaterOrEqual(t, offset, int64(printed))
	middle := read(offset - printed/2 - 1<<20)
	require.Regexp(t, `^\n… [0-9]+ bytes omitted …\n$`, middle.GetText())
	require.NotEmpty(t, read(middle.GetNextOffset()).GetText())

	stream, err := c.logs.TailLog(t.Context(), &servov1.TailLogRequest{RunId: started.GetRunId(), TaskKey: "raw/a", Offset: middle.GetNextOffset()})
	require.NoError(t, err)
	defer stream.Close()
	require.NoError(t, os.WriteFile(gate, nil, 0o600))
	var tail strings.Builder
	for next := middle.GetNextOffset(); stream.Receive(); next = stream.Msg().GetNextOffset() {
		require.Equal(t, next, stream.Msg().GetOffset())
		tail.WriteString(stream.Msg().GetText())
	}
	require.NoError(t, stream.Err())
	require.True(t, strings.HasSuffix(tail.String(), "\n2000000\nthe end\n"))

	f.await(t, started.GetRunId())
	rest := read(offset)
	require.Equal(t, "the end\n", rest.GetText())
	require.Equal(t, offset+8, rest.GetNextOffset())
	require.True(t, rest.GetComplete())
}
