package binding

import (
	"context"
	"fmt"
	"strings"
	"time"

	"cloud.google.com/go/pubsub/v2"

	"github.com/servo-orchestration/servo/pkg/service"
)

// maxOutstanding bounds the messages of a subscription that are being processed. A higher
// limit gains nothing: a fold applies all pending entries of a domain together.
const maxOutstanding = 256

// shutdownTimeout bounds the wait for messages in process and their acknowledgements. It is needed because the client
// by default waits forever if Pub/Sub is unreachable, and does not wait for acknowledgements at all if its own
// timeout is set.
const shutdownTimeout = 4 * time.Second

// Pull pulls messages of a Pub/Sub subscription until ctx ends, and calls the function "take" with each message. It
// acknowledges a message if take returns nil; otherwise Pub/Sub redelivers it.
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
	go func() { // this goroutine ends at the latest when the client is closed
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

// awaitEnd returns the error that it receives from the channel "ended". After ctx is done, it waits at most
// shutdownTimeout, and then returns nil.
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
