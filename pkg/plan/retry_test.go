package plan_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/plan"
)

// Task a fails. Task x reads the outputs of a and b, and runs nevertheless. Task y reads the output of x. Task z
// reads only b.
func TestRetryRepeatsTasksWithIncompleteInputs(t *testing.T) {
	task := func(key, rule string, deps ...string) plan.Task {
		def := event.TaskDef{TaskKey: key, Kind: event.KindTask, AssetKey: key, DependsOn: deps, TriggerRule: rule, MaxAttempts: 1}
		inputs := map[string]plan.InputSet{}
		for _, dep := range deps {
			inputs[dep] = plan.InputSet{Items: []plan.Input{{TaskKey: dep}}}
		}
		return plan.Task{TaskDef: def, Inputs: inputs}
	}
	p := &plan.Plan{SchemaVersion: plan.SchemaVersion, Root: "/p", Assets: map[string]plan.Work{}}
	p.Tasks = []plan.Task{
		task("t/a", ""), task("t/b", ""), task("t/x", event.RuleAllDone, "t/a", "t/b"), task("t/y", "", "t/x"), task("t/z", "", "t/b"),
	}
	outputs := map[string]plan.Input{}
	for _, task := range p.Tasks {
		p.Assets[task.AssetKey] = plan.Work{Command: []string{"work"}}
		if task.TaskKey != "t/a" {
			outputs[task.TaskKey] = plan.Input{MaterializationID: "M-" + task.TaskKey, URI: "assets/" + task.TaskKey + "/"}
		}
	}
	again, err := plan.Retry(p, []string{"t/a"}, outputs)
	require.NoError(t, err)
	require.NoError(t, again.Validate())
	var keys []string
	for _, task := range again.Tasks {
		keys = append(keys, task.TaskKey)
	}
	require.Equal(t, []string{"t/a", "t/x", "t/y"}, keys)
	require.Equal(t, []string{"t/a"}, again.Tasks[1].DependsOn)
	require.Equal(t, plan.InputSet{Items: []plan.Input{{TaskKey: "t/a"}}}, again.Tasks[1].Inputs["t/a"])
	require.Equal(t, plan.InputSet{Items: []plan.Input{outputs["t/b"]}}, again.Tasks[1].Inputs["t/b"])
	require.Equal(t, plan.InputSet{Items: []plan.Input{{TaskKey: "t/x"}}}, again.Tasks[2].Inputs["t/x"])
}

// Task c waits until task a ends, but reads nothing of a.
func TestRetryIgnoresOrderNodes(t *testing.T) {
	def := func(key, kind, rule string, deps ...string) plan.Task {
		return plan.Task{TaskDef: event.TaskDef{TaskKey: key, Kind: kind, AssetKey: "t/a", DependsOn: deps, TriggerRule: rule, MaxAttempts: 1}}
	}
	p := &plan.Plan{SchemaVersion: plan.SchemaVersion, Root: "/p", Assets: map[string]plan.Work{"t/a": {Command: []string{"work"}}}, Tasks: []plan.Task{
		def("t/a", event.KindTask, ""), def("order", event.KindGroup, event.RuleAllDone, "t/a"), def("t/c", event.KindTask, "", "order"),
	}}
	again, err := plan.Retry(p, []string{"t/a"}, map[string]plan.Input{"t/c": {MaterializationID: "M", URI: "u/"}})
	require.NoError(t, err)
	require.Len(t, again.Tasks, 1)
}

// Task u requires that the output of x is not degraded. This output is degraded, so the retry cannot repeat u. The
// retry must then omit the tasks that depend on u, too. In a plan without u, these tasks would read no output of u. But
// an older output of u may be visible, and the fold would count the outputs of these tasks as fresh. A task that only
// waits for u through an order node is kept.
func TestI21RetryOmitsReadersOfDroppedTask(t *testing.T) {
	task := func(key, rule string, deps ...string) plan.Task {
		def := event.TaskDef{TaskKey: key, Kind: event.KindTask, AssetKey: key, DependsOn: deps, TriggerRule: rule, MaxAttempts: 1}
		inputs := map[string]plan.InputSet{}
		for _, dep := range deps {
			inputs[dep] = plan.InputSet{Items: []plan.Input{{TaskKey: dep}}}
		}
		return plan.Task{TaskDef: def, Inputs: inputs}
	}
	group := func(key, rule string, deps ...string) plan.Task {
		return plan.Task{TaskDef: event.TaskDef{TaskKey: key, Kind: event.KindGroup, AssetKey: "t/u", DependsOn: deps, TriggerRule: rule, MaxAttempts: 1}}
	}
	for _, rule := range []string{event.RuleAllSuccess, event.RuleNoneFailed, event.RuleAllDone} {
		tasks := []plan.Task{
			task("t/x", ""), task("t/u", "", "t/x"), task("t/w", ""), task("t/p", rule, "t/u", "t/w"), task("t/none", rule, "t/u"),
			group("group", event.RuleAllSuccess, "t/u"), task("t/all", rule, "group"),
			group("order", event.RuleAllDone, "t/u"), task("t/after", rule, "order"),
		}
		tasks[1].RequireQuality = []string{"t/x"}
		for _, without := range []int{4, 6, 8} { // these tasks read nothing of t/u
			tasks[without].Inputs = nil
		}
		p := &plan.Plan{SchemaVersion: plan.SchemaVersion, Root: "/p", Assets: map[string]plan.Work{}, Tasks: tasks}
		var repeat []string
		for i := range tasks {
			if tasks[i].Kind == event.KindTask && tasks[i].TaskKey != "t/x" {
				repeat = append(repeat, tasks[i].TaskKey)
			}
			p.Assets[tasks[i].AssetKey] = plan.Work{Command: []string{"work"}}
		}
		again, err := plan.Retry(p, repeat, map[string]plan.Input{"t/x": {MaterializationID: "M", URI: "u/", Degraded: true}})
		require.NoError(t, err)
		var keys []string
		for i := range again.Tasks {
			keys = append(keys, again.Tasks[i].TaskKey)
		}
		require.Equal(t, []string{"t/w", "t/after"}, keys, rule)
	}
}
