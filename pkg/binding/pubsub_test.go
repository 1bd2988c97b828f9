package binding_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"testing"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"cloud.google.com/go/pubsub/v2/pstest"
	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/binding"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/blob/memblob"
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

// emulate has the client talk to Google's fake of Pub/Sub, which has a subscription.
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

// Seen to fail with each message acknowledged, whatever came of it.
func TestWhatIsTakenIsAcknowledgedAndWhatIsNotComesAgain(t *testing.T) {
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

func TestASubscriptionThatIsNotThereIsAnError(t *testing.T) {
	emulate(t)
	err := binding.Pull(t.Context(), "projects/p/subscriptions/none", func(context.Context, service.Message) error { return nil })
	require.ErrorContains(t, err, "projects/p/subscriptions/none")
}

// Nobody calls the compactor: it listens, and is told of the entry by the
// subscription alone.
func TestACompactorFoldsWhatItPulls(t *testing.T) {
	s := emulate(t)
	store := memblob.New(memblob.Options{})
	source := ids.NewSource(clock.System{}.Now, nil)
	domain := ids.Domain{Tenant: "acme", Workspace: "prod"}
	var durable string
	appender := ledger.NewAppender(ledger.Config{
		Domain: domain, Store: store, IDs: source, Clock: clock.System{}, OnDurable: func(e ledger.Entry) { durable = e.Name },
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

// watched tells of manifests.
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
