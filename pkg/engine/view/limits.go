package view

import (
	"fmt"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/state"
)

// scopeRun is the scope of a run's own limit. Package event declares the other scopes.
const scopeRun = "run"

// Limits returns the current limits and their use. The limit of the workspace comes first, then the limits of pools
// by name.
func Limits(s *state.State) []LimitInfo {
	slots, _ := s.SlotLimit(event.ScopeWorkspace, "")
	limits := []LimitInfo{{Scope: event.ScopeWorkspace, Slots: slots, InUse: s.SlotsInUse()}}
	for row := range s.Limits.All {
		if row.Scope == event.ScopePool && !row.Removed {
			limits = append(limits, LimitInfo{Scope: row.Scope, Name: row.Name, Slots: row.Slots, InUse: s.SlotsInUseInPool(row.Name)})
		}
	}
	for i := range limits {
		limits[i].Full = limits[i].InUse >= limits[i].Slots
	}
	return limits
}

// Wait is a limit that keeps ready tasks of a run waiting.
type Wait struct {
	// Tasks is the number of waiting tasks, at most maxWaiting.
	Tasks int `json:"tasks"`
	// Scope is workspace, run or pool.
	Scope string `json:"scope"`
	// Name is the name of a pool.
	Name  string `json:"name,omitempty"`
	Slots int32  `json:"slots"`
	InUse int32  `json:"in_use"`
}

// maxWaiting is the maximum number of waiting tasks that are counted.
const maxWaiting = 10_000

// Waits returns the limits that keep ready tasks of a run waiting.
func Waits(s *state.State, r *state.Run) []Wait {
	if r.State == state.RunPaused || r.State == state.RunCancelling || r.State.Terminal() {
		return nil
	}
	byPool := map[string]int{}
	var pools []string
	n := 0
	s.ReadyTasks(r.RunID, func(t *state.Task) bool {
		if byPool[t.Pool]++; byPool[t.Pool] == 1 {
			pools = append(pools, t.Pool)
		}
		n++
		return n < maxWaiting
	})
	slots, _ := s.SlotLimit(event.ScopeWorkspace, "")
	switch {
	case n == 0:
		return nil
	case s.SlotsInUse() >= slots:
		return []Wait{{Tasks: n, Scope: event.ScopeWorkspace, Slots: slots, InUse: s.SlotsInUse()}}
	case r.MaxParallelism > 0 && s.SlotsInUseByRun(r.RunID) >= r.MaxParallelism:
		return []Wait{{Tasks: n, Scope: scopeRun, Slots: r.MaxParallelism, InUse: s.SlotsInUseByRun(r.RunID)}}
	}
	var waits []Wait
	for _, pool := range pools {
		if slots, limited := s.SlotLimit(event.ScopePool, pool); limited && s.SlotsInUseInPool(pool) >= slots {
			waits = append(waits, Wait{Tasks: byPool[pool], Scope: event.ScopePool, Name: pool, Slots: slots, InUse: s.SlotsInUseInPool(pool)})
		}
	}
	return waits
}

// String describes the wait in words.
func (w Wait) String() string {
	tasks := "1 waits"
	if w.Tasks != 1 {
		tasks = Grouped(int64(w.Tasks)) + " wait"
	}
	if w.Scope == event.ScopePool {
		return fmt.Sprintf("%s for pool %s (%d of %d taken)", tasks, w.Name, w.InUse, w.Slots)
	}
	return fmt.Sprintf("%s for one of the %s's %d slots", tasks, w.Scope, w.Slots)
}

// MarshalText encodes the wait in words.
func (w Wait) MarshalText() ([]byte, error) { return []byte(w.String()), nil }
