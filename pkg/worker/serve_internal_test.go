package worker

import (
	"bytes"
	"log/slog"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/event"
)

// If the report of the end fails, it is repeated only after a redelivery.
func TestDeliveryWaitsForReportOfLongTask(t *testing.T) {
	for name, reported := range map[string]bool{"reported": true, "not reported in time": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &Worker{cfg: Config{Clock: clock.System{}, HoldFor: time.Minute}}
				j := &job{long: make(chan struct{}), done: make(chan struct{})}
				close(j.long)
				answered := make(chan int, 1)
				go func() { answered <- w.await(t.Context(), j).status }()
				synctest.Wait()
				require.Empty(t, answered)
				if reported {
					j.finish(answer{status: http.StatusOK})
					require.Equal(t, http.StatusOK, <-answered)
					return
				}
				require.Equal(t, http.StatusInternalServerError, <-answered)
			})
		})
	}
}

func TestErrorsOmitSignedURLs(t *testing.T) {
	var log bytes.Buffer
	for _, at := range []string{"http://127.0.0.1:1/x?sig=secret", "http://127.0.0.1:1/%zz?sig=secret"} {
		c := &callbacks{client: &http.Client{}, clock: clock.System{}, urls: contract.Callbacks{Started: at}}
		_, err := c.deliver(t.Context(), event.At(clock.System{}.Now()), contract.VerbStarted, contract.Started{}, nil)
		require.ErrorContains(t, err, "call started: ")
		slog.New(slog.NewTextHandler(&log, nil)).ErrorContext(t.Context(), "x", "error", err)
	}
	require.NotContains(t, log.String(), "secret")
}
