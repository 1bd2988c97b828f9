package cli

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/state"
)

// A run that was requested first may be planned last. `servo dev` must report this run, too.
func TestRunsSeenReportsOlderIDs(t *testing.T) {
	st := state.New(ids.Domain{Tenant: "acme", Workspace: "main"})
	put := func(id string, s state.RunState) { st.Runs.Put(&state.Run{RunID: id, State: s}) }
	names := func(runs []*state.Run) (names []string) {
		for _, run := range runs {
			names = append(names, run.RunID)
		}
		return names
	}
	put("b", state.RunRunning)
	seen := runsSeen{}
	seen.update(st)

	put("a", state.RunRunning)   // appears after b
	put("c", state.RunSucceeded) // begins and ends between two revisions
	started, ended := seen.update(st)
	require.Equal(t, []string{"a", "c"}, names(started))
	require.Equal(t, []string{"c"}, names(ended))

	put("a", state.RunFailed)
	put("b", state.RunSucceeded)
	started, ended = seen.update(st)
	require.Empty(t, started)
	require.Equal(t, []string{"a", "b"}, names(ended))

	started, ended = seen.update(st)
	require.Empty(t, append(started, ended...))

	seen.update(state.New(st.Domain)) // all runs have moved to history
	require.Empty(t, seen)
}
