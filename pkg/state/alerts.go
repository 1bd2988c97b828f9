package state

import (
	"cmp"
	"strings"
	"time"

	"github.com/servo-orchestration/servo/pkg/event"
)

// Limits of notifications.
const (
	// MaxOpenNotifications is the maximum number of unsent notifications of a domain. Digests are not counted.
	MaxOpenNotifications = 1000
	// UndeliverableKept is how long a notification that could not be sent stays in the live state.
	UndeliverableKept = 24 * time.Hour
	// testKept is how long a test notification stays in the live state after it has ended. It is longer than the period
	// in which the command of the test may be redelivered.
	testKept = time.Hour
)

// AlertRule is a row of alert_rules: a rule of the current release. A list is stored as names joined by spaces,
// because no name contains a space.
type AlertRule struct {
	Rule      string `col:"rule,key"`
	Causes    string `col:"causes,dict"`
	Channels  string `col:"channels,dict"`
	Selection string `col:"selection,null"`
	// Assets lists the assets, with a space before and after each of them. If it is empty, the rule covers all assets.
	Assets     string     `col:"assets,null"`
	GroupSec   int64      `col:"group_sec"`
	MutedUntil event.Time `col:"muted_until,null"`
	MutedBy    string     `col:"muted_by,null,dict"`
	MuteReason string     `col:"mute_reason,null"`
	CommandID  string     `col:"mute_command_id,null"` // the last command that muted or unmuted the rule
	// Transitions is the number of transitions that the rule has covered. Muted is how many of them were not reported
	// because the rule was muted.
	Transitions int64 `col:"transitions"`
	Muted       int64 `col:"muted"`
	Meta
}

// Key returns the primary key.
func (r *AlertRule) Key() string { return r.Rule }

func (*AlertRule) newTable() store { return new(rowTable[string, AlertRule, *AlertRule]) }

// On returns the causes of the rule.
func (r *AlertRule) On() []string { return strings.Fields(r.Causes) }

// To returns the channels of the rule.
func (r *AlertRule) To() []string { return strings.Fields(r.Channels) }

// Covers reports whether the rule covers transitions of an asset.
func (r *AlertRule) Covers(asset string) bool {
	return r.Assets == "" || strings.Contains(r.Assets, " "+asset+" ")
}

// Alert is a row of alerts: what a rule has reported about a subject. An alert is open until the subject has
// recovered. Its row stays until the subject has recovered and the current group of transitions has ended.
type Alert struct {
	// Subject is asset:KEY, schedule:NAME, backfill:ID or rule:NAME.
	Subject string `col:"subject,key,dict"`
	Cause   string `col:"cause,key,dict"`
	Rule    string `col:"rule,key,dict"`
	// Items is the number of parts of the subject that have to recover. Each has a row of alert_items. More counts the
	// failures of parts beyond [MaxAlertItems], which have no rows.
	Items    int64      `col:"items"`
	More     int64      `col:"more"`
	Count    int64      `col:"count"`    // number of transitions since the alert was opened
	Reported bool       `col:"reported"` // at least one transition was not muted
	FirstAt  event.Time `col:"first_at"`
	LastAt   event.Time `col:"last_at"`
	// GroupUntil is when the current group ends. Following is the time of the first transition that waits for the
	// end of the group; 0: none waits.
	GroupUntil  event.Time `col:"group_until,null"`
	Following   event.Time `col:"following_at,null"`
	RecoveredAt event.Time `col:"recovered_at,null"`
	// The following fields describe the last transition.
	RunID     string `col:"run_id,null"`
	TaskKey   string `col:"task_key,null"`
	Partition string `col:"partition_key,null"`
	Code      string `col:"code,null,dict"`
	Message   string `col:"message,null"`
	Meta
}

// MaxAlertItems is the maximum number of items of an alert. It bounds the state, and the work of the event that deletes
// the alert.
const MaxAlertItems = 100_000

// Key returns the primary key.
func (r *Alert) Key() Key3 { return Key3{r.Subject, r.Cause, r.Rule} }

func (*Alert) newTable() store { return new(rowTable[Key3, Alert, *Alert]) }

// Open reports whether the subject has not recovered.
func (r *Alert) Open() bool { return r.Items > 0 }

// AlertItem is a row of alert_items: a part of an alert's subject, such as a partition of an asset. The alert ends when
// all of its parts have recovered.
type AlertItem struct {
	Subject string `col:"subject,key,dict"`
	Cause   string `col:"cause,key,dict"`
	Rule    string `col:"rule,key,dict"`
	Item    string `col:"item,key"`
	Meta
}

