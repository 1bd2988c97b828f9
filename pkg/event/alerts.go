package event

import (
	"fmt"
	"slices"
)

// Limits of alerts.
const (
	MaxAlertRules    = 1000      // rules of a deployment
	MaxAlertBytes    = 256 << 10 // bytes of asset names in the rules of a deployment
	MaxAlertChannels = 20        // channels of a rule
	MaxAlertGroupSec = 7 * 24 * 3600
)

// Causes of alerts.
const (
	CauseTaskFailed      = "task_failed"      // a task has failed, and is not retried
	CauseCheckFailed     = "check_failed"     // a check of severity CRITICAL or ERROR has failed
	CauseQuarantined     = "quarantined"      // an output waits for a decision
	CauseRunFailed       = "run_failed"       // a run has failed or timed out, or could not be planned
	CauseSchedulePaused  = "schedule_paused"  // a schedule was paused after failures
	CauseScheduleBlocked = "schedule_blocked" // a tick was skipped or dropped, or the next tick is unknown
	CauseBackfillPaused  = "backfill_paused"  // a backfill was paused after failures, or by a deployment
	CauseDeploy          = "deploy"           // a release was deployed
	CauseDeadlineMissed  = "deadline_missed"  // partitions were missing or stale at their deadline
	CauseFreshnessMissed = "freshness_missed" // the newest output is too old
	CauseSLAMissed       = "sla_missed"       // a task or run takes too long
	CauseRecovered       = "recovered"        // the problem that an alert reported has ended
)

// Causes that no rule can name. Servo sends these messages itself.
const (
	CauseDigest = "digest" // one message for the alerts beyond the limit of a channel
	CauseTest   = "test"   // a person tests a channel
)

// AlertCauses returns the causes that a rule can name. If a change has several causes that a rule names, the rule
// reports only the most specific one.
func AlertCauses() []string {
	return []string{
		CauseQuarantined, CauseCheckFailed, CauseTaskFailed, CauseRunFailed, CauseSchedulePaused, CauseScheduleBlocked, CauseBackfillPaused, CauseDeploy,
		CauseDeadlineMissed, CauseFreshnessMissed, CauseSLAMissed, CauseRecovered,
	}
}

// AssetCause reports whether a cause is about an asset.
func AssetCause(cause string) bool {
	return slices.Contains([]string{
		CauseQuarantined, CauseCheckFailed, CauseTaskFailed, CauseDeadlineMissed, CauseFreshnessMissed, CauseSLAMissed,
	}, cause)
}

// AlertRule says which alerts are reported to which channels.
type AlertRule struct {
	Name string   `json:"name"`
	On   []string `json:"on"` // causes
	To   []string `json:"to"` // channels
	// Select is the selection of assets as it is written in servo.yaml; "": all assets. Assets are the selected
	// assets, sorted.
	Select string   `json:"select,omitempty"`
	Assets []string `json:"assets,omitempty"`
	// GroupSec is the time after a message, in seconds, during which the rule only counts further alerts about the same
	// subject.
	GroupSec int64 `json:"group_sec"`
}

// NotificationEnded reports the outcome of one try to send a notification.
type NotificationEnded struct {
	NotificationID string `json:"notification_id"`
	// Try counts the tries, from 1.
	Try int32 `json:"try"`
	// Outcome is "sent", "failed" or "expired".
	Outcome string `json:"outcome"`
	Error   string `json:"error,omitempty"`
}

// Outcomes of NotificationEnded.
const (
	NotificationSent    = "sent"
	NotificationFailed  = "failed"  // the notification is tried again
	NotificationExpired = "expired" // the notification is too old
)

func (c *checker) alertRules(path string, rules []AlertRule) {
	c.atMost(path+" (count)", int64(len(rules)), MaxAlertRules)
	size, names := 0, map[string]bool{}
	for i := range rules {
		r, at := &rules[i], fmt.Sprintf("%s[%d]", path, i)
		c.scheduleName(at+".name", r.Name)
		if names[r.Name] {
			c.fail(at+".name", "%q is used twice", r.Name)
		}
		names[r.Name] = true
		if len(r.On) == 0 {
			c.fail(at+".on", "is empty")
		}
		c.atMost(at+".on (count)", int64(len(r.On)), int64(len(AlertCauses())))
		for _, cause := range r.On {
			c.oneOf(at+".on", cause, AlertCauses()...)
		}
		c.atMost(at+".to (count)", int64(len(r.To)), MaxAlertChannels)
		if len(r.To) == 0 {
			c.fail(at+".to", "is empty")
		}
		for _, channel := range r.To {
			c.scheduleName(at+".to", channel)
		}
		c.text(at+".select", r.Select, MaxSelectionText)
		for j, key := range r.Assets {
			c.assetKey(fmt.Sprintf("%s.assets[%d]", at, j), key)
			size += len(key)
		}
		if (r.Select == "") != (len(r.Assets) == 0) {
			c.fail(at+".assets", "set both select and assets, or neither")
		}
		if r.GroupSec < 1 || r.GroupSec > MaxAlertGroupSec {
			c.fail(at+".group_sec", "%d is not between 1 and %d", r.GroupSec, MaxAlertGroupSec)
		}
	}
	c.atMost(path+" (bytes of assets)", int64(size), MaxAlertBytes)
}

func (c *checker) notificationEnded(p *NotificationEnded) {
	c.ulid("payload.notification_id", p.NotificationID)
	if p.Try < 1 {
		c.fail("payload.try", "%d is less than 1", p.Try)
	}
	c.oneOf("payload.outcome", p.Outcome, NotificationSent, NotificationFailed, NotificationExpired)
	c.text("payload.error", p.Error, MaxRef)
}
