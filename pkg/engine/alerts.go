package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

// Alert is an open alert: rules have reported a problem with its subject, and the problem still exists.
type Alert struct {
	Subject string `json:"subject"`
	Cause   string `json:"cause"`
	Rule    string `json:"rule"`
	// Items are the parts of the subject that must recover before the alert ends: partitions of an asset, or parts of a
	// schedule. More is the number of such parts that Items does not list.
	Items     []string   `json:"items,omitempty"`
	More      int64      `json:"more,omitempty"`
	Count     int64      `json:"count"` // how often the subject has changed to a bad state since the alert was opened
	Muted     bool       `json:"muted,omitempty"`
	FirstAt   event.Time `json:"first_at"`
	LastAt    event.Time `json:"last_at"`
	RunID     string     `json:"run_id,omitempty"`
	TaskKey   string     `json:"task_key,omitempty"`
	Partition string     `json:"partition,omitempty"`
	Code      string     `json:"code,omitempty"`
	Message   string     `json:"message,omitempty"`
}

// listedItems is how many items of an open alert are listed.
const listedItems = 1000

// OpenAlerts returns the open alerts, sorted by subject.
func OpenAlerts(s *state.State, now event.Time) []Alert {
	open := []Alert{}
	for row := range s.Alerts.All {
		if !row.Open() {
			continue
		}
		a := Alert{
			Subject: row.Subject, Cause: row.Cause, Rule: row.Rule, More: row.Items + row.More, Count: row.Count, FirstAt: row.FirstAt, LastAt: row.LastAt,
			RunID: row.RunID, TaskKey: row.TaskKey, Partition: row.Partition, Code: row.Code, Message: row.Message,
		}
		if rule := s.AlertRules.Get(row.Rule); rule != nil {
			a.Muted = rule.MutedUntil > now
		}
		s.ItemsOf(row, func(item *state.AlertItem) bool {
			a.Items = append(a.Items, item.Item)
			a.More--
			return len(a.Items) < listedItems
		})
		open = append(open, a)
	}
	return open
}

// AlertRule is an alert rule of the deployed release.
type AlertRule struct {
	Name     string   `json:"rule"`
	On       []string `json:"on"`
	To       []string `json:"to"`
	Select   string   `json:"select,omitempty"`
	Assets   int      `json:"assets,omitempty"` // the number of selected assets
	GroupSec int64    `json:"group_sec"`
	// MutedUntil is 0 if the rule is not muted.
	MutedUntil  event.Time `json:"muted_until,omitempty,omitzero"`
	MutedBy     string     `json:"muted_by,omitempty"`
	MuteReason  string     `json:"mute_reason,omitempty"`
	Transitions int64      `json:"transitions"`
	Muted       int64      `json:"muted"`
}

// AlertRules returns the rules of the deployed release, by name.
func AlertRules(s *state.State, now event.Time) []AlertRule {
	rules := []AlertRule{}
	for row := range s.AlertRules.All {
		r := AlertRule{
			Name: row.Rule, On: row.On(), To: row.To(), Select: row.Selection, Assets: len(strings.Fields(row.Assets)), GroupSec: row.GroupSec,
			Transitions: row.Transitions, Muted: row.Muted,
		}
		if row.MutedUntil > now {
			r.MutedUntil, r.MutedBy, r.MuteReason = row.MutedUntil, row.MutedBy, row.MuteReason
		}
		rules = append(rules, r)
	}
	return rules
}

