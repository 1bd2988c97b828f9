package api

import (
	"context"
	"errors"

	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/servov1"
	"github.com/servo-orchestration/servo/pkg/snapshot"
)

// ListBackfills implements the call.
func (s *server) ListBackfills(ctx context.Context, _ *servov1.ListBackfillsRequest) (*servov1.ListBackfillsResponse, error) {
	snap, err := s.current(ctx)
	if err != nil {
		return nil, err
	}
	all, err := engine.Backfills(ctx, snap)
	if err != nil {
		return nil, err
	}
	return &servov1.ListBackfillsResponse{Revision: snap.Revision, Backfills: fillAll[engine.Backfill, servov1.Backfill](all)}, nil
}

// GetBackfill implements the call.
func (s *server) GetBackfill(ctx context.Context, r *servov1.GetBackfillRequest) (*servov1.Backfill, error) {
	snap, err := s.current(ctx)
	if err != nil {
		return nil, err
	}
	b, err := engine.FindBackfill(ctx, snap, r.GetBackfillId(), s.now(ctx, snap))
	if err != nil {
		return nil, err
	}
	s.revealBackfill(ctx, snap, b)
	return fill(&servov1.Backfill{}, b), nil
}

// backfillOf returns the backfill that a request describes.
func backfillOf(r *servov1.CreateBackfillRequest, p *Project) (b engine.BackfillRequest, err error) {
	b = engine.BackfillRequest{
		Plan: plan.Request{Assets: p.Assets, Graph: p.Graph, AllowIncomplete: r.GetAllowIncomplete(), Form: plan.Fields}, Need: engine.Need(r.GetOnly()), Chunk: int(r.GetChunk()),
		MaxParallel: r.GetMaxParallel(), Newest: r.GetOrder() == event.NewestFirst, Ordered: r.GetOrdered(), StopAfter: r.GetStopAfter(),
		Priority: engine.BackfillPriority, Pool: r.GetPool(), Release: p.Release,
	}
	if r.GetFollowDeploys() {
		b.Release = ""
	}
	if r.Priority != nil {
		b.Priority = r.GetPriority()
	}
	chosen, err := choose(r, p.Assets)
	if err != nil {
		return b, err
	}
	b.Plan.Select, b.Plan.Matched = chosen.Named, chosen.Matched
	b.Plan.Partitions, err = selections(r)
	return b, err
}

// planBackfill returns the backfill that a request asks for. It creates nothing.
func (s *server) planBackfill(ctx context.Context, r *servov1.CreateBackfillRequest) (*engine.PlannedBackfill, error) {
	p, err := s.project()
	if err != nil {
		return nil, err
	}
	request, err := backfillOf(r, p)
	if err != nil {
		return nil, err
	}
	snap, err := s.current(ctx)
	if err != nil {
		return nil, err
	}
	if err := engine.CheckPool(request.Pool, engine.LimitsOf(snap.State).Pools); err != nil {
		return nil, withKind(invalidRequest, err)
	}
	planned, err := engine.PlanBackfill(ctx, snap, request, s.Engine.Now())
	if err != nil && !errors.Is(err, engine.ErrNothing) {
		return nil, withKind(invalidRequest, err)
	}
	return planned, err
}

// PlanBackfill implements the call.
func (s *server) PlanBackfill(ctx context.Context, r *servov1.CreateBackfillRequest) (*servov1.BackfillPlan, error) {
	planned, err := s.planBackfill(ctx, r)
	if err != nil {
		return nil, err
	}
	p := &servov1.BackfillPlan{
		Partitions: int32(planned.Chunks.Total()), Chunks: int32(len(planned.Chunks.Lists)), Stages: int32(len(planned.Chunks.Stages) + 1), //nolint:gosec // a plan limits these numbers
		StopAt: planned.StopAt, Assets: map[string]int32{}, Warnings: planned.Warnings,
	}
	for key, n := range planned.Tasks {
		p.Assets[key.String()] = int32(n) //nolint:gosec // a plan limits this number
	}
	return p, nil
}

// CreateBackfill implements the call.
func (s *server) CreateBackfill(ctx context.Context, r *servov1.CreateBackfillRequest) (*servov1.Backfill, error) {
	id, err := s.actingFor(ctx).CreatedBefore(ctx)
	if err != nil {
		return nil, err
	}
	if id != "" {
		return s.GetBackfill(ctx, &servov1.GetBackfillRequest{BackfillId: id})
	}
	planned, err := s.planBackfill(ctx, r)
	if err != nil {
		return nil, err
	}
	if id, err = s.actingFor(ctx).CreateBackfill(ctx, planned); err != nil {
		return nil, err
	}
	return s.GetBackfill(ctx, &servov1.GetBackfillRequest{BackfillId: id})
}

// PauseBackfill implements the call.
func (s *server) PauseBackfill(ctx context.Context, r *servov1.PauseBackfillRequest) (*servov1.Backfill, error) {
	return s.commandBackfill(ctx, &event.AutomationCommand{Name: r.GetBackfillId(), Verb: event.VerbPause, Reason: r.GetReason(), Now: r.GetNow()})
}

// ResumeBackfill implements the call.
func (s *server) ResumeBackfill(ctx context.Context, r *servov1.ResumeBackfillRequest) (*servov1.Backfill, error) {
	return s.commandBackfill(ctx, &event.AutomationCommand{Name: r.GetBackfillId(), Verb: event.VerbResume})
}

// CancelBackfill implements the call.
func (s *server) CancelBackfill(ctx context.Context, r *servov1.CancelBackfillRequest) (*servov1.Backfill, error) {
	return s.commandBackfill(ctx, &event.AutomationCommand{Name: r.GetBackfillId(), Verb: event.VerbCancel, Reason: r.GetReason()})
}

// RetryBackfill implements the call.
func (s *server) RetryBackfill(ctx context.Context, r *servov1.RetryBackfillRequest) (*servov1.Backfill, error) {
	return s.commandBackfill(ctx, &event.AutomationCommand{Name: r.GetBackfillId(), Verb: event.VerbRetryFailed})
}

// SetBackfill implements the call.
func (s *server) SetBackfill(ctx context.Context, r *servov1.SetBackfillRequest) (*servov1.Backfill, error) {
	return s.commandBackfill(ctx, &event.AutomationCommand{Name: r.GetBackfillId(), Verb: event.VerbSet, MaxParallel: r.GetMaxParallel()})
}

func (s *server) commandBackfill(ctx context.Context, command *event.AutomationCommand) (*servov1.Backfill, error) {
	b, err := s.actingFor(ctx).CommandBackfill(ctx, command)
	if err != nil {
		return nil, err
	}
	snap, err := s.current(ctx) // current sets the revision header
	if err != nil {
		return nil, err
	}
	s.revealBackfill(ctx, snap, b)
	return fill(&servov1.Backfill{}, b), nil
}

// revealBackfill writes the edit tag of a backfill into a header of the response. A backfill in history cannot be
// changed, so it has no edit tag.
func (*server) revealBackfill(ctx context.Context, snap *snapshot.Snapshot, b engine.Backfill) {
	if row := snap.State.Backfills.Get(b.ID); row != nil {
		revealTag(ctx, row.EditTag())
	}
}
