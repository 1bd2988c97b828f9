package api

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/servo-orchestration/servo/pkg/servov1"
	"github.com/servo-orchestration/servo/pkg/servov1/servov1connect"
)

// Local calls the handlers of the API within this process, without a connection. Its callers get the same messages as
// callers over HTTP. If a call fails, they get the error of the handler, whose text is the detail of the problem.
type Local struct{ server *server }

// NewLocal returns a Local that calls the handlers of an API.
func NewLocal(cfg Config) *Local {
	cfg.Logger = cmp.Or(cfg.Logger, slog.Default())
	return &Local{&server{Config: cfg, pages: newPages(cfg.PageKey, cfg.Engine.At), streams: newStreams()}}
}

// ListRequests makes the call.
func (l *Local) ListRequests(ctx context.Context, r *servov1.ListRequestsRequest) (*servov1.ListRequestsResponse, error) {
	return local(ctx, l, servov1connect.AutomationServiceListRequestsProcedure, l.server.ListRequests, r)
}

// ListDeadlines makes the call.
func (l *Local) ListDeadlines(ctx context.Context, r *servov1.ListDeadlinesRequest) (*servov1.ListDeadlinesResponse, error) {
	return local(ctx, l, servov1connect.AutomationServiceListDeadlinesProcedure, l.server.ListDeadlines, r)
}

// ListQuarantined makes the call.
func (l *Local) ListQuarantined(ctx context.Context, r *servov1.ListQuarantinedRequest) (*servov1.ListQuarantinedResponse, error) {
	return local(ctx, l, servov1connect.QualityServiceListQuarantinedProcedure, l.server.ListQuarantined, r)
}

// ListSchedules makes the call.
func (l *Local) ListSchedules(ctx context.Context, r *servov1.ListSchedulesRequest) (*servov1.ListSchedulesResponse, error) {
	return local(ctx, l, servov1connect.ScheduleServiceListSchedulesProcedure, l.server.ListSchedules, r)
}

// GetSchedule makes the call.
func (l *Local) GetSchedule(ctx context.Context, r *servov1.GetScheduleRequest) (*servov1.Schedule, error) {
	return local(ctx, l, servov1connect.ScheduleServiceGetScheduleProcedure, l.server.GetSchedule, r)
}

// ListTicks makes the call.
func (l *Local) ListTicks(ctx context.Context, r *servov1.ListTicksRequest) (*servov1.ListTicksResponse, error) {
	return local(ctx, l, servov1connect.ScheduleServiceListTicksProcedure, l.server.ListTicks, r)
}

// ListBackfills makes the call.
func (l *Local) ListBackfills(ctx context.Context, r *servov1.ListBackfillsRequest) (*servov1.ListBackfillsResponse, error) {
	return local(ctx, l, servov1connect.BackfillServiceListBackfillsProcedure, l.server.ListBackfills, r)
}

// GetBackfill makes the call.
func (l *Local) GetBackfill(ctx context.Context, r *servov1.GetBackfillRequest) (*servov1.Backfill, error) {
	return local(ctx, l, servov1connect.BackfillServiceGetBackfillProcedure, l.server.GetBackfill, r)
}

// ExplainTask makes the call.
func (l *Local) ExplainTask(ctx context.Context, r *servov1.ExplainTaskRequest) (*servov1.TaskExplanation, error) {
	return local(ctx, l, servov1connect.ExecutionServiceExplainTaskProcedure, l.server.ExplainTask, r)
}

// local makes a call. It builds only the handler of this call, because building all handlers takes much longer than a
// call.
func local[Request, Response any](
	ctx context.Context, l *Local, procedure string, method func(context.Context, *Request) (*Response, error), r *Request,
) (*Response, error) {
	schema, err := schemaOf(procedure)
	if err != nil {
		return nil, err
	}
	h := connect.NewUnaryHandlerSimple(procedure, method, connect.WithSchema(schema), l.server.options())
	response := new(Response)
	if err := passTo(ctx, h, procedure, any(r), any(response)); err != nil {
		return nil, err
	}
	return response, nil
}

// schemaOf returns the method of a procedure, such as /servo.v1.ExecutionService/ListRuns.
func schemaOf(procedure string) (protoreflect.Descriptor, error) {
	name := strings.ReplaceAll(strings.TrimPrefix(procedure, "/"), "/", ".")
	return protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(name))
}

// passTo passes a request to a handler in the Connect protocol, and reads the response.
func passTo(ctx context.Context, h http.Handler, procedure string, request, response any) error {
	into, ok := response.(proto.Message)
	from, isMessage := request.(proto.Message)
	if !ok || !isMessage {
		return fmt.Errorf("api: %s: %T and %T are not messages", procedure, request, response)
	}
	body, err := proto.Marshal(from)
	if err != nil {
		return fmt.Errorf("api: %s: %w", procedure, err)
	}
	var failed error
	r, err := http.NewRequestWithContext(context.WithValue(ctx, failureKey{}, &failed), http.MethodPost, procedure, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("api: %s: %w", procedure, err)
	}
	r.Header.Set("Content-Type", "application/proto")
	w := newAnswer()
	h.ServeHTTP(w, r)
	switch {
	case failed != nil:
		return failed
	case w.status != http.StatusOK:
		return fmt.Errorf("api: %s: status %d: %s", procedure, w.status, w.body.Bytes())
	}
	return proto.Unmarshal(w.body.Bytes(), into)
}

type failureKey struct{}

// keepFailure stores the error of a failed call for a caller in this process.
func keepFailure(ctx context.Context, err error) {
	if failed, ok := ctx.Value(failureKey{}).(*error); ok {
		*failed = err
	}
}

// answer is the response of a handler.
type answer struct {
	status int
	header http.Header
	body   bytes.Buffer
}

func newAnswer() *answer { return &answer{status: http.StatusOK, header: http.Header{}} }

// Header implements [http.ResponseWriter].
func (a *answer) Header() http.Header { return a.header }

// WriteHeader implements [http.ResponseWriter].
func (a *answer) WriteHeader(status int) { a.status = status }

// Write implements [http.ResponseWriter].
func (a *answer) Write(data []byte) (int, error) { return a.body.Write(data) }
