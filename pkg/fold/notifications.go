package fold

import (
	"slices"
	"strings"
	"time"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/state"
)

// Limits of notifications.
const (
	// MaxMessages is the maximum number of messages to a channel in an hour. Further alerts are counted in a digest.
	MaxMessages = 20
	// MaxNotificationTries is how often a notification is tried before it becomes UNDELIVERABLE.
	MaxNotificationTries = 5
	// MaxNotificationAge is the age up to which a notification is still sent.
	MaxNotificationAge = 24 * time.Hour

	hour = time.Hour
	// maxListed is the maximum number of partitions or subjects that a notification names.
	maxListed = 20
	// maxBrief is the maximum length of the message of an alert, in bytes.
	maxBrief = 1024
)

// retryDelays are the delays before the second and later tries of a notification. Their sum is less than
// [MaxNotificationAge].
var retryDelays = [MaxNotificationTries - 1]time.Duration{time.Minute, 15 * time.Minute, 2 * time.Hour, 20 * time.Hour}

// notify notifies each channel of a rule about a transition of an alert. Transitions are grouped by time. notify
// immediately sends a notification about the first transition of a group. A second notification counts the following
// transitions. When it is sent, the group ends and the next group begins. The caller must write the rows of the rule
// and of the alert.
func (f *folder) notify(rule *state.AlertRule, row *state.Alert, t *transition) {
	now := f.st.FoldTime
	first := row.Following == 0 && row.GroupUntil <= now
	switch {
	case first:
		row.GroupUntil = now.Add(time.Duration(rule.GroupSec) * time.Second)
	case row.Following == 0:
		row.Following = now
	}
	for _, channel := range rule.To() {
		n := &state.Notification{
			Rule: rule.Rule, Channel: channel, Subject: row.Subject, Cause: row.Cause, Count: 1, Listed: listed("", t.partition),
			RunID: t.runID, TaskKey: t.taskKey, Code: t.code, Message: brief(t.message), FirstAt: now, LastAt: now,
		}
		if first {
			n.NotificationID = f.unused("first|"+keyOf(n), now)
			f.send(n, false)
		} else {
			f.follow(n, row)
		}
	}
}

// keyOf returns the part of a notification's key that identifies its rule, subject, cause and channel.
func keyOf(n *state.Notification) string {
	return n.Rule + "|" + n.Subject + "|" + n.Cause + "|" + n.Channel
}

// unused returns an unused id for a new notification. The id is derived from the key and the given time, or the next
// time whose id is unused.
func (f *folder) unused(key string, at event.Time) string {
	for ; ; at++ {
		if id := ids.NotificationID(f.domain(), key, at.Time()); f.st.Notifications.Get(id) == nil {
			return id
		}
	}
}

// counting returns the notification in the state COUNTING with the given key, and its id. If there is none, it returns
// nil and an unused id. An id is derived from the key and a time; counting tries successive times, from since on.
func (f *folder) counting(key string, since event.Time) (*state.Notification, string) {
	for at := since; ; at++ {
		id := ids.NotificationID(f.domain(), key, at.Time())
		if old := f.st.Notifications.Get(id); old == nil || old.State == state.NotificationCounting {
			return old, id
		}
	}
}

// follow counts the transition n in the notification that will be sent when the current group of the alert ends.
func (f *folder) follow(n *state.Notification, row *state.Alert) {
	old, id := f.counting("following|"+keyOf(n), row.Following)
	switch {
	case old != nil:
		f.count(old, n, n.Listed)
	case f.st.OpenNotifications() >= state.MaxOpenNotifications:
		f.digest(f.channel(n.Channel), n)
	default:
		n.NotificationID, n.State, n.NextAt = id, state.NotificationCounting, max(row.GroupUntil, f.st.FoldTime)
		put(f, f.st.Notifications, n)
	}
}

// count adds the transitions of n to the notification old, which is not sent yet. It also adds the names in added,
// a JSON list, to the names that old lists.
func (f *folder) count(old, n *state.Notification, added string) {
	row := *old
	row.Count += n.Count
	row.LastAt, row.Listed = n.LastAt, listed(row.Listed, namesOf(added)...)
	put(f, f.st.Notifications, &row)
}

// channel returns a copy of the row of a channel. If the hour in the row is over, the copy begins a new hour.
func (f *folder) channel(name string) *state.AlertChannel {
	row := state.AlertChannel{Channel: name}
	if old := f.st.AlertChannels.Get(name); old != nil {
		row = *old
	}
	if f.st.FoldTime.Sub(row.HourAt) >= hour {
		row.HourAt, row.Sent = f.st.FoldTime, 0
	}
	return &row
}

// send makes a notification PENDING. If its channel has reached the limit of messages per hour, or if too many
// notifications wait, send does not send the notification, but counts it in the digest of the channel. The parameter
// exists reports whether the notification already has a row.
func (f *folder) send(n *state.Notification, exists bool) {
	channel := f.channel(n.Channel)
	full := !exists && f.st.OpenNotifications() >= state.MaxOpenNotifications
	if full || channel.Sent >= MaxMessages {
		if exists {
			gone := *n
			remove(f, f.st.Notifications, &gone)
		}
		f.digest(channel, n)
		return
	}
	channel.Sent++
	put(f, f.st.AlertChannels, channel)
	f.pendNotification(n)
}

