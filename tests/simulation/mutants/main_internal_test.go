package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Whoever changes the text that a mutant changes learns it here, not in an hour.
func TestEveryMutantHasItsPlace(t *testing.T) {
	t.Chdir("../../..")
	mutants, err := parse(list)
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(mutants), 50)
	for _, m := range mutants {
		_, err := m.edited()
		require.NoError(t, err)
	}
}
