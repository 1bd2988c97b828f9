package api

import (
	"context"
	"time"

	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/servov1"
)

// defaultHours is the number of hours for which CountRuns counts runs, if the request sets none.
const defaultHours = 24

// CountRuns implements the call.
func (s *server) CountRuns(ctx context.Context, r *servov1.CountRunsRequest) (*servov1.CountRunsResponse, error) {
	snap, err := s.current(ctx)
	if err != nil {
		return nil, err
	}
	to := s.now(ctx, snap).Truncate(time.Minute).Add(time.Minute)
	counts, err := engine.CountRuns(ctx, snap, to, orDefault(r.GetHours(), defaultHours), maxRunsLooked)
	if err != nil {
		return nil, err
	}
	return fill(&servov1.CountRunsResponse{Revision: snap.Revision}, counts), nil
}

// ListAttention implements the call.
func (s *server) ListAttention(ctx context.Context, _ *servov1.ListAttentionRequest) (*servov1.ListAttentionResponse, error) {
	snap, err := s.current(ctx)
	if err != nil {
		return nil, err
	}
	var assets []plan.Asset // nil if there is no valid project: then the failures of all assets are listed
	p, err := s.Project()
	if err != nil {
		p = nil
	} else {
		assets = p.Assets
	}
	now := s.now(ctx, snap)
	found, err := s.memo.attend(ctx, momentOf(snap, p, now), func(ctx context.Context) ([]engine.Attention, error) {
		return engine.FindAttention(ctx, snap, assets, event.At(now))
	})
	if err != nil {
		return nil, err
	}
	return &servov1.ListAttentionResponse{Revision: snap.Revision, Attention: fillAll[engine.Attention, servov1.Attention](found)}, nil
}
