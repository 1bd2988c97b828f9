package event

import (
	"time"

	"github.com/servo-orchestration/servo/pkg/ids"
)

// Latest returns the latest time that occurs in the name of an entry or in the events of one of its groups, and the
// name of the field that contains this time. Latest reads the ids that the group creates, and the times at which
// something happened. It skips ids that the group only refers to, because the entry that created such an id is checked
// itself. It also skips planned times, for example the time of a timer.
//
// The result depends on the entry alone, so a replay returns the same time and field.
func Latest(entry string, group []*Envelope) (at time.Time, field string) {
	id, idOf := entry, "name of the entry"
	var latest Time
	var timeOf string
	seeID := func(v, name string) {
		if v > id && ids.Valid(v) {
			id, idOf = v, name
		}
	}
	for _, e := range group {
		seeID(e.ID, "event_id")
		seeID(e.Group, "group")
		if p, ok := e.Payload.(*RunTriggered); ok {
			seeID(p.RunID, "payload.run_id")
			seeID(p.PlanID, "payload.plan_id")
		}
		if p, ok := e.Payload.(*PlanCreated); ok {
			seeID(p.PlanID, "payload.plan_id")
		}
		if p, ok := e.Payload.(*ProjectDeployed); ok {
			seeID(p.DeployID, "payload.deploy_id")
		}
		happened(e, func(t *Time, name string) {
			if *t > latest {
				latest, timeOf = *t, name
			}
		})
	}
	if at = ids.Time(id); latest.Time().After(at) {
		return latest.Time(), timeOf
	}
	return at, idOf
}

// Clamp corrects those timestamps in a group that say when something happened. If a timestamp is later than maxTime,
// Clamp replaces it by newTime.
func Clamp(group []*Envelope, maxTime, newTime Time) {
	for _, e := range group {
		happened(e, func(t *Time, _ string) {
			if *t > maxTime {
				*t = newTime
			}
		})
	}
}

// happened visits the timestamps that say when something happened. It skips planned times.
func happened(e *Envelope, see func(t *Time, name string)) {
	see(&e.Time, "timestamp")
	switch p := e.Payload.(type) {
	case *TimerFired:
		see(&p.FiredAt, "payload.fired_at")
		see(&p.Observed.CaughtUpAt, "payload.observed.caught_up_at")
	case *TaskStarted:
		see(&p.StartedAt, "payload.started_at")
	case *TaskHeartbeat:
		see(&p.HeartbeatAt, "payload.heartbeat_at")
	case *TaskFinished:
		see(&p.StartedAt, "payload.started_at")
		see(&p.CompletedAt, "payload.completed_at")
	case *PlanCreated:
		see(&p.ObservedTime, "payload.observed_time")
	case *PartitionsMarked:
		see(&p.ObservedTime, "payload.observed_time")
	case *RunTriggered, *RunCancelRequested, *LimitSet, *ProjectDeployed, *QuarantineResolved, *PartitionsChanged,
		*RunRequested, *RequestRefused, *SchedulesDefined, *CalendarAdvanced, *AutomationCommand, *RevisionPinned, *AssetsForgotten, *BackfillCreated, *DispatchRequested, *DispatchEnqueued,
		*DispatchFailed, *TimerRequested, *TimerEnqueued, *NotificationEnded, *DeadlineJudged:
	}
}
