package fold_test

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/state"
)

// alerted is a world whose release has alert rules. It records how many transitions each notification has counted.
type alerted struct {
	*foldtest.World
	counts map[string]map[string]int64 // by channel and notification
}

func newAlerted(t foldtest.TB, rules ...event.AlertRule) *alerted {
	w := &alerted{World: foldtest.New(t), counts: map[string]map[string]int64{}}
	w.deploy(event.DeployLocal, rules...)
	return w
}

func (w *alerted) deploy(kind string, rules ...event.AlertRule) {
	w.MustFold(&event.ProjectDeployed{DeployID: w.ID(), Release: strings.Repeat("a", 64), Force: true, Kind: kind, Alerts: rules})
}

// rule returns a rule that reports causes to the channel ops, at most every ten minutes.
func rule(name string, causes ...string) event.AlertRule {
	return event.AlertRule{Name: name, On: causes, To: []string{"ops"}, GroupSec: 600}
}

// end runs a task of an asset, and folds the end of the task.
func (w *alerted) end(key string, outcome event.Outcome) {
	run := w.Run(foldtest.Task(key))
	w.MustFold(w.Started(run, key, 1))
	p := w.Finished(run, key, 1, outcome)
	if p.Error != nil {
		p.Error.Retryable = false
	}
	w.MustFold(p)
}

// wake lets time pass until the wake timer fires. It returns false if there is no timer.
func (w *alerted) wake() bool {
	timer := w.State.Wake()
	if timer == nil || timer.State != state.TimerScheduled {
		return false
	}
	w.Pass(max(0, timer.FireAt.Time().Sub(w.Now)))
	w.MustFold(w.Fire(timer))
	return true
}

// send simulates one try to send each pending notification. Each try has the given outcome.
func (w *alerted) send(outcome string) (sent []*state.Notification) {
	w.State.PendingNotifications(func(row *state.Notification) bool {
		sent = append(sent, row)
		return true
	})
	for _, row := range sent {
		w.MustFold(&event.NotificationEnded{NotificationID: row.NotificationID, Try: row.Try + 1, Outcome: outcome})
	}
	return sent
}

// counted returns the number of transitions that the notifications to a channel report.
func (w *alerted) counted(channel string) (total int64) {
	of := w.counts[channel]
	if of == nil {
		of = map[string]int64{}
		w.counts[channel] = of
	}
	live := map[string]bool{}
	for row := range w.State.Notifications.All {
		if row.Channel == channel && row.Cause != event.CauseTest {
			of[row.NotificationID], live[row.NotificationID] = row.Count, true
		}
	}
	for id, n := range of {
		if !live[id] {
			delete(of, id) // no row moves to history here, so a digest has replaced this notification and counts its transitions
			continue
		}
		total += n
	}
	return total
}

func TestAlertsGroupBySubject(t *testing.T) {
	w := newAlerted(t, rule("failures", event.CauseTaskFailed))
	for range 50 {
		w.end("a", event.Failed)
		w.Pass(time.Second)
	}
	w.end("b", event.Failed)
	sent := w.send(event.NotificationSent)
	require.Len(t, sent, 2, "the first failure of each asset")
	require.True(t, w.wake())
	sent = w.send(event.NotificationSent)
	require.Len(t, sent, 1)
	require.EqualValues(t, 49, sent[0].Count)
	require.Equal(t, "asset:test/a", sent[0].Subject)
	w.end("a", event.Failed)
	require.Empty(t, w.send(event.NotificationSent), "the next group has begun")
}

func TestAlertsBeyondLimitBecomeOneDigest(t *testing.T) {
	w := newAlerted(t, rule("failures", event.CauseTaskFailed))
	for i := range 60 {
		w.end(fmt.Sprintf("t%02d", i), event.Failed)
	}
	require.Len(t, w.send(event.NotificationSent), fold.MaxMessages)
	require.True(t, w.wake())
	sent := w.send(event.NotificationSent)
	require.Len(t, sent, 1)
	require.Equal(t, event.CauseDigest, sent[0].Cause)
	require.EqualValues(t, 40, sent[0].Count)
	require.Equal(t, 20, strings.Count(sent[0].Listed, "task_failed"), "it names the first 20")
	w.end("a", event.Failed)
	require.Len(t, w.send(event.NotificationSent), 1, "the next hour has begun")
}

