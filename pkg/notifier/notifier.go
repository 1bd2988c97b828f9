// Package notifier sends the notifications that the fold has created. This package is not a stable API.
//
// A notifier runs beside the dispatcher and keeps no state that must survive a restart. It finds its work in the
// projections, sends each notification at least once, and reports each try in the ledger. Receivers drop messages
// whose id they know.
package notifier

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/control"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/notify"
	"github.com/servo-orchestration/servo/pkg/release"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

// Principal is the actor of the events that notifiers append.
const Principal = "service:notifier"

// Config configures a notifier.
type Config struct {
	Engine *engine.Engine
	Clock  clock.Clock
	Logger *slog.Logger
	// Send sends a message to a channel: see [notify.Sender].
	Send func(ctx context.Context, c *release.Channel, m *notify.Message) error
}

// Notifier is the notifier of one domain.
type Notifier struct {
	cfg    Config
	engine *engine.Engine
	wake   chan struct{}

	mu     sync.Mutex // locked while a pass runs
	newest *release.Release
	sha    string // the hash of newest

	results sync.Mutex // guards ended
	// ended maps a notification to the result of a try that may not be in the ledger yet. The message is not sent
	// again; only the result is appended again.
	ended map[string]*event.NotificationEnded
}

// New returns a notifier. It does nothing until [Notifier.Run] is called.
func New(cfg Config) *Notifier {
	return &Notifier{cfg: cfg, engine: cfg.Engine.As(Principal), wake: make(chan struct{}, 1), ended: map[string]*event.NotificationEnded{}}
}

// Nudge tells the notifier that a state has work for it. It does not block.
func (n *Notifier) Nudge() {
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// React nudges the notifier if a state has work for it.
func (n *Notifier) React(s *state.State) {
	if len(control.Notifications(s, 1)) > 0 {
		n.Nudge()
	}
}

const (
	// batch is the maximum number of notifications that one pass sends. parallel is the maximum number of channels to
	// which it sends at once.
	batch    = 200
	parallel = 16
	// turn is how long a pass sends to one channel. The pass ends when all channels have had their turns. New messages
	// wait for the next pass.
	turn = 10 * time.Second
	// After a failed pass, the notifier waits for minWait. The wait doubles with each further failed pass, up to
	// maxWait.
	minWait = time.Second
	maxWait = 30 * time.Second
)

// Run works until ctx is done. Unfinished work stays in the projections, where the next notifier finds it.
func (n *Notifier) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-n.wake:
		}
		if n.Drain(ctx) != nil {
			return nil //nolint:nilerr // ctx is done
		}
	}
}

// Drain sends notifications until none is PENDING. It returns an error only if ctx is done.
func (n *Notifier) Drain(ctx context.Context) error {
	for wait := minWait; ; {
		left, err := n.pass(ctx)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil && !left:
			return nil
		case err == nil:
			wait = minWait
			continue
		}
		n.cfg.Logger.WarnContext(ctx, "notifications are delayed; will retry", slog.Duration("wait", wait), slog.Any("error", err))
		if err := n.cfg.Clock.Sleep(ctx, wait); err != nil {
			return err
		}
		wait = min(2*wait, maxWait)
	}
}

// pass sends some notifications, and reports whether there may be more.
func (n *Notifier) pass(ctx context.Context) (left bool, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	snap, err := n.engine.Current(ctx)
	if err != nil {
		return false, err
	}
	rows := control.Notifications(snap.State, batch)
	if len(rows) == 0 {
		clear(n.ended) // nothing is pending, so the ledger has all results
		return false, nil
	}
	r, err := n.release(ctx, snap)
	if err != nil {
		return false, err
	}
	channels := map[string][]*state.Notification{}
	for _, row := range rows {
		channels[row.Channel] = append(channels[row.Channel], row)
	}
	var g errgroup.Group
	g.SetLimit(parallel)
	for _, name := range slices.Sorted(maps.Keys(channels)) {
		g.Go(func() error { return n.sendAll(ctx, r, channels[name]) })
	}
	return true, g.Wait()
}

// sendAll sends the notifications of one channel, and records each result. When its turn is over, and after a failed
// try, it leaves the remaining notifications to the next pass, because each try may take as long as the failed one.
func (n *Notifier) sendAll(ctx context.Context, r *release.Release, rows []*state.Notification) error {
	began := n.cfg.Clock.Now()
	for _, row := range rows {
		if n.cfg.Clock.Now().Sub(began) >= turn {
			return nil
		}
		end := n.result(row)
		if end == nil {
			if end = n.try(ctx, r, row); ctx.Err() != nil {
				return ctx.Err() // discard the result: ctx has interrupted the try
			}
			n.keep(end)
		}
		if err := n.engine.EndNotification(ctx, end); err != nil || end.Outcome == event.NotificationFailed {
			return err
		}
	}
	return nil
}

