package plan

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/servo-orchestration/servo/pkg/event"
)

func sortInputs(items []Input) {
	slices.SortFunc(items, func(a, b Input) int { return strings.Compare(a.PartitionKey, b.PartitionKey) })
}

// Retry plans a run that repeats the given tasks of an earlier run and all tasks that depend on them. A dependent task
// must run again: either it read the output of a repeated task, or its trigger rule let it run on incomplete inputs.
// Outputs of tasks that are not repeated become inputs from an earlier run. The parameter "outputs" maps the keys of
// these tasks to their materializations. The new plan keeps the group nodes that its tasks need. An order node makes
// tasks wait for others without reading their outputs. So a task that depends on a repeated task only through an order
// node is not repeated.
func Retry(parent *Plan, repeat []string, outputs map[string]Input) (*Plan, error) {
	r := retry{parent: parent, outputs: outputs, repeat: make(map[string]bool, len(repeat)), groups: map[string]bool{}, order: map[string]bool{}, dropped: map[string]bool{}}
	known := make(map[string]bool, len(parent.Tasks))
	r.tasks = make(map[string]*Task, len(parent.Tasks))
	if parent.OnlyChecks() {
		return nil, errors.New("its tasks only checked outputs: check the current outputs with `servo check`")
	}
	for i := range parent.Tasks {
		known[parent.Tasks[i].TaskKey] = true
		r.tasks[parent.Tasks[i].TaskKey] = &parent.Tasks[i]
	}
	for _, key := range repeat {
		if !known[key] {
			return nil, fmt.Errorf("the run has no task %s", key)
		}
		r.repeat[key] = true
	}
	r.plan = &Plan{
		SchemaVersion: SchemaVersion, Root: parent.Root, Source: parent.Source, Data: parent.Data, SecretVariables: parent.SecretVariables, Assets: map[string]Work{},
		PartitionColumns: parent.PartitionColumns, NoMerge: parent.NoMerge, Schemas: parent.Schemas,
	}
	for i := range parent.Tasks {
		r.add(&parent.Tasks[i])
	}
	if len(r.errs) > 0 {
		return nil, joinSome(r.errs)
	}
	r.dropIdleGroups()
	if len(r.plan.Tasks) == 0 && len(r.dropped) > 0 {
		return nil, fmt.Errorf("nothing to retry: %s: the tasks that did not succeed need an output that is degraded: make it again with `servo run`", CodeUpstreamDegraded)
	}
	if len(r.plan.Tasks) == 0 {
		return nil, errors.New("nothing to retry: every task of the run succeeded")
	}
	return r.plan, nil
}

type retry struct {
	parent  *Plan
	tasks   map[string]*Task // the tasks of the parent
	repeat  map[string]bool
	outputs map[string]Input
	groups  map[string]bool // the group nodes of the new plan
	order   map[string]bool // the order nodes among the group nodes
	plan    *Plan
	errs    []error
	// dropped are the tasks that the retry cannot repeat. They would read a degraded output that they must not read, or
	// they depend on a dropped task, directly or through a group node. A group node that depends on a dropped task is
	// dropped, too.
	dropped map[string]bool
}

// eachInput calls yield for each input of a task of the parent plan.
func (r *retry) eachInput(t *Task, yield func(asset string, in Input)) {
	for asset, set := range t.Inputs {
		for _, in := range set.Items {
			yield(asset, in)
		}
		for _, in := range r.parent.Groups[set.Group] {
			yield(asset, in)
		}
	}
}

// drop reports and records whether the retry cannot repeat a task. Such a task would read a degraded output that it
// must not read, or it depends on a dropped task. A dependency on a dropped task counts even if the trigger rule
// tolerates failures. Otherwise, the task would run without this upstream. If an older output of the upstream is
// visible, the fold would then count the task's output as fresh, although the task has not read that older output.
// Before drop is called for a task, add must have been called for the upstreams of the task.
func (r *retry) drop(t *Task) bool {
	if !r.repeat[t.TaskKey] {
		return false
	}
	r.eachInput(t, func(asset string, in Input) {
		out := r.outputs[in.TaskKey]
		refused := in.TaskKey != "" && !r.repeat[in.TaskKey] && out.Degraded && slices.Contains(t.RequireQuality, asset)
		if refused || r.dropped[in.TaskKey] {
			r.dropped[t.TaskKey] = true
		}
	})
	if r.lacks(t) {
		r.dropped[t.TaskKey] = true
	}
	if r.dropped[t.TaskKey] {
		delete(r.repeat, t.TaskKey)
	}
	return r.dropped[t.TaskKey]
}