func TestAlertsOpenNotificationsAreLimited(t *testing.T) {
	r := rule("failures", event.CauseTaskFailed)
	for i := range 20 {
		r.To = append(r.To, fmt.Sprintf("c%d", i))
	}
	r.To = r.To[:20]
	w := newAlerted(t, r)
	for i := range 60 {
		w.end(fmt.Sprintf("t%02d", i), event.Failed)
		w.Pass(4 * time.Minute) // slow enough to stay below the limit of messages per hour
	}
	require.Equal(t, state.MaxOpenNotifications, w.State.OpenNotifications())
	require.EqualValues(t, 60, w.counted("ops"), "the rest is in digests")
}

func TestNotificationUndeliverableAfterFiveTries(t *testing.T) {
	w := newAlerted(t, rule("failures", event.CauseTaskFailed))
	w.end("a", event.Failed)
	began := w.Now
	for try := range fold.MaxNotificationTries {
		require.Len(t, w.send(event.NotificationFailed), 1, "try %d", try+1)
		w.wake()
	}
	require.Equal(t, 1, w.State.Undeliverable())
	require.Less(t, w.Now.Sub(began), fold.MaxNotificationAge)
	require.False(t, w.wake(), "nothing is tried again")
}

// An event about an ended notification may be delivered again after the notification's row has left the live state.
// In a rebuild, the row may leave earlier than in the original fold, but the event must have the same outcome.
func TestRepeatedEndOfNotificationChangesNothingAfterEviction(t *testing.T) {
	w := newAlerted(t, rule("failures", event.CauseTaskFailed))
	w.end("a", event.Failed)
	row := w.send(event.NotificationSent)[0]
	again := &event.NotificationEnded{NotificationID: row.NotificationID, Try: 1, Outcome: event.NotificationSent}
	require.Equal(t, state.NoChange, w.Fold(again).Row.Outcome)
	w.Now = w.Now.Add(30 * 24 * time.Hour)
	w.State.Evict(state.Cutoff{Seq: w.State.FoldSeq, Time: event.At(w.Now), Entries: ids.AtTime(w.Now), Runs: ids.AtTime(w.Now)})
	require.Nil(t, w.State.Notifications.Get(row.NotificationID))
	require.Equal(t, state.NoChange, w.Fold(again).Row.Outcome)
}

func TestNotificationFailureOfEarlierTryIsStale(t *testing.T) {
	w := newAlerted(t, rule("failures", event.CauseTaskFailed))
	w.end("a", event.Failed)
	row := w.send(event.NotificationFailed)[0]
	again := &event.NotificationEnded{NotificationID: row.NotificationID, Try: 1, Outcome: event.NotificationFailed}
	require.Equal(t, state.Stale, w.Fold(again).Row.Outcome)
	require.True(t, w.wake())
	require.Equal(t, state.NotificationPending, w.State.Notifications.Get(row.NotificationID).State)
	require.Equal(t, state.Stale, w.Fold(again).Row.Outcome, "the second try is under way")
	again.Outcome = event.NotificationSent
	require.Equal(t, state.Folded, w.Fold(again).Row.Outcome, "it has arrived, whichever try it was")
	again.Outcome, again.Try = event.NotificationFailed, 2
	require.Equal(t, state.NoChange, w.Fold(again).Row.Outcome)
}

// endPartition runs a task for a partition of the asset a and folds its end.
func (w *alerted) endPartition(partition string, outcome event.Outcome) {
	def := foldtest.Task("a")
	def.PartitionKey = `{"date":"` + partition + `"}`
	run := w.Run(def)
	p := w.Finished(run, "a", 1, outcome)
	if p.Error != nil {
		p.Error.Retryable = false
	}
	w.MustFold(p)
}

