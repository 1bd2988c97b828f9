// Package binding gives the programs the object stores and task queues that names
// in flags stand for: those of this machine, and those of Google Cloud.
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

// TasksEmulator is the environment variable that has queues talk to an emulator,
// host:port, without credentials. That of the store is STORAGE_EMULATOR_HOST.
const TasksEmulator = "CLOUD_TASKS_EMULATOR_HOST"

// OpenStore opens the object store of a name: gs://BUCKET, or a folder.
func OpenStore(ctx context.Context, name string) (blob.Store, io.Closer, error) {
	if strings.HasPrefix(name, gcsblob.Scheme) {
		store, err := gcsblob.Open(ctx, name)
		return store, store, err
	}
	if strings.Contains(name, "://") { // no folder: it would be made, and nobody else would look there
		return nil, nil, fmt.Errorf("open store %q: it is neither a folder nor %sBUCKET", name, gcsblob.Scheme)
	}
	store, err := fileblob.Open(name, fileblob.Options{Now: clock.System{}.Now})
	return store, store, err
}

// Queues opens task queues by their names: that of a process, or those of a location
// in Google Cloud.
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
		return nil, nil, fmt.Errorf("%w; is --queue %q right?", err, o.Name)
	}
	return q, nil, nil
}
