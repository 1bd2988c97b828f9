package repair

import (
	"slices"
	"sort"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/state"
)

// versions finds what a plan observed in a fold whose sequence numbers differ from those that the
// plan recorded: the greatest version that was made no later than the time of the observed state.
//
// It omits a version if a greater version is as old or older, so both columns ascend.
type versions []version

type version struct {
	at  event.Time
	seq int64
}

// note adds the versions that a folded group may have made.
func (v *versions) note(g fold.Group, r fold.Result) {
	if r.Known || r.Row.Outcome != state.Folded {
		return
	}
	for i, e := range g.Events {
		task, ended := e.Payload.(*event.TaskFinished)
		_, changed := e.Payload.(*event.PartitionsChanged)
		_, marked := e.Payload.(*event.PartitionsMarked)
		if changed || marked || ended && task.Outcome == event.Succeeded {
			v.add(version{e.Time, r.Row.FirstSeq + int64(i)})
		}
	}
}

func (v *versions) add(next version) {
	keep := len(*v)
	for keep > 0 && (*v)[keep-1].at >= next.at {
		keep--
	}
	*v = append((*v)[:keep], next)
}

// observed returns what the writers of the plans and marks of a group observed, by run or command. It returns nil if
// the group has neither.
func (v versions) observed(g fold.Group) map[string]int64 {
	if g.Reason != "" {
		return nil // refused: its events may not have been read
	}
	var observed map[string]int64
	note := func(id string, at event.Time) {
		if observed == nil {
			observed = map[string]int64{}
		}
		observed[id] = v.until(at)
	}
	for _, e := range g.Events {
		if p, ok := e.Payload.(*event.PlanCreated); ok {
			note(p.RunID, p.ObservedTime)
		}
		if p, ok := e.Payload.(*event.PartitionsMarked); ok {
			note(p.CommandID, p.ObservedTime)
		}
	}
	return observed
}

// until returns the greatest version no later than a time, or 0.
func (v versions) until(at event.Time) int64 {
	n := sort.Search(len(v), func(i int) bool { return v[i].at > at })
	if n == 0 {
		return 0
	}
	return v[n-1].seq
}

// deployments holds deployments back until an event shows which of them was folded first. Each of
// them expects the current release or one that another of them deploys; the others were rejected.
type deployments []fold.Group

// add returns the groups to fold when it is the turn of a group with a deployment.
func (d *deployments) add(g fold.Group, p *event.ProjectDeployed) []fold.Group {
	groups := d.settle(p.Expects)
	if p.Force { // a forced deployment follows all deployments that its writer saw
		groups = append(groups, d.rest()...)
		return append(groups, g)
	}
	*d = append(*d, g)
	return groups
}

// settle returns the waiting deployments if one of them has deployed a release: this one first.
func (d *deployments) settle(release string) []fold.Group {
	i := slices.IndexFunc(*d, func(g fold.Group) bool { return deploymentIn(g).Release == release })
	if release == "" || i < 0 {
		return nil
	}
	first := (*d)[i]
	*d = slices.Delete(*d, i, i+1)
	return append([]fold.Group{first}, d.rest()...)
}

// rest returns the waiting deployments in the order of their ids.
func (d *deployments) rest() []fold.Group {
	groups := *d
	*d = nil
	return groups
}

// deploymentIn returns the deployment in a group, or nil.
func deploymentIn(g fold.Group) *event.ProjectDeployed {
	for _, e := range g.Events {
		if p, ok := e.Payload.(*event.ProjectDeployed); ok {
			return p
		}
	}
	return nil
}
