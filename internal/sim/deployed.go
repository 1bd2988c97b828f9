package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/staleness"
	"github.com/servo-orchestration/servo/pkg/state"
)

// releases are the releases that clients deploy.
var releases = []string{strings.Repeat("1", 64), strings.Repeat("2", 64), strings.Repeat("3", 64)}

// codeOf returns the code fingerprint of an asset in the release with a version number. Version 0 means that there is
// no release. Between two consecutive releases, half of the assets change.
func codeOf(version, asset int) string {
	if version == 0 {
		return ""
	}
	return fmt.Sprintf("%016x", asset<<8|(version+asset%2)/2)
}

// coded returns the assets of a project with the code fingerprints that they have in a release.
func (p *project) coded(version int) []plan.Asset {
	assets := slices.Clone(p.assets)
	for i := range assets {
		assets[i].Code = codeOf(version, i)
	}
	return assets
}

// drawDeployments inserts deployments into the scripts of half of the worlds.
func (l *workload) drawDeployments(span time.Duration) {
	r := random(l.w.cfg.Seed, "deployments", 0)
	if r.IntN(2) == 0 {
		return
	}
	for range 1 + r.IntN(6) {
		client := fmt.Sprintf("client%d", r.IntN(l.w.cfg.Clients))
		script := l.scripts[client]
		a := ask{after: time.Duration(r.Int64N(int64(span) + 1)), verb: askDeploy, project: l.projects[r.IntN(len(l.projects))]}
		l.scripts[client] = slices.Insert(script, r.IntN(len(script)+1), a)
	}
}

// deploy deploys a random release, sometimes as a rollback. Some deployments expect a release that may not be the
// current one, and some are forced.
func (c *client) deploy(ctx context.Context, e *clientEngine) error {
	load := c.p.machine.w.load
	releases := load.releasesOf(e.domain)
	current, err := e.CurrentDeployment(ctx)
	if err != nil {
		return err
	}
	r := engine.DeployRequest{
		Release: releases[c.rng.IntN(len(releases))], Expects: current.Release, Force: c.rng.IntN(8) == 0, Kind: event.DeployRelease,
	}
	if c.rng.IntN(4) == 0 {
		r.Expects = releases[c.rng.IntN(len(releases))]
	}
	if c.rng.IntN(3) == 0 {
		r.Kind = event.DeployRollback
	}
	if r.Schedules, err = load.schedulesOf(ctx, e, r.Release); err != nil {
		return err
	}
	r.Alerts, r.Watched = load.alertsOf(e.domain), load.watchedOf(e.domain)
	_, err = e.Deploy(ctx, r)
	conflict := new(engine.ReleaseConflictError)
	if errors.As(err, &conflict) {
		return nil
	}
	return err
}

// noteDeployments remembers the deployments that a ledger entry contains.
func (f *followed) noteDeployments(data []byte) {
	for _, group := range event.Groups(event.DecodeEntry(data)) {
		for _, e := range group.Events {
			if p, ok := e.Payload.(*event.ProjectDeployed); ok {
				f.deployed[p.DeployID] = p
			}
		}
	}
}

// checkDeployments checks that each new deployment replaced the release that it expected, and that
// deployments changed no run.
func (o *oracle) checkDeployments(f *followed, before, after *state.State) {
	replaced, current := map[string]string{}, 0
	for row := range after.Deployments.All {
		if row.SupersededAt == 0 {
			current++
		} else {
			replaced[row.SupersededBy] = row.Release
		}
	}
	if n := after.Deployments.Len(); n > 0 && (current != 1 || after.Deployment().SupersededAt != 0) {
		o.violation("I-19 code is pinned", "%d of %d deployments of %s are current: want one, the newest", current, n, f.domain)
	}
	for row := range after.Deployments.All {
		p := f.deployed[row.DeployID]
		if before.Deployments.Get(row.DeployID) == nil && p != nil && !p.Force && p.Expects != replaced[row.DeployID] {
			o.violation("I-19 code is pinned", "deployment %s of %s replaced release %.4q, but expected %.4q",
				row.DeployID, f.domain, replaced[row.DeployID], p.Expects)
		}
	}
	for is := range changed(f, after.Runs) {
		was := before.Runs.Get(is.RunID)
		if was != nil && was.PlanRef != "" && (was.Release != is.Release || was.Root() != is.Root() || was.InputsSeq != is.InputsSeq) {
			o.violation("I-19 code is pinned", "run %s of %s changed its release, its chain or its inputs", is.RunID, f.domain)
		}
	}
	for is := range changed(f, after.Tasks) {
		if was := before.Tasks.Get(is.Key()); was != nil && was.Code != is.Code {
			o.violation("I-19 code is pinned", "task %s of run %s changed its code from %s to %s", is.TaskKey, is.RunID, was.Code, is.Code)
		}
	}
	for is := range changed(f, after.Partitions) {
		t := after.Tasks.Get(state.Key2{A: is.RunID, B: is.TaskKey})
		if t != nil && t.Code != is.Code {
			o.violation("I-19 code is pinned", "partition %s %s records code %s, but its task has %s", is.AssetKey, is.PartitionKey, is.Code, t.Code)
		}
	}
}

