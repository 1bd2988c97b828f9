package fold_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/state"
)

func TestTriggerRuleDecidesTaskState(t *testing.T) {
	const s, f, k = event.Succeeded, event.Failed, event.Skipped
	for _, c := range []struct {
		rule string
		ends []event.Outcome // the outcomes of the upstreams a, b, …; "": the upstream has not ended
		want state.TaskState
	}{
		{"", []event.Outcome{s, s}, state.TaskReady},
		{event.RuleAllSuccess, []event.Outcome{s, s}, state.TaskReady},
		{event.RuleAllSuccess, []event.Outcome{s, ""}, state.TaskBlocked},
		{event.RuleAllSuccess, []event.Outcome{"", f}, state.TaskSkipped},
		{event.RuleAllSuccess, []event.Outcome{s, k}, state.TaskSkipped},
		{event.RuleNoneFailed, []event.Outcome{s, k}, state.TaskReady},
		{event.RuleNoneFailed, []event.Outcome{k, k}, state.TaskReady},
		{event.RuleNoneFailed, []event.Outcome{k, ""}, state.TaskBlocked},
		{event.RuleNoneFailed, []event.Outcome{"", f}, state.TaskSkipped},
		{event.RuleAllDone, []event.Outcome{f, k}, state.TaskReady},
		{event.RuleAllDone, []event.Outcome{f, ""}, state.TaskBlocked},
	} {
		w := foldtest.New(t)
		run := w.Run(
			foldtest.Task("a"), foldtest.Task("b"),
			event.TaskDef{TaskKey: "x", DependsOn: []string{"a", "b"}, TriggerRule: c.rule},
			event.TaskDef{TaskKey: "g", Kind: event.KindGroup, DependsOn: []string{"a", "b"}, TriggerRule: c.rule},
		)
		for i, outcome := range c.ends {
			if outcome != "" {
				w.MustFold(w.Finished(run, string(rune('a'+i)), 1, outcome))
			}
		}
		require.Equal(t, c.want, w.Task(run, "x").State, "%s of %q", c.rule, c.ends)
		group := c.want
		if group == state.TaskReady {
			group = state.TaskSucceeded // a group node ends immediately
		}
		require.Equal(t, group, w.Task(run, "g").State, "group, %s of %q", c.rule, c.ends)
	}
}

// Task a fails or is skipped, and so its downstream b is skipped. Tasks with the rules none_failed and all_done
// depend on b, but not on a.
func TestNoneFailedCountsSkipsBecauseOfAFailure(t *testing.T) {
	for outcome, want := range map[event.Outcome][]string{
		event.Failed:  {"a=FAILED", "b=SKIPPED", "g=SKIPPED", "viaGroup=SKIPPED", "x=SKIPPED", "y=SKIPPED", "z=READY"},
		event.Skipped: {"a=SKIPPED", "b=SKIPPED", "g=SKIPPED", "viaGroup=READY", "x=READY", "y=BLOCKED", "z=READY"},
	} {
		w := foldtest.New(t)
		rule := func(key, rule string, up ...string) event.TaskDef {
			def := foldtest.Task(key, up...)
			def.TriggerRule = rule
			return def
		}
		run := w.Run(
			foldtest.Task("a"), foldtest.Task("b", "a"), event.TaskDef{TaskKey: "g", Kind: event.KindGroup, DependsOn: []string{"b"}},
			rule("x", event.RuleNoneFailed, "b"), rule("y", event.RuleNoneFailed, "x"), rule("z", event.RuleAllDone, "b"),
			rule("viaGroup", event.RuleNoneFailed, "g"),
		)
		w.MustFold(w.Finished(run, "a", 1, outcome))
		require.Equal(t, want, w.States(run), "a %s", outcome)
		code := map[event.Outcome]string{event.Failed: fold.CodeUpstreamFailed, event.Skipped: fold.CodeUpstreamSkipped}[outcome]
		require.Equal(t, code, w.Task(run, "b").ErrorCode)
	}
}

