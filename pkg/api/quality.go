package api

import (
	"context"

	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/servov1"
)

// ListQuarantined implements the call.
func (s *server) ListQuarantined(ctx context.Context, _ *servov1.ListQuarantinedRequest) (*servov1.ListQuarantinedResponse, error) {
	snap, err := s.current(ctx)
	if err != nil {
		return nil, err
	}
	all, err := engine.Candidates(snap.State)
	if err != nil {
		return nil, err
	}
	return &servov1.ListQuarantinedResponse{Revision: snap.Revision, Outputs: fillAll[engine.Candidate, servov1.QuarantinedOutput](all)}, nil
}

// ApproveQuarantined implements the call.
func (s *server) ApproveQuarantined(ctx context.Context, r *servov1.ApproveQuarantinedRequest) (*servov1.QuarantinedOutput, error) {
	return s.resolve(ctx, r.GetMaterializationId(), event.DecisionApprove, r.GetReason())
}

// RejectQuarantined implements the call.
func (s *server) RejectQuarantined(ctx context.Context, r *servov1.RejectQuarantinedRequest) (*servov1.QuarantinedOutput, error) {
	return s.resolve(ctx, r.GetMaterializationId(), event.DecisionReject, r.GetReason())
}

// resolve decides about an output in quarantine.
func (s *server) resolve(ctx context.Context, name, decision, reason string) (*servov1.QuarantinedOutput, error) {
	e := s.actingFor(ctx)
	c, err := e.CandidateOf(ctx, name)
	if err != nil {
		return nil, err
	}
	if err := e.Resolve(ctx, c, decision, reason); err != nil {
		return nil, err
	}
	if _, err := s.current(ctx); err != nil { // current sets the revision header
		return nil, err
	}
	return fill(&servov1.QuarantinedOutput{}, c), nil
}
