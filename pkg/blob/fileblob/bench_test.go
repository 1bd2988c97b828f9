package fileblob_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/blob/fileblob"
)

func BenchmarkCreate(b *testing.B) {
	for name, opts := range map[string]fileblob.Options{"durable": {}, "without flushes": {NoSync: true}} {
		b.Run(name, func(b *testing.B) {
			s, err := fileblob.Open(b.TempDir(), opts)
			require.NoError(b, err)
			defer func() { require.NoError(b, s.Close()) }()
			data := make([]byte, 600)
			i := 0
			for b.Loop() {
				i++
				_, err := s.Create(b.Context(), fmt.Sprintf("ledger/orchestration/tenant=t/workspace=w/%020d.json", i), data)
				require.NoError(b, err)
			}
		})
	}
}

func BenchmarkListTheEndOfALargeFolder(b *testing.B) {
	s, err := fileblob.Open(b.TempDir(), fileblob.Options{NoSync: true})
	require.NoError(b, err)
	defer func() { require.NoError(b, s.Close()) }()
	const objects = 20_000
	key := func(i int) string { return fmt.Sprintf("ledger/orchestration/tenant=t/workspace=w/%020d.json", i) }
	for i := range objects {
		_, err := s.Create(b.Context(), key(i), nil)
		require.NoError(b, err)
	}
	for b.Loop() {
		count := 0
		for _, err := range s.List(b.Context(), blob.ListOptions{Prefix: "ledger/orchestration/", StartAfter: key(objects - 11)}) {
			require.NoError(b, err)
			count++
		}
		require.Equal(b, 10, count)
	}
}