// One upstream is skipped and another one fails. The result must be the same in either order.
func TestSkipAndFailureCommute(t *testing.T) {
	for _, order := range [][]string{{"a", "b"}, {"b", "a"}} {
		w := foldtest.New(t)
		run := w.Run(
			foldtest.Task("a"), foldtest.Task("b"), foldtest.Task("x", "a", "b"),
			event.TaskDef{TaskKey: "y", DependsOn: []string{"x"}, TriggerRule: event.RuleNoneFailed},
		)
		for _, key := range order {
			w.MustFold(w.Finished(run, key, 1, map[string]event.Outcome{"a": event.Skipped, "b": event.Failed}[key]))
		}
		require.Equal(t, []string{"a=SKIPPED", "b=FAILED", "x=SKIPPED", "y=SKIPPED"}, w.States(run), "%s", order)
	}
}

func TestGroupNodeStandsForUpstreams(t *testing.T) {
	w := foldtest.New(t)
	group := func(key string, up ...string) event.TaskDef {
		return event.TaskDef{TaskKey: key, Kind: event.KindGroup, DependsOn: up}
	}
	run := w.Run(
		foldtest.Task("p1"), foldtest.Task("p2"), group("p[*]", "p1", "p2"), group("pp[*]", "p[*]"),
		foldtest.Task("q1", "pp[*]"), foldtest.Task("q2", "pp[*]"), group("empty"), foldtest.Task("z", "empty"),
	)
	require.Equal(t, int32(5), w.State.Runs.Get(run).TasksTotal, "group nodes do not count as tasks")
	require.Equal(t, state.TaskReady, w.Task(run, "z").State, "a group node without upstreams ends at once")
	require.Equal(t, 3, w.State.Outbox.Len(), "group nodes are not dispatched")
	w.MustFold(w.Finished(run, "p1", 1, event.Succeeded))
	require.Equal(t, state.TaskBlocked, w.Task(run, "q1").State)
	w.MustFold(w.Finished(run, "p2", 1, event.Succeeded))
	require.Equal(t, []string{
		"empty=SUCCEEDED", "p1=SUCCEEDED", "p2=SUCCEEDED", "p[*]=SUCCEEDED", "pp[*]=SUCCEEDED", "q1=READY", "q2=READY", "z=READY",
	}, w.States(run))
}

func TestFailurePassesThroughGroupNode(t *testing.T) {
	w := foldtest.New(t)
	run := w.Run(
		foldtest.Task("p1"), foldtest.Task("p2"),
		event.TaskDef{TaskKey: "p[*]", Kind: event.KindGroup, DependsOn: []string{"p1", "p2"}}, foldtest.Task("q", "p[*]"),
	)
	w.MustFold(w.Finished(run, "p1", 1, event.Failed))
	require.Equal(t, []string{"p1=FAILED", "p2=READY", "p[*]=SKIPPED", "q=SKIPPED"}, w.States(run))
	require.Equal(t, state.RunRunning, w.RunState(run))
	w.MustFold(w.Finished(run, "p2", 1, event.Succeeded))
	require.Equal(t, state.RunFailed, w.RunState(run))
	require.Equal(t, "p2", w.State.Deps.Get(state.Key3{A: run, B: "p2", C: "p[*]"}).Upstream)
	require.Equal(t, state.ResolvedSuccess, w.State.Deps.Get(state.Key3{A: run, B: "p2", C: "p[*]"}).Resolution)
	require.Equal(t, int32(1), w.Task(run, "p[*]").DepsResolved, "the row of an ended task does not change")
}

func TestSkippedTaskLetsRunSucceed(t *testing.T) {
	w := foldtest.New(t)
	run := w.Run(foldtest.Task("a"), foldtest.Task("b", "a"))
	w.MustFold(w.Finished(run, "a", 1, event.Skipped))
	require.Equal(t, []string{"a=SKIPPED", "b=SKIPPED"}, w.States(run))
	require.Equal(t, state.RunSucceeded, w.RunState(run))
}