// Notification is a message about alerts.
type Notification struct {
	ID      string                  `json:"notification_id"`
	Rule    string                  `json:"rule,omitempty"`
	Channel string                  `json:"channel"`
	Subject string                  `json:"subject,omitempty"`
	Cause   string                  `json:"cause"`
	State   state.NotificationState `json:"state"`
	Count   int64                   `json:"count"`
	Listed  []string                `json:"listed,omitempty"`
	Code    string                  `json:"code,omitempty"`
	Message string                  `json:"message,omitempty"`
	RunID   string                  `json:"run_id,omitempty"`
	TaskKey string                  `json:"task_key,omitempty"`
	FirstAt event.Time              `json:"first_at"`
	LastAt  event.Time              `json:"last_at"`
	Tries   int32                   `json:"failed_tries,omitempty"`
	NextAt  event.Time              `json:"next_at,omitempty,omitzero"`
	EndedAt event.Time              `json:"ended_at,omitempty,omitzero"`
	Error   string                  `json:"error,omitempty"`
}

// NotificationOf converts a row of table notifications to its public form.
func NotificationOf(row *state.Notification) (Notification, error) {
	n := Notification{
		ID: row.NotificationID, Rule: row.Rule, Channel: row.Channel, Subject: row.Subject, Cause: row.Cause, State: row.State, Count: row.Count,
		Code: row.Code, Message: row.Message, RunID: row.RunID, TaskKey: row.TaskKey, FirstAt: row.FirstAt, LastAt: row.LastAt,
		Tries: row.Try, NextAt: row.NextAt, EndedAt: row.EndedAt, Error: row.Error,
	}
	if row.Listed != "" {
		if err := json.Unmarshal([]byte(row.Listed), &n.Listed); err != nil {
			return n, fmt.Errorf("read notification %s: %w", row.NotificationID, err)
		}
	}
	return n, nil
}

