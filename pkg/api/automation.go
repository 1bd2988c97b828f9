package api

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/event"
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
	if err := s.actingFor(ctx).CancelRequest(ctx, r.GetRequestId(), r.GetReason()); err != nil {
		return nil, err
	}
	if _, err := s.current(ctx); err != nil { // current sets the revision header
		return nil, err
	}
	return &servov1.CancelRequestResponse{RequestId: r.GetRequestId(), State: servov1.RequestState_CANCELLED}, nil
}

// ListDeadlines implements the call.
func (s *server) ListDeadlines(ctx context.Context, _ *servov1.ListDeadlinesRequest) (*servov1.ListDeadlinesResponse, error) {
	snap, err := s.current(ctx)
	if err != nil {
		return nil, err
	}
	all, err := s.Engine.PromisesAt(ctx, snap, s.now(ctx, snap))
	if err != nil {
		return nil, err
	}
	return &servov1.ListDeadlinesResponse{Deadlines: fillAll[engine.Promise, servov1.Deadline](all)}, nil
}

// ListAlerts implements the call.
func (s *server) ListAlerts(ctx context.Context, r *servov1.ListAlertsRequest) (*servov1.ListAlertsResponse, error) {
	snap, err := s.current(ctx)
	if err != nil {
		return nil, err
	}
	all, err := engine.AlertsOf(ctx, snap, orDefault(r.GetPageSize(), defaultPage), s.momentNow(ctx, snap))
	if err != nil {
		return nil, err
	}
	return fill(&servov1.ListAlertsResponse{}, all), nil
}

// MuteAlertRule implements the call.
func (s *server) MuteAlertRule(ctx context.Context, r *servov1.MuteAlertRuleRequest) (*servov1.AlertRule, error) {
	until := event.At(s.Engine.Now().Add(time.Duration(r.GetForSec()) * time.Second).Truncate(time.Second))
	return s.muteRule(ctx, r.GetRule(), until, r.GetReason())
}

// UnmuteAlertRule implements the call.
func (s *server) UnmuteAlertRule(ctx context.Context, r *servov1.UnmuteAlertRuleRequest) (*servov1.AlertRule, error) {
	return s.muteRule(ctx, r.GetRule(), 0, "")
}

// muteRule mutes a rule until a time, or unmutes it.
func (s *server) muteRule(ctx context.Context, rule string, until event.Time, reason string) (*servov1.AlertRule, error) {
	if err := s.actingFor(ctx).MuteAlerts(ctx, rule, until, reason); err != nil {
		return nil, err
	}
	snap, err := s.current(ctx)
	if err != nil {
		return nil, err
	}
	all, err := engine.AlertsOf(ctx, snap, 1, s.momentNow(ctx, snap))
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(all.Rules, func(x engine.AlertRule) bool { return x.Name == rule })
	if at < 0 { // a deployment has removed the rule meanwhile
		return nil, fmt.Errorf("alert rule %q: %w: a deployment removed it", rule, engine.ErrNotFound)
	}
	return fill(&servov1.AlertRule{}, all.Rules[at]), nil
}

// TestChannel implements the call.
func (s *server) TestChannel(ctx context.Context, r *servov1.TestChannelRequest) (*servov1.TestChannelResponse, error) {
	id, err := s.actingFor(ctx).TestChannel(ctx, r.GetChannel(), "a test of the API")
	if err != nil {
		return nil, err
	}
	if _, err := s.current(ctx); err != nil { // current sets the revision header
		return nil, err
	}
	return &servov1.TestChannelResponse{NotificationId: id, Channel: r.GetChannel()}, nil
}
