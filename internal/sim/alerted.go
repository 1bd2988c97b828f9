package sim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/notify"
	"github.com/servo-orchestration/servo/pkg/release"
	"github.com/servo-orchestration/servo/pkg/state"
)

// everyTransition is the name of the invariant about alerts.
const everyTransition = "I-31 no transition goes unreported"

// Rules and channels of worlds with alerts. They are the same in all releases of a domain.
const (
	ruleOfTasks = "tasks" // this rule reports exactly the failed tasks
	ruleOfRest  = "rest"
)

// drawAlerts draws alerts in half of the worlds with schedules. Alerts need stored releases, which other worlds do not
// have.
func (c *World) drawAlerts() {
	if r := random(c.Seed, "alerts", 0); c.Schedules > 0 && r.IntN(2) == 0 {
		c.Alerts = 1 + r.IntN(10)
	}
}

// alertsOf returns the rules of the releases of a domain.
func (l *workload) alertsOf(d ids.Domain) []event.AlertRule {
	if l.w.cfg.Alerts == 0 {
		return nil
	}
	r := random(l.w.cfg.Seed, "rules of "+d.Tenant, 0)
	rules := []event.AlertRule{
		{Name: ruleOfTasks, On: causesOfRules[ruleOfTasks], To: []string{"ops", "data"}, GroupSec: 1 + r.Int64N(400)},
		{
			Name: ruleOfRest, To: []string{"ops"}, GroupSec: 1 + r.Int64N(400), On: []string{
				event.CauseRunFailed, event.CauseSchedulePaused, event.CauseScheduleBlocked, event.CauseDeploy, event.CauseDeadlineMissed,
				event.CauseFreshnessMissed, event.CauseSLAMissed, event.CauseRecovered,
			},
		},
	}
	for _, name := range slices.Sorted(maps.Keys(causesOfRules)) {
		if name != ruleOfTasks {
			rules = append(rules, event.AlertRule{Name: name, On: causesOfRules[name], To: []string{"data"}, GroupSec: 1 + r.Int64N(400)})
		}
	}
	return rules
}

// channelsOf returns the channels of the given rules, sorted by name.
func channelsOf(rules []event.AlertRule) (channels []release.Channel) {
	if len(rules) == 0 {
		return nil
	}
	for _, name := range []string{"data", "ops"} {
		channels = append(channels, release.Channel{Name: name, File: &release.FileChannel{Path: name}})
	}
	return channels
}

// watchedOf returns the promises about assets in a domain's releases: deadlines, freshness and SLAs. Each deadline is
// at a time of day that the world reaches.
func (l *workload) watchedOf(d ids.Domain) (all []event.WatchedAsset) {
	if l.w.cfg.Alerts == 0 {
		return nil
	}
	for _, p := range l.projects {
		if p.domain != d {
			continue
		}
		for i := range p.assets {
			a := &p.assets[i]
			r := random(l.w.cfg.Seed, "promises of "+a.Key.String(), 0)
			w := event.WatchedAsset{Asset: a.Key.String()}
			if r.IntN(3) == 0 {
				w.TaskSec, w.RunSec = r.Int64N(2)*(1+r.Int64N(120)), r.Int64N(2)*(1+r.Int64N(300))
			}
			if r.IntN(3) == 0 {
				w.MaxLagSec = 30 + r.Int64N(900)
			}
			if r.IntN(3) == 0 {
				at := l.w.start.Add(time.Duration(1+r.Int64N(int64(l.w.cfg.Minutes))) * time.Minute).UTC()
				w.Deadline = &event.Deadline{By: at.Format("15:04"), Timezone: "UTC"}
				if a.Partitions.Time() != nil {
					w.Deadline.DaysAfter = 1
				}
			}
			if w != (event.WatchedAsset{Asset: w.Asset}) {
				all = append(all, w)
			}
		}
	}
	slices.SortFunc(all, func(a, b event.WatchedAsset) int { return strings.Compare(a.Asset, b.Asset) })
	return all
}

// channelLog counts, for each notification, how many times a process tried to send it, and how many times its channel
// accepted it.
type channelLog struct {
	mu    sync.Mutex
	tried map[string]int // number of tries, by notification
	sent  map[string]int
}

// errChannel contains a byte that is not UTF-8, as answers of some mail servers do.
var errChannel = errors.New("the channel refuses the message: bo\xeete pleine")

// sendAlert simulates sending a message to a channel: channels are slow, and refuse some messages.
func (p *process) sendAlert(ctx context.Context, c *release.Channel, m *notify.Message) error {
	w := p.machine.w
	log := &w.load.channels
	log.mu.Lock()
	log.tried[m.ID]++
	n := log.tried[m.ID]
	log.mu.Unlock()
	r := random(w.cfg.Seed, "channel "+c.Name+m.ID, n)
	if err := (machineClock{p}).Sleep(ctx, time.Duration(r.IntN(3000))*time.Millisecond); err != nil {
		return err
	}
	const most = 2 // refuse a message at most twice: later tries would be hours apart
	refused := n <= most && r.IntN(10) < w.cfg.Alerts
	log.mu.Lock()
	defer log.mu.Unlock()
	if refused && r.IntN(2) == 0 {
		return errChannel
	}
	log.sent[m.ID]++
	if refused {
		return errChannel // the channel has accepted the message, but reports an error
	}
	return nil
}

// commandAlerts mutes a rule, or unmutes it.
func (c *client) commandAlerts(ctx context.Context, e *clientEngine) error {
	until := event.Time(0)
	if c.rng.IntN(2) == 0 {
		until = event.At(c.p.now().Add(time.Duration(1+c.rng.IntN(300)) * time.Second))
	}
	c.p.machine.w.fault("alerts muted")
	return e.MuteAlerts(ctx, []string{ruleOfTasks, ruleOfRest}[c.rng.IntN(2)], until, "because")
}

