// Package binding opens object stores and task queues, on this machine or in Google Cloud, by the names in command-line
// flags. This package is not a stable API.
package binding

import (
	"context"
	"fmt"
	"io"
	"strings"

	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/blob/fileblob"
	"github.com/servo-orchestration/servo/pkg/blob/gcsblob"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/queue"
	"github.com/servo-orchestration/servo/pkg/queue/cloudtasks"
	"github.com/servo-orchestration/servo/pkg/queue/localqueue"
	"github.com/servo-orchestration/servo/pkg/service"
)

// TasksEmulator is the environment variable with the host:port of a Cloud Tasks emulator. If it is set, queues use
// the emulator, without credentials. The variable for stores is STORAGE_EMULATOR_HOST.
const TasksEmulator = "CLOUD_TASKS_EMULATOR_HOST"

// OpenStore opens an object store by name: gs://BUCKET or a folder.
func OpenStore(ctx context.Context, name string) (blob.Store, io.Closer, error) {
	if strings.HasPrefix(name, gcsblob.Scheme) {
		store, err := gcsblob.Open(ctx, name)
		return store, store, err
	}
	if strings.Contains(name, "://") { // a typo such as gcs://b would otherwise create a folder
		return nil, nil, fmt.Errorf("open store: %q is neither a folder nor %sBUCKET", name, gcsblob.Scheme)
	}
	store, err := fileblob.Open(name, fileblob.Options{Now: clock.System{}.Now})
	return store, store, err
}

// Queues returns a function that opens task queues by name: the queue of this process, or the queues of a Google Cloud
// location. The second result of the returned function runs the queue of this process; for Google Cloud, this result is
// nil.
func Queues(getenv func(string) string) func(context.Context, service.QueueOptions) (queue.Queue, func(context.Context) error, error) {
	return func(ctx context.Context, o service.QueueOptions) (queue.Queue, func(context.Context) error, error) {
		return openQueue(ctx, o, getenv(TasksEmulator))
	}
}

func openQueue(ctx context.Context, o service.QueueOptions, emulator string) (queue.Queue, func(context.Context) error, error) {
	if o.Name == service.LocalQueue {
		q := localqueue.New(localqueue.Options{Clock: o.Clock, Logger: o.Logger, Client: o.Client, Concurrency: o.Concurrency})
		return q, q.Run, nil
	}
	var opts []option.ClientOption
	if emulator != "" {
		opts = append(opts, option.WithEndpoint(emulator), option.WithoutAuthentication(),
			option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())))
	}
	q, err := cloudtasks.Open(ctx, cloudtasks.Config{
		Parent: o.Name, Prefix: o.Prefix, ServiceAccount: o.Account, Audience: o.Audience, Clock: o.Clock,
	}, opts...)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: check --queue %q", err, o.Name)
	}
	return q, nil, nil
}
