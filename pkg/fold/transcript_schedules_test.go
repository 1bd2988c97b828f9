package fold_test

import (
	"fmt"
	"strings"
	"time"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/state"
)

// scheduleEvent returns the payloads of an event about schedules, or nil.
func (s *story) scheduleEvent(verb string, words []string) []event.Payload {
	switch verb {
	case "define":
		return []event.Payload{s.definition(words)}
	case "wake":
		return []event.Payload{s.fire(s.Timer(event.TimerWake))}
	case "calendar":
		return []event.Payload{s.calendar()}
	case "plan":
		return s.planFirst(words[0])
	case "backfill":
		return []event.Payload{s.backfillEvent(words)}
	case "chunk":
		return s.chunkRun(words)
	case "nothing":
		return []event.Payload{s.nothingToDo(words)}
	case "refuse":
		return []event.Payload{s.refuseFirst(words)}
	case "pause", "resume", "trigger":
		p := &event.AutomationCommand{CommandID: s.ID(), Target: event.TargetSchedule, Name: words[0], Verb: verb}
		p.CatchUp = len(words) > 1 && words[1] == "catch-up"
		return []event.Payload{p}
	case "at":
		d, err := time.ParseDuration(words[0])
		if err != nil {
			panic(err)
		}
		return []event.Payload{&event.RunRequested{CommandID: s.ID(), At: event.At(s.Now.Add(d)), Run: event.RunSpec{All: true}}}
	}
	return nil
}

// definition reads "NAME OPTION…" or "nothing". "nothing" means a release without schedules.
func (s *story) definition(words []string) event.Payload {
	p := &event.SchedulesDefined{DeployID: s.State.Deployment().DeployID, Last: true}
	if words[0] == "nothing" {
		for row := range s.State.Schedules.All {
			p.Remove = append(p.Remove, row.ScheduleID)
		}
		return p
	}
	spec := event.Schedule{Name: words[0], EverySec: 3600, Run: event.RunSpec{All: true}}
	for option, value := range options(words[1:]) {
		switch option {
		case "every":
			spec.EverySec = int64(seconds(value))
		case "overlap":
			spec.Overlap = value
		case "catch-up":
			spec.CatchUp = value
		case "failures":
			spec.PauseAfterFailures = number(value)
		default:
			panic("no such option of a schedule: " + option)
		}
	}
	p.Set = append(p.Set, spec)
	return p
}

// calendar returns the event that lists the instants of all wanted schedules. Instants are multiples of a schedule's
// interval since the epoch.
func (s *story) calendar() event.Payload {
	p := &event.CalendarAdvanced{}
	s.State.WantedSchedules(func(row *state.Schedule) bool {
		item := event.CalendarItem{Schedule: row.ScheduleID, Version: row.Version, After: row.Cursor, Through: row.Cursor, Calendar: "2025c"}
		_, every, _ := strings.Cut(row.Spec, `"every_sec":`)
		d := time.Duration(number(strings.SplitN(every, ",", 2)[0])) * time.Second
		next := event.At(row.Cursor.Time().Truncate(d).Add(d))
		for ; next <= row.WantedAt; next = next.Add(d) {
			item.Missed, item.Through = append(item.Missed, next), next
		}
		item.Next, item.NextAt = next, next
		p.Items = append(p.Items, item)
		return true
	})
	return p
}

func (s *story) firstPending() (first *state.RunRequest) {
	s.State.PendingRequests(func(r *state.RunRequest) bool {
		first = r
		return false
	})
	return first
}

// planFirst returns the trigger and the plan of a run for the oldest pending request.
func (s *story) planFirst(name string) []event.Payload {
	r := s.firstPending()
	s.runs[name], s.names[r.RunID] = r.RunID, name
	return s.Triggered(&event.RunTriggered{
		RunID: r.RunID, RequestID: r.RequestID, Trigger: event.Trigger{Type: "cron", ScheduleID: r.ScheduleID, TickID: r.TickID},
	}, foldtest.Task("a"))
}

func (s *story) refuseFirst(words []string) event.Payload {
	r := s.firstPending()
	return &event.RequestRefused{
		RequestID: r.RequestID, Generation: r.Generation, Release: s.State.Release(),
		Error: event.Error{Code: words[0], Message: "why", Retryable: len(words) > 1},
	}
}

func (s *story) scheduleRow(r *state.Schedule) (string, cells) {
	paused, removed := "", ""
	if r.Paused {
		paused = "yes " + r.Reason
		for id, name := range s.names {
			paused = strings.ReplaceAll(paused, id, name)
		}
	}
	if r.RemovedAt != 0 {
		removed = "yes"
	}
	return "schedule " + r.ScheduleID, cells{
		{"cursor", offset(r.Cursor)},
		{"next", offset(r.Next)},
		{"wanted up to", offset(r.WantedAt)},
		{"paused", strings.TrimSpace(paused)},
		{"removed", removed},
		{"failures", count(r.Failures)},
		{"dropped", count(int32(r.TicksDropped))},
	}
}

func (s *story) requestRow(r *state.RunRequest) (string, cells) {
	name := "request of " + offset(r.Logical)
	if key, try, ok := state.ParseChunkRequest(r.RequestID); ok {
		return fmt.Sprintf("request of %s:%d#%d", s.names[key.BackfillID], key.Chunk, try), cells{{"state", string(r.State)}, {"until", offset(r.NextAt)}, {"error", r.ErrorCode}}
	}
	if r.ScheduleID == "" {
		name = "request"
	}
	return name, cells{{"state", string(r.State)}, {"until", offset(r.NextAt)}, {"error", r.ErrorCode}}
}

func (s *story) tickRow(r *state.Tick) (string, cells) {
	return "tick " + r.ScheduleID + " at " + offset(r.Logical), cells{{"kind", r.Kind}, {"outcome", string(r.Outcome)}}
}
