package service

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/memblob"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/compactor/remote"
	"github.com/servo-orchestration/servo/pkg/dispatcher"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
)

// roundTrip is the network to the compactor.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// The test has more damaged domains than the method fill tries at once. Damaged domains must not delay the other
// domains, and the service must become ready.
func TestFillContinuesPastDamagedDomains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memblob.New(memblob.Options{})
		for i := range 10 {
			_, err := store.Create(t.Context(), ledger.Prefix(ids.Domain{Tenant: fmt.Sprintf("damaged-%d", i), Workspace: "prod"})+"x", nil)
			require.NoError(t, err)
		}
		_, err := store.Create(t.Context(), ledger.Prefix(globex)+"x", nil) // Domains lists it last
		require.NoError(t, err)
		var down atomic.Bool
		down.Store(true)
		d := &dispatchers{server: &server{clock: clock.System{}, logger: silent}, store: store, client: func(domain ids.Domain) *remote.Client {
			return &remote.Client{Domain: domain, URL: "http://compactor", HTTP: &http.Client{Transport: roundTrip(func(*http.Request) (*http.Response, error) {
				status := http.StatusOK
				if down.Load() || strings.HasPrefix(domain.Tenant, "damaged") {
					status = http.StatusInternalServerError
				}
				return &http.Response{StatusCode: status, Body: io.NopCloser(bytes.NewReader([]byte(`{"revision": 1}`)))}, nil
			})}}
		}}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		var found atomic.Int32
		find := func(context.Context, ids.Domain) (*dispatcher.Dispatcher, error) { //nolint:unparam // a domain without a state has no dispatcher
			found.Add(1)
			return nil, nil //nolint:nilnil // as above
		}
		go func() { ended <- d.fill(ctx, find) }()
		require.NoError(t, clock.System{}.Sleep(t.Context(), time.Minute)) // virtual time
		require.Error(t, d.filled(), "no domain could be filled")
		down.Store(false)
		require.NoError(t, clock.System{}.Sleep(t.Context(), time.Minute))
		require.NoError(t, d.filled())
		require.EqualValues(t, 1, found.Load())
		stop()
		require.NoError(t, <-ended)
	})
}