// result returns the result of a try that an earlier pass could not record, or nil.
func (n *Notifier) result(row *state.Notification) *event.NotificationEnded {
	n.results.Lock()
	defer n.results.Unlock()
	if end := n.ended[row.NotificationID]; end != nil && end.Try == row.Try+1 {
		return end
	}
	return nil
}

func (n *Notifier) keep(end *event.NotificationEnded) {
	n.results.Lock()
	defer n.results.Unlock()
	n.ended[end.NotificationID] = end
}

// release returns the release that is deployed, or an empty one.
func (n *Notifier) release(ctx context.Context, snap *snapshot.Snapshot) (*release.Release, error) {
	sha := snap.State.Release()
	if n.newest == nil || n.sha != sha {
		found := &release.Release{}
		if sha != "" {
			var err error
			if found, _, err = n.engine.ReadRelease(ctx, sha); err != nil {
				return nil, err
			}
		}
		n.newest, n.sha = found, sha
	}
	return n.newest, nil
}

// try sends a notification, and returns the result.
func (n *Notifier) try(ctx context.Context, r *release.Release, row *state.Notification) *event.NotificationEnded {
	end := &event.NotificationEnded{NotificationID: row.NotificationID, Try: row.Try + 1, Outcome: event.NotificationSent}
	if age := event.At(n.cfg.Clock.Now()).Sub(row.LastAt); age >= fold.MaxNotificationAge {
		end.Outcome, end.Error = event.NotificationExpired, fmt.Sprintf("the notification is %s old: messages are sent for at most %s", age.Round(time.Minute), fold.MaxNotificationAge)
		return end
	}
	m, err := n.message(r, row)
	if err == nil {
		channel := r.Channel(row.Channel)
		if channel == nil {
			err = fmt.Errorf("the deployed release has no channel %s", row.Channel)
		} else {
			err = n.cfg.Send(ctx, channel, m)
		}
	}
	if errors.As(err, new(*notify.PartialError)) {
		n.cfg.Logger.WarnContext(ctx, "an alert was not sent to all recipients", slog.String("notification", row.NotificationID),
			slog.String("channel", row.Channel), slog.String("error", limited(err.Error())))
		err = nil
	}
	if err != nil {
		end.Outcome, end.Error = event.NotificationFailed, limited(err.Error())
		if ctx.Err() == nil {
			n.cfg.Logger.WarnContext(ctx, "an alert could not be sent", slog.String("notification", row.NotificationID), slog.String("channel", row.Channel),
				slog.Int("try", int(end.Try)), slog.String("error", end.Error))
		}
	}
	return end
}

// message returns the message of a notification.
func (n *Notifier) message(r *release.Release, row *state.Notification) (*notify.Message, error) {
	x, err := engine.NotificationOf(row)
	if err != nil {
		return nil, err
	}
	d := n.engine.Domain()
	return &notify.Message{
		ID: x.ID, Tenant: d.Tenant, Workspace: d.Workspace, Project: r.Project, Environment: r.Environment, Rule: x.Rule, Cause: x.Cause,
		Subject: x.Subject, Count: x.Count, Listed: x.Listed, Code: x.Code, Message: x.Message, RunID: x.RunID, TaskKey: x.TaskKey,
		FirstAt: x.FirstAt, LastAt: x.LastAt, Command: explain(&x),
	}, nil
}

// explain returns the command that explains an alert.
func explain(x *engine.Notification) string {
	kind, name, _ := strings.Cut(x.Subject, ":")
	switch {
	case x.Cause == event.CauseQuarantined:
		return "servo quarantine list"
	case kind == "backfill":
		return "servo backfill show " + name
	case kind == "asset" && x.RunID != "" && x.TaskKey != "":
		return fmt.Sprintf("servo explain %s '%s'", x.RunID, x.TaskKey)
	case kind == "asset":
		return "servo assets " + name // `servo explain` needs a partition, and the message may be about several
	case x.RunID != "":
		return "servo status " + x.RunID
	case kind == "schedule":
		return "servo schedule show " + name
	}
	return "servo alerts"
}

// maxError is the maximum length of the recorded error of a try, in bytes.
const maxError = 1000

// limited returns the beginning of a text as UTF-8. A mail server may answer in another encoding.
func limited(text string) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	if len(text) > maxError {
		return strings.ToValidUTF8(text[:maxError], "") + "…"
	}
	return text
}
