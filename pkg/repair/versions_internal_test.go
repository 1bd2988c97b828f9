package repair

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/state"
)

func TestVersionsFindGreatestObserved(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a test
	for range 100 {
		var known versions
		var all []version
		for seq := range int64(20) {
			v := version{event.Time(r.IntN(10) + 1), seq + 1}
			known.add(v, ulid.ULID{})
			all = append(all, v)
		}
		for at := range event.Time(12) {
			want := int64(0)
			for _, v := range all {
				if v.at <= at {
					want = max(want, v.seq)
				}
			}
			require.Equal(t, want, known.createdUntil(at))
		}
	}
}

func TestVersionsIgnoreRefusedGroups(t *testing.T) {
	refused := fold.Group{Reason: event.ReasonClockAhead, Events: make([]*event.Envelope, 1)}
	require.Nil(t, new(versions).observedSeqs(refused))
}

func deployment(entry, release, expects string) fold.Group {
	return fold.Group{Entry: entry, ID: entry, Events: []*event.Envelope{{Payload: &event.ProjectDeployed{
		DeployID: entry, Release: release, Expects: expects,
	}}}}
}

// Two deployments compete. A third deployment expects the release of the second one, which proves that the second one
// was folded first.
func TestDeferredDeploymentsFollowEvidence(t *testing.T) {
	st := state.New(ids.Domain{Tenant: "t", Workspace: "w"})
	h := newDeferred()
	require.Empty(t, h.next(st, deployment("1", "a", "")))
	require.Empty(t, h.next(st, deployment("2", "b", "")))
	groups := h.next(st, deployment("3", "c", "b"))
	require.Equal(t, "2 1", entries(groups))
	run := fold.Group{Entry: "4", ID: "4", Events: []*event.Envelope{{Payload: &event.RunTriggered{RunID: "r", Release: "c"}}}}
	require.Equal(t, "3 4", entries(h.next(st, run)), "a run names the release")
	require.Empty(t, h.next(st, deployment("5", "d", "c")))
	require.Equal(t, "5", entries(h.rest()))
}

func defined(entry, deployment string) fold.Group {
	return fold.Group{Entry: entry, ID: entry, Events: []*event.Envelope{{Payload: &event.SchedulesDefined{DeployID: deployment}}}}
}

// A definition of schedules names the deployment that was current. So that deployment was folded before the definition,
// and was not rejected.
func TestDeferredDefinitionSettlesItsDeployment(t *testing.T) {
	st := state.New(ids.Domain{Tenant: "t", Workspace: "w"})
	h := newDeferred()
	require.Empty(t, h.next(st, deployment("1", "a", "")))
	require.Empty(t, h.next(st, deployment("2", "b", "")))
	groups := h.next(st, defined("3", "2"))
	require.Equal(t, "2 1 3", entries(groups), "the deployment that the definition names, and then the one that lost")
	require.True(t, groups[0].Proven)
	require.False(t, groups[1].Proven)

	require.Empty(t, h.next(st, defined("4", "7")), "the clock of its writer is behind")
	require.Empty(t, h.next(st, deployment("6", "c", "b")))
	require.Equal(t, "6 7 4", entries(h.next(st, deployment("7", "d", "c"))))

	require.Empty(t, h.next(st, defined("8", "99")))
	require.Equal(t, "8", entries(h.rest()), "its deployment is lost")
}

// Two writers deploy the same release at the same time. A run of this release proves that the first deployment was
// accepted. The second deployment is folded when a definition of schedules names its id.
func TestDeferredDeploymentsOfOneRelease(t *testing.T) {
	st := state.New(ids.Domain{Tenant: "t", Workspace: "w"})
	run := fold.Group{Entry: "3", ID: "3", Events: []*event.Envelope{{Payload: &event.RunTriggered{RunID: "r", Release: "a"}}}}
	h := newDeferred()
	require.Empty(t, h.next(st, deployment("1", "a", "")))
	require.Empty(t, h.next(st, deployment("2", "a", "")))
	require.Equal(t, "1 3", entries(h.next(st, run)))
	require.Equal(t, "2 4", entries(h.next(st, defined("4", "2"))))
}

// A deployment is folded after the deployments on which it is based, regardless of the names of their entries.
func TestDeferredDeploymentFollowsItsBase(t *testing.T) {
	st := state.New(ids.Domain{Tenant: "t", Workspace: "w"})
	h := newDeferred()
	require.Empty(t, h.next(st, deployment("3", "c", "b")))
	require.Empty(t, h.next(st, deployment("1", "a", "")))
	require.Equal(t, "1", entries(h.next(st, deployment("2", "b", "a"))))
	require.Equal(t, "2 3 4", entries(h.next(st, defined("4", "3"))))

	forced := deployment("7", "f", "")
	forced.Events[0].Payload.(*event.ProjectDeployed).Force = true //nolint:forcetypeassert // see above
	require.Empty(t, h.next(st, deployment("5", "d", "x")))
	require.Empty(t, h.next(st, deployment("8", "g", "f")))
	require.Empty(t, h.next(st, forced))
	require.Equal(t, "5 7 8 9", entries(h.next(st, defined("9", "8"))))
	require.Empty(t, h.rest())
}

