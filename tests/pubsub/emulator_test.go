// Package pubsub_test delivers notifications through Google's Pub/Sub emulator, if it is installed.
// The emulator supports push and pull as the service does, but no filters and tokens.
package pubsub_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/internal/memblob"
	"github.com/servo-orchestration/servo/pkg/binding"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/service"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/tests/clustertest"
)

const (
	project      = "acme"
	topic        = "projects/acme/topics/ledger"
	subscription = "projects/acme/subscriptions/compactor"
	timeout      = time.Minute
)

// emulator starts the emulator of gcloud, and returns a client and a function that stops the emulator. The emulator
// also stops when the test ends.
func emulator(t *testing.T) (client *pubsub.Client, end func()) {
	t.Helper()
	gcloud, err := exec.LookPath("gcloud")
	if err == nil {
		gcloud, err = filepath.EvalSymlinks(gcloud)
	}
	program := filepath.Join(filepath.Dir(gcloud), "..", "platform", "pubsub-emulator", "bin", "cloud-pubsub-emulator")
	if err == nil {
		_, err = os.Stat(program)
	}
	if err != nil {
		t.Skip("the emulator is not installed: gcloud components install pubsub-emulator")
	}
	address := clustertest.FreeAddress(t)
	host, port, err := net.SplitHostPort(address)
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	cmd := exec.CommandContext(ctx, program, "--host="+host, "--port="+port) //nolint:gosec // installed next to gcloud
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}                    // the program is a script that starts Java
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	require.NoError(t, cmd.Start())
	end = sync.OnceFunc(func() { stop(); _ = cmd.Wait() })
	t.Cleanup(end)

	t.Setenv("PUBSUB_EMULATOR_HOST", address)
	client, err = pubsub.NewClient(t.Context(), project)
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	waiting, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	_, err = client.TopicAdminClient.CreateTopic(waiting, &pubsubpb.Topic{Name: topic}) // the client retries until the emulator responds
	require.NoError(t, err)
	return client, end
}

// domain is a domain whose compactor learns of new entries only from notifications.
type domain struct {
	t        *testing.T
	client   *pubsub.Client
	store    *memblob.Store
	ids      *ids.Source
	appender *ledger.Appender
	reader   *snapshot.Reader
}

func newDomain(t *testing.T, client *pubsub.Client) *domain {
	t.Helper()
	d := &domain{t: t, client: client, store: memblob.New(memblob.Options{}), ids: ids.NewSource(clock.System{}.Now, nil)}
	d.appender = ledger.NewAppender(ledger.Config{Domain: foldtest.Domain, Store: d.store, IDs: d.ids, Clock: clock.System{}})
	manifests := manifest.New(manifest.Config{Domain: foldtest.Domain, Store: d.store, IDs: d.ids, Clock: clock.System{}})
	d.reader = snapshot.NewReader(foldtest.Domain, snapshot.NewCodec(), manifests, clock.System{})
	return d
}

// compactor starts the service, and returns its address and a function that stops it. The service also stops when the
// test ends.
func (d *domain) compactor(args ...string) (address string, end func()) {
	d.t.Helper()
	address = clustertest.FreeAddress(d.t)
	ctx, stop := context.WithCancel(d.t.Context())
	var running sync.WaitGroup
	end = sync.OnceFunc(func() { stop(); running.Wait() })
	d.t.Cleanup(end)
	running.Go(func() {
		code := service.RunCompactor(ctx, service.Process{
			Args: append([]string{"--store", "mem", "--listen", address, "--log-level", "error"}, args...), Getenv: func(string) string { return "" },
			Stderr: d.t.Output(), Clock: clock.System{}, Instance: "one", Pull: binding.Pull,
			OpenStore: func(context.Context, string) (blob.Store, io.Closer, error) { return d.store, io.NopCloser(nil), nil },
		})
		if code != 0 {
			d.t.Errorf("the compactor exited with %d", code)
		}
	})
	return address, end
}

// trigger appends an entry that triggers a run, and publishes a notification of this entry. The notification names
// the entry in its attributes or in its body.
func (d *domain) trigger(attributes bool) (run string) {
	d.t.Helper()
	world := foldtest.New(d.t)
	world.Now = clock.System{}.Now()
	p := &event.RunTriggered{RunID: d.ids.New()}
	var group []*event.Envelope
	for _, payload := range world.Triggered(p, foldtest.Task("a")) {
		group = append(group, &event.Envelope{Domain: foldtest.Domain, Payload: payload})
	}
	entry, err := d.appender.Append(d.t.Context(), group)
	require.NoError(d.t, err)
	key := ledger.Key(foldtest.Domain, entry.Entry)
	m := &pubsub.Message{Attributes: map[string]string{
		"eventType": "OBJECT_FINALIZE", "bucketId": "b", "objectId": key, "payloadFormat": "NONE",
	}}
	if !attributes { // a proxy may drop the attributes
		m = &pubsub.Message{Data: []byte(`{"kind":"storage#object","bucket":"b","name":"` + key + `"}`)}
	}
	_, err = d.client.Publisher(topic).Publish(d.t.Context(), m).Get(d.t.Context())
	require.NoError(d.t, err)
	return p.RunID
}

// awaitFolded waits until a published state contains the run.
func (d *domain) awaitFolded(run string) {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.t.Context(), timeout)
	defer cancel()
	for after := int64(0); ; {
		snap, err := d.reader.Await(ctx, after)
		require.NoError(d.t, err, "run %s is not folded", run)
		if snap.State.Runs.Get(run) != nil {
			return
		}
		after = snap.Revision
	}
}

func TestRejectedPushIsRedeliveredAndFolded(t *testing.T) {
	client, _ := emulator(t)
	d := newDomain(t, client)
	address, _ := d.compactor()
	target, err := url.Parse("http://" + address)
	require.NoError(t, err)
	var pushes atomic.Int64
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	push := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if pushes.Add(1) == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(push.Close)
	_, err = client.SubscriptionAdminClient.CreateSubscription(t.Context(), &pubsubpb.Subscription{
		Name: subscription, Topic: topic, AckDeadlineSeconds: 10,
		PushConfig: &pubsubpb.PushConfig{PushEndpoint: push.URL + "/v1/notifications"},
	})
	require.NoError(t, err)
	d.awaitFolded(d.trigger(true))
	require.GreaterOrEqual(t, pushes.Load(), int64(2))
	d.awaitFolded(d.trigger(false))
}

// The emulator stops before the service. In an earlier version, the client had no timeout, so the service did not stop.
func TestPulledMessagesAreFoldedAndServiceStops(t *testing.T) {
	client, gone := emulator(t)
	d := newDomain(t, client)
	_, err := client.SubscriptionAdminClient.CreateSubscription(t.Context(), &pubsubpb.Subscription{
		Name: subscription, Topic: topic, AckDeadlineSeconds: 10,
	})
	require.NoError(t, err)
	_, end := d.compactor("--subscription", subscription)
	d.awaitFolded(d.trigger(true))
	d.awaitFolded(d.trigger(false))
	gone()
	end()
}
