package sim

import (
	"fmt"

	"github.com/servo-orchestration/servo/pkg/state"
)

// sameAutomation checks a state that was rebuilt from the bare ledger. The state must have a deployment, and the
// schedules and alert rules of the world. The last command of a person about each schedule and rule must still apply. A
// schedule may have an earlier version until an automator defines it again: the fold applies a new definition only when
// all earlier ticks are decided, but such a rebuild folds timers, and the ticks that they created, after all other
// events.
func (o *oracle) sameAutomation(f *followed, rebuilt *state.State) {
	lost := func(format string, args ...any) {
		o.violation("I-17 rebuildable", "rebuilt from the ledger alone, %s", fmt.Sprintf(format, args...))
	}
	// Do not compare the current deployments: if no event proves which of several competing deployments won, their ids
	// decide.
	if was := f.state.Deployment(); was != nil && rebuilt.Deployment() == nil {
		lost("no deployment is current, but deployment %s was", was.DeployID)
	}
	for row := range f.state.Schedules.All {
		if row.RemovedAt != 0 {
			continue
		}
		again := rebuilt.Schedules.Get(row.ScheduleID)
		switch {
		case again == nil || again.RemovedAt != 0:
			lost("schedule %s is missing", row.ScheduleID)
		case again.Version != row.Version && rebuilt.SchedulesPending() == nil:
			lost("schedule %s has version %s instead of %s", row.ScheduleID, again.Version, row.Version)
		case again.CommandID < row.CommandID:
			lost("schedule %s does not show command %s", row.ScheduleID, row.CommandID)
		case row.Paused && row.PausedBy != "" && again.CommandID == row.CommandID && !again.Paused:
			lost("schedule %s ticks, although %s has paused it", row.ScheduleID, row.PausedBy)
		}
	}
	for row := range f.state.Forgotten.All {
		if again := rebuilt.Forgotten.Get(row.AssetKey); again == nil || again.CommandID < row.CommandID {
			lost("asset %s is not forgotten by command %s", row.AssetKey, row.CommandID)
		}
	}
	for row := range f.state.AlertRules.All {
		again := rebuilt.AlertRules.Get(row.Rule)
		switch {
		case again == nil:
			lost("rule %s is missing", row.Rule)
		case again.CommandID < row.CommandID:
			lost("rule %s does not show command %s", row.Rule, row.CommandID)
		case again.CommandID == row.CommandID && again.MutedUntil != row.MutedUntil:
			lost("rule %s is muted until %q instead of %q", row.Rule, again.MutedUntil, row.MutedUntil)
		}
	}
}
