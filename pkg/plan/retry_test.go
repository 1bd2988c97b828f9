package plan_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/plan"
)

// x runs although a fails, y reads the output of x, and z reads another branch.
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

// c waits until a ends, but reads nothing of it.
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
