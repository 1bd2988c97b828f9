package binding_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"io"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"cloud.google.com/go/pubsub/v2/pstest"
	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/memblob"
	"github.com/servo-orchestration/servo/pkg/binding"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/service"
)

const (
	topic        = "projects/p/topics/ledger"
	subscription = "projects/p/subscriptions/compactor"
)

// emulate connects the client to Google's fake of Pub/Sub, with a topic and a subscription.
func emulate(t *testing.T) *pstest.Server {
	t.Helper()
	s := pstest.NewServer()
	t.Cleanup(func() { _ = s.Close() })
	t.Setenv("PUBSUB_EMULATOR_HOST", s.Addr)
	_, err := s.GServer.CreateTopic(t.Context(), &pubsubpb.Topic{Name: topic})
	require.NoError(t, err)
	_, err = s.GServer.CreateSubscription(t.Context(), &pubsubpb.Subscription{Name: subscription, Topic: topic, AckDeadlineSeconds: 10})
	require.NoError(t, err)
	return s
}

func finalized(key string) map[string]string {
	return map[string]string{"eventType": "OBJECT_FINALIZE", "bucketId": "b", "objectId": key}
}

// The test fails if Pull also acknowledges a message for which take returned an error.
func TestPullAcknowledgesProcessedMessages(t *testing.T) {
	s := emulate(t)
	good := s.Publish(topic, nil, finalized("good"))
	bad := s.Publish(topic, []byte("data"), finalized("bad"))
	ctx, stop := context.WithCancel(t.Context())
	var mu sync.Mutex
	came := map[string]int{}
	err := binding.Pull(ctx, subscription, func(_ context.Context, m service.Message) error {
		mu.Lock()
		defer mu.Unlock()
		key := m.Attributes["objectId"]
		came[key]++
		if key == "bad" && came[key] < 3 {
			return errors.New("not now")
		}
		if len(came) == 2 && came["bad"] == 3 {
			stop()
		}
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, map[string]int{"good": 1, "bad": 3}, came)
	require.Equal(t, 1, s.Message(good).Acks)
	require.Equal(t, 1, s.Message(bad).Acks)
}

var project = flag.String("project", "", "Google Cloud project in which the test creates a topic and a subscription")

// With the flag -project, this test uses the real service. Without the flag, it uses Google's fake.
func TestPullRedeliversFailedMessages(t *testing.T) {
	parent := "projects/" + *project
	if *project == "" {
		parent = "projects/p"
		emulate(t)
	}
	client, err := pubsub.NewClient(t.Context(), strings.TrimPrefix(parent, "projects/"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	nonce := strings.ToLower(ids.NewSource(clock.System{}.Now, nil).New())
	made, err := client.TopicAdminClient.CreateTopic(t.Context(), &pubsubpb.Topic{Name: parent + "/topics/servo-test-" + nonce})
	require.NoError(t, err)
	at := context.WithoutCancel(t.Context())
	t.Cleanup(func() {
		require.NoError(t, client.TopicAdminClient.DeleteTopic(at, &pubsubpb.DeleteTopicRequest{Topic: made.GetName()}))
	})
	sub, err := client.SubscriptionAdminClient.CreateSubscription(t.Context(), &pubsubpb.Subscription{
		Name: parent + "/subscriptions/servo-test-" + nonce, Topic: made.GetName(), AckDeadlineSeconds: 10,
	})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, client.SubscriptionAdminClient.DeleteSubscription(at, &pubsubpb.DeleteSubscriptionRequest{Subscription: sub.GetName()}))
	})
	publisher := client.Publisher(made.GetName())
	_, err = publisher.Publish(t.Context(), &pubsub.Message{Attributes: finalized("ledger/x")}).Get(t.Context())
	require.NoError(t, err)
	publisher.Stop()
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	var came atomic.Int32
	err = binding.Pull(ctx, sub.GetName(), func(_ context.Context, m service.Message) error {
		if key := m.Attributes["objectId"]; key != "ledger/x" {
			t.Errorf("unexpected message about %q", key)
		}
		if came.Add(1) == 1 {
			return errors.New("not now")
		}
		stop()
		return nil
	})
	require.NoError(t, err)
	require.GreaterOrEqual(t, came.Load(), int32(2))
}

func TestPullFailsWithoutSubscription(t *testing.T) {
	emulate(t)
	err := binding.Pull(t.Context(), "projects/p/subscriptions/none", func(context.Context, service.Message) error { return nil })
	require.ErrorContains(t, err, "projects/p/subscriptions/none")
}

// The compactor learns of the entry only from the subscription: no caller hands it over.
func TestCompactorFoldsPulledEntries(t *testing.T) {
	s := emulate(t)
	store := memblob.New(memblob.Options{})
	source := ids.NewSource(clock.System{}.Now, nil)
	domain := ids.Domain{Tenant: "acme", Workspace: "prod"}
	var durable string
	appender := ledger.NewAppender(ledger.Config{
		Domain: domain, Store: store, IDs: source, Clock: clock.System{}, OnStored: func(e ledger.Entry) { durable = e.Name },
	})
	_, err := appender.Append(t.Context(), []*event.Envelope{{Domain: domain, Payload: &event.LimitSet{CommandID: source.New(), Scope: event.ScopePool, Name: "warehouse", Slots: 3}}})
	require.NoError(t, err)

	ctx, stop := context.WithCancel(t.Context())
	var log bytes.Buffer
	ended := make(chan int)
	published := make(chan struct{}, 1)
	watched := &watched{Store: store, published: published}
	go func() {
		ended <- service.RunCompactor(ctx, service.Process{
			Args:   []string{"--store", "mem", "--listen", "127.0.0.1:0", "--subscription", subscription, "--log-level", slog.LevelDebug.String()},
			Getenv: func(string) string { return "" }, Stderr: &log, Clock: clock.System{}, Pull: binding.Pull,
			OpenStore: func(context.Context, string) (blob.Store, io.Closer, error) { return watched, io.NopCloser(nil), nil },
		})
	}()
	s.Publish(topic, nil, finalized(ledger.Key(domain, durable)))
	<-published
	manifests := manifest.New(manifest.Config{Domain: domain, Store: store, IDs: source, Clock: clock.System{}})
	m, err := manifests.Load(t.Context())
	require.NoError(t, err)
	require.Equal(t, int64(1), m.FoldSeq)
	stop()
	require.Zero(t, <-ended, log.String())
}

// watched reports created manifests.
type watched struct {
	*memblob.Store

	published chan struct{}
}

func (w *watched) Create(ctx context.Context, key string, data []byte) (blob.Object, error) {
	object, err := w.Store.Create(ctx, key, data)
	if _, _, notManifest := manifest.ParseKey(key); err == nil && notManifest == nil {
		select {
		case w.published <- struct{}{}:
		default:
		}
	}
	return object, err
}
