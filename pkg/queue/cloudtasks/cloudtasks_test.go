package cloudtasks_test

import (
	"context"
	"flag"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/servo-orchestration/servo/internal/cloudtasksfake"
	"github.com/servo-orchestration/servo/internal/queuetest"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/queue"
	"github.com/servo-orchestration/servo/pkg/queue/cloudtasks"
	"github.com/servo-orchestration/servo/pkg/queue/localqueue"
)

const parent = "projects/acme/locations/europe-west1"

// open connects to a fake service that delivers to servers on this machine.
func open(t *testing.T, fake *cloudtasksfake.Server, cfg cloudtasks.Config) *cloudtasks.Queue {
	t.Helper()
	if fake.Queue == nil {
		q := localqueue.New(localqueue.Options{MinBackoff: 5 * time.Millisecond})
		ended := make(chan error, 1)
		go func() { ended <- q.Run(t.Context()) }()
		t.Cleanup(func() { require.NoError(t, <-ended) })
		fake.Queue = q
	}
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := grpc.NewServer()
	fake.Register(server)
	go func() { _ = server.Serve(listener) }() // returns when Stop is called
	t.Cleanup(server.Stop)
	cfg.Parent, cfg.Clock = parent, clock.System{}
	q, err := cloudtasks.Open(t.Context(), cfg, option.WithEndpoint(listener.Addr().String()), option.WithoutAuthentication(),
		option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, q.Close()) })
	return q
}

func TestContract(t *testing.T) {
	queuetest.Run(t, queuetest.Config{Open: func(t *testing.T, target http.Handler) (queue.Queue, string) {
		server := httptest.NewServer(target)
		t.Cleanup(server.Close)
		return open(t, &cloudtasksfake.Server{}, cloudtasks.Config{}), server.URL
	}})
}

// With these flags, the contract tests run against the real service.
var (
	location  = flag.String("location", "", "projects/PROJECT/locations/LOCATION: run the contract, except deliveries, against the real service")
	queueName = flag.String("queue", "default", "name of a queue in that location")
)

func TestContractOfRealService(t *testing.T) {
	var q queue.Queue = open(t, &cloudtasksfake.Server{}, cloudtasks.Config{})
	if *location != "" {
		service, err := cloudtasks.Open(t.Context(), cloudtasks.Config{Parent: *location, Clock: clock.System{}})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, service.Close()) })
		q = service
	}
	queuetest.RunFar(t, q, *queueName, ids.NewSource(clock.System{}.Now, nil).New())
}

func TestDeliveryCarriesTokenForAudience(t *testing.T) {
	for audience, want := range map[string]string{"": "/execute", "https://worker.example": "https://worker.example"} {
		got := make(chan *http.Request, 1)
		server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got <- r }))
		t.Cleanup(server.Close)
		fake := &cloudtasksfake.Server{Token: func(account, audience string) (string, error) { return account + " to " + audience, nil }}
		q := open(t, fake, cloudtasks.Config{Prefix: "servo-", ServiceAccount: "queue@acme.example", Audience: audience})
		require.NoError(t, q.Create(t.Context(), queue.Task{
			Queue: "default", Name: "t1", URL: server.URL + "/execute", Header: map[string]string{"Authorization": "of the task"},
		}))
		r := <-got
		if audience == "" {
			want = server.URL + want
		}
		require.Equal(t, "Bearer queue@acme.example to "+want, r.Header.Get("Authorization"))
		require.Equal(t, "servo-default", r.Header.Get(queue.HeaderQueueName), "the prefix is part of the queue's name")
	}
}

func TestCreateCountsPrefixInQueueName(t *testing.T) {
	q := open(t, &cloudtasksfake.Server{}, cloudtasks.Config{Prefix: "servo-"})
	long := make([]byte, queue.MaxQueueBytes-len("servo-"))
	for i := range long {
		long[i] = 'q'
	}
	task := queue.Task{Queue: string(long), Name: "t", URL: "http://127.0.0.1:1/", ScheduleTime: clock.System{}.Now().Add(time.Hour)}
	require.NoError(t, q.Create(t.Context(), task))
	task.Queue += "q"
	require.ErrorIs(t, q.Create(t.Context(), task), queue.ErrInvalid)
}

func TestCreateRejectsPrepare(t *testing.T) {
	q := open(t, &cloudtasksfake.Server{}, cloudtasks.Config{})
	err := q.Create(t.Context(), queue.Task{
		Queue: "default", Name: "t", URL: "http://127.0.0.1:1/",
		Prepare: func(context.Context) ([]byte, bool, error) { return nil, true, nil },
	})
	require.ErrorIs(t, err, queue.ErrInvalid, "Cloud Tasks cannot call Prepare")
}

func TestOpenRejectsInvalidLocation(t *testing.T) {
	for _, place := range []string{"", "acme", "projects/acme", "projects/acme/locations/eu/queues/x"} {
		_, err := cloudtasks.Open(t.Context(), cloudtasks.Config{Parent: place}, option.WithoutAuthentication())
		require.ErrorContains(t, err, "projects/PROJECT/locations/LOCATION", "%q", place)
	}
}
