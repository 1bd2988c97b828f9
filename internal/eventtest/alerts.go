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

// watched generates different assets with valid deadlines, freshness limits and SLAs.
func watched(t *rapid.T) (all []event.WatchedAsset) {
	keys := rapid.SliceOfNDistinct(AssetKey(), 0, 3, rapid.ID[string]).Draw(t, "watched")
	slices.Sort(keys)
	seconds := rapid.Int64Range(0, event.MaxDeadlineSec)
	for _, key := range keys {
		w := event.WatchedAsset{
			Asset: key, MaxLagSec: seconds.Draw(t, "lag"), RunSec: seconds.Draw(t, "run"), TaskSec: seconds.Draw(t, "task"),
		}
		if rapid.Bool().Draw(t, "has deadline") {
			w.Deadline = &event.Deadline{
				By: "09:00", Timezone: optional(t, name(), "zone"), DaysAfter: rapid.Int32Range(0, event.MaxDaysAfter).Draw(t, "days"),
				AfterEndSec: seconds.Draw(t, "after end"),
			}
		}
		all = append(all, w)
	}
	return all
}

func deadlineJudged(t *rapid.T) event.Payload {
	p := &event.DeadlineJudged{}
	for range rapid.IntRange(1, 3).Draw(t, "items") {
		x := event.JudgedDeadline{
			Asset: AssetKey().Draw(t, "asset"), Version: hash(16).Draw(t, "version"), Period: text().Draw(t, "period"),
			DueAt: Time().Draw(t, "due"), Verdict: pick(t, "verdict", "", event.DeadlineMet, event.DeadlineMissed),
			ObservedSeq: rapid.Int64Min(0).Draw(t, "observed"), More: rapid.Int64Min(0).Draw(t, "more"), Next: text().Draw(t, "next"),
			NextAt: optional(t, Time(), "next"), Error: text().Draw(t, "error"),
		}
		if x.Verdict == event.DeadlineMissed {
			x.Missing = rapid.SliceOfN(name(), 1, 3).Draw(t, "missing")
		}
		p.Items = append(p.Items, x)
	}
	return p
}
