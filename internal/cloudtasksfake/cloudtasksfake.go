// Package cloudtasksfake serves the part of the Google Cloud Tasks API that package cloudtasks uses, on top of any
// [queue.Queue], which delivers the tasks.
package cloudtasksfake

import (
	"context"
	"errors"
	"fmt"
	"regexp"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/servo-orchestration/servo/pkg/queue"
)

// Server serves the queues of all projects and locations from one Queue.
type Server struct {
	cloudtaskspb.UnimplementedCloudTasksServer

	Queue queue.Queue
	// Token returns an OIDC token of an account for an audience. If Token is nil, the server rejects tasks that ask for
	// a token.
	Token func(account, audience string) (string, error)
}

// Register registers s with a gRPC server.
func (s *Server) Register(to grpc.ServiceRegistrar) { cloudtaskspb.RegisterCloudTasksServer(to, s) }

var names = regexp.MustCompile(`^projects/[^/]+/locations/[^/]+/queues/([^/]+)(?:/tasks/([^/]+))?$`)

// parse splits the full name of a task.
func parse(name string) (queueName, task string, err error) {
	found := names.FindStringSubmatch(name)
	if found == nil || found[2] == "" {
		return "", "", status.Errorf(codes.InvalidArgument, "%q is not a task name", name)
	}
	return found[1], found[2], nil
}

// CreateTask creates a task that sends one HTTP POST.
func (s *Server) CreateTask(ctx context.Context, r *cloudtaskspb.CreateTaskRequest) (*cloudtaskspb.Task, error) {
	queueName, name, err := parse(r.GetTask().GetName())
	if err != nil {
		return nil, err
	}
	if want := r.GetParent() + "/tasks/" + name; r.GetTask().GetName() != want {
		return nil, status.Errorf(codes.InvalidArgument, "task %s is not in queue %s", r.GetTask().GetName(), r.GetParent())
	}
	request := r.GetTask().GetHttpRequest()
	if request.GetHttpMethod() != cloudtaskspb.HttpMethod_POST {
		return nil, status.Error(codes.Unimplemented, "only HTTP tasks with method POST are supported")
	}
	t := queue.Task{Queue: queueName, Name: name, URL: request.GetUrl(), Header: request.GetHeaders(), Body: request.GetBody()}
	if r.GetTask().GetScheduleTime() != nil {
		t.ScheduleTime = r.GetTask().GetScheduleTime().AsTime()
	}
	if r.GetTask().GetDispatchDeadline() != nil {
		t.DispatchDeadline = r.GetTask().GetDispatchDeadline().AsDuration()
	}
	if err := s.authorize(&t, request.GetOidcToken()); err != nil {
		return nil, err
	}
	if err := s.Queue.Create(ctx, t); err != nil {
		return nil, statusOf(err)
	}
	return r.GetTask(), nil
}

// authorize replaces the Authorization header of a task with an OIDC token, if the task asks for one.
func (s *Server) authorize(t *queue.Task, as *cloudtaskspb.OidcToken) error {
	if as == nil {
		return nil
	}
	if s.Token == nil {
		return status.Error(codes.Unimplemented, "this server issues no OIDC tokens")
	}
	audience := as.GetAudience()
	if audience == "" {
		audience = t.URL
	}
	token, err := s.Token(as.GetServiceAccountEmail(), audience)
	if err != nil {
		return status.Error(codes.PermissionDenied, err.Error())
	}
	if t.Header == nil {
		t.Header = map[string]string{}
	}
	t.Header["Authorization"] = "Bearer " + token
	return nil
}

// GetTask returns the name of a task, or NotFound.
func (s *Server) GetTask(ctx context.Context, r *cloudtaskspb.GetTaskRequest) (*cloudtaskspb.Task, error) {
	if err := s.find(ctx, r.GetName()); err != nil {
		return nil, err
	}
	return &cloudtaskspb.Task{Name: r.GetName()}, nil
}

// DeleteTask removes a task, or returns NotFound.
func (s *Server) DeleteTask(ctx context.Context, r *cloudtaskspb.DeleteTaskRequest) (*emptypb.Empty, error) {
	if err := s.find(ctx, r.GetName()); err != nil {
		return nil, err
	}
	queueName, name, err := parse(r.GetName())
	if err != nil {
		return nil, err
	}
	if err := s.Queue.Delete(ctx, queueName, name); err != nil {
		return nil, statusOf(err)
	}
	return &emptypb.Empty{}, nil
}

func (s *Server) find(ctx context.Context, full string) error {
	queueName, name, err := parse(full)
	if err != nil {
		return err
	}
	there, err := s.Queue.Exists(ctx, queueName, name)
	switch {
	case err != nil:
		return statusOf(err)
	case !there:
		return status.Error(codes.NotFound, fmt.Sprintf("no task %s", full))
	}
	return nil
}

// statusOf converts an error of a queue into the status that Cloud Tasks would return.
func statusOf(err error) error {
	switch {
	case errors.Is(err, queue.ErrExists):
		return status.Error(codes.AlreadyExists, err.Error())
	case errors.Is(err, queue.ErrInvalid):
		return status.Error(codes.InvalidArgument, err.Error())
	}
	return status.Error(codes.Unavailable, err.Error())
}
