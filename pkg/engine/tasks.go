package engine

import (
	"fmt"
	"strings"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/state"
)

// maxNames is how many of many an error or a headline names.
const maxNames = 5

// FindTask is the task of a run with this key; or the only one of the asset with
// this key; or the only one whose key contains the text, so that a day is enough
// where one asset has it.
func FindTask(s *state.State, runID, name string) (*state.Task, error) {
	if t := s.Tasks.Get(state.Key2{A: runID, B: name}); t != nil {
		return t, nil
	}
	var keys []string
	var ofAsset, containing []*state.Task
	s.TasksOf(runID, func(t *state.Task) bool {
		keys = append(keys, t.TaskKey)
		if t.Kind != event.KindGroup && name != "" {
			if t.AssetKey == name {
				ofAsset = append(ofAsset, t)
			}
			if strings.Contains(t.TaskKey, name) {
				containing = append(containing, t)
			}
		}
		return true
	})
	found := ofAsset
	if len(found) == 0 {
		found = containing
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		return nil, fmt.Errorf("task %q of run %s: %w: it matches %d tasks, for example %s; give the whole key",
			name, runID, ErrNotFound, len(found), found[0].TaskKey)
	}
	if near := plan.Suggest(name, keys); near != "" {
		return nil, fmt.Errorf("task %q of run %s: %w: did you mean %s?", name, runID, ErrNotFound, near)
	}
	return nil, fmt.Errorf("task %q of run %s: %w: list its tasks with `servo tasks %s` (it has %d tasks)", name, runID, ErrNotFound, runID, len(keys))
}

// some is a list with the end left out where it is long.
func some(names []string) string {
	if len(names) <= maxNames {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:maxNames], ", "), len(names)-maxNames)
}

// count is "1 task", "2 tasks".
func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
