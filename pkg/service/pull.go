package service

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"time"

	"github.com/servo-orchestration/servo/pkg/contract"
)

// Message is a message of a subscription.
type Message struct {
	Attributes map[string]string `json:"attributes"`
	Data       []byte            `json:"data"`
}

// Pull passes the messages of a subscription to the function take, several at once, until ctx is done or the
// subscription is unavailable. It acknowledges a message if take returns no error; otherwise the message is
// redelivered.
type Pull func(ctx context.Context, subscription string, take func(context.Context, Message) error) error

// subscriptionName matches the full name of a subscription.
var subscriptionName = regexp.MustCompile(`^projects/[^/]+/subscriptions/[^/]+$`)

func (c config) checkSubscription() error {
	if c.Subscription != "" && !subscriptionName.MatchString(c.Subscription) {
		return fmt.Errorf("--subscription %q is not projects/PROJECT/subscriptions/SUBSCRIPTION", c.Subscription)
	}
	return nil
}

// refusedPause delays the redelivery of a refused message, which a subscription without a retry
// policy would redeliver immediately.
const refusedPause = time.Second

// pull serves the messages of a subscription as if they had been pushed, until ctx is done.
func (s *server) pull(pull Pull, subscription string) func(context.Context) error {
	take := func(ctx context.Context, m Message) error {
		err := s.push(ctx, m)
		if err != nil {
			s.warnings.warn(ctx, "notification", "notification refused; it will be redelivered", slog.String("error", contract.Truncate(err.Error())))
			_ = s.clock.Sleep(ctx, refusedPause) // an error only means that the pause ended early
		}
		return err
	}
	return func(ctx context.Context) error {
		for backoff := firstBackoff; ; backoff = min(2*backoff, lastBackoff) {
			began := s.clock.Now()
			err := pull(ctx, subscription, take)
			if ctx.Err() != nil {
				return nil //nolint:nilerr // the service is ending
			}
			if s.clock.Now().Sub(began) > lastBackoff {
				backoff = firstBackoff
			}
			s.logger.WarnContext(ctx, "cannot pull from the subscription; will retry",
				slog.String("subscription", subscription), slog.Duration("wait", backoff), slog.Any("error", err))
			if err := s.clock.Sleep(ctx, backoff); err != nil {
				return nil //nolint:nilerr // the service is ending
			}
		}
	}
}

// push serves a message like a push of Pub/Sub, without authentication.
func (s *server) push(ctx context.Context, m Message) error {
	body, err := json.Marshal(map[string]Message{"message": m})
	if err != nil {
		return fmt.Errorf("encode notification: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "/v1/notifications", bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("serve notification: %w", err)
	}
	r.Header.Set("Content-Type", "application/json")
	w := &captured{header: http.Header{}, status: http.StatusOK}
	s.mux.ServeHTTP(w, r)
	if w.status >= http.StatusMultipleChoices {
		return fmt.Errorf("serve notification: %d: %.300s", w.status, w.body.Bytes())
	}
	return nil
}
