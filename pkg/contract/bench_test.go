package contract_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/contract"
)

func BenchmarkSeal(b *testing.B) {
	env := envelope()
	b.ReportAllocs()
	for b.Loop() {
		_, err := contract.Seal(env, keys, hour)
		require.NoError(b, err)
	}
}

func BenchmarkOpen(b *testing.B) {
	raw, err := contract.Seal(envelope(), keys, hour)
	require.NoError(b, err)
	b.ReportAllocs()
	for b.Loop() {
		_, err := contract.Open(raw, keys, start)
		require.NoError(b, err)
	}
}

func BenchmarkCallbackURL(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		_ = contract.CallbackURL("http://127.0.0.1:4000", callback(contract.VerbStarted), keys)
	}
}
