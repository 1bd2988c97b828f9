package worker

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/servo-orchestration/servo/pkg/contract"
)

// drainWait is how long a worker that is stopping waits until its tasks have ended and have been reported as
// interrupted. Cloud Run kills a worker 10 seconds after SIGTERM. The remaining 2 seconds are for exporting the last
// spans.
const drainWait = 8 * time.Second

// Serve accepts deliveries until ctx is done, and then closes the worker. It returns nil if all tasks have ended and
// have been reported within drainWait.
func (w *Worker) Serve(ctx context.Context, listener net.Listener) error {
	server := &http.Server{Handler: w.Handler(), ReadHeaderTimeout: drainWait, MaxHeaderBytes: contract.MaxHeaderBytes}
	served := make(chan error, 1)
	var serving sync.WaitGroup
	serving.Go(func() { served <- server.Serve(listener) })
	defer serving.Wait()
	var err error
	select {
	case err = <-served:
	case <-ctx.Done():
	}
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainWait)
	defer cancel()
	closed := w.Close(drain)
	_ = server.Shutdown(drain) // give open deliveries time to be answered
	err = errors.Join(err, closed, server.Close())
	if ctx.Err() != nil && closed == nil {
		return nil // the caller has requested the shutdown, and all tasks have ended
	}
	return err
}
