package service

import (
	"context"
	"log/slog"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/metrics"
)

// Cloud Run kills an instance 10 seconds after it has sent the signal to end.
func TestShutdownFitsIntoCloudRunsLimit(t *testing.T) {
	require.Less(t, drainTimeout+linger+flushTimeout, 10*time.Second)
}

// endpoint is an endpoint whose last request ends some time after ctx.
type endpoint struct {
	Endpoint

	drains time.Duration
}

func (e endpoint) URL() string { return "" }

func (e endpoint) Serve(ctx, work context.Context, _ http.Handler) error {
	<-ctx.Done()
	return clock.System{}.Sleep(work, e.drains)
}

// The endpoint that drains last must not be cut off by the other one.
func TestServeDrainsBothEndpoints(t *testing.T) {
	for _, drains := range [][2]time.Duration{{0, time.Second}, {time.Second, 0}} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			s := &server{
				endpoint: endpoint{drains: drains[0]}, metricsAt: endpoint{drains: drains[1]}, mux: http.NewServeMux(),
				metrics: metrics.None{}, clock: clock.System{}, logger: slog.New(slog.DiscardHandler),
			}
			cancel()
			require.NoError(t, s.serve(ctx))
		})
	}
}