// Notifications returns the newest notifications, newest first. It returns at most limit notifications.
func Notifications(ctx context.Context, snap *snapshot.Snapshot, limit int) ([]Notification, error) {
	rows, err := snap.Notifications(ctx, limit)
	if err != nil {
		return nil, err
	}
	all := make([]Notification, len(rows))
	for i, row := range rows {
		if all[i], err = NotificationOf(row); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// Alerts contains the open alerts, the rules, and the newest notifications.
type Alerts struct {
	Revision int64          `json:"revision"`
	Open     []Alert        `json:"alerts"`
	Rules    []AlertRule    `json:"rules"`
	Messages []Notification `json:"messages"`
}

// Alerts returns the open alerts and the rules, with at most limit notifications.
func (e *Engine) Alerts(ctx context.Context, limit int) (*Alerts, error) {
	snap, err := e.Current(ctx)
	if err != nil {
		return nil, err
	}
	return AlertsOf(ctx, snap, limit, event.At(e.cfg.Clock.Now()))
}

// AlertsOf is like [Engine.Alerts], but reads the given snapshot.
func AlertsOf(ctx context.Context, snap *snapshot.Snapshot, limit int, now event.Time) (*Alerts, error) {
	messages, err := Notifications(ctx, snap, limit)
	if err != nil {
		return nil, err
	}
	return &Alerts{Revision: snap.Revision, Rules: AlertRules(snap.State, now), Open: OpenAlerts(snap.State, now), Messages: messages}, nil
}

// Undeliverable returns the notifications of the last day that could not be sent.
func Undeliverable(s *state.State) ([]Notification, error) {
	if s.Undeliverable() == 0 {
		return nil, nil
	}
	var all []Notification
	for row := range s.Notifications.All {
		if row.State != state.NotificationUndeliverable {
			continue
		}
		n, err := NotificationOf(row)
		if err != nil {
			return nil, err
		}
		all = append(all, n)
	}
	return all, nil
}

// MuteAlerts mutes a rule until a time; 0 unmutes it.
func (e *Engine) MuteAlerts(ctx context.Context, rule string, until event.Time, reason string) error {
	snap, err := e.Current(ctx)
	if err != nil {
		return err
	}
	if done, err := e.repeated(snap); err != nil || done != "" {
		return err
	}
	row := snap.State.AlertRules.Get(rule)
	if row == nil {
		return noRule(snap.State, rule)
	}
	e.cfg.IDs.Observe(cmp.Or(row.CommandID, row.Version)) // the fold ignores a command whose id is lower than the id in the row
	p := &event.AutomationCommand{CommandID: e.cfg.IDs.New(), Target: event.TargetAlert, Name: rule, Verb: event.VerbMute, Until: until, Reason: reason}
	if until == 0 {
		p.Verb = event.VerbUnmute
	}
	return e.commandAlerts(ctx, p)
}

// commandAlerts appends a command about alerts.
func (e *Engine) commandAlerts(ctx context.Context, p *event.AutomationCommand) error {
	e.condition(p)
	snap, group, err := e.append(ctx, "", p)
	if err != nil {
		return fmt.Errorf("%s %s: %w", p.Verb, p.Name, err)
	}
	if row := groupRow(snap, group); row != nil && row.Outcome == state.Stale {
		return fmt.Errorf("%s %s: %s", p.Verb, p.Name, row.Detail)
	}
	_, err = e.repeated(snap) // fails if a concurrent call has used the key for another request
	return err
}

func noRule(s *state.State, name string) error {
	var names []string
	for row := range s.AlertRules.All {
		names = append(names, row.Rule)
	}
	switch near := plan.Suggest(name, names); {
	case near != "":
		return fmt.Errorf("alert rule %q: %w: did you mean %s?", name, ErrNotFound, near)
	case len(names) == 0:
		return fmt.Errorf("alert rule %q: %w: the deployed release has no rules", name, ErrNotFound)
	}
	return fmt.Errorf("alert rule %q: %w: the release has %s", name, ErrNotFound, strings.Join(names, ", "))
}

// TestChannel creates a notification that tests a channel of the deployed release, and returns its id. The
// notification is sent like all others.
func (e *Engine) TestChannel(ctx context.Context, channel, message string) (string, error) {
	snap, err := e.Current(ctx)
	if err != nil {
		return "", err
	}
	if id, err := e.repeated(snap); err != nil || id != "" {
		return id, err
	}
	sha := snap.State.Release()
	if sha == "" {
		return "", fmt.Errorf("channel %q: %w: no release is deployed", channel, ErrNotFound)
	}
	r, _, err := e.ReadRelease(ctx, sha)
	if err != nil {
		return "", err
	}
	if r.Channel(channel) == nil {
		var names []string
		for i := range r.Channels {
			names = append(names, r.Channels[i].Name)
		}
		if len(names) == 0 {
			return "", fmt.Errorf("channel %q: %w: the deployed release has no channels", channel, ErrNotFound)
		}
		return "", fmt.Errorf("channel %q: %w: the deployed release has %s", channel, ErrNotFound, strings.Join(names, ", "))
	}
	p := &event.AutomationCommand{CommandID: e.cfg.IDs.New(), Target: event.TargetAlert, Name: channel, Verb: event.VerbTest, Reason: message}
	return p.CommandID, e.commandAlerts(ctx, p)
}

// EndNotification records the result of a try to send a notification.
func (e *Engine) EndNotification(ctx context.Context, p *event.NotificationEnded) error {
	if _, _, err := e.append(ctx, "", p); err != nil {
		return fmt.Errorf("record notification %s: %w", p.NotificationID, err)
	}
	return nil
}

// AwaitNotification waits until a try to send a notification has ended, and returns the notification. poll is the time
// between two reads of the state.
func (e *Engine) AwaitNotification(ctx context.Context, id string, poll time.Duration) (Notification, error) {
	for {
		snap, err := e.Current(ctx)
		if err != nil {
			return Notification{}, err
		}
		row := snap.State.Notifications.Get(id)
		switch {
		case row == nil:
			return Notification{}, fmt.Errorf("notification %s: %w", id, ErrNotFound)
		case row.State.Final() || row.Try > 0:
			return NotificationOf(row)
		}
		if err := e.cfg.Clock.Sleep(ctx, poll); err != nil {
			return Notification{}, err
		}
	}
}
