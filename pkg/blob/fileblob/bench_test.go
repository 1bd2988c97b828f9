package fileblob_test

import (
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/blob/fileblob"
	"github.com/servo-orchestration/servo/pkg/clock"
)

func BenchmarkCreate(b *testing.B) {
	for _, row := range []struct {
		name string
		opts fileblob.Options
	}{{"durable", fileblob.Options{}}, {"without flushes", fileblob.Options{NoSync: true}}} {
		data := make([]byte, 600)
		var i atomic.Int64
		create := func(b *testing.B, s *fileblob.Store) {
			b.Helper()
			_, err := s.Create(b.Context(), fmt.Sprintf("ledger/orchestration/tenant=t/workspace=w/%020d.json", i.Add(1)), data)
			require.NoError(b, err)
		}
		b.Run(row.name+"/one after the other", func(b *testing.B) {
			s := openBench(b, row.opts)
			var took []time.Duration
			for b.Loop() {
				began := clock.System{}.Now()
				create(b, s)
				took = append(took, clock.System{}.Now().Sub(began))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2]), "p50-ns/op")
		})
		b.Run(row.name+"/64 at a time", func(b *testing.B) {
			s := openBench(b, row.opts)
			b.SetParallelism((64 + runtime.GOMAXPROCS(0) - 1) / runtime.GOMAXPROCS(0))
			b.RunParallel(func(p *testing.PB) {
				for p.Next() {
					create(b, s)
				}
			})
		})
	}
}

func openBench(b *testing.B, opts fileblob.Options) *fileblob.Store {
	b.Helper()
	s, err := fileblob.Open(b.TempDir(), opts)
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, s.Close()) })
	return s
}

func BenchmarkListEndOfLargeFolder(b *testing.B) {
	s := openBench(b, fileblob.Options{NoSync: true})
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
