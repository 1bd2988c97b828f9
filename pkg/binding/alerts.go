package binding

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"cloud.google.com/go/pubsub/v2"

	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/secret"
	"github.com/servo-orchestration/servo/pkg/secret/gcpsecret"
)

// Secrets returns a function that reads secrets for a service: from variables of its environment, and from Secret
// Manager.
func Secrets(lookup func(name string) (string, bool)) func(ctx context.Context, reference string) (string, error) {
	return secret.Sources{plan.SecretEnv: secret.Variables(lookup), plan.SecretGCP: gcpsecret.Source()}.Resolve
}

// Publisher returns a function that publishes to topics of Pub/Sub. It connects to a Google Cloud project when it
// first publishes to a topic of the project, and keeps the connection.
func Publisher() func(ctx context.Context, topic string, data []byte, attributes map[string]string) error {
	p := &publisher{clients: map[string]*pubsub.Client{}}
	return p.publish
}

type publisher struct {
	mu      sync.Mutex
	clients map[string]*pubsub.Client // the clients by project
}

func (p *publisher) publish(ctx context.Context, topic string, data []byte, attributes map[string]string) error {
	project := strings.Split(topic, "/")[1] // projects/PROJECT/topics/TOPIC
	client, err := p.client(ctx, project)
	if err != nil {
		return fmt.Errorf("open Pub/Sub of project %s: %w", project, err)
	}
	to := client.Publisher(topic)
	defer to.Stop()
	to.PublishSettings.CountThreshold = 1 // send immediately: messages are rare, so batching would only delay them
	if _, err := to.Publish(ctx, &pubsub.Message{Data: data, Attributes: attributes}).Get(ctx); err != nil {
		return fmt.Errorf("publish to %s: %w", topic, err)
	}
	return nil
}

func (p *publisher) client(ctx context.Context, project string) (*pubsub.Client, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if client := p.clients[project]; client != nil {
		return client, nil
	}
	client, err := pubsub.NewClient(context.WithoutCancel(ctx), project)
	if err != nil {
		return nil, err
	}
	p.clients[project] = client
	return client, nil
}
