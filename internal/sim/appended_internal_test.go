package sim

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/state"
)

// A command about a run may wait forever, but only if a rebuild without the recorded order refused every trigger of the
// run.
func TestNeverRanNeedsRefusedTriggers(t *testing.T) {
	const run, entry, group, other = "run", "entry", "group", "other"
	command := &state.Entry{Entry: "command", RunID: run, Outcome: state.DeadLetter, Reason: fold.ReasonUnknownRun}
	for name, c := range map[string]struct {
		unordered bool
		command   *state.Entry
		outcomes  map[string]state.EntryOutcome
		want      bool
	}{
		"refused":           {true, command, map[string]state.EntryOutcome{entry: state.Stale}, true},
		"refused twice":     {true, command, map[string]state.EntryOutcome{entry: state.Stale, other: state.Stale}, true},
		"accepted":          {true, command, map[string]state.EntryOutcome{entry: state.Folded}, false},
		"one accepted":      {true, command, map[string]state.EntryOutcome{entry: state.Stale, other: state.Folded}, false},
		"not recorded":      {true, command, map[string]state.EntryOutcome{}, false},
		"recorded order":    {false, command, map[string]state.EntryOutcome{entry: state.Stale}, false},
		"for another cause": {true, &state.Entry{RunID: run, Reason: fold.ReasonUnknownTask}, map[string]state.EntryOutcome{entry: state.Stale}, false},
		"of another run":    {true, &state.Entry{RunID: other, Reason: fold.ReasonUnknownRun}, map[string]state.EntryOutcome{entry: state.Stale}, false},
	} {
		f := &followed{unordered: c.unordered, state: state.New(ids.Domain{Tenant: "t", Workspace: "w"}), triggers: map[string][]state.Key2{run: {{A: entry, B: group}}}}
		if _, twice := c.outcomes[other]; twice {
			f.triggers[run] = append(f.triggers[run], state.Key2{A: other, B: group})
		}
		for e, outcome := range c.outcomes {
			f.state.Entries.Put(&state.Entry{Entry: e, Group: group, Outcome: outcome})
		}
		require.Equal(t, c.want, f.neverRan(c.command), name)
	}
}
