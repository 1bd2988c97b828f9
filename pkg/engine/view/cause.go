package view

import (
	"slices"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/state"
)

// maxChain limits the length of a chain of causes.
const maxChain = 50

// cause returns the chain of upstream tasks that made the task end without running, nearest first.
func (x *explainer) cause(upstreams []Edge) []Cause {
	if x.task.State != state.TaskSkipped && x.task.State != state.TaskCancelled {
		return nil
	}
	var chain []Cause
	for len(chain) < maxChain {
		at := slices.IndexFunc(upstreams, func(e Edge) bool { return e.Resolution == state.ResolvedFailed })
		if at < 0 {
			at = slices.IndexFunc(upstreams, func(e Edge) bool {
				return e.Resolution == state.ResolvedSkipped || e.Resolution == state.ResolvedCancelled
			})
		}
		if at < 0 {
			break
		}
		up := x.s.Tasks.Get(state.Key2{A: x.task.RunID, B: upstreams[at].TaskKey})
		if up == nil {
			break
		}
		chain = append(chain, Cause{TaskKey: up.TaskKey, State: up.State, Error: Problem(up.ErrorCode, up.ErrorMessage)})
		if up.State == state.TaskFailed {
			break
		}
		upstreams = x.upstreams(up.TaskKey)
	}
	return chain
}

// roots returns the failed tasks upstream of a task that ended without running.
func (x *explainer) roots() []string {
	if x.task.State != state.TaskSkipped && x.task.State != state.TaskCancelled {
		return nil
	}
	above := map[string][]string{} // the upstream tasks that did not succeed
	x.s.Deps.Ascend(state.Key3{A: x.task.RunID}, func(d *state.Dep) bool {
		if d.RunID == x.task.RunID && d.Resolution != state.ResolvedSuccess {
			above[d.Downstream] = append(above[d.Downstream], d.Upstream)
		}
		return d.RunID == x.task.RunID
	})
	var failed []string
	seen := map[string]bool{}
	for queue := slices.Clone(above[x.task.TaskKey]); len(queue) > 0; queue = queue[1:] {
		up := x.s.Tasks.Get(state.Key2{A: x.task.RunID, B: queue[0]})
		if up == nil || seen[up.TaskKey] {
			continue
		}
		seen[up.TaskKey] = true
		if up.State == state.TaskFailed && up.Kind != event.KindGroup {
			failed = append(failed, up.TaskKey)
			continue
		}
		queue = append(queue, above[up.TaskKey]...)
	}
	slices.Sort(failed)
	return failed
}
