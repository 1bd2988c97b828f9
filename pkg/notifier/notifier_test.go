package notifier_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/internal/memblob"
	"github.com/servo-orchestration/servo/pkg/automator"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/domain"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
	"github.com/servo-orchestration/servo/pkg/notifier"
	"github.com/servo-orchestration/servo/pkg/notify"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/release"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/source"
	"github.com/servo-orchestration/servo/pkg/space"
	"github.com/servo-orchestration/servo/pkg/state"
)

// system is a domain without workers: a compactor, an engine, and a channel. It runs in virtual time.
type system struct {
	t *testing.T
	*engine.Engine
	appender *ledger.Appender
	compact  *compactor.Compactor
	notifier *notifier.Notifier
	refuse   error
	delay    time.Duration // how long every channel but "fast" takes to accept a message
	mu       sync.Mutex    // guards messages and calls
	messages []*notify.Message
	calls    int
}

// local provides the snapshots of a compactor in this process.
type local struct{ *snapshot.Latest }

func (l local) Current(context.Context) (*snapshot.Snapshot, error) {
	snap, _ := l.Get()
	return snap, nil
}

func (l local) Await(ctx context.Context, after int64) (*snapshot.Snapshot, error) {
	return l.Latest.Await(ctx, func(s *snapshot.Snapshot) bool { return s.Revision > after })
}

func newSystem(t *testing.T) *system {
	t.Helper()
	h := domain.Open(domain.Handle{
		Domain: foldtest.Domain, Store: memblob.New(memblob.Options{}), Codec: snapshot.NewMemoryCodec(), Clock: clock.System{},
		IDs: ids.NewSource(clock.System{}.Now, nil), Logger: slog.New(slog.DiscardHandler),
	})
	c, err := compactor.Open(t.Context(), compactor.Config{Handle: h, Writer: "test"})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-ended)
	})
	s := &system{t: t, compact: c, appender: h.Appender(ledger.Config{})}
	s.Engine = engine.New(engine.Config{Handle: h, Appender: s.appender, Compactor: c, Snapshots: local{c.Latest()}}).As("user:test")
	s.notifier = notifier.New(notifier.Config{Engine: s.Engine, Clock: clock.System{}, Logger: slog.New(slog.DiscardHandler), Send: s.send})
	return s
}

