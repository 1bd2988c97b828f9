package release

import (
	"slices"
	"strings"

	"github.com/servo-orchestration/servo/pkg/event"
)

// ScheduleChange describes how a schedule differs between two releases. Kind is Added, Removed or "changed".
type ScheduleChange struct {
	Schedule string `json:"schedule"`
	Kind     string `json:"kind"`
}

// DiffSchedules compares the schedules of two releases by their definitions. It ignores changes of the field "paused",
// because this field applies to new schedules only.
func DiffSchedules(before, after []event.Schedule) []ScheduleChange {
	var changes []ScheduleChange
	old, now := schedulesByName(before), schedulesByName(after)
	for i := range after {
		switch old := old[after[i].Name]; {
		case old == nil:
			changes = append(changes, ScheduleChange{after[i].Name, Added})
		case old.DefinitionVersion() != after[i].DefinitionVersion():
			changes = append(changes, ScheduleChange{after[i].Name, "changed"})
		}
	}
	for i := range before {
		if now[before[i].Name] == nil {
			changes = append(changes, ScheduleChange{before[i].Name, Removed})
		}
	}
	slices.SortFunc(changes, func(a, b ScheduleChange) int { return strings.Compare(a.Schedule, b.Schedule) })
	return changes
}

func schedulesByName(schedules []event.Schedule) map[string]*event.Schedule {
	names := make(map[string]*event.Schedule, len(schedules))
	for i := range schedules {
		names[schedules[i].Name] = &schedules[i]
	}
	return names
}
