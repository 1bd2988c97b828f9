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

// Message is what a subscription has of an object.
type Message struct {
	Attributes map[string]string `json:"attributes"`
	Data       []byte            `json:"data"`
}

// Pull hands over the messages of a subscription, several at once, until ctx is done
// or the subscription cannot be had. Those that are taken without an error are
// acknowledged; others come again.
type Pull func(ctx context.Context, subscription string, take func(context.Context, Message) error) error

// subscriptionName is the full name of a subscription.
var subscriptionName = regexp.MustCompile(`^projects/[^/]+/subscriptions/[^/]+$`)

func (c config) checkSubscription() error {
	if c.Subscription != "" && !subscriptionName.MatchString(c.Subscription) {
		return fmt.Errorf("--subscription %q is not projects/PROJECT/subscriptions/SUBSCRIPTION", c.Subscription)
	}
	return nil
}

// refusedPause is how long a message that was refused is held back: a subscription
// without a retry policy would deliver it again at once.
const refusedPause = time.Second

// pull has what a subscription has dealt with by the route that takes pushes, so
// that it is one whichever way it came. It goes on until ctx is done.
func (s *server) pull(pull Pull, subscription string) func(context.Context) error {
	take := func(ctx context.Context, m Message) error {
		err := s.push(ctx, m)
		if err != nil {
			s.warnings.warn(ctx, "notification", "notification not taken; it comes again", slog.String("error", contract.Cut(err.Error())))
			_ = s.clock.Sleep(ctx, refusedPause) // what matters is that it is over
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
			s.logger.WarnContext(ctx, "the subscription cannot be had; it is tried again",
				slog.String("subscription", subscription), slog.Duration("wait", backoff), slog.Any("error", err))
			if err := s.clock.Sleep(ctx, backoff); err != nil {
				return nil //nolint:nilerr // the service is ending
			}
		}
	}
}

// push is a push of Pub/Sub to this very process. Nobody asks who calls.
func (s *server) push(ctx context.Context, m Message) error {
	body, err := json.Marshal(map[string]Message{"message": m})
	if err != nil {
		return fmt.Errorf("encode notification: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "/v1/notifications", bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("hand on notification: %w", err)
	}
	r.Header.Set("Content-Type", "application/json")
	w := &unsent{header: http.Header{}, status: http.StatusOK}
	s.mux.ServeHTTP(w, r)
	if w.status >= http.StatusMultipleChoices {
		return fmt.Errorf("hand on notification: %d: %.300s", w.status, w.body.Bytes())
	}
	return nil
}