// A command about an alert rule proves that a deployment with this rule was folded. If several waiting deployments
// have the rule, the command waits, too.
func TestDeferredMuteSettlesTheDeploymentOfItsRule(t *testing.T) {
	st := state.New(ids.Domain{Tenant: "t", Workspace: "w"})
	alerting := func(entry, release string) fold.Group {
		g := deployment(entry, release, "")
		g.Events[0].Payload.(*event.ProjectDeployed).Alerts = []event.AlertRule{{Name: "ops"}} //nolint:forcetypeassert // see above
		return g
	}
	mute := fold.Group{Entry: "3", ID: "3", Events: []*event.Envelope{{Payload: &event.AutomationCommand{
		Target: event.TargetAlert, Name: "ops", Verb: event.VerbMute,
	}}}}
	h := newDeferred()
	require.Empty(t, h.next(st, deployment("1", "a", "")))
	require.Empty(t, h.next(st, alerting("2", "b")))
	require.Equal(t, "2 1 3", entries(h.next(st, mute)))

	h = newDeferred()
	require.Empty(t, h.next(st, alerting("1", "a")))
	require.Empty(t, h.next(st, alerting("2", "b")))
	require.Empty(t, h.next(st, mute))
	require.Equal(t, "1 2 3", entries(h.rest()))
}

// A command about a schedule waits until the schedule exists, but no longer than the clocks of two machines can
// differ.
func TestDeferredCommandWaitsForItsSchedule(t *testing.T) {
	pause := fold.Group{Entry: "1", ID: "1", Events: []*event.Envelope{{Time: 1, Payload: &event.AutomationCommand{
		Target: event.TargetSchedule, Name: "s", Verb: event.VerbPause,
	}}}}
	later := fold.Group{Entry: "2", ID: "2", Events: []*event.Envelope{{Time: 2, Payload: &event.LimitSet{}}}}
	st := state.New(ids.Domain{Tenant: "t", Workspace: "w"})
	h := newDeferred()
	require.Empty(t, h.next(st, pause))
	require.Equal(t, "2", entries(h.next(st, later)))
	st.Schedules.Put(&state.Schedule{ScheduleID: "s"})
	require.Equal(t, "1 2", entries(h.next(st, later)))

	st = state.New(ids.Domain{Tenant: "t", Workspace: "w"})
	h = newDeferred()
	require.Empty(t, h.next(st, pause))
	later.Events[0].Time = event.Time(0).Add(maxEarly + time.Minute)
	require.Equal(t, "1 2", entries(h.next(st, later)))
}

// A retry is folded when an event about its run appears. The event proves that the retry was accepted.
func TestDeferredRetryWaitsForItsRun(t *testing.T) {
	st := state.New(ids.Domain{Tenant: "t", Workspace: "w"})
	h := newDeferred()
	retry := func(entry, run string) fold.Group {
		return fold.Group{Entry: entry, ID: entry, Events: []*event.Envelope{{Payload: &event.RunTriggered{RunID: run, RootRun: "root"}}}}
	}
	require.Empty(t, h.next(st, retry("1", "rejected")))
	require.Empty(t, h.next(st, retry("2", "accepted")))
	started := fold.Group{Entry: "3", ID: "3", Events: []*event.Envelope{{Payload: &event.TaskStarted{AttemptRef: event.AttemptRef{RunID: "accepted"}}}}}
	groups := h.next(st, started)
	require.Equal(t, "2 3", entries(groups))
	require.True(t, groups[0].Proven)
	rest := h.rest()
	require.Equal(t, "1", entries(rest))
	require.False(t, rest[0].Proven)
}

// Two automators have planned one request. The plan that a report names is folded first. Without a report, the plan of
// the earliest entry is folded first.
func TestDeferredRequestFollowsExecutedPlan(t *testing.T) {
	st := state.New(ids.Domain{Tenant: "t", Workspace: "w"})
	planned := func(entry, run, plan string) fold.Group {
		return fold.Group{Entry: entry, ID: entry, Events: []*event.Envelope{
			{Payload: &event.RunTriggered{RunID: run, RequestID: "tick:x:1"}}, {Payload: &event.PlanCreated{RunID: run, PlanRef: "plans/" + plan + ".json"}},
		}}
	}
	first, second := strings.Repeat("a", 64), strings.Repeat("b", 64)
	started := fold.Group{Entry: "4", ID: "4", Events: []*event.Envelope{{Payload: &event.TaskStarted{
		AttemptRef: event.AttemptRef{RunID: "r"}, Plan: second[:16],
	}}}}
	enqueued := fold.Group{Entry: "3", ID: "3", Events: []*event.Envelope{{Payload: &event.DispatchEnqueued{RunID: "r"}}}}

	h := newDeferred()
	require.Empty(t, h.next(st, planned("1", "r", first)))
	require.Empty(t, h.next(st, planned("2", "r", second)))
	require.Equal(t, "3", entries(h.next(st, enqueued)), "it names no plan, and waits for the run")
	groups := h.next(st, started)
	require.Equal(t, "2 1 4", entries(groups))
	require.True(t, groups[0].Proven)

	h = newDeferred()
	require.Equal(t, "4", entries(h.next(st, started)), "the report has an earlier name")
	require.Empty(t, h.next(st, planned("5", "r", first)))
	require.Equal(t, "6", entries(h.next(st, planned("6", "r", second))))
	require.Equal(t, "5", entries(h.rest()))

	h = newDeferred()
	require.Empty(t, h.next(st, planned("1", "r", first)))
	require.Empty(t, h.next(st, planned("2", "r", second)))
	require.Equal(t, "1 2", entries(h.rest()))
}

func entries(groups []fold.Group) string {
	var names []string
	for _, g := range groups {
		names = append(names, g.Entry)
	}
	return strings.Join(names, " ")
}
