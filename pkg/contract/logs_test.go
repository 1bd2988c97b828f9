package contract_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/contract"
)

func TestParseOmittedFindsTheLine(t *testing.T) {
	head := bytes.Repeat([]byte("x"), contract.LogEnd)
	for _, n := range []int64{1, 7, 104857611} {
		line := contract.OmittedText(n)
		from, to, found := contract.ParseOmitted(append(append(bytes.Clone(head), line...), "tail"...))
		require.Equal(t, n, found)
		require.Equal(t, contract.LogEnd, from)
		require.Equal(t, contract.LogEnd+len(line), to)
	}
	for _, text := range []string{"", "tail", "\n… x bytes omitted …\n", "\n… 007 bytes omitted …\n", "\n… 7 bytes"} {
		_, _, found := contract.ParseOmitted(append(bytes.Clone(head), text...))
		require.Zero(t, found, "%q", text)
	}
	_, _, found := contract.ParseOmitted(contract.OmittedText(7))
	require.Zero(t, found, "a command may print such a line")
}
