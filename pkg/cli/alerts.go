package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/state"
)

func (a *app) alertsCommand() *cobra.Command {
	var messages, rules bool
	count := 50
	cmd := &cobra.Command{
		Use:         "alerts",
		Annotations: writesRows,
		Short:       "List the open alerts, the rules, or the messages",
		Long: "List the open alerts. With --messages, list the newest messages to channels instead; with\n" +
			"--rules, list the rules of the deployed release.",
		Args: takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if messages && rules {
				return usagef("--messages and --rules cannot be combined: remove one")
			}
			if cmd.Flags().Changed("limit") && !messages {
				return usagef("--limit needs --messages: add it, or remove --limit")
			}
			if count < 1 {
				return usagef("--limit %d is less than 1", count)
			}
			return a.read(cmd.Context(), func(v published) error {
				now := event.At(a.Clock.Now())
				switch {
				case messages:
					all, err := engine.Notifications(cmd.Context(), v.Snapshot, count)
					if err != nil {
						return err
					}
					return list(a, messageColumns(), all)
				case rules:
					return list(a, ruleColumns(), engine.AlertRules(v.State, now))
				}
				a.noteAlerts(v.State, now)
				return list(a, alertColumns(), engine.OpenAlerts(v.State, now))
			})
		},
	}
	cmd.Flags().BoolVar(&messages, "messages", false, "list the newest messages to channels")
	cmd.Flags().BoolVar(&rules, "rules", false, "list the rules of the deployed release")
	cmd.Flags().IntVar(&count, "limit", count, "list at most this many messages")
	return cmd
}

// noteAlerts prints notes below the list of alerts: which rules are muted, and whether messages could not be sent.
func (a *app) noteAlerts(s *state.State, now event.Time) {
	if !a.table() {
		return
	}
	if s.AlertRules.Len() == 0 {
		a.note("the deployed release has no alert rules: add `alerts` and `channels` to servo.yaml")
	}
	for _, r := range engine.AlertRules(s, now) {
		if r.MutedUntil != 0 {
			a.note("rule %s is muted until %s", r.Name, stamp(r.MutedUntil))
		}
	}
	if n := s.Undeliverable(); n > 0 {
		a.note("%s could not be sent: see `servo alerts --messages`", plural(n, "message"))
	}
}

func alertColumns() []column[engine.Alert] {
	return []column[engine.Alert]{
		{Name: "subject", Value: func(x engine.Alert) any { return x.Subject }},
		{Name: "cause", Value: func(x engine.Alert) any { return x.Cause }},
		{Name: "rule", Value: func(x engine.Alert) any { return x.Rule }},
		{Name: "count", Value: func(x engine.Alert) any { return x.Count }},
		{Name: "open", Machine: true, Value: func(x engine.Alert) any { return int64(len(x.Items)) + x.More }},
		{
			Name: "first_at", Value: func(x engine.Alert) any { return moment(x.FirstAt) },
			Text: func(x engine.Alert) any { return stamp(x.FirstAt) },
		},
		{
			Name: "last_at", Value: func(x engine.Alert) any { return moment(x.LastAt) },
			Text: func(x engine.Alert) any { return stamp(x.LastAt) },
		},
		{Name: "partition", Machine: true, Value: func(x engine.Alert) any { return orNil(x.Partition) }},
		{Name: "run_id", Machine: true, Value: func(x engine.Alert) any { return orNil(x.RunID) }},
		{Name: "message", Value: func(x engine.Alert) any { return orNil(view.Problem(x.Code, x.Message)) }},
	}
}

func ruleColumns() []column[engine.AlertRule] {
	return []column[engine.AlertRule]{
		{Name: "rule", Value: func(r engine.AlertRule) any { return r.Name }},
		{Name: "on", Value: func(r engine.AlertRule) any { return strings.Join(r.On, " ") }},
		{Name: "select", Value: func(r engine.AlertRule) any { return orNil(r.Select) }},
		{Name: "to", Value: func(r engine.AlertRule) any { return strings.Join(r.To, " ") }},
		{
			Name: "group_sec", Heading: "group", Value: func(r engine.AlertRule) any { return r.GroupSec },
			Text: func(r engine.AlertRule) any { return view.Span(time.Duration(r.GroupSec) * time.Second) },
		},
		{
			Name: "muted_until", Value: func(r engine.AlertRule) any { return moment(r.MutedUntil) },
			Text: func(r engine.AlertRule) any { return stamp(r.MutedUntil) },
		},
		{Name: "transitions", Value: func(r engine.AlertRule) any { return r.Transitions }},
		{Name: "muted", Value: func(r engine.AlertRule) any { return r.Muted }},
	}
}

