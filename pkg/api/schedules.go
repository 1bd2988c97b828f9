package api

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/servo-orchestration/servo/pkg/calendar"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/servov1"
)

// ListSchedules implements the call.
func (s *server) ListSchedules(ctx context.Context, _ *servov1.ListSchedulesRequest) (*servov1.ListSchedulesResponse, error) {
	snap, err := s.current(ctx)
	if err != nil {
		return nil, err
	}
	all, err := engine.Schedules(snap.State)
	if err != nil {
		return nil, err
	}
	return &servov1.ListSchedulesResponse{Revision: snap.Revision, Schedules: fillAll[engine.Schedule, servov1.Schedule](all)}, nil
}

// GetSchedule implements the call.
func (s *server) GetSchedule(ctx context.Context, r *servov1.GetScheduleRequest) (*servov1.Schedule, error) {
	snap, err := s.current(ctx)
	if err != nil {
		return nil, err
	}
	found, err := engine.FindSchedule(snap.State, r.GetSchedule())
	if err != nil {
		return nil, err
	}
	if row := snap.State.Schedules.Get(found.Name); row != nil {
		revealTag(ctx, row.EditTag())
	}
	return fill(&servov1.Schedule{}, found), nil
}

// ListTicks implements the call.
func (s *server) ListTicks(ctx context.Context, r *servov1.ListTicksRequest) (*servov1.ListTicksResponse, error) {
	snap, err := s.current(ctx)
	if err != nil {
		return nil, err
	}
	ticks, err := engine.Ticks(ctx, snap, r.GetSchedule(), orDefault(r.GetPageSize(), defaultPage))
	if err != nil {
		return nil, err
	}
	return &servov1.ListTicksResponse{Revision: snap.Revision, Schedule: r.GetSchedule(), Ticks: fillAll[engine.Tick, servov1.Tick](ticks)}, nil
}

// orDefault returns n, or the default if the request sets no number.
func orDefault(n int32, fallback int) int {
	if n == 0 {
		return fallback
	}
	return int(n)
}

// defaultInstants is the number of instants of a preview.
const defaultInstants = 10

// PreviewTicks implements the call.
func (s *server) PreviewTicks(ctx context.Context, r *servov1.PreviewTicksRequest) (*servov1.PreviewTicksResponse, error) {
	snap, err := s.current(ctx)
	if err != nil {
		return nil, err
	}
	found, err := engine.FindSchedule(snap.State, r.GetSchedule())
	if err != nil {
		return nil, err
	}
	compiled, err := calendar.Compile(&found.Definition)
	if err != nil {
		return nil, withKind(wrongState, err) // for example, this build has no data about the time zone
	}
	after := s.Engine.Now()
	if r.GetFrom() != nil {
		after = timeOf(r.GetFrom()).Add(-time.Microsecond)
	}
	list := &servov1.PreviewTicksResponse{Schedule: found.Name, Timezone: found.Definition.Timezone}
	for range orDefault(r.GetCount(), defaultInstants) {
		next, ok := compiled.Next(after)
		if !ok {
			break
		}
		list.Instants = append(list.Instants, timestamppb.New(next))
		after = next
	}
	return list, nil
}

// PauseSchedule implements the call.
func (s *server) PauseSchedule(ctx context.Context, r *servov1.PauseScheduleRequest) (*servov1.Schedule, error) {
	return s.commandSchedule(ctx, &event.AutomationCommand{Name: r.GetSchedule(), Verb: event.VerbPause, Reason: r.GetReason()})
}

// ResumeSchedule implements the call.
func (s *server) ResumeSchedule(ctx context.Context, r *servov1.ResumeScheduleRequest) (*servov1.Schedule, error) {
	return s.commandSchedule(ctx, &event.AutomationCommand{Name: r.GetSchedule(), Verb: event.VerbResume, CatchUp: r.GetCatchUp()})
}

// TriggerSchedule implements the call.
func (s *server) TriggerSchedule(ctx context.Context, r *servov1.TriggerScheduleRequest) (*servov1.Schedule, error) {
	return s.commandSchedule(ctx, &event.AutomationCommand{Name: r.GetSchedule(), Verb: event.VerbTrigger, Overlap: r.GetOverlap()})
}

func (s *server) commandSchedule(ctx context.Context, command *event.AutomationCommand) (*servov1.Schedule, error) {
	changed, err := s.actingFor(ctx).CommandSchedule(ctx, command)
	if err != nil {
		return nil, err
	}
	snap, err := s.current(ctx) // current sets the revision header
	if err != nil {
		return nil, err
	}
	if row := snap.State.Schedules.Get(changed.Name); row != nil {
		revealTag(ctx, row.EditTag())
	}
	return fill(&servov1.Schedule{}, changed), nil
}

// BackfillSchedule implements the call.
func (s *server) BackfillSchedule(ctx context.Context, r *servov1.BackfillScheduleRequest) (*servov1.BackfillScheduleResponse, error) {
	from, to := timeOf(r.GetFrom()), timeOf(r.GetTo())
	if !from.Before(to) {
		return nil, invalid("to", "must be later than from")
	}
	made, err := s.actingFor(ctx).BackfillSchedule(ctx, r.GetSchedule(), from, to)
	if err != nil {
		return nil, err
	}
	return fill(&servov1.BackfillScheduleResponse{}, made), nil
}
