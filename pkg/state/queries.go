package state

import (
	"strings"

	"github.com/servo-orchestration/servo/pkg/event"
)

// Slots is the limit of a scope, and whether one is set. The workspace always
// has one.
func (s *State) Slots(scope, name string) (int32, bool) {
	if row := s.Limits.Get(Key2{scope, name}); row != nil && !row.Removed {
		return row.Slots, true
	}
	if scope == event.ScopeWorkspace {
		return DefaultWorkspaceSlots, true
	}
	return 0, false
}

// Held is how many slots of the workspace are held.
func (s *State) Held() int32 { return s.index.heldAll }

// HeldByRun is how many slots the run's tasks hold.
func (s *State) HeldByRun(runID string) int32 {
	n, _ := s.index.held.Get(runID)
	return n
}

// HeldInPool is how many slots of the pool are held.
func (s *State) HeldInPool(pool string) int32 {
	n, _ := s.index.heldPool.Get(pool)
	return n
}

// NextAdmissible is the task that is to be admitted next under the limits of
// its run, its pool and the workspace, or nil. It looks at one candidate a
// pool, whatever waits behind.
func (s *State) NextAdmissible() *Task {
	if slots, _ := s.Slots(event.ScopeWorkspace, ""); s.index.heldAll >= slots {
		return nil
	}
	var best headItem
	found := false
	for pool := ""; ; {
		var head headItem
		ok := false
		s.index.heads.Ascend(headItem{pool: pool, priority: maxPriority}, func(h headItem) bool {
			head, ok = h, true
			return false
		})
		if !ok {
			break
		}
		slots, limited := s.Slots(event.ScopePool, head.pool)
		free := !limited || s.HeldInPool(head.pool) < slots
		if free && (!found || compareHead(head, best) < 0) {
			best, found = head, true
		}
		pool = head.pool + "\x00"
	}
	if !found {
		return nil
	}
	return s.Tasks.Get(Key2{best.run, best.key})
}

// ReadyTasks calls yield for the tasks of a run that wait for a slot, pool by
// pool, in the order in which they will get one.
func (s *State) ReadyTasks(runID string, yield func(*Task) bool) {
	s.index.ready.Ascend(readyItem{run: runID, priority: maxPriority}, func(it readyItem) bool {
		return it.run == runID && yield(s.Tasks.Get(Key2{it.run, it.key}))
	})
}

// NextDeadline is the earliest deadline of anything live.
func (s *State) NextDeadline() (Deadline, bool) { return s.index.deadlines.Min() }

// Due are the deadlines at or before now, earliest first.
func (s *State) Due(now event.Time) []Deadline {
	var due []Deadline
	s.index.deadlines.Scan(func(d Deadline) bool {
		if d.At > now {
			return false
		}
		due = append(due, d)
		return true
	})
	return due
}

// LiveRuns is the number of runs that have not ended.
func (s *State) LiveRuns() int { return s.index.liveRuns }

// Waiting are the dead letters that wait for a run, or, for "", for a build that
// knows their types: entry and group.
func (s *State) Waiting(runID string) []Key2 {
	var waiting []Key2
	s.index.waiting.Ascend(Key3{A: runID}, func(k Key3) bool {
		if k.A != runID {
			return false
		}
		waiting = append(waiting, Key2{k.B, k.C})
		return true
	})
	return waiting
}

// Redrivable returns the dead letters that may be folded when they are tried again: events
// that an older build did not know, and groups that wait for a run which exists.
func (s *State) Redrivable() []Key2 {
	var keys []Key2
	run, exists := "", true
	s.index.waiting.Ascend(Key3{}, func(k Key3) bool {
		if k.A != run {
			run, exists = k.A, s.Runs.Get(k.A) != nil
		}
		if exists {
			keys = append(keys, Key2{k.B, k.C})
		}
		return true
	})
	return keys
}

// Unsupported reports whether dead letters wait for a build that knows their types.
func (s *State) Unsupported() bool {
	found := false
	s.index.waiting.Ascend(Key3{}, func(k Key3) bool {
		found = k.A == ""
		return false
	})
	return found
}

// ExpiredRunKeys are up to limit run keys that expired at or before now.
func (s *State) ExpiredRunKeys(now event.Time, limit int) []*RunKey {
	var expired []*RunKey
	s.index.expiries.Scan(func(e keyExpiry) bool {
		if e.at > now || len(expired) == limit {
			return false
		}
		expired = append(expired, s.RunKeys.Get(e.key))
		return true
	})
	return expired
}

// Liveness is the domain's liveness timer: the last one made, whatever its state.
func (s *State) Liveness() *Timer {
	var timer *Timer
	s.Timers.Ascend(livenessPrefix, func(t *Timer) bool {
		if t.TimerType == event.TimerLiveness {
			timer = t
		}
		return timer == nil && strings.HasPrefix(t.TimerID, livenessPrefix)
	})
	return timer
}

// livenessPrefix begins the id of every liveness timer.
const livenessPrefix = "timer:liveness:"
