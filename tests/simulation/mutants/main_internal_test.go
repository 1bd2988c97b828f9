package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// If a change of the code removes the place that a mutant edits, this test fails immediately. Without this test,
// `make simulate-mutants` would fail, but only after an hour.
func TestEveryMutantHasOnePlace(t *testing.T) {
	t.Chdir("../../..")
	mutants, err := parse(list)
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(mutants), 50)
	_, err = locate(mutants)
	require.NoError(t, err)
}