func TestAlertRecoversWithLastPartition(t *testing.T) {
	w := newAlerted(t, rule("failures", event.CauseTaskFailed), rule("over", event.CauseRecovered))
	w.endPartition("2026-01-01", event.Failed)
	w.endPartition("2026-01-02", event.Failed)
	w.send(event.NotificationSent)
	w.endPartition("2026-01-03", event.Succeeded)
	w.endPartition("2026-01-01", event.Succeeded)
	require.Empty(t, w.send(event.NotificationSent), "one partition is left")
	w.endPartition("2026-01-02", event.Succeeded)
	sent := w.send(event.NotificationSent)
	require.Len(t, sent, 1)
	require.Equal(t, event.CauseRecovered, sent[0].Cause)
	require.Equal(t, event.CauseTaskFailed, sent[0].Code)
}

func TestAlertOfManyPartitionsRecoversWithTheLast(t *testing.T) {
	const runs, each = 11, 100
	w := newAlerted(t, rule("failures", event.CauseTaskFailed), rule("over", event.CauseRecovered))
	end := func(run, count int, outcome event.Outcome) {
		defs, ends := make([]event.TaskDef, count), make([]event.Payload, count)
		for i := range defs {
			defs[i] = foldtest.Task(fmt.Sprintf("t%03d", i))
			defs[i].AssetKey, defs[i].PartitionKey = "test/a", fmt.Sprintf(`{"part":"%d-%d"}`, run, i)
		}
		id := w.Run(defs...)
		for i := range ends {
			p := w.Finished(id, defs[i].TaskKey, 1, outcome)
			if p.Error != nil {
				p.Error.Retryable = false
			}
			ends[i] = p
		}
		w.MustFold(ends...)
	}
	for run := range runs {
		end(run, each, event.Failed)
	}
	alert := state.Key3{A: "asset:test/a", B: event.CauseTaskFailed, C: "failures"}
	require.EqualValues(t, runs*each, w.State.Alerts.Get(alert).Items)
	for run := range runs - 1 {
		end(run, each, event.Succeeded)
	}
	end(runs-1, each-1, event.Succeeded)
	require.True(t, w.State.Alerts.Get(alert).Open(), "one partition is left")
	end(runs-1, each, event.Succeeded)
	require.False(t, w.State.Alerts.Get(alert).Open())
	require.Zero(t, w.State.AlertItems.Len())
}

func TestAlertCountsItemsBeyondItsLimit(t *testing.T) {
	w := newAlerted(t, rule("failures", event.CauseTaskFailed))
	w.endPartition("2026-01-01", event.Failed)
	alert := state.Key3{A: "asset:test/a", B: event.CauseTaskFailed, C: "failures"}
	full := *w.State.Alerts.Get(alert)
	full.Items = state.MaxAlertItems
	w.State.Alerts.Put(&full)
	w.endPartition("2026-01-02", event.Failed)
	w.endPartition("2026-01-01", event.Failed)
	require.EqualValues(t, state.MaxAlertItems, w.State.Alerts.Get(alert).Items)
	require.EqualValues(t, 1, w.State.Alerts.Get(alert).More)
	require.Equal(t, 1, w.State.AlertItems.Len())
}

// No items stay behind when a rule is deleted: an alert of a later rule with this name would begin with them.
func TestAlertItemsAreDeletedWithTheirRule(t *testing.T) {
	w := newAlerted(t, rule("failures", event.CauseTaskFailed), rule("other", event.CauseTaskFailed))
	w.endPartition("2026-01-01", event.Failed)
	w.endPartition("2026-01-02", event.Failed)
	require.Equal(t, 4, w.State.AlertItems.Len())
	w.deploy(event.DeployLocal, rule("other", event.CauseTaskFailed))
	require.Equal(t, 2, w.State.AlertItems.Len())
	require.Equal(t, 1, w.State.Alerts.Len())
}

