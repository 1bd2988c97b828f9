package ledger_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/blob/fileblob"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
)

// Each writer appends single events to a ledger in a directory. Events that arrive while an entry is written share the
// next entry.
func BenchmarkAppend(b *testing.B) {
	for _, writers := range []int{1, 16, 256} {
		b.Run(fmt.Sprintf("writers=%d", writers), func(b *testing.B) {
			store, err := fileblob.Open(b.TempDir(), fileblob.Options{Now: clock.System{}.Now})
			require.NoError(b, err)
			b.Cleanup(func() { require.NoError(b, store.Close()) })
			entries := 0
			a := ledger.NewAppender(ledger.Config{
				Domain: domain, Store: store, IDs: ids.NewSource(clock.System{}.Now, nil), Clock: clock.System{},
				OnStored: func(ledger.Entry) { entries++ },
			})
			var wg sync.WaitGroup
			for i := range writers {
				wg.Go(func() {
					for range b.N/writers + min(1, max(0, b.N%writers-i)) {
						if _, err := a.Append(b.Context(), []*event.Envelope{cancel("")}); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			b.ReportMetric(float64(b.N)/float64(max(entries, 1)), "events/entry")
		})
	}
}
