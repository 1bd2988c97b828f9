package api

import (
	"context"

	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/servov1"
)

// ListRequests implements the call.
func (s *server) ListRequests(ctx context.Context, r *servov1.ListRequestsRequest) (*servov1.ListRequestsResponse, error) {
	snap, err := s.current(ctx)
	if err != nil {
		return nil, err
	}
	all, err := engine.Requests(snap.State, r.GetEnded())
	if err != nil {
		return nil, err
	}
	return &servov1.ListRequestsResponse{Revision: snap.Revision, Requests: fillAll[engine.Request, servov1.RunRequest](all)}, nil
}

// CancelRequest implements the call.
func (s *server) CancelRequest(ctx context.Context, r *servov1.CancelRequestRequest) (*servov1.CancelRequestResponse, error) {
	if err := s.as(ctx).CancelRequest(ctx, r.GetRequestId(), r.GetReason()); err != nil {
		return nil, err
	}
	if _, err := s.current(ctx); err != nil { // for the header
		return nil, err
	}
	return &servov1.CancelRequestResponse{RequestId: r.GetRequestId(), State: servov1.RequestState_CANCELLED}, nil
}

// ListDeadlines implements the call.
func (s *server) ListDeadlines(ctx context.Context, _ *servov1.ListDeadlinesRequest) (*servov1.ListDeadlinesResponse, error) {
	all, err := s.Engine.Promises(ctx)
	if err != nil {
		return nil, err
	}
	return &servov1.ListDeadlinesResponse{Deadlines: fillAll[engine.Promise, servov1.Deadline](all)}, nil
}

// ListAlerts implements the call.
func (s *server) ListAlerts(ctx context.Context, r *servov1.ListAlertsRequest) (*servov1.ListAlertsResponse, error) {
	all, err := s.Engine.Alerts(ctx, orDefault(r.GetPageSize(), defaultPage))
	if err != nil {
		return nil, err
	}
	reveal(ctx, all.Revision)
	return fill(&servov1.ListAlertsResponse{}, all), nil
}