// AlertItemKey is the primary key of alert_items.
type AlertItemKey struct{ Subject, Cause, Rule, Item string }

// Key returns the primary key.
func (r *AlertItem) Key() AlertItemKey { return AlertItemKey{r.Subject, r.Cause, r.Rule, r.Item} }

func (*AlertItem) newTable() store { return new(rowTable[AlertItemKey, AlertItem, *AlertItem]) }

// ItemKey returns the key that an item of the alert has in alert_items.
func (r *Alert) ItemKey(item string) AlertItemKey {
	return AlertItemKey{r.Subject, r.Cause, r.Rule, item}
}

// ItemsOf calls yield for the items of an alert.
func (s *State) ItemsOf(r *Alert, yield func(*AlertItem) bool) {
	s.AlertItems.Ascend(r.ItemKey(""), func(row *AlertItem) bool {
		return row.Key() == r.ItemKey(row.Item) && yield(row)
	})
}

// AlertChannel is a row of alert_channels: how many messages a channel has received in the current hour.
type AlertChannel struct {
	Channel string     `col:"channel,key"`
	HourAt  event.Time `col:"hour_at"` // when the hour began
	Sent    int32      `col:"messages"`
	Meta
}

// Key returns the primary key.
func (r *AlertChannel) Key() string { return r.Channel }

func (*AlertChannel) newTable() store { return new(rowTable[string, AlertChannel, *AlertChannel]) }

// NotificationState is the state of a notification.
type NotificationState string

// States of notifications. The last two are final.
const (
	NotificationCounting      NotificationState = "COUNTING"      // the notification counts transitions until NextAt
	NotificationPending       NotificationState = "PENDING"       // to be sent
	NotificationWaiting       NotificationState = "WAITING"       // a retry is due at NextAt
	NotificationSent          NotificationState = "SENT"          //
	NotificationUndeliverable NotificationState = "UNDELIVERABLE" // final: no try succeeded
)

// Final reports whether a notification in this state never changes again.
func (s NotificationState) Final() bool {
	return s == NotificationSent || s == NotificationUndeliverable
}

// Notification is a row of notifications: a message to a channel.
type Notification struct {
	NotificationID string            `col:"notification_id,key"` // see ids.NotificationID
	Rule           string            `col:"rule,null,dict"`      // "": the notification is a digest or a test
	Channel        string            `col:"channel,dict"`
	Subject        string            `col:"subject,null,dict"`
	Cause          string            `col:"cause,dict"`
	State          NotificationState `col:"state,dict"`
	Count          int64             `col:"count"` // number of transitions that the notification reports
	// Listed is a JSON list of the first 20 partitions, or of the first 20 subjects of a digest.
	Listed string `col:"listed,null"`
	// The following fields describe the first of the transitions.
	RunID   string `col:"run_id,null"`
	TaskKey string `col:"task_key,null"`
	Code    string `col:"code,null,dict"`
	Message string `col:"message,null"`

	FirstAt   event.Time `col:"first_at"`
	LastAt    event.Time `col:"last_at"`
	Try       int32      `col:"try"` // number of failed tries
	NextAt    event.Time `col:"next_at,null"`
	PendingAt event.Time `col:"pending_at,null"` // when the notification last became PENDING
	EndedAt   event.Time `col:"ended_at,null"`
	Error     string     `col:"error,null"` // the error of the last try
	Actor     string     `col:"actor,null,dict"`
	Meta
}

// Key returns the primary key.
func (r *Notification) Key() string { return r.NotificationID }

func (*Notification) newTable() store { return new(rowTable[string, Notification, *Notification]) }

func (r *Notification) evictable(_ *State, c *cut) (closed, stop bool) {
	kept := ClosedAfter
	switch {
	case r.State == NotificationUndeliverable:
		kept = UndeliverableKept
	case r.Cause == event.CauseTest:
		kept = testKept
	}
	return r.State.Final() && c.Time.Sub(r.EndedAt) >= kept, false
}

// quietItem is an item of the index of ended alerts. The index is sorted by the time at which an alert's group ends.
type quietItem struct {
	at  event.Time
	key Key3
}

func lessQuiet(a, b quietItem) bool {
	return cmp.Or(cmp.Compare(a.at, b.at), compare3(a.key, b.key)) < 0
}

