package worker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/trace"
)

// callTimeout limits one callback.
const callTimeout = 30 * time.Second

// Limits of the backoff between two tries of a callback or a storage operation.
const (
	firstBackoff = 200 * time.Millisecond
	maxBackoff   = 30 * time.Second
)

// callbacks sends the callbacks of one attempt to the control plane. A response may contain new URLs for later
// callbacks.
type callbacks struct {
	client *http.Client
	clock  clock.Clock
	// traceparent and tracestate are headers with the values from the envelope.
	traceparent, tracestate string

	mu   sync.Mutex
	urls contract.Callbacks
}

func (c *callbacks) url(verb string) string {
	to, _ := c.call(verb)
	return to
}

// call returns the URL of a callback and the value of its Authorization header. The header is empty if the URL itself
// is signed.
func (c *callbacks) call(verb string) (to, authorization string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch verb {
	case contract.VerbStarted:
		return c.urls.Started, c.urls.Authorization.Started
	case contract.VerbHeartbeat:
		return c.urls.Heartbeat, c.urls.Authorization.Heartbeat
	}
	return c.urls.Finished, c.urls.Authorization.Finished
}

// renew replaces each URL for which the parameter urls contains a new one.
func (c *callbacks) renew(urls contract.Callbacks) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now, more := &c.urls.Authorization, &urls.Authorization
	for _, u := range []struct{ to, from, toAuth, fromAuth *string }{
		{&c.urls.Started, &urls.Started, &now.Started, &more.Started},
		{&c.urls.Heartbeat, &urls.Heartbeat, &now.Heartbeat, &more.Heartbeat},
		{&c.urls.Finished, &urls.Finished, &now.Finished, &more.Finished},
	} {
		if *u.from != "" {
			*u.to, *u.toAuth = *u.from, *u.fromAuth
		}
	}
}

// post makes one call. If it returns an error, the control plane may or may not have accepted the call.
func (c *callbacks) post(ctx context.Context, verb string, body, answer any) (status int, err error) {
	to, authorization := c.call(verb)
	if to == "" {
		return http.StatusNotFound, nil
	}
	data, err := json.Marshal(body)
	if err != nil {
		return 0, fmt.Errorf("encode %s: %w", verb, err)
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, to, bytes.NewReader(data))
	if err != nil {
		return 0, fmt.Errorf("call %s: %w", verb, withoutURL(err))
	}
	request.Header.Set("Content-Type", "application/json")
	if authorization != "" {
		request.Header.Set("Authorization", authorization)
	}
	if c.traceparent != "" {
		request.Header.Set(trace.Header, c.traceparent)
	}
	if c.tracestate != "" {
		request.Header.Set(trace.StateHeader, c.tracestate)
	}
	response, err := c.client.Do(request)
	if err != nil {
		return 0, fmt.Errorf("call %s: %w", verb, withoutURL(err))
	}
	defer response.Body.Close()
	got, err := io.ReadAll(io.LimitReader(response.Body, contract.MaxResponseBytes+1))
	if err != nil {
		return 0, fmt.Errorf("read the response to %s: %w", verb, err)
	}
	if isOK(response.StatusCode) && answer != nil && len(got) > 0 {
		if err := json.Unmarshal(got, answer); err != nil {
			return 0, fmt.Errorf("read the response to %s: %w", verb, err)
		}
	}
	return response.StatusCode, nil
}

// withoutURL removes the URL from the error of a request. A reader of the log could use a signed URL to send reports
// in the name of the attempt.
func withoutURL(err error) error {
	if of, ok := errors.AsType[*url.Error](err); ok {
		return of.Err
	}
	return err
}

// deliver repeats a call until it gets a final response, or until the next try would be after the deadline. Without a
// final response, it returns the last status (0: none) and the last error.
func (c *callbacks) deliver(ctx context.Context, deadline event.Time, verb string, body, answer any) (int, error) {
	for wait := firstBackoff; ; wait = min(2*wait, maxBackoff) {
		status, err := c.post(ctx, verb, body, answer)
		if err == nil && !isTransient(status) {
			return status, nil
		}
		if event.At(c.clock.Now()).Add(wait) >= deadline {
			return status, err
		}
		if stopped := c.clock.Sleep(ctx, wait); stopped != nil {
			return status, stopped
		}
	}
}

func isOK(status int) bool { return status >= 200 && status < 300 }

// isTransient reports whether a retry of a call with this status may succeed.
func isTransient(status int) bool {
	return status >= 500 || status == http.StatusRequestTimeout ||
		status == http.StatusTooEarly || status == http.StatusTooManyRequests
}