// pendNotification makes a notification PENDING.
func (f *folder) pendNotification(n *state.Notification) {
	n.State, n.NextAt, n.PendingAt = state.NotificationPending, 0, f.st.FoldTime
	put(f, f.st.Notifications, n)
}

// digest counts a notification in the digest of its channel, which is sent at the end of the hour.
func (f *folder) digest(channel *state.AlertChannel, n *state.Notification) {
	put(f, f.st.AlertChannels, channel)
	subject := jsonOf([]string{n.Subject + " " + n.Cause})
	old, id := f.counting("digest|"+n.Channel, channel.HourAt)
	if old != nil {
		f.count(old, n, subject)
		return
	}
	put(f, f.st.Notifications, &state.Notification{
		NotificationID: id, Channel: n.Channel, Cause: event.CauseDigest, State: state.NotificationCounting, Count: n.Count, Listed: subject,
		FirstAt: n.FirstAt, LastAt: n.LastAt, NextAt: channel.HourAt.Add(hour),
	})
}

// listed adds names to a JSON list of at most [maxListed] different names.
func listed(list string, names ...string) string {
	all := namesOf(list)
	for _, name := range names {
		if name != "" && len(all) < maxListed && !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	return jsonOfList(all)
}

// brief returns the beginning of a message as one line.
func brief(message string) string {
	// Cutting the message may split a character. Tables reject text that is not UTF-8.
	message = strings.ToValidUTF8(message[:min(len(message), 2*maxBrief)], "")
	message = strings.Join(strings.Fields(message), " ")
	if len(message) > maxBrief {
		message = strings.ToValidUTF8(message[:maxBrief], "") + "…"
	}
	return message
}

// wakeNotification handles a notification that is due.
func (f *folder) wakeNotification(id string) {
	row := *f.st.Notifications.Get(id)
	switch {
	case row.State == state.NotificationWaiting, row.Cause == event.CauseDigest:
		f.pendNotification(&row)
	case row.State == state.NotificationCounting:
		f.endGroup(&row)
		f.send(&row, true)
	}
}

// endGroup ends the current group of an alert and begins the next one. It is called when the notification that
// counted the transitions of the current group is sent.
func (f *folder) endGroup(n *state.Notification) {
	old := f.st.Alerts.Get(state.Key3{A: n.Subject, B: n.Cause, C: n.Rule})
	if old == nil || old.Following == 0 || old.Following > n.FirstAt {
		return // the notification of another channel has ended the group
	}
	row := *old
	row.Following = 0
	if rule := f.st.AlertRules.Get(n.Rule); rule != nil {
		row.GroupUntil = f.st.FoldTime.Add(time.Duration(rule.GroupSec) * time.Second)
	}
	put(f, f.st.Alerts, &row)
}

// notificationEnded records the result of a try to send a notification. A success is accepted even if a later try has
// already begun.
func (f *folder) notificationEnded(p *event.NotificationEnded) verdict {
	old := f.st.Notifications.Get(p.NotificationID)
	switch {
	case old == nil || old.State.Final():
		// The row of an ended notification is removed from the live state, and a rebuild may remove it earlier than the
		// original fold did. So the outcome must not depend on whether the row still exists.
		return noChange
	case old.State == state.NotificationCounting:
		return stale("the notification is still counting")
	case p.Outcome != event.NotificationSent && (p.Try != old.Try+1 || old.State != state.NotificationPending):
		return stale("the report is not about the current try of the notification")
	}
	row := *old
	row.Error, row.NextAt = p.Error, 0
	age := f.st.FoldTime.Sub(row.LastAt)
	switch {
	case p.Outcome == event.NotificationSent:
		row.State, row.EndedAt, row.Error = state.NotificationSent, f.st.FoldTime, ""
	case p.Outcome == event.NotificationExpired, p.Try >= MaxNotificationTries, age >= MaxNotificationAge:
		row.Try = p.Try
		row.State, row.EndedAt = state.NotificationUndeliverable, f.st.FoldTime
	default:
		row.Try = p.Try
		row.State, row.NextAt = state.NotificationWaiting, f.st.FoldTime.Add(retryDelays[p.Try-1])
	}
	put(f, f.st.Notifications, &row)
	return folded
}

// testChannel creates a notification that tests a channel.
func (f *folder) testChannel(p *event.AutomationCommand) verdict {
	switch {
	case f.st.Notifications.Get(p.CommandID) != nil:
		return noChange
	case f.st.OpenNotifications() >= state.MaxOpenNotifications:
		return stale("too many notifications wait to be sent: test the channel later")
	}
	f.pendNotification(&state.Notification{
		NotificationID: p.CommandID, Channel: p.Name, Cause: event.CauseTest, Count: 1, Message: p.Reason, Actor: f.ev.Actor,
		FirstAt: f.st.FoldTime, LastAt: f.st.FoldTime,
	})
	return folded
}
