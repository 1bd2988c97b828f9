// Package cloudtasks implements [queue.Queue] with Google Cloud Tasks. This package is not a stable
// API.
//
// The service refuses the name of an ended task for up to 24 hours, or up to nine days in queues created with
// queue.yaml. This package does not create the queues: create them with the rest of the infrastructure.
package cloudtasks

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/textproto"
	"regexp"
	"time"

	cloudtasks "cloud.google.com/go/cloudtasks/apiv2"
	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/api/option"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/queue"
)

// callTimeout is the timeout of a call. Normally, the service answers within a fraction of it.
const callTimeout = 20 * time.Second

// Config selects the queues, and the service account whose token authenticates their deliveries.
type Config struct {
	// Parent is the location of the queues: projects/PROJECT/locations/LOCATION.
	Parent string
	// Prefix is prepended to the names of queues, so that several installations can share a
	// project.
	Prefix string
	// ServiceAccount is the e-mail address of the account whose OIDC token authenticates
	// deliveries; "" sends no token.
	ServiceAccount string
	// Audience is the audience of the token; "" means the URL of the task.
	Audience string
	Clock    clock.Clock
}

// Queue creates tasks in the service. Open it with [Open].
type Queue struct {
	client *cloudtasks.Client
	cfg    Config
}

var _ queue.Queue = (*Queue)(nil)

var parents = regexp.MustCompile(`^projects/[a-z0-9.:-]+/locations/[a-z0-9-]+$`)

// Open connects to the service with the default credentials of Google's libraries.
func Open(ctx context.Context, cfg Config, opts ...option.ClientOption) (*Queue, error) {
	if !parents.MatchString(cfg.Parent) {
		return nil, fmt.Errorf("open task queues: invalid location %q: write projects/PROJECT/locations/LOCATION", cfg.Parent)
	}
	client, err := cloudtasks.NewClient(ctx, opts...)
	if err != nil {
		return nil, fmt.Errorf("open task queues of %s: %w", cfg.Parent, err)
	}
	return &Queue{client: client, cfg: cfg}, nil
}

// Close closes the connection.
func (q *Queue) Close() error { return q.client.Close() }

func (q *Queue) path(queueName string) string {
	return q.cfg.Parent + "/queues/" + q.cfg.Prefix + queueName
}

// Create implements [queue.Queue].
func (q *Queue) Create(ctx context.Context, t queue.Task) error {
	checked := t
	checked.Queue = q.cfg.Prefix + t.Queue
	if err := queue.Validate(checked, q.cfg.Clock.Now()); err != nil {
		return err
	}
	if t.Prepare != nil || t.OnResponse != nil {
		return fmt.Errorf("create task %q of queue %q: %w: Cloud Tasks cannot call Prepare or OnResponse",
			t.Name, t.Queue, queue.ErrInvalid)
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := q.client.CreateTask(ctx, &cloudtaskspb.CreateTaskRequest{Parent: q.path(t.Queue), Task: q.message(t)})
	switch status.Code(err) {
	case codes.OK:
		return nil
	case codes.AlreadyExists:
		return fmt.Errorf("create task %q of queue %q: %w", t.Name, t.Queue, queue.ErrExists)
	case codes.InvalidArgument:
		return fmt.Errorf("create task %q of queue %q: %w: %w", t.Name, t.Queue, queue.ErrInvalid, err)
	case codes.NotFound, codes.FailedPrecondition:
		return fmt.Errorf("create task %q: queue %s does not exist or is disabled: %w", t.Name, q.path(t.Queue), err)
	case codes.PermissionDenied:
		return fmt.Errorf("create task %q: this account needs roles/cloudtasks.enqueuer on queue %s, and roles/iam.serviceAccountUser on %q: %w",
			t.Name, q.path(t.Queue), q.cfg.ServiceAccount, err)
	default:
		return failed(ctx, "create", t.Queue, t.Name, err)
	}
}

// message converts a task to a message of the service's API.
func (q *Queue) message(t queue.Task) *cloudtaskspb.Task {
	header := maps.Clone(t.Header)
	if header == nil {
		header = map[string]string{}
	}
	typed := false
	for name := range header {
		typed = typed || textproto.CanonicalMIMEHeaderKey(name) == "Content-Type"
	}
	if !typed {
		header["Content-Type"] = "application/json"
	}
	request := &cloudtaskspb.HttpRequest{Url: t.URL, HttpMethod: cloudtaskspb.HttpMethod_POST, Headers: header, Body: t.Body}
	if q.cfg.ServiceAccount != "" {
		request.AuthorizationHeader = &cloudtaskspb.HttpRequest_OidcToken{
			OidcToken: &cloudtaskspb.OidcToken{ServiceAccountEmail: q.cfg.ServiceAccount, Audience: q.cfg.Audience},
		}
	}
	m := &cloudtaskspb.Task{
		Name:        q.path(t.Queue) + "/tasks/" + t.Name,
		MessageType: &cloudtaskspb.Task_HttpRequest{HttpRequest: request},
	}
	if !t.ScheduleTime.IsZero() {
		m.ScheduleTime = timestamppb.New(t.ScheduleTime)
	}
	if t.DispatchDeadline != 0 {
		m.DispatchDeadline = durationpb.New(t.DispatchDeadline)
	}
	return m
}

// Delete implements [queue.Queue].
func (q *Queue) Delete(ctx context.Context, queueName, name string) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	err := q.client.DeleteTask(ctx, &cloudtaskspb.DeleteTaskRequest{Name: q.path(queueName) + "/tasks/" + name})
	if code := status.Code(err); code == codes.OK || code == codes.NotFound {
		return nil
	}
	return failed(ctx, "delete", queueName, name, err)
}

// Exists implements [queue.Queue].
func (q *Queue) Exists(ctx context.Context, queueName, name string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := q.client.GetTask(ctx, &cloudtaskspb.GetTaskRequest{Name: q.path(queueName) + "/tasks/" + name})
	switch status.Code(err) {
	case codes.OK:
		return true, nil
	case codes.NotFound:
		return false, nil
	default:
		return false, failed(ctx, "look for", queueName, name, err)
	}
}

// failed returns the error of a call whose outcome is unknown. If ctx has ended, the error wraps both the context's
// error and the gRPC status.
func failed(ctx context.Context, verb, queueName, name string, err error) error {
	if cause := ctx.Err(); cause != nil {
		err = errors.Join(cause, err)
	}
	return fmt.Errorf("%s task %q of queue %q: %w", verb, name, queueName, err)
}