// lacks reports whether a task depends on a task that was dropped.
func (r *retry) lacks(t *Task) bool {
	return slices.ContainsFunc(t.DependsOn, func(dep string) bool { return r.dropped[dep] })
}

// stays reports whether a task of the parent plan is repeated, or is a group node of the new plan.
func (r *retry) stays(key string) bool { return r.repeat[key] || r.groups[key] }

func (r *retry) add(old *Task) {
	task := Task{TaskDef: old.TaskDef, Period: old.Period, PreviousRows: old.PreviousRows, Past: old.Past, Season: old.Season}
	task.DependsOn = nil
	for _, dep := range old.DependsOn {
		if !r.stays(dep) {
			continue
		}
		task.DependsOn = append(task.DependsOn, dep)
		if old.Kind != event.KindGroup && !r.order[dep] {
			r.repeat[old.TaskKey] = true
		}
	}
	if old.Kind == event.KindGroup {
		delete(r.repeat, old.TaskKey)
		// Tasks that wait for an order node read nothing of the node's upstreams.
		if old.TriggerRule != event.RuleAllDone && r.lacks(old) {
			r.dropped[old.TaskKey] = true
		}
		if len(task.DependsOn) > 0 {
			r.groups[old.TaskKey] = true
			r.order[old.TaskKey] = old.TriggerRule == event.RuleAllDone
			r.plan.Tasks = append(r.plan.Tasks, task)
		}
		return
	}
	if !r.repeat[old.TaskKey] || r.drop(old) {
		return
	}
	if len(old.Inputs) > 0 {
		task.Inputs = make(map[string]InputSet, len(old.Inputs))
	}
	for _, asset := range slices.Sorted(maps.Keys(old.Inputs)) {
		set := old.Inputs[asset]
		task.Inputs[asset] = InputSet{Group: set.Group, Items: r.resolve(old.TaskKey, set.Items)}
		r.addShared(old.TaskKey, set.Group)
	}
	r.plan.Assets[old.AssetKey] = r.parent.Assets[old.AssetKey]
	if source, ok := r.parent.Sources[old.AssetKey]; ok {
		r.plan.setSource(old.AssetKey, source)
	}
	r.plan.Tasks = append(r.plan.Tasks, task)
}

// addShared adds the shared inputs of a group to the new plan, unless the plan has them already.
func (r *retry) addShared(reader, group string) {
	if group == "" {
		return
	}
	if _, done := r.plan.Groups[group]; done {
		return
	}
	if r.plan.Groups == nil {
		r.plan.Groups = map[string][]Input{}
	}
	r.plan.Groups[group] = r.resolve(reader, r.parent.Groups[group])
}

// resolve replaces an input with an output of the earlier run, if the retry does not repeat the task of the input.
func (r *retry) resolve(reader string, items []Input) []Input {
	if items == nil {
		return nil
	}
	resolved := make([]Input, 0, len(items))
	for _, in := range items {
		if in.TaskKey != "" && !r.repeat[in.TaskKey] {
			out, ok := r.outputs[in.TaskKey]
			if !ok {
				r.errs = append(r.errs, fmt.Errorf("task %s reads %s, which has no output: retry it too", reader, in.TaskKey))
				continue
			}
			out = outputOf(r.tasks[in.TaskKey], in.PartitionKey, out)
			in = Input{PartitionKey: in.PartitionKey, MaterializationID: out.MaterializationID, URI: out.URI}
		}
		resolved = append(resolved, in)
	}
	return resolved
}

// dropIdleGroups removes group nodes that no task waits for.
func (r *retry) dropIdleGroups() {
	awaited := map[string]bool{}
	for i := range r.plan.Tasks {
		for _, dep := range r.plan.Tasks[i].DependsOn {
			awaited[dep] = true
		}
	}
	r.plan.Tasks = slices.DeleteFunc(r.plan.Tasks, func(t Task) bool {
		return t.Kind == event.KindGroup && !awaited[t.TaskKey]
	})
}