func (s *system) send(ctx context.Context, c *release.Channel, m *notify.Message) error {
	s.mu.Lock()
	s.calls++
	s.mu.Unlock()
	if c.Name != "fast" {
		if err := (clock.System{}).Sleep(ctx, s.delay); err != nil {
			return err
		}
	}
	if s.refuse != nil {
		return s.refuse
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.messages = append(s.messages, m)
	return nil
}

// deploy deploys a release with one asset, a channel and a rule.
func (s *system) deploy(w event.WatchedAsset) {
	s.t.Helper()
	s.deployAsset(plan.Asset{Key: ids.AssetKey{Namespace: "test", Name: "a"}}, w)
}

// deployAsset is like deploy. The key of the asset is test/a.
func (s *system) deployAsset(asset plan.Asset, w event.WatchedAsset) {
	s.t.Helper()
	w.Asset = "test/a"
	archive, err := source.Build(fstest.MapFS{"servo.yaml": &fstest.MapFile{}}, nil)
	require.NoError(s.t, err)
	code := &release.Code{SchemaVersion: release.SchemaVersion, Assets: []plan.Asset{asset}}
	encoded, err := json.Marshal(code)
	require.NoError(s.t, err)
	r := &release.Release{
		SchemaVersion: release.SchemaVersion, Code: release.Hash(encoded), Source: archive.SHA, Settings: release.Settings{
			Project: "test", Channels: []release.Channel{{Name: "fast", File: &release.FileChannel{Path: "y"}}, {Name: "ops", File: &release.FileChannel{Path: "x"}}},
			Alerts:  []event.AlertRule{{Name: "late", On: []string{event.CauseDeadlineMissed, event.CauseDeploy}, To: []string{"ops", "gone"}, GroupSec: 600}},
			Watched: []event.WatchedAsset{w},
		},
	}
	data, err := json.Marshal(r)
	require.NoError(s.t, err)
	compiled := &release.Compiled{Release: r, SHA: release.Hash(data), Data: data, Code: code, Encoded: encoded}
	require.NoError(s.t, s.SaveRelease(s.t.Context(), compiled, archive))
	_, err = s.Deploy(s.t.Context(), engine.DeployRequest{Release: compiled.SHA, Force: true, Kind: event.DeployRelease, Alerts: r.Alerts, Watched: r.Watched})
	require.NoError(s.t, err)
}

func (s *system) state() *state.State {
	snap, err := s.Current(s.t.Context())
	require.NoError(s.t, err)
	return snap.State
}

// notificationFor returns the notification for a channel.
func (s *system) notificationFor(channel string) *state.Notification {
	for row := range s.state().Notifications.All {
		if row.Channel == channel {
			return row
		}
	}
	s.t.Fatalf("no notification to %s", channel)
	return nil
}

func TestNotifierSendsOnceAndReportsFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSystem(t)
		s.deploy(event.WatchedAsset{MaxLagSec: 3600})
		require.NoError(t, s.notifier.Drain(t.Context()))
		require.NoError(t, s.notifier.Drain(t.Context()))
		require.Equal(t, 1, s.calls, "nothing is sent twice")
		require.Equal(t, state.NotificationSent, s.notificationFor("ops").State)
		m := s.messages[0]
		require.Equal(t, s.notificationFor("ops").NotificationID, m.ID)
		require.Equal(t, "test", m.Project)
		require.Equal(t, event.CauseDeploy, m.Cause)
		require.Equal(t, state.NotificationWaiting, s.notificationFor("gone").State)
		require.Equal(t, "the deployed release has no channel gone", s.notificationFor("gone").Error)
	})
}

// A mail that some recipients have received is not sent again.
func TestNotifierSendsPartiallyRefusedMailOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSystem(t)
		s.refuse = fmt.Errorf("channel mail: %w", &notify.PartialError{Err: errors.New("send to left@example.com: 550 no such user")})
		s.deploy(event.WatchedAsset{MaxLagSec: 36_000})
		require.NoError(t, s.notifier.Drain(t.Context()))
		require.Equal(t, state.NotificationSent, s.notificationFor("ops").State)
		require.Equal(t, 1, s.calls)
	})
}

func TestNotifierNeverSendsOldMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSystem(t)
		s.deploy(event.WatchedAsset{MaxLagSec: 3600})
		require.NoError(t, clock.System{}.Sleep(t.Context(), fold.MaxNotificationAge)) // virtual time
		require.NoError(t, s.notifier.Drain(t.Context()))
		require.Zero(t, s.calls)
		require.Equal(t, state.NotificationUndeliverable, s.notificationFor("ops").State)
		require.Contains(t, s.notificationFor("ops").Error, "messages are sent for at most 24h")
	})
}

func TestNotifierRetriesRefusedMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSystem(t)
		s.refuse = errors.New("the channel is down")
		s.deploy(event.WatchedAsset{MaxLagSec: 36_000})
		require.NoError(t, s.notifier.Drain(t.Context()))
		require.Equal(t, "the channel is down", s.notificationFor("ops").Error)
		s.refuse = nil
		s.fire()
		require.NoError(t, s.notifier.Drain(t.Context()))
		require.Equal(t, state.NotificationSent, s.notificationFor("ops").State)
	})
}

// A channel that does not answer delays neither the messages to other channels nor the records of their results.
func TestNotifierRecordsResultsWhileAChannelHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSystem(t)
		s.delay = time.Hour
		s.deploy(event.WatchedAsset{MaxLagSec: 36_000})
		drained := make(chan error)
		go func() { drained <- s.notifier.Drain(t.Context()) }()
		synctest.Wait()
		require.Equal(t, state.NotificationPending, s.notificationFor("ops").State)
		require.Equal(t, state.NotificationWaiting, s.notificationFor("gone").State)
		require.NoError(t, <-drained)
		require.Equal(t, state.NotificationSent, s.notificationFor("ops").State)
	})
}

