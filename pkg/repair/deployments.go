package repair

import (
	"cmp"
	"slices"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/state"
)

// deployments holds deployments back until an event proves that one of them was accepted. If a deployment expects
// neither the current release nor the release of another waiting deployment, the original fold rejected it. These
// events prove a deployment:
//
//   - a definition of schedules, which names the id of the deployment that its writer saw as the current one;
//   - a run, a refused request, a command to forget assets or a later deployment, which names the release;
//   - a command about an alert rule or an event about a deadline, because only a deployment can have defined the rule
//     or the deadline.
//
// If waiting deployments of several releases could explain an event, the event proves none of them.
type deployments struct {
	waiting []fold.Group // sorted by the ids of the deployments
	// early contains definitions of schedules whose deployment has not been read yet, by the id of the deployment.
	early      map[string][]fold.Group
	earlyOrder []string
}

// add takes the next group, which contains a deployment, and returns the groups to fold now.
func (d *deployments) add(st *state.State, g fold.Group, p *event.ProjectDeployed) []fold.Group {
	var groups []fold.Group
	if !p.Force { // a forced deployment is accepted even if it expects another release
		groups = d.settleRelease(st, p.Expects)
	}
	i, _ := slices.BinarySearchFunc(d.waiting, p.DeployID, func(g fold.Group, id string) int { return cmp.Compare(deploymentIn(g).DeployID, id) })
	d.waiting = slices.Insert(d.waiting, i, g)
	if definitions := d.early[p.DeployID]; len(definitions) > 0 {
		delete(d.early, p.DeployID)
		groups = append(append(groups, d.settle(i)...), definitions...)
	}
	return groups
}

// wait holds back a definition of schedules if its deployment has not been read yet, and reports whether it did.
func (d *deployments) wait(st *state.State, g fold.Group) bool {
	for _, e := range g.Events {
		p, ok := e.Payload.(*event.SchedulesDefined)
		if !ok || st.Deployments.Get(p.DeployID) != nil || st.Deployment() != nil && p.DeployID < st.Deployment().DeployID {
			continue
		}
		if d.early == nil {
			d.early = map[string][]fold.Group{}
		}
		if len(d.early[p.DeployID]) == 0 {
			d.earlyOrder = append(d.earlyOrder, p.DeployID)
		}
		d.early[p.DeployID] = append(d.early[p.DeployID], g)
		return true
	}
	return false
}

// provenBy returns the waiting deployments whose acceptance or rejection an event proves. They must be folded before
// the event, in the returned order.
func (d *deployments) provenBy(st *state.State, p event.Payload) []fold.Group {
	if len(d.waiting) == 0 {
		return nil
	}
	switch p := any(p).(type) { // only a few events depend on which deployment is current
	case *event.RunTriggered:
		if p.RootRun == "" { // a retry has the release of its parent run, which may be an old release
			return d.settleRelease(st, p.Release)
		}
	case *event.RequestRefused:
		return d.settleRelease(st, p.Release)
	case *event.AssetsForgotten:
		return d.settleRelease(st, p.Release)
	case *event.SchedulesDefined:
		return d.settleFirst(func(w *event.ProjectDeployed) bool { return w.DeployID == p.DeployID })
	case *event.AutomationCommand:
		if lacksRule(st, p) {
			return d.settleFirst(func(w *event.ProjectDeployed) bool { return hasRule(w, p.Name) })
		}
	case *event.DeadlineJudged:
		for i := range p.Items {
			item := &p.Items[i]
			if row := st.Promises.Get(item.Asset); row != nil && row.Version == item.Version {
				continue
			}
			if groups := d.settleFirst(func(w *event.ProjectDeployed) bool { return hasDeadline(w, item) }); groups != nil {
				return groups
			}
		}
	}
	return nil
}

// settleRelease is called when an event proves that a release was deployed. It calls settle for the deployment of the
// release, unless the release is the current one already.
func (d *deployments) settleRelease(st *state.State, release string) []fold.Group {
	if release == "" || st.Release() == release {
		return nil
	}
	return d.settleFirst(func(w *event.ProjectDeployed) bool { return w.Release == release })
}

// settleFirst calls settle for the first waiting deployment that matches, and returns the groups to fold. If
// deployments of several releases match, none of them is proven, and settleFirst returns nil.
func (d *deployments) settleFirst(fits func(*event.ProjectDeployed) bool) []fold.Group {
	first := -1
	for i, g := range d.waiting {
		switch w := deploymentIn(g); {
		case !fits(w):
		case first < 0:
			first = i
		case w.Release != deploymentIn(d.waiting[first]).Release:
			return nil
		}
	}
	if first < 0 {
		return nil
	}
	return d.settle(first)
}

