package state

import (
	"strings"

	"github.com/servo-orchestration/servo/pkg/event"
)

// SlotLimit returns the limit of a scope, and whether the scope has a limit. The workspace always has a limit.
func (s *State) SlotLimit(scope, name string) (int32, bool) {
	if row := s.Limits.Get(Key2{scope, name}); row != nil && !row.Removed {
		return row.Slots, true
	}
	if scope == event.ScopeWorkspace {
		return DefaultWorkspaceSlots, true
	}
	return 0, false
}

// SlotsInUse returns the number of slots in use in the workspace.
func (s *State) SlotsInUse() int32 { return s.index.allSlots }

// SlotsInUseByRun returns the number of slots in use by a run.
func (s *State) SlotsInUseByRun(runID string) int32 {
	n, _ := s.index.runSlots.Get(runID)
	return n
}

// SlotsInUseInPool returns the number of slots in use in a pool.
func (s *State) SlotsInUseInPool(pool string) int32 {
	n, _ := s.index.poolSlots.Get(pool)
	return n
}

// NextAdmissible returns the next task to admit under the limits of its run, its pool and the
// workspace, or nil. It visits only one task of each pool, however many tasks are ready.
func (s *State) NextAdmissible() *Task {
	if slots, _ := s.SlotLimit(event.ScopeWorkspace, ""); s.index.allSlots >= slots {
		return nil
	}
	var best headItem
	found := false
	for pool := ""; ; {
		head, ok := s.index.heads.First(headItem{pool: pool, priority: maxPriority})
		if !ok {
			break
		}
		slots, limited := s.SlotLimit(event.ScopePool, head.pool)
		free := !limited || s.SlotsInUseInPool(head.pool) < slots
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

// ReadyTasks calls yield for the tasks of a run that wait for a slot. It goes pool by pool, in the
// order of admission within each pool, until yield returns false.
func (s *State) ReadyTasks(runID string, yield func(*Task) bool) {
	s.index.ready.Ascend(readyItem{run: runID, priority: maxPriority}, func(it readyItem) bool {
		return it.run == runID && yield(s.Tasks.Get(Key2{it.run, it.key}))
	})
}

// NextDeadline returns the earliest deadline. It reports false if no deadline is pending.
func (s *State) NextDeadline() (Deadline, bool) { return s.index.deadlines.Min() }

// Due returns the deadlines at or before now, earliest first.
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

// LiveRuns returns the number of runs that have not ended.
func (s *State) LiveRuns() int { return s.index.liveRuns }

// LiveRunOf returns the live run of the chain of retries that began with a given run, or "".
func (s *State) LiveRunOf(root string) string {
	run := ""
	s.index.chains.Ascend(Key2{A: root}, func(k Key2) bool {
		if k.A == root {
			run = k.B
		}
		return false
	})
	return run
}

// RetryKey returns a key of run_keys. The row with this key names the last retry in the chain that began with a given
// run.
func RetryKey(root string) string { return event.ReservedKeys + root }

// LastRetry returns the last retry in the chain that began with a given run, or "". It also returns a retry that has
// moved to history, unless the row of the retry in run_keys has expired.
func (s *State) LastRetry(root string) string {
	if row := s.RunKeys.Get(RetryKey(root)); row != nil {
		return row.RunID
	}
	return ""
}

// Deployment returns the current deployment, or nil.
func (s *State) Deployment() *Deployment { return s.Deployments.Last() }

// Release returns the hash of the deployed release, or "".
func (s *State) Release() string {
	if current := s.Deployment(); current != nil {
		return current.Release
	}
	return ""
}

// Waiting returns the keys of the dead letters that wait for a run. If runID is empty, it returns
// the dead letters that wait for a build that supports their event types.
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

// Unmet returns the upstreams of a task that have ended but did not satisfy the edge to the task, in the order of
// their keys.
func (s *State) Unmet(runID, taskKey string) []string {
	var upstreams []string
	s.index.unmet.Ascend(Key3{A: runID, B: taskKey}, func(k Key3) bool {
		if k.A != runID || k.B != taskKey {
			return false
		}
		upstreams = append(upstreams, k.C)
		return true
	})
	return upstreams
}

// Redrivable returns the keys of the dead letters to fold again: dead letters that an older build
// did not support, and dead letters that wait for a run that exists now.
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

// Unsupported reports whether dead letters wait for a build that supports their event types.
func (s *State) Unsupported() bool {
	found := false
	s.index.waiting.Ascend(Key3{}, func(k Key3) bool {
		found = k.A == ""
		return false
	})
	return found
}

// ExpiredRunKeys returns run keys that expired at or before now, oldest first. The parameter limit is their maximum
// number.
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

// Liveness returns the domain's latest liveness timer in any state, or nil.
func (s *State) Liveness() *Timer { return s.singleton("timer:liveness:", event.TimerLiveness) }

// singleton returns the only timer of a type in a domain. Its id begins with the prefix.
func (s *State) singleton(prefix, timerType string) *Timer {
	timer := s.Timers.Ceiling(prefix)
	for timer != nil && strings.HasPrefix(timer.TimerID, prefix) {
		if timer.TimerType == timerType {
			return timer
		}
		timer = s.Timers.Ceiling(timer.TimerID + "\x00")
	}
	return nil
}