// Messages that a channel accepts slowly delay the messages to other channels only for a moment.
func TestSlowChannelDoesNotDelayOtherChannels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSystem(t)
		s.delay = 9 * time.Second
		s.deploy(event.WatchedAsset{MaxLagSec: 36_000})
		for range 30 {
			_, err := s.TestChannel(t.Context(), "ops", "slow")
			require.NoError(t, err)
		}
		drained := make(chan error, 1)
		go func() { drained <- s.notifier.Drain(t.Context()) }()
		synctest.Wait()
		id, err := s.TestChannel(t.Context(), "fast", "sent while the other channel is busy")
		require.NoError(t, err)
		require.NoError(t, clock.System{}.Sleep(t.Context(), 30*time.Second)) // virtual time
		require.Equal(t, state.NotificationSent, s.state().Notifications.Get(id).State)
		require.NoError(t, <-drained)
		require.Equal(t, 32, s.calls)
	})
}

// fire lets virtual time pass until the wake timer is due, and fires it, as the queue does.
func (s *system) fire() {
	s.t.Helper()
	timer := s.state().Wake()
	require.NotNil(s.t, timer)
	require.NoError(s.t, clock.System{}.Sleep(s.t.Context(), timer.FireAt.Time().Sub(clock.System{}.Now())+time.Millisecond))
	now := event.At(clock.System{}.Now())
	fired := &event.TimerFired{TimerID: timer.TimerID, Generation: timer.Generation, FiredAt: now, Observed: event.Observed{CaughtUpAt: now}}
	appended, err := s.appender.Append(s.t.Context(), []*event.Envelope{{Domain: foldtest.Domain, Payload: fired}})
	require.NoError(s.t, err)
	_, err = s.compact.Compact(s.t.Context(), compactor.Request{Entries: []compactor.Entry{{ID: appended.Entry}}})
	require.NoError(s.t, err)
}

// Neither a worker nor a dispatcher nor a queue runs in this test. The missed deadline must be found and reported
// nevertheless.
func TestMissedDeadlineAlertsWithoutWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSystem(t)
		a := automator.New(automator.Config{Engine: s.Engine, Clock: clock.System{}, Logger: slog.New(slog.DiscardHandler)})
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- a.Run(ctx) }()
		s.deploy(event.WatchedAsset{Deadline: &event.Deadline{By: "09:00", Timezone: "Europe/Paris"}})
		require.NoError(t, s.notifier.Drain(t.Context()))
		a.Nudge()
		synctest.Wait()
		row := s.state().Promises.Get("test/a")
		require.Equal(t, "2000-01-01T08:00:00.000000Z", row.DueAt.String(), "bubbles begin at the midnight before")
		for (clock.System{}).Now().Before(row.DueAt.Time()) { // the timer also fires for retries of the message to the removed channel
			s.fire()
			require.NoError(t, s.notifier.Drain(t.Context()))
		}
		a.Nudge()
		synctest.Wait()
		require.NoError(t, s.notifier.Drain(t.Context()))
		last := s.messages[len(s.messages)-1]
		require.Equal(t, event.CauseDeadlineMissed, last.Cause)
		require.Equal(t, "asset:test/a", last.Subject)
		require.Equal(t, "servo assets test/a", last.Command)
		require.Equal(t, "2000-01-02T08:00:00.000000Z", s.state().Promises.Get("test/a").DueAt.String())
		promises, err := s.Promises(t.Context())
		require.NoError(t, err)
		require.Equal(t, "late", promises[0].Status)
		stop()
		require.NoError(t, <-ended)
	})
}

