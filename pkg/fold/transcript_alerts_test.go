package fold_test

import (
	"strings"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/state"
)

// alertEvent returns the payloads of an event about alerts, or nil.
func (s *story) alertEvent(verb string, words []string) []event.Payload {
	switch verb {
	case "sent", "failed-to-send":
		p := &event.NotificationEnded{Outcome: event.NotificationSent}
		if verb != "sent" {
			p.Outcome, p.Error = event.NotificationFailed, "the channel answered 500"
		}
		s.State.PendingNotifications(func(row *state.Notification) bool {
			p.NotificationID, p.Try = row.NotificationID, row.Try+1
			return false
		})
		return []event.Payload{p}
	case "mute":
		return []event.Payload{&event.AutomationCommand{
			CommandID: s.ID(), Target: event.TargetAlert, Name: words[0], Verb: event.VerbMute, Until: event.At(s.Now.Add(2 * minute)),
		}}
	case "unmute", "test":
		return []event.Payload{&event.AutomationCommand{CommandID: s.ID(), Target: event.TargetAlert, Name: words[0], Verb: verb}}
	}
	return nil
}

// alertRule reads NAME:CAUSE+CAUSE:CHANNEL+CHANNEL:ASSET+ASSET. Groups of the rule last five minutes.
func alertRule(text string) event.AlertRule {
	words := strings.Split(text, ":")
	r := event.AlertRule{Name: words[0], On: strings.Split(words[1], "+"), To: strings.Split(words[2], "+"), GroupSec: 300}
	if len(words) > 3 {
		r.Select = "tag:gold"
		for name := range strings.SplitSeq(words[3], "+") {
			r.Assets = append(r.Assets, "test/"+name)
		}
	}
	return r
}

func ruleRow(r *state.AlertRule) (string, cells) {
	return "rule " + r.Rule, cells{
		{"on", r.Causes},
		{"to", r.Channels},
		{"assets", strings.TrimSpace(r.Assets)},
		{"muted until", offset(r.MutedUntil)},
		{"transitions", seq(r.Transitions)},
		{"muted", seq(r.Muted)},
	}
}

func alertRow(r *state.Alert) (string, cells) {
	open := ""
	if r.Open() {
		open = "yes"
	}
	return "alert " + strings.Join([]string{r.Rule, r.Cause, r.Subject}, " "), cells{
		{"open", open}, {"count", seq(r.Count)}, {"group until", offset(r.GroupUntil)}, {"following", offset(r.Following)}, {"code", r.Code},
	}
}

func channelRow(r *state.AlertChannel) (string, cells) {
	return "channel " + r.Channel, cells{{"hour", offset(r.HourAt)}, {"messages", count(r.Sent)}}
}

func notificationRow(r *state.Notification) (string, cells) {
	return "message to " + strings.Join([]string{r.Channel, r.Cause, offset(r.FirstAt)}, " "), cells{
		{"state", string(r.State)}, {"count", seq(r.Count)}, {"next", offset(r.NextAt)}, {"tries", count(r.Try)}, {"error", r.Error},
	}
}