func TestAlertRecoveredOnlyAfterReport(t *testing.T) {
	w := newAlerted(t, rule("failures", event.CauseTaskFailed), rule("over", event.CauseRecovered))
	w.MustFold(&event.AutomationCommand{
		CommandID: w.ID(), Target: event.TargetAlert, Name: "failures", Verb: event.VerbMute, Until: event.At(w.Now.Add(time.Hour)),
	})
	w.end("a", event.Failed)
	w.end("a", event.Succeeded)
	require.Empty(t, w.send(event.NotificationSent), "the failure was muted")
	require.EqualValues(t, 1, w.State.AlertRules.Get("failures").Muted)
}

func TestAlertMuteLaterCommandWins(t *testing.T) {
	w := newAlerted(t, rule("failures", event.CauseTaskFailed))
	mute := &event.AutomationCommand{CommandID: w.ID(), Target: event.TargetAlert, Name: "failures", Verb: event.VerbMute, Until: event.At(w.Now.Add(time.Hour))}
	unmute := &event.AutomationCommand{CommandID: w.ID(), Target: event.TargetAlert, Name: "failures", Verb: event.VerbUnmute}
	w.MustFold(unmute)
	require.Equal(t, state.Stale, w.Fold(mute).Row.Outcome)
	require.Equal(t, state.NoChange, w.Fold(unmute).Row.Outcome)
	w.deploy(event.DeployLocal, rule("failures", event.CauseTaskFailed, event.CauseRunFailed))
	require.NotEmpty(t, w.State.AlertRules.Get("failures").CommandID, "a rule that stays keeps its mute")
	mute.CommandID, mute.Name = w.ID(), "none"
	require.Equal(t, state.Stale, w.Fold(mute).Row.Outcome)
}

func TestAlertReportsMostSpecificCause(t *testing.T) {
	def := foldtest.Task("a")
	def.Checks, def.ErrorChecks = []string{"c"}, []string{"e"}
	for _, x := range []struct {
		name, want string
		rule       event.AlertRule
		quarantine bool
		failed     string
	}{
		{"blocked", event.CauseCheckFailed, rule("r", event.CauseTaskFailed, event.CauseCheckFailed, event.CauseQuarantined), false, "c"},
		{"kept", event.CauseQuarantined, rule("r", event.CauseTaskFailed, event.CauseCheckFailed, event.CauseQuarantined), true, "c"},
		{"task", event.CauseTaskFailed, rule("r", event.CauseTaskFailed), true, "c"},
		{"degraded", event.CauseCheckFailed, rule("r", event.CauseTaskFailed, event.CauseCheckFailed), false, "e"},
	} {
		t.Run(x.name, func(t *testing.T) {
			w, def := newAlerted(t, x.rule), def
			if x.quarantine {
				def.Quarantine = &event.Quarantine{ExpiresSec: 3600}
			}
			run := w.Run(def)
			p := w.Finished(run, "a", 1, event.Succeeded)
			for _, name := range []string{"c", "e"} {
				p.CheckResults = append(p.CheckResults, event.CheckResult{Name: name, Phase: "POST", Passed: name != x.failed, Message: "2 of 9 rows"})
			}
			w.MustFold(p)
			sent := w.send(event.NotificationSent)
			require.Len(t, sent, 1)
			require.Equal(t, x.want, sent[0].Cause)
			require.Contains(t, sent[0].Message, "2 of 9 rows")
		})
	}
}

func TestAlertReportsDeploymentOnce(t *testing.T) {
	w := newAlerted(t)
	w.deploy(event.DeployRelease, rule("r", event.CauseDeploy))
	sent := w.send(event.NotificationSent)
	require.Len(t, sent, 1, "the rules of the new release apply")
	require.Equal(t, "rule:r", sent[0].Subject)
	require.Zero(t, w.State.Alerts.Get(state.Key3{A: "rule:r", B: event.CauseDeploy, C: "r"}).Items, "nothing has to recover")
}

