package binding

import (
	"context"
	"fmt"
	"strings"
	"time"

	"cloud.google.com/go/pubsub/v2"

	"github.com/servo-orchestration/servo/pkg/service"
)

// maxOutstanding bounds the messages of a subscription that are being dealt with. More
// than a few hundred gain nothing: what waits for a domain is folded at once.
const maxOutstanding = 256

// shutdownTimeout is how long the end waits for messages that are being dealt with, and
// for their acknowledgement: the client would wait for ever where Pub/Sub has gone, and with
// a bound of its own for no acknowledgement at all.
const shutdownTimeout = 4 * time.Second

// Pull pulls the messages of a subscription of Pub/Sub.
func Pull(ctx context.Context, subscription string, take func(context.Context, service.Message) error) (err error) {
	project := strings.Split(subscription, "/")[1] // projects/PROJECT/subscriptions/SUBSCRIPTION
	client, err := pubsub.NewClient(ctx, project)
	if err != nil {
		return fmt.Errorf("open Pub/Sub of project %s: %w", project, err)
	}
	defer func() {
		if closeErr := client.Close(); err == nil && closeErr != nil {
			err = fmt.Errorf("close Pub/Sub: %w", closeErr)
		}
	}()
	s := client.Subscriber(subscription)
	s.ReceiveSettings.MaxOutstandingMessages = maxOutstanding
	ended := make(chan error, 1)
	go func() { // it ends with the client at the latest
		ended <- s.Receive(ctx, func(ctx context.Context, m *pubsub.Message) {
			if take(ctx, service.Message{Attributes: m.Attributes, Data: m.Data}) == nil {
				m.Ack()
			} else {
				m.Nack()
			}
		})
	}()
	if err := awaitEnd(ctx, ended); err != nil {
		return fmt.Errorf("pull from %s: %w", subscription, err)
	}
	return nil
}

// awaitEnd waits for an end, for a while only once ctx is done.
func awaitEnd(ctx context.Context, ended <-chan error) error {
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	waiting, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer cancel()
	select {
	case err := <-ended:
		return err
	case <-waiting.Done():
		return nil
	}
}