// counted contains some fields of a notification. The oracle compares them with the next version of the notification.
type counted struct {
	channel string
	count   int64
	final   bool
}

// noted is the oracle's record of the notifications and failed tasks of a domain.
type noted struct {
	counts map[string]counted // by notification
	failed int64              // number of tasks that failed while the rules existed
}

// checkAlerts checks the changes of alerts in a revision: every transition is counted once for each channel.
func (o *oracle) checkAlerts(f *followed, before, after *state.State, rebuilt bool) {
	if o.w.cfg.Alerts == 0 || after.AlertRules.Len() == 0 || f.unordered {
		return
	}
	first := rebuilt || before.AlertRules.Len() == 0
	if f.noted == nil {
		f.noted = &noted{counts: map[string]counted{}}
		first = true
	}
	for id, n := range f.noted.counts {
		if after.Notifications.Get(id) != nil {
			continue
		}
		if was := before.Notifications.Get(id); was != nil && was.State != state.NotificationCounting && o.w.cfg.KeepRuns == 0 {
			o.violation(everyTransition, "notification %s of %s was %s, but its row is gone", id, f.domain, was.State)
		}
		if !n.final { // keep the count of a final notification: its row has merely expired
			delete(f.noted.counts, id) // the transitions are now counted in a digest
		}
	}
	for is := range after.Notifications.All {
		was := before.Notifications.Get(is.NotificationID)
		if is.Cause != event.CauseTest {
			f.noted.counts[is.NotificationID] = counted{is.Channel, is.Count, is.State.Final()}
		}
		if was != is {
			o.checkNotification(f, was, is, rebuilt)
		}
	}
	for _, channel := range []string{"ops", "data"} {
		want, got := int64(0), int64(0)
		for row := range after.AlertRules.All {
			if slices.Contains(row.To(), channel) {
				want += row.Transitions - row.Muted
			}
		}
		for _, n := range f.noted.counts {
			if n.channel == channel {
				got += n.count
			}
		}
		if got != want {
			o.violation(everyTransition, "notifications to channel %s of %s count %d transitions, but the rules have reported %d to this channel", channel, f.domain, got, want)
		}
	}
	o.checkAlertItems(f, after)
	o.checkFailureCount(f, before, after, first)
	if !first {
		o.checkRuleCounts(f, before, after)
		o.checkApprovals(f, before, after)
		o.checkVerdicts(f, before, after)
	}
}

// checkAlertItems checks that the number of items of each alert is right, and that no item is left without its alert.
func (o *oracle) checkAlertItems(f *followed, after *state.State) {
	items := map[state.Key3]int64{}
	for row := range after.AlertItems.All {
		items[state.Key3{A: row.Subject, B: row.Cause, C: row.Rule}]++
	}
	for row := range after.Alerts.All {
		if got := items[row.Key()]; got != row.Items {
			o.violation(everyTransition, "alert %s about %s of %s has %d items, but counts %d", row.Cause, row.Subject, f.domain, got, row.Items)
		}
		delete(items, row.Key())
	}
	for key, n := range items {
		o.violation(everyTransition, "%d items of %s have no alert %s about %s", n, f.domain, key.B, key.A)
	}
}

// checkFailureCount checks that the alert rule about tasks has counted every task that failed.
func (o *oracle) checkFailureCount(f *followed, before, after *state.State, first bool) {
	rule := after.AlertRules.Get(ruleOfTasks)
	if rule == nil {
		return
	}
	if first { // the rules were deployed at an unknown time after the last revision: trust their first count
		f.noted.failed = rule.Transitions
		return
	}
	for is := range changed(f, after.Tasks) {
		if was := before.Tasks.Get(is.Key()); is.State == state.TaskFailed && (was == nil || was.State != state.TaskFailed) && is.AssetKey != "" {
			f.noted.failed++
			o.w.fault("alert about a task")
		}
	}
	if rule.Transitions != f.noted.failed {
		o.violation(everyTransition, "%d tasks of %s have failed, but rule %s has counted %d", f.noted.failed, f.domain, rule.Rule, rule.Transitions)
		f.noted.failed = rule.Transitions
	}
}

// checkNotification checks a new or changed notification.
func (o *oracle) checkNotification(f *followed, was, is *state.Notification, rebuilt bool) {
	if was != nil && was.State.Final() && *was != *is && (!rebuilt || was.State != is.State || was.Count != is.Count) {
		o.violation(everyTransition, "notification %s of %s was %s, which is final, but has changed", is.NotificationID, f.domain, was.State)
	}
	if !is.State.Final() {
		return
	}
	o.w.fault("notification " + is.Cause + " " + string(is.State))
	log := &o.w.load.channels
	log.mu.Lock()
	defer log.mu.Unlock()
	if is.State == state.NotificationSent && log.sent[is.NotificationID] == 0 {
		o.violation(everyTransition, "notification %s of %s is SENT, but its channel has not received it", is.NotificationID, f.domain)
	}
}

// unreported describes the open notifications, and the deadlines that wait for a verdict. A state at rest has neither.
func (o *oracle) unreported(s *state.State) (left []string) {
	for n := range s.Notifications.All {
		if !n.State.Final() {
			left = append(left, fmt.Sprintf("notification %s is %s: %s", n.NotificationID, n.State, n.Error))
		}
	}
	for row := range s.Promises.All {
		if row.WantedAt != 0 || row.Error != "" {
			left = append(left, fmt.Sprintf("the deadline of %s has waited for a verdict since %q: %s", row.AssetKey, row.WantedAt, row.Error))
		}
	}
	return left
}
