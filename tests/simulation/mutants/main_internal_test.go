package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A change that leaves a mutant without a place fails here, not an hour into `make
// simulate-mutants`.
func TestEveryMutantHasOnePlace(t *testing.T) {
	t.Chdir("../../..")
	mutants, err := parse(list)
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(mutants), 50)
	_, err = locate(mutants)
	require.NoError(t, err)
}
