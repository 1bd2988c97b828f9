package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// If a change of the code removes the place of a mutant, this test fails immediately. Otherwise `make
// simulate-mutants` would fail only after an hour.
func TestEveryMutantHasOnePlace(t *testing.T) {
	t.Chdir("../../..")
	mutants, err := parse(list)
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(mutants), 50)
	_, err = locate(mutants)
	require.NoError(t, err)
}