// materialize runs an asset for some of its partitions.
func (s *system) materialize(asset plan.Asset, partitions []string) {
	s.t.Helper()
	ran, err := s.Run(s.t.Context(), engine.RunRequest{Trigger: event.Trigger{Type: "manual"}, Plan: plan.Request{
		Root: "/project", Assets: []plan.Asset{asset}, Select: []ids.AssetKey{asset.Key}, Only: map[ids.AssetKey][]string{asset.Key: partitions},
	}})
	require.NoError(s.t, err)
	require.Equal(s.t, len(partitions), ran.Tasks)
	var group []*event.Envelope
	now := event.At(clock.System{}.Now())
	for t := range s.state().Tasks.All {
		if t.RunID == ran.RunID {
			group = append(group, &event.Envelope{Domain: foldtest.Domain, Payload: &event.TaskFinished{
				AttemptRef: foldtest.Ref(ran.RunID, t.TaskKey, 1), Outcome: event.Succeeded, StartedAt: now, CompletedAt: now,
				Output: &event.Output{URI: "assets/" + t.TaskKey + "/", RowCount: 1},
			}})
		}
	}
	for batch := range slices.Chunk(group, 50) {
		appended, err := s.appender.Append(s.t.Context(), batch)
		require.NoError(s.t, err)
		_, err = s.compact.Compact(s.t.Context(), compactor.Request{Entries: []compactor.Entry{{ID: appended.Entry}}})
		require.NoError(s.t, err)
	}
}

// An event about a missed deadline names at most 500 missing partitions. After these are materialized, the others are
// still missing.
func TestMissedDeadlineOfManyPartitionsIsOverWithTheLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSystem(t)
		a := automator.New(automator.Config{Engine: s.Engine, Clock: clock.System{}, Logger: slog.New(slog.DiscardHandler)})
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- a.Run(ctx) }()
		keys := space.Dimension{Name: "k", Kind: space.Static}
		for i := range 600 {
			keys.Values = append(keys.Values, fmt.Sprintf("%03d", i))
		}
		asset := plan.Asset{Key: ids.AssetKey{Namespace: "test", Name: "a"}, Work: plan.Work{Command: []string{"true"}}, Partitions: space.New(keys)}
		s.deployAsset(asset, event.WatchedAsset{Deadline: &event.Deadline{By: "09:00"}})
		judge := func() *state.DeadlineMiss {
			a.Nudge()
			synctest.Wait()
			misses := s.state().MissesOf("test/a")
			if len(misses) == 0 {
				return nil
			}
			return misses[0]
		}
		require.Nil(t, judge())
		due := s.state().Promises.Get("test/a").DueAt.Time()
		for (clock.System{}).Now().Before(due) {
			s.fire()
		}
		miss := judge()
		for _, left := range []struct{ named, more int }{{500, 100}, {100, 0}} {
			var named []string
			require.NoError(t, json.Unmarshal([]byte(miss.Missing), &named))
			require.Len(t, named, left.named)
			require.EqualValues(t, left.more, miss.More)
			require.NoError(t, clock.System{}.Sleep(t.Context(), time.Second))
			s.materialize(asset, named)
			miss = judge()
		}
		require.Nil(t, miss)
		stop()
		require.NoError(t, <-ended)
	})
}

// A mail server may answer in Latin-1: "550 Boîte pleine".
func TestNotifierRecordsAnswersThatAreNotUTF8(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSystem(t)
		s.refuse = errors.New("send to a@example.org: 550 Bo\xeete pleine")
		s.deploy(event.WatchedAsset{MaxLagSec: 36_000})
		ctx, stop := context.WithTimeout(t.Context(), time.Hour) // virtual time
		defer stop()
		require.NoError(t, s.notifier.Drain(ctx))
		row := s.notificationFor("ops")
		require.Equal(t, state.NotificationWaiting, row.State)
		require.Equal(t, "send to a@example.org: 550 Bo\uFFFDte pleine", row.Error)
	})
}
