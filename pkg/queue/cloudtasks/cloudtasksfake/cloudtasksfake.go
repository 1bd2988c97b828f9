// Package cloudtasksfake is a server that speaks as much of the API of Google Cloud
// Tasks as package cloudtasks does, on top of any [queue.Queue], which delivers.
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

// Server serves the queues of all projects and locations as one set.
type Server struct {
	cloudtaskspb.UnimplementedCloudTasksServer

	Queue queue.Queue
	// Token is the OIDC token for a delivery as an account, to an audience. It may
	// be nil: then no task may ask for one.
	Token func(account, audience string) (string, error)
}

// Register adds the service to a gRPC server.
func (s *Server) Register(to grpc.ServiceRegistrar) { cloudtaskspb.RegisterCloudTasksServer(to, s) }

var names = regexp.MustCompile(`^projects/[^/]+/locations/[^/]+/queues/([^/]+)(?:/tasks/([^/]+))?$`)

// parse takes a task's name apart.
func parse(name string) (queueName, task string, err error) {
	found := names.FindStringSubmatch(name)
	if found == nil || found[2] == "" {
		return "", "", status.Errorf(codes.InvalidArgument, "%q is not the name of a task", name)
	}
	return found[1], found[2], nil
}

// CreateTask takes a task of one HTTP POST.
func (s *Server) CreateTask(ctx context.Context, r *cloudtaskspb.CreateTaskRequest) (*cloudtaskspb.Task, error) {
	queueName, name, err := parse(r.GetTask().GetName())
	if err != nil {
		return nil, err
	}
	if want := r.GetParent() + "/tasks/" + name; r.GetTask().GetName() != want {
		return nil, status.Errorf(codes.InvalidArgument, "%s is not of %s", r.GetTask().GetName(), r.GetParent())
	}
	request := r.GetTask().GetHttpRequest()
	if request.GetHttpMethod() != cloudtaskspb.HttpMethod_POST {
		return nil, status.Error(codes.Unimplemented, "only HTTP tasks by POST are known here")
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
		return nil, answer(err)
	}
	return r.GetTask(), nil
}

// authorize puts a token in place of what a task says of itself.
func (s *Server) authorize(t *queue.Task, as *cloudtaskspb.OidcToken) error {
	if as == nil {
		return nil
	}
	if s.Token == nil {
		return status.Error(codes.Unimplemented, "this server has no tokens to give")
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

// GetTask says whether a task is there.
func (s *Server) GetTask(ctx context.Context, r *cloudtaskspb.GetTaskRequest) (*cloudtaskspb.Task, error) {
	if err := s.find(ctx, r.GetName()); err != nil {
		return nil, err
	}
	return &cloudtaskspb.Task{Name: r.GetName()}, nil
}

// DeleteTask removes a task, which has to be there.
func (s *Server) DeleteTask(ctx context.Context, r *cloudtaskspb.DeleteTaskRequest) (*emptypb.Empty, error) {
	if err := s.find(ctx, r.GetName()); err != nil {
		return nil, err
	}
	queueName, name, err := parse(r.GetName())
	if err != nil {
		return nil, err
	}
	if err := s.Queue.Delete(ctx, queueName, name); err != nil {
		return nil, answer(err)
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
		return answer(err)
	case !there:
		return status.Error(codes.NotFound, fmt.Sprintf("there is no task %s", full))
	}
	return nil
}

// answer is the service's status for an error of a queue.
func answer(err error) error {
	switch {
	case errors.Is(err, queue.ErrExists):
		return status.Error(codes.AlreadyExists, err.Error())
	case errors.Is(err, queue.ErrInvalid):
		return status.Error(codes.InvalidArgument, err.Error())
	}
	return status.Error(codes.Unavailable, err.Error())
}
