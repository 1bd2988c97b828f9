package api

import (
	"context"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/servov1"
)

// defaultPixels is the default width of a chart.
const defaultPixels = 1000

// GetGantt implements the call.
func (s *server) GetGantt(ctx context.Context, r *servov1.GetGanttRequest) (*servov1.Gantt, error) {
	snap, err := s.current(ctx)
	if err != nil {
		return nil, err
	}
	rows, run, err := engine.FindRun(ctx, snap, r.GetRunId())
	if err != nil {
		return nil, err
	}
	from, to := event.At(timeOf(r.GetFrom())), event.At(timeOf(r.GetTo()))
	if from != 0 && to != 0 && from >= to {
		return nil, invalid("to", "must be later than from")
	}
	g := view.GanttOf(rows, run, s.momentNow(ctx, snap), view.GanttOptions{
		From: from, To: to, Pixels: int32(orDefault(r.GetPixels(), defaultPixels)), ByAsset: r.GetFoldBy() == "asset", //nolint:gosec // at most 10,000
	})
	return ganttOf(g, &servov1.Gantt{RunId: run.RunID, State: runOf(run).GetState(), Revision: snap.Revision}), nil
}

func ganttOf(g *view.Gantt, into *servov1.Gantt) *servov1.Gantt {
	into.From, into.To, into.CriticalPath, into.UnlimitedDuration = timestamp(g.From), timestamp(g.To), g.CriticalPath, durationpb.New(g.Unlimited)
	into.CriticalDuration = durationpb.New(g.Critical)
	into.RowsLeftOut, into.FoldedBy = int32(g.LeftOut), "task" //nolint:gosec // at most the number of a run's tasks
	if g.ByAsset {
		into.FoldedBy = "asset"
	}
	for i := range g.Rows {
		row := &servov1.Gantt_Row{
			Key: g.Rows[i].Key, Tasks: g.Rows[i].Tasks, Critical: g.Rows[i].Critical, Failed: g.Rows[i].Failed,
			RowCount: g.Rows[i].RowCount, ByteSize: g.Rows[i].ByteSize,
			State: servov1.TaskState_Value(enumNumber(servov1.TaskState_Value(0).Descriptor(), string(g.Rows[i].State))),
		}
		if t := g.Rows[i].Task; t != nil {
			row.Attempt, row.MaxAttempts, row.ErrorCode, row.Error = t.Attempt, t.MaxAttempts, t.ErrorCode, t.ErrorMessage
		}
		for _, one := range g.Rows[i].Segments {
			row.Segments = append(row.Segments, &servov1.Gantt_Segment{
				Phase: servov1.Phase_Value(enumNumber(servov1.Phase_Value(0).Descriptor(), string(one.Phase))),
				From:  timestamp(one.From), To: timestamp(one.To), Attempt: one.Attempt, Tasks: one.Tasks,
			})
		}
		into.Rows = append(into.Rows, row)
	}
	return into
}
