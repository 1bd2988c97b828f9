package contract_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/contract"
)

// An envelope describes up to 10,000 upstreams that did not succeed. If there are more, the envelope does not say which
// upstreams succeeded.
func TestEnvelopeDescribesManyFailedUpstreams(t *testing.T) {
	var tasks []string
	for i := range contract.MaxWithout {
		tasks = append(tasks, fmt.Sprintf("raw/events[date=2025-01-15;customer=%d]", i))
	}
	env := envelope()
	env.Without = contract.WithoutTasks(tasks)
	env.TaskKey = "a/b[x=" + strings.Repeat("y", 500) + "]"
	raw, err := contract.Seal(env, keys, hour)
	require.NoError(t, err)
	require.LessOrEqual(t, len(raw), contract.MaxEnvelopeBytes)
	failed, known, err := env.Without.Tasks()
	require.NoError(t, err)
	require.True(t, known)
	require.True(t, failed(tasks[0]) && failed(tasks[len(tasks)-1]))
	require.False(t, failed("raw/events"))

	failed, known, err = contract.WithoutTasks(append(tasks, "raw/events")).Tasks()
	require.NoError(t, err)
	require.False(t, known || failed(tasks[0]))

	failed, known, err = contract.WithoutTasks(nil).Tasks()
	require.NoError(t, err)
	require.True(t, known && !failed("raw/events"))
}

// WithoutTasks computes the hash of a task key as docs/worker-contract.md describes it.
func TestWithoutIsHashesOfTaskKeys(t *testing.T) {
	require.Equal(t, contract.Without("ungWv48B"), contract.WithoutTasks([]string{"abc"})) // SHA-256 ba7816bf8f01…
	require.Equal(t, contract.Without(""), contract.WithoutTasks(nil))
}

func TestOpenRejectsInvalidWithout(t *testing.T) {
	for _, text := range []contract.Without{"?", "YWJj", "**"} {
		env := envelope()
		env.Without = text
		raw, err := contract.Seal(env, keys, hour)
		if err == nil {
			_, err = contract.Open(raw, keys, start)
		}
		require.ErrorContains(t, err, "without: ", text)
	}
}
