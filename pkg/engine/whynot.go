package engine

import (
	"context"
	"fmt"
	"strings"

	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

// Automation runs an asset without a person. It is a schedule, or a request that has not become a run.
type Automation struct {
	// Either Schedule is the name of the schedule, or Request is the id of the request.
	Schedule string `json:"schedule,omitempty"`
	Request  string `json:"request_id,omitempty"`
	// Status explains why the automation has not run the asset, or when it will.
	Status string `json:"status"`
	// Next is the command that resumes or explains the automation, or "".
	Next string `json:"next,omitempty"`
}

// Automations returns the schedules and the requests that run an asset. The function match reports whether a selection
// includes the asset.
func Automations(ctx context.Context, snap *snapshot.Snapshot, match func(*event.RunSpec) bool) ([]Automation, error) {
	schedules, err := Schedules(snap.State)
	if err != nil {
		return nil, err
	}
	var all []Automation
	for i := range schedules {
		s := &schedules[i]
		if !match(&s.Definition.Run) {
			continue
		}
		ticks, err := Ticks(ctx, snap, s.Name, 1)
		if err != nil {
			return nil, err
		}
		x := Automation{Schedule: s.Name, Status: scheduleState(s), Next: "servo schedule ticks " + view.Quoted(s.Name)}
		if s.Status == "paused" {
			x.Next = "servo schedule resume " + view.Quoted(s.Name)
		}
		if len(ticks) > 0 {
			x.Status += "; " + tickState(&ticks[0])
		}
		all = append(all, x)
	}
	requests, err := Requests(snap.State, false)
	if err != nil {
		return nil, err
	}
	for i := range requests {
		r := &requests[i]
		if _, _, ofChunk := state.ParseChunkRequest(r.ID); ofChunk || !match(&r.Run) {
			continue
		}
		all = append(all, Automation{Request: r.ID, Status: requestState(r)})
	}
	return all, nil
}

// scheduleState describes which event a schedule is waiting for.
func scheduleState(s *Schedule) string {
	text := s.Status
	switch s.Status {
	case "paused":
		text = "paused by its declaration (paused: true)"
		if s.PausedAt != 0 {
			text = fmt.Sprintf("paused since %s", s.PausedAt)
		}
		if s.PausedBy != "" {
			text += " by " + s.PausedBy
		}
		if s.Reason != "" {
			text += ": " + s.Reason
		}
	case "error":
		text = "the calendar cannot compute the next tick: " + s.Error
	case "active":
		text = fmt.Sprintf("ticks next at %s", s.NextAt)
	case "due":
		text = "waits for the automator to compute its next tick"
	case "ended":
		text = "has no further tick"
	}
	if len(s.Definition.Run.Partitions) > 0 {
		text += ", for " + strings.Join(s.Definition.Run.Partitions, ", ")
	}
	return text
}

// tickState describes the newest tick of a schedule.
func tickState(t *Tick) string {
	text := fmt.Sprintf("its newest tick, %s, is %s", t.Logical, t.Outcome)
	if t.RunID != "" {
		text += fmt.Sprintf(", run %s %s", t.RunID, t.RunState)
	}
	if t.Detail != "" {
		text += ": " + view.OneLine(t.Detail)
	}
	return strings.TrimSpace(text)
}

// requestState describes which event a request is waiting for.
func requestState(r *Request) string {
	text := fmt.Sprintf("%s since %s", r.State, r.CreatedAt)
	switch r.State { //nolint:exhaustive // a request in another state has ended
	case state.RequestPending:
		text += ": waits for a planner"
	case state.RequestBuffered:
		text += ": waits for the end of an earlier run of its schedule"
	case state.RequestWaiting:
		text += fmt.Sprintf(": is planned at %s", r.NextAt)
	}
	if r.ScheduleID != "" {
		text += ", of schedule " + r.ScheduleID
	}
	if r.Error != "" {
		text += ": " + view.OneLine(view.Problem(r.ErrorCode, r.Error))
	}
	return text
}
