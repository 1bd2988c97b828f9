package fold

import (
	"fmt"
	"strings"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/state"
)

// checkDeployment rejects a deployment if its writer expected a different current release. It also rejects a deployment
// that is older than the current one, so that a repeated event never undoes a later deployment. In a rebuild from the
// bare ledger, other events may prove that a deployment was accepted. In this case, checkDeployment ignores the release
// that its writer expected.
func (f *folder) checkDeployment(p *event.ProjectDeployed, c *checked, proven bool) verdict {
	if f.recorded(p.DeployID) {
		return verdict{} // the deployment has already been folded
	}
	current, release := "", ""
	if row := f.st.Deployment(); row != nil {
		current, release = row.DeployID, row.Release
	}
	if c.deployed != nil {
		current, release = c.deployed.DeployID, c.deployed.Release
	}
	switch {
	case p.DeployID <= current:
		return verdict{outcome: state.Conflict, detail: "the later deployment " + current + " of release " + release + " is current"}
	case p.Force || proven:
	case p.Expects != release && release == "":
		return verdict{outcome: state.Conflict, detail: "no release is deployed, expected " + p.Expects}
	case p.Expects != release:
		return verdict{outcome: state.Conflict, detail: "release " + release + " is deployed, expected " + orDefault(p.Expects, "none")}
	}
	return verdict{}
}

// recorded reports whether a deployment was folded earlier and is not old enough to move to history. An older row
// counts as absent even if it is still in the live state: a replay moves rows to history later than the compactor did,
// and must come to the same result.
func (f *folder) recorded(id string) bool {
	row := f.st.Deployments.Get(id)
	return row != nil && !row.Closed(f.st.FoldTime)
}

// projectDeployed makes a release the current one. It changes no run and no partition.
func (f *folder) projectDeployed(p *event.ProjectDeployed) verdict {
	if f.recorded(p.DeployID) {
		return noChange
	}
	schedules, pending := "", false
	if current := f.st.Deployment(); current != nil {
		schedules, pending = current.Schedules, current.SchedulesPending
		row := *current
		row.SupersededAt, row.SupersededBy = f.at(), p.DeployID
		put(f, f.st.Deployments, &row)
	}
	row := &state.Deployment{
		DeployID: p.DeployID, Release: p.Release, Kind: p.Kind, Environment: p.Environment, Actor: f.ev.Actor,
		Message: p.Message, Changes: jsonOf(p.Changes), DeployedAt: f.at(),
		Schedules: p.Schedules, SchedulesPending: pending || p.Schedules != schedules,
	}
	if p.Git != nil {
		row.Git = jsonOf(p.Git)
	}
	put(f, f.st.Deployments, row)
	f.defineAlerts(p.Alerts)
	f.defineDeadlines(p.Watched)
	if p.Kind != event.DeployLocal {
		f.alert(transition{
			causes: []string{event.CauseDeploy}, needsNoRecovery: true, code: p.Kind,
			message: strings.TrimSpace(fmt.Sprintf("release %.12s was deployed by %s. %s", p.Release, orDefault(f.ev.Actor, "an unknown principal"), p.Message)),
		})
	}
	for _, a := range p.Accept {
		put(f, f.st.AcceptedCodes, &state.AcceptedCode{AssetKey: a.Asset, Code: a.Code, Accepts: jsonOf(a.Accepts)})
	}
	return folded
}