// checkFreshness compares each fresh partition with the outputs that its task has read. A plan names an output of the
// same run by its task, and an output of an earlier run by its id.
func (o *oracle) checkFreshness(f *followed) {
	if f.unordered || len(f.state.Deployments.Rows()) == 0 {
		return
	}
	var assets []plan.Asset
	for _, p := range o.w.load.projects {
		if p.domain == f.domain {
			assets = append(assets, p.coded(o.w.load.version(f.domain, f.state.Release()))...)
		}
	}
	e, err := engine.Staleness(context.Background(), &snapshot.Snapshot{State: f.state}, assets, o.w.now())
	if err != nil {
		o.violation("I-21 never fresh when stale", "%v", err)
		return
	}
	for i := range assets {
		partitions, err := e.Partitions(assets[i].Key)
		if err != nil {
			o.violation("I-21 never fresh when stale", "%v", err)
			return
		}
		codes := codesOf(assets, &assets[i])
		for _, p := range partitions {
			if p.Status != staleness.Fresh {
				continue
			}
			row := f.state.Partitions.Get(state.Key2{A: assets[i].Key.String(), B: p.Key})
			if row.Code != "" && !slices.Contains(codes(p.Key), row.Code) {
				o.violation("I-21 never fresh when stale", "%s is fresh with code %s, but the current code is %s", row.TaskKey, row.Code, assets[i].Code)
			}
			o.checkFreshInputs(f, row, o.freshMark(f, row))
		}
	}
}

// codesOf returns a function that maps a partition of an asset to the code fingerprints that a fresh version may
// have. They depend on the partition: if an asset reads itself, the windows of its first partitions are shortened,
// because they would begin before the first period.
func codesOf(assets []plan.Asset, a *plan.Asset) func(partition string) []string {
	g, err := plan.NewGraph(assets)
	if err != nil {
		panic("sim: " + err.Error())
	}
	windows, err := g.Readers(plan.Calendar{}).Windows(a)
	if err != nil {
		panic("sim: " + err.Error())
	}
	codes := windows.Codes(a.Code)
	return func(partition string) []string {
		clip, err := windows.Clip(partition)
		if err != nil {
			panic("sim: " + err.Error())
		}
		return codes[clip]
	}
}

// plannedRun is the plan of a run.
type plannedRun struct {
	*plan.Plan

	byKey map[string][]int // indexes of the plan's tasks, by key
}

// planOf returns the plan of a run, or nil if it cannot be read. It caches the plans, because they never change.
func (o *oracle) planOf(run *state.Run) *plannedRun {
	if known, ok := o.decoded[run.PlanRef]; ok {
		return known
	}
	data, _, err := o.w.blobs.Get(context.Background(), run.PlanRef)
	if err != nil {
		return nil
	}
	built, err := plan.Decode(data)
	if err != nil {
		return nil
	}
	p := &plannedRun{Plan: built, byKey: map[string][]int{}}
	for i := range built.Tasks {
		p.byKey[built.Tasks[i].TaskKey] = append(p.byKey[built.Tasks[i].TaskKey], i)
	}
	o.decoded[run.PlanRef] = p
	return p
}

// readFor reports whether a task reads a partition of an upstream to materialize one of the partitions of its batch.
// If the upstream has the same partitions as the batch, the task reads for each of them only the upstream's partition
// with the same key (ADR 113).
func readFor(batch []string, partition, input string) bool {
	return input == partition || !slices.Contains(batch, input)
}

// checkFreshInputs checks that a fresh partition has read the visible output of each input. If a person has marked the
// partition as fresh, declared is the fold sequence number up to which the mark applies: the partition need not have
// read outputs that became visible up to this number.
func (o *oracle) checkFreshInputs(f *followed, row *state.Partition, declared int64) {
	run := f.state.Runs.Get(row.RunID)
	if run == nil {
		return
	}
	root := run
	for root.ParentRunID != "" {
		if root = f.state.Runs.Get(root.ParentRunID); root == nil {
			return
		}
	}
	planned := o.planOf(run)
	if planned == nil {
		return // other checks report the unreadable plan
	}
	batch := f.state.BatchOf(row.RunID, row.TaskKey)
	for _, i := range planned.byKey[row.TaskKey] {
		for asset, set := range planned.Tasks[i].Inputs {
			for _, in := range slices.Concat(set.Items, planned.Groups[set.Group]) {
				if !readFor(batch, row.PartitionKey, in.PartitionKey) {
					continue
				}
				visible := f.state.Partitions.Get(state.Key2{A: asset, B: in.PartitionKey})
				if visible == nil || visible.VersionSeq <= declared && !f.state.Hidden(visible) {
					continue
				}
				if m := f.state.MarkOf(visible); f.state.Hidden(visible) {
					if m.MarkedSeq > max(declared, root.InputsSeq) {
						o.violation("I-21 never fresh when stale", "the output of %s in run %s is fresh, but its input, the output of %s in run %s, was hidden",
							row.TaskKey, row.RunID, visible.TaskKey, visible.RunID)
					}
					continue
				}
				read := o.readOf(f, row.RunID, &in, visible)
				if visible.MaterializationID != read {
					o.violation("I-21 never fresh when stale", "the output of %s in run %s is fresh, but its task has not read the visible output of %s in run %s",
						row.TaskKey, row.RunID, visible.TaskKey, visible.RunID)
				}
			}
		}
	}
}
