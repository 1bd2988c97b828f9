package eventtest

import (
	"slices"

	"pgregory.net/rapid"

	"github.com/servo-orchestration/servo/pkg/event"
)

// alertRules generates valid rules with different names.
func alertRules(t *rapid.T) []event.AlertRule {
	names := rapid.SliceOfNDistinct(scheduleName(), 0, 3, rapid.ID[string]).Draw(t, "rules")
	var rules []event.AlertRule
	for _, name := range names {
		r := event.AlertRule{
			Name: name, On: rapid.SliceOfNDistinct(rapid.SampledFrom(event.AlertCauses()), 1, 3, rapid.ID[string]).Draw(t, "on"),
			To:       rapid.SliceOfNDistinct(scheduleName(), 1, 3, rapid.ID[string]).Draw(t, "to"),
			GroupSec: rapid.Int64Range(1, event.MaxAlertGroupSec).Draw(t, "group"),
		}
		if rapid.Bool().Draw(t, "selects") {
			r.Select = "tag:gold"
			r.Assets = rapid.SliceOfNDistinct(AssetKey(), 1, 3, rapid.ID[string]).Draw(t, "assets")
			slices.Sort(r.Assets)
		}
		rules = append(rules, r)
	}
	return rules
}

func notificationEnded(t *rapid.T) event.Payload {
	return &event.NotificationEnded{
		NotificationID: ULID().Draw(t, "notification"), Try: positive().Draw(t, "try"),
		Outcome: pick(t, "outcome", event.NotificationSent, event.NotificationFailed, event.NotificationExpired), Error: text().Draw(t, "error"),
	}
}