// alerting contains the indexes of alerts and notifications.
type alerting struct {
	quiet   sorted[quietItem] // alerts that are not open and have no waiting transition
	pending sorted[timedItem] // PENDING notifications, by the time at which they became PENDING
	wanted  sorted[timedItem] // deadlines that wait for a verdict, by WantedAt
	misses  sorted[Key2]      // deadline misses without MetAt, by asset
	unnamed sorted[Key2]      // deadline misses that are [DeadlineMiss.Unnamed], by asset
	open    int               // number of notifications that are not final; digests are not counted
	failed  int               // number of UNDELIVERABLE notifications
}

func newAlerting() alerting {
	return alerting{
		quiet: newSorted(lessQuiet), pending: newSorted(lessTimed), wanted: newSorted(lessTimed),
		misses: newSorted(func(a, b Key2) bool { return compare2(a, b) < 0 }), unnamed: newSorted(func(a, b Key2) bool { return compare2(a, b) < 0 }),
	}
}

func (a alerting) copy() alerting {
	a.quiet, a.pending, a.wanted, a.misses, a.unnamed = a.quiet.copy(), a.pending.copy(), a.wanted.copy(), a.misses.copy(), a.unnamed.copy()
	return a
}

func (r *Alert) quiet() (quietItem, bool) {
	return quietItem{r.GroupUntil, r.Key()}, !r.Open() && r.Following == 0
}

func (r *Alert) reindex(s *State, old *Alert) {
	a := &s.index.alerting
	if old != nil {
		if item, ok := old.quiet(); ok {
			a.quiet.Delete(item)
		}
	}
	if item, ok := r.quiet(); ok && !r.Deleted {
		a.quiet.Set(item)
	}
}

func (r *Notification) reindex(s *State, old *Notification) {
	if old != nil {
		s.index.place(old, -1)
	}
	if !r.Deleted {
		s.index.place(r, 1)
	}
}

// place adds a notification to the indexes if n is 1, and removes it if n is -1.
func (x *index) place(r *Notification, n int) {
	if !r.State.Final() && r.Cause != event.CauseDigest {
		x.alerting.open += n
	}
	wake, pending := wakeItem{at: r.NextAt, notification: r.NotificationID}, timedItem{at: r.PendingAt, id: r.NotificationID}
	switch {
	case r.State == NotificationUndeliverable:
		x.alerting.failed += n
	case r.State == NotificationPending && n > 0:
		x.alerting.pending.Set(pending)
	case r.State == NotificationPending:
		x.alerting.pending.Delete(pending)
	case r.NextAt != 0 && n > 0:
		x.automation.wake.Set(wake)
	case r.NextAt != 0:
		x.automation.wake.Delete(wake)
	}
}

// OpenNotifications returns the number of notifications that are neither sent nor undeliverable. It does not count
// digests.
func (s *State) OpenNotifications() int { return s.index.alerting.open }

// Undeliverable returns the number of recent notifications that could not be sent.
func (s *State) Undeliverable() int { return s.index.alerting.failed }

// PendingNotifications yields the notifications that wait to be sent, the longest wait first.
func (s *State) PendingNotifications(yield func(*Notification) bool) {
	s.index.alerting.pending.Scan(func(item timedItem) bool { return yield(s.Notifications.Get(item.id)) })
}

// QuietAlerts returns alerts that are not open and whose group has ended, oldest first. The parameter limit is their
// maximum number.
func (s *State) QuietAlerts(now event.Time, limit int) (quiet []*Alert) {
	s.index.alerting.quiet.Scan(func(item quietItem) bool {
		if item.at > now || len(quiet) == limit {
			return false
		}
		quiet = append(quiet, s.Alerts.Get(item.key))
		return true
	})
	return quiet
}

// AlertsOf calls yield for the alerts about a subject.
func (s *State) AlertsOf(subject string, yield func(*Alert) bool) {
	s.Alerts.Ascend(Key3{A: subject}, func(row *Alert) bool { return row.Subject == subject && yield(row) })
}

// same compares the indexes with those of the parameter want, and returns an error if they differ.
func (a *alerting) same(want *alerting) error {
	for _, err := range []error{
		same("quiet alerts", a.quiet.Items(), want.quiet.Items()),
		same("pending notifications", a.pending.Items(), want.pending.Items()),
		same("wanted deadlines", a.wanted.Items(), want.wanted.Items()),
		same("misses", a.misses.Items(), want.misses.Items()),
		same("unnamed misses", a.unnamed.Items(), want.unnamed.Items()),
		same("open and undeliverable notifications", []int{a.open, a.failed}, []int{want.open, want.failed}),
	} {
		if err != nil {
			return err
		}
	}
	return nil
}