func TestAlertOfScheduleIsOverWithNextSuccess(t *testing.T) {
	w := newTicking(t, event.Schedule{PauseAfterFailures: 2})
	w.MustFold(&event.ProjectDeployed{
		DeployID: w.ID(), Release: strings.Repeat("b", 64), Force: true, Kind: event.DeployLocal,
		Schedules: w.State.Deployment().Schedules,
		Alerts: []event.AlertRule{
			rule("runs", event.CauseRunFailed), rule("blocked", event.CauseScheduleBlocked, event.CauseSchedulePaused), rule("over", event.CauseRecovered),
		},
	})
	open := func() (causes []string) {
		for row := range w.State.Alerts.All {
			if row.Open() {
				causes = append(causes, row.Subject+" "+row.Cause)
			}
		}
		return causes
	}
	never := func(int) (int, bool) { return 0, false }
	w.minutes(3, never)
	require.Equal(t, []string{"schedule:clock schedule_blocked"}, open(), "ticks were skipped")
	require.EqualValues(t, 1, w.State.AlertRules.Get("blocked").Transitions, "only the first one after a success counts")
	w.finish(w.runs[0], event.Failed)
	require.Equal(t, []string{"schedule:clock run_failed", "schedule:clock schedule_blocked"}, open())
	w.minutes(1, never)
	w.finish(w.runs[1], event.Succeeded)
	require.Empty(t, open())
	for range 2 {
		w.minutes(1, never)
		w.finish(w.runs[len(w.runs)-1], event.Failed)
	}
	require.Equal(t, []string{"schedule:clock run_failed", "schedule:clock schedule_paused"}, open())
	w.MustFold(&event.AutomationCommand{CommandID: w.ID(), Target: event.TargetSchedule, Name: "clock", Verb: event.VerbResume})
	require.Equal(t, []string{"schedule:clock run_failed"}, open())
}

// A retry may end long after the first run of its chain has left the live state. In a rebuild, the first run may still
// be in the live state. The result must be the same.
func TestAlertOfScheduleIsOverWithRetry(t *testing.T) {
	for name, evicted := range map[string]bool{"the first run is live": false, "the first run is history": true} {
		t.Run(name, func(t *testing.T) {
			w := newTicking(t, event.Schedule{})
			w.MustFold(&event.ProjectDeployed{
				DeployID: w.ID(), Release: strings.Repeat("b", 64), Force: true, Kind: event.DeployLocal,
				Schedules: w.State.Deployment().Schedules, Alerts: []event.AlertRule{rule("runs", event.CauseRunFailed)},
			})
			w.minutes(1, func(int) (int, bool) { return 0, false })
			first := w.runs[0]
			w.finish(first, event.Failed)
			alert := func() *state.Alert {
				require.Equal(t, 1, w.State.Alerts.Len())
				return w.State.Alerts.Get(state.Key3{A: "schedule:clock", B: event.CauseRunFailed, C: "runs"})
			}
			require.EqualValues(t, 1, alert().Count)
			if evicted {
				w.State.Evict(state.Cutoff{Seq: w.State.FoldSeq, Time: w.State.FoldTime.Add(time.Hour)})
				require.Nil(t, w.State.Runs.Get(first))
			}
			again := func(outcome event.Outcome) {
				cause := event.Trigger{Type: "retry", ParentRunID: first, ScheduleID: "clock"}
				retry := &event.RunTriggered{Trigger: cause, RootRun: first}
				w.MustFold(w.Triggered(retry, foldtest.Task("a"))...)
				w.finish(retry.RunID, outcome)
			}
			again(event.Failed)
			require.EqualValues(t, 2, alert().Count)
			again(event.Succeeded)
			require.False(t, alert().Open())
		})
	}
}