func messageColumns() []column[engine.Notification] {
	return []column[engine.Notification]{
		{Name: "notification_id", Machine: true, Value: func(n engine.Notification) any { return n.ID }},
		{
			Name: "first_at", Value: func(n engine.Notification) any { return moment(n.FirstAt) },
			Text: func(n engine.Notification) any { return stamp(n.FirstAt) },
		},
		{Name: "channel", Value: func(n engine.Notification) any { return n.Channel }},
		{Name: "state", Value: func(n engine.Notification) any { return string(n.State) }},
		{Name: "cause", Value: func(n engine.Notification) any { return n.Cause }},
		{Name: "subject", Value: func(n engine.Notification) any { return orNil(n.Subject) }},
		{Name: "count", Value: func(n engine.Notification) any { return n.Count }},
		{Name: "rule", Machine: true, Value: func(n engine.Notification) any { return orNil(n.Rule) }},
		{Name: "failed_tries", Machine: true, Value: func(n engine.Notification) any { return int64(n.Tries) }},
		{Name: "message", Value: func(n engine.Notification) any { return orNil(view.Problem(n.Code, n.Message)) }},
		{Name: "error", Value: func(n engine.Notification) any { return orNil(n.Error) }},
	}
}

func (a *app) alertCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "alert", Short: "Mute an alert rule, or test a channel"}
	cmd.AddCommand(a.muteCommand(), a.unmuteCommand(), a.testChannelCommand())
	return cmd
}

// Bounds of --for.
const (
	minMute = time.Minute
	maxMute = 30 * 24 * time.Hour
)

func (a *app) muteCommand() *cobra.Command {
	var reason string
	span := 2 * time.Hour
	cmd := &cobra.Command{
		Use:   "mute RULE",
		Short: "Send no messages of a rule for a while",
		Long:  "Send no messages of a rule for a while. Its alerts still open and end, and `servo alerts` shows them.",
		Args:  takes("RULE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if span < minMute || span > maxMute {
				return usagef("--for %s is not between %s and %s", span, minMute, maxMute)
			}
			return a.withSession(cmd.Context(), func(ctx context.Context, s *session) error {
				until := event.At(a.Clock.Now().Add(span).Truncate(time.Second))
				if err := s.MuteAlerts(ctx, args[0], until, reason); err != nil {
					return err
				}
				a.note("rule %s is muted until %s", args[0], stamp(until))
				return nil
			})
		},
	}
	cmd.Flags().DurationVar(&span, "for", span, "how long: 1m to 720h")
	cmd.Flags().StringVar(&reason, "reason", "", "reason to record in the ledger")
	return cmd
}

func (a *app) unmuteCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "unmute RULE",
		Short: "Unmute an alert rule: send messages of the rule again",
		Args:  takes("RULE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withSession(cmd.Context(), func(ctx context.Context, s *session) error {
				if err := s.MuteAlerts(ctx, args[0], 0, ""); err != nil {
					return err
				}
				a.note("rule %s is not muted", args[0])
				return nil
			})
		},
	}
}

const (
	testPoll   = 200 * time.Millisecond
	testWithin = 30 * time.Second
)

func (a *app) testChannelCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "test CHANNEL",
		Short: "Send a test message to a channel of the deployed release",
		Long: "Send a test message to a channel of the deployed release, and wait up to 30 seconds for the result.\n" +
			"The process that owns the state folder sends the message; on Google Cloud, the dispatcher does.",
		Args: takes("CHANNEL"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withSession(cmd.Context(), func(ctx context.Context, s *session) error {
				id, err := s.TestChannel(ctx, args[0], "a test of "+cmp.Or(a.User, "a user"))
				if err != nil {
					return err
				}
				within, cancel := context.WithTimeout(ctx, testWithin)
				defer cancel()
				n, err := s.AwaitNotification(within, id, testPoll)
				switch {
				case errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
					return fmt.Errorf("channel %s: no process has sent the message within %s: list it with `servo alerts --messages`", args[0], testWithin)
				case err != nil:
					return err
				case n.State != state.NotificationSent:
					return errors.New(view.OneLine(n.Error)) // one line: the error may quote the channel's answer
				}
				a.note("channel %s has accepted the message", args[0])
				return nil
			})
		},
	}
}