// settle is called when an event proves that the i-th waiting deployment was accepted, and returns the groups to
// fold: first the deployments on which it is based, then the deployment itself, then the older deployments on which
// it is not based. Deployments with greater ids keep waiting.
func (d *deployments) settle(i int) []fold.Group {
	won := d.waiting[i]
	older := slices.Clone(d.waiting[:i])
	d.waiting = slices.Delete(d.waiting, 0, i+1)
	won.Proven = true
	if deploymentIn(won).Force { // a forced deployment came after every deployment that its writer saw
		return append(older, won)
	}
	groups, lost := divideOlder(older, deploymentIn(won).Expects)
	return append(append(groups, won), lost...)
}

// divideOlder divides the older deployments for a newer deployment, which expects a release. The newer deployment is
// based on the deployments in bases, directly or indirectly, and not on those in unrelated.
func divideOlder(older []fold.Group, release string) (bases, unrelated []fold.Group) {
	var fit []int
	for i, g := range older {
		if deploymentIn(g).Release == release {
			fit = append(fit, i)
		}
	}
	if len(fit) == 0 {
		return nil, older
	}
	if len(fit) > 1 { // fold them all: the fold accepts only those that expect the current release
		for i, g := range older {
			if slices.Contains(fit, i) {
				bases = append(bases, g)
			} else {
				unrelated = append(unrelated, g)
			}
		}
		return bases, unrelated
	}
	last := older[fit[0]]
	last.Proven = true
	if deploymentIn(last).Force {
		bases = slices.Clone(older[:fit[0]])
	} else {
		bases, unrelated = divideOlder(older[:fit[0]], deploymentIn(last).Expects)
	}
	return append(bases, last), append(slices.Clone(unrelated), older[fit[0]+1:]...)
}

// rest removes and returns all groups that still wait. No event proves which of these deployments were accepted.
func (d *deployments) rest() []fold.Group {
	groups := d.waiting
	for _, id := range d.earlyOrder {
		groups = append(groups, d.early[id]...)
	}
	*d = deployments{}
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

// lacksRule reports whether a command is about an alert rule that does not exist.
func lacksRule(st *state.State, p *event.AutomationCommand) bool {
	return p.Target == event.TargetAlert && p.Verb != event.VerbTest && st.AlertRules.Get(p.Name) == nil
}

func hasRule(p *event.ProjectDeployed, rule string) bool {
	return slices.ContainsFunc(p.Alerts, func(r event.AlertRule) bool { return r.Name == rule })
}

func hasDeadline(p *event.ProjectDeployed, item *event.JudgedDeadline) bool {
	return slices.ContainsFunc(p.Watched, func(w event.WatchedAsset) bool {
		return w.Asset == item.Asset && w.Deadline != nil && w.Deadline.Version() == item.Version
	})
}

// earlyCommands holds back commands whose schedule or rule does not exist yet. The event that creates the schedule or
// rule may be in an entry with a greater name, or may be one of several competing deployments that are held back.
type earlyCommands []fold.Group

// maxEarly is how long, in the ledger's time, a command waits for the event that creates its schedule or rule.
const maxEarly = maxClaim

// wait holds back a command if it must wait, and reports whether it did.
func (c *earlyCommands) wait(st *state.State, g fold.Group) bool {
	if !early(st, g) {
		return false
	}
	*c = append(*c, g)
	return true
}

// due removes and returns the commands that no longer have to wait at the given time.
func (c *earlyCommands) due(st *state.State, d *deployments, now event.Time) (groups []fold.Group) {
	*c = slices.DeleteFunc(*c, func(g fold.Group) bool {
		over := now.Sub(g.Events[0].Time) >= maxEarly && !slices.ContainsFunc(g.Events, func(e *event.Envelope) bool {
			p, ok := e.Payload.(*event.AutomationCommand)
			return ok && p.Target == event.TargetAlert &&
				slices.ContainsFunc(d.waiting, func(w fold.Group) bool { return hasRule(deploymentIn(w), p.Name) })
		})
		if over || !early(st, g) {
			groups = append(groups, g)
			return true
		}
		return false
	})
	return groups
}

// early reports whether a group has a command about a schedule or a rule that does not exist.
func early(st *state.State, g fold.Group) bool {
	return slices.ContainsFunc(g.Events, func(e *event.Envelope) bool {
		p, ok := e.Payload.(*event.AutomationCommand)
		if !ok {
			return false
		}
		if p.Target == event.TargetSchedule {
			row := st.Schedules.Get(p.Name)
			return row == nil || row.RemovedAt != 0
		}
		return lacksRule(st, p)
	})
}