// TestI31TransitionsAreReportedOnce folds random events in a random order. After each event, the notifications to a
// channel must have counted exactly once each transition that the channel's rules cover.
func TestI31TransitionsAreReportedOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := []event.AlertRule{
			rule("all", event.CauseTaskFailed, event.CauseRunFailed), rule("over", event.CauseRecovered),
			{Name: "some", On: []string{event.CauseTaskFailed}, To: []string{"ops", "data"}, GroupSec: 60, Select: "tag:gold", Assets: []string{"test/a", "test/b"}},
		}
		w := newAlerted(t, all...)
		failing := map[string]bool{} // the assets whose last task failed
		check := func() {
			for _, channel := range []string{"ops", "data"} {
				want := int64(0)
				for row := range w.State.AlertRules.All {
					if strings.Contains(" "+row.Channels+" ", " "+channel+" ") {
						want += row.Transitions - row.Muted
					}
				}
				require.Equal(t, want, w.counted(channel), channel)
			}
			items := map[state.Key3]int64{}
			for row := range w.State.AlertItems.All {
				items[state.Key3{A: row.Subject, B: row.Cause, C: row.Rule}]++
			}
			for row := range w.State.Alerts.All {
				require.Equal(t, items[row.Key()], row.Items, row.Subject)
				delete(items, row.Key())
			}
			require.Empty(t, items, "items without an alert")
			for asset := range failing {
				require.NotNil(t, w.State.AlertItems.Get(state.AlertItemKey{Subject: "asset:test/" + asset, Cause: event.CauseTaskFailed, Rule: "all"}), asset)
			}
			require.NoError(t, w.State.Verify())
		}
		failed := int64(0)
		for range rapid.IntRange(1, 25).Draw(t, "steps") {
			switch rapid.IntRange(0, 9).Draw(t, "step") {
			case 0, 1, 2, 3:
				for range rapid.IntRange(1, 8).Draw(t, "failures") {
					asset := rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "f", "g"}).Draw(t, "asset")
					w.end(asset, event.Failed)
					failing[asset] = true
					failed++
				}
			case 4:
				asset := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "asset")
				w.end(asset, event.Succeeded)
				delete(failing, asset)
			case 5:
				w.wake()
			case 6:
				w.Pass(time.Duration(rapid.IntRange(0, 4000).Draw(t, "seconds")) * time.Second)
			case 7:
				w.send(rapid.SampledFrom([]string{event.NotificationSent, event.NotificationFailed, event.NotificationExpired}).Draw(t, "outcome"))
			case 8:
				w.Fold(&event.AutomationCommand{
					CommandID: w.ID(), Target: event.TargetAlert, Name: "some", Verb: event.VerbMute, Until: event.At(w.Now.Add(5 * time.Minute)),
				})
			case 9:
				w.Fold(&event.AutomationCommand{CommandID: w.ID(), Target: event.TargetAlert, Name: "data", Verb: event.VerbTest})
			}
			check()
		}
		require.EqualValues(t, 2*failed, w.State.AlertRules.Get("all").Transitions, "a task and its run")
		for range 400 { // until no message waits for another try
			w.send(event.NotificationFailed)
			if !w.wake() {
				break
			}
			check()
		}
		w.send(event.NotificationFailed)
		for row := range w.State.Notifications.All {
			require.True(t, row.State.Final(), "%s is %s", row.NotificationID, row.State)
		}
	})
}

// The fold cuts this message in the middle of a character, and then collapses its white space. The result is shorter
// than the limit, so the fold does not cut it a second time.
func TestMessageOfAlertIsUTF8(t *testing.T) {
	w := newAlerted(t, rule("failed", event.CauseTaskFailed))
	run := w.Run(foldtest.Task("a"))
	w.MustFold(w.Started(run, "a", 1))
	p := w.Finished(run, "a", 1, event.Failed)
	p.Error.Retryable = false
	p.Error.Message = "Error:" + strings.Repeat(" ", 2041) + "│ box │"
	w.MustFold(p)
	require.Positive(t, w.State.Alerts.Len())
	for row := range w.State.Alerts.All {
		require.True(t, utf8.ValidString(row.Message), "%q", row.Message)
	}
	for row := range w.State.Notifications.All {
		require.True(t, utf8.ValidString(row.Message), "%q", row.Message)
	}
}
