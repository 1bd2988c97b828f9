package view

import (
	"sync"
	"time"

	"github.com/servo-orchestration/servo/pkg/calendar"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/state"
)

// Calendar returns the data that determines the partitions of assets: a time, the time zones, and the key sets of a
// state. It is safe for concurrent use.
func Calendar(s *state.State, now time.Time) plan.Calendar {
	var mu sync.Mutex
	known := map[string][]string{}
	return plan.Calendar{Now: now, Zone: calendar.Zone, Keys: func(set string) []string {
		mu.Lock()
		defer mu.Unlock()
		keys, ok := known[set]
		if !ok {
			keys = s.Keys(set)
			known[set] = keys
		}
		return keys
	}}
}
