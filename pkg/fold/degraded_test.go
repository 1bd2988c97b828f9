package fold_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/state"
)

// rated returns the definition of a task with a check of severity ERROR.
func rated(key string) event.TaskDef {
	def := foldtest.Task(key)
	def.ErrorChecks = []string{"c"}
	return def
}

// strict returns the definition of a task that must not read degraded outputs of its upstreams.
func strict(key string, upstreams ...string) event.TaskDef {
	def := foldtest.Task(key, upstreams...)
	for _, up := range upstreams {
		def.RequireQuality = append(def.RequireQuality, "test/"+up)
	}
	return def
}

// judged returns a worker's report of a success. The parameter passed is the result of the task's check.
func judged(w *foldtest.World, run, key string, passed bool) *event.TaskFinished {
	p := w.Finished(run, key, 1, event.Succeeded)
	p.CheckResults = []event.CheckResult{{Name: "c", Phase: "POST", Passed: passed, Message: "m"}}
	return p
}

// If an output is degraded, only the tasks that require its quality are skipped. If another upstream fails, these
// tasks are skipped because of the failure, regardless of which upstream ends first.
func TestDegradedOutputSkipsStrictReaders(t *testing.T) {
	for _, order := range [][]string{{"a", "b"}, {"b", "a"}} {
		w := foldtest.New(t)
		run := w.Run(rated("a"), rated("b"), strict("strict", "a", "b"), foldtest.Task("lax", "a", "b"), foldtest.Task("after", "strict"), strict("good", "b"))
		for _, key := range order {
			w.MustFold(judged(w, run, key, key == "b"))
		}
		require.Equal(t, fold.CodeUpstreamDegraded, w.Task(run, "strict").ErrorCode)
		require.Equal(t, fold.CodeUpstreamSkipped, w.Task(run, "after").ErrorCode)
		require.Equal(t, []string{"a=SUCCEEDED", "after=SKIPPED", "b=SUCCEEDED", "good=READY", "lax=READY", "strict=SKIPPED"}, w.States(run))
	}
	for _, order := range [][]string{{"a", "b"}, {"b", "a"}} {
		w := foldtest.New(t)
		run := w.Run(rated("a"), rated("b"), strict("strict", "a", "b"))
		for _, key := range order {
			p := judged(w, run, key, false)
			if key == "b" {
				p = w.Finished(run, key, 1, event.Failed)
			}
			w.MustFold(p)
		}
		require.Equal(t, fold.CodeUpstreamFailed, w.Task(run, "strict").ErrorCode)
	}
}

// A group node represents its upstreams: if one upstream's output is degraded, the node is degraded.
func TestDegradedOutputPassesGroupNode(t *testing.T) {
	for _, order := range [][]string{{"a", "b"}, {"b", "a"}} {
		w := foldtest.New(t)
		group := event.TaskDef{TaskKey: "g", Kind: event.KindGroup, AssetKey: "test/a", DependsOn: []string{"a", "b"}, TriggerRule: event.RuleAllSuccess}
		gap := event.TaskDef{TaskKey: "o", Kind: event.KindGroup, AssetKey: "test/a", DependsOn: []string{"a", "b"}, TriggerRule: event.RuleAllDone}
		reader, waiter := strict("reader", "a"), strict("waiter", "a")
		reader.DependsOn, waiter.DependsOn = []string{"g"}, []string{"o"}
		run := w.Run(rated("a"), rated("b"), group, gap, reader, waiter)
		for _, key := range order {
			w.MustFold(judged(w, run, key, key == "b"))
		}
		require.Equal(t, state.TaskSkipped, w.Task(run, "reader").State)
		require.Equal(t, state.TaskReady, w.Task(run, "waiter").State, "an order node has no quality")
	}
}
