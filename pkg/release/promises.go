package release

import (
	"cmp"
	"maps"
	"slices"

	"github.com/servo-orchestration/servo/pkg/event"
)

// AlertChange is a difference between the alert settings of two releases.
type AlertChange struct {
	// The field What is "alert rule", "channel", "deadline", "freshness" or "sla". Name is the name of the rule, the
	// channel or the asset. Kind is Added, Removed or "changed".
	What string `json:"what"`
	Name string `json:"name"`
	Kind string `json:"kind"`
}

// DiffAlerts compares the alert settings of two releases: alert rules, channels, deadlines, freshness and SLAs. The
// parameter "before" may be nil.
func DiffAlerts(before, after *Settings) (changes []AlertChange) {
	if before == nil {
		before = &Settings{}
	}
	old, now := before.alerting(), after.alerting()
	names := maps.Clone(old)
	maps.Copy(names, now)
	order := []string{"alert rule", "channel", "deadline", "freshness", "sla"}
	keys := slices.SortedFunc(maps.Keys(names), func(a, b [2]string) int {
		return cmp.Or(cmp.Compare(slices.Index(order, a[0]), slices.Index(order, b[0])), cmp.Compare(a[1], b[1]))
	})
	for _, key := range keys {
		was, is := old[key], now[key]
		switch {
		case was == is:
		case was == "":
			changes = append(changes, AlertChange{key[0], key[1], Added})
		case is == "":
			changes = append(changes, AlertChange{key[0], key[1], Removed})
		default:
			changes = append(changes, AlertChange{key[0], key[1], "changed"})
		}
	}
	return changes
}

// alerting returns the fingerprint of every setting that DiffAlerts compares. The key of a setting consists of
// [AlertChange].What and Name.
func (s *Settings) alerting() map[[2]string]string {
	all := map[[2]string]string{}
	for i := range s.Alerts {
		r := s.Alerts[i]
		r.Assets = nil // this list also changes if only the assets of the release change
		all[[2]string{"alert rule", r.Name}] = fingerprint(r)
	}
	for i := range s.Channels {
		all[[2]string{"channel", s.Channels[i].Name}] = fingerprint(s.Channels[i])
	}
	for i := range s.Watched {
		w := &s.Watched[i]
		if w.Deadline != nil {
			all[[2]string{"deadline", w.Asset}] = fingerprint(w.Deadline)
		}
		if w.MaxLagSec != 0 {
			all[[2]string{"freshness", w.Asset}] = fingerprint(w.MaxLagSec)
		}
		if w.RunSec != 0 || w.TaskSec != 0 {
			all[[2]string{"sla", w.Asset}] = fingerprint(event.WatchedAsset{RunSec: w.RunSec, TaskSec: w.TaskSec})
		}
	}
	return all
}
