package sim

import (
	"context"
	"encoding/json"
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

// keptPromises is the name of the invariant about deadlines, freshness and SLAs.
const keptPromises = "I-31 verdicts are right"

// checkVerdicts checks the verdicts of a revision about deadlines, freshness and SLAs.
func (o *oracle) checkVerdicts(f *followed, before, after *state.State) {
	skew := time.Duration(2*o.w.cfg.Faults.MaxSkew)*time.Second + time.Minute
	for is := range changed(f, after.DeadlineMisses) {
		if before.DeadlineMisses.Get(is.MissID) == nil {
			o.checkMissed(f, before, after, is, skew)
		}
	}
	for is := range changed(f, after.Promises) {
		was := before.Promises.Get(is.AssetKey)
		if was == is || was == nil {
			continue
		}
		o.checkMet(f, after, was, is)
		if is.LagAt != 0 && is.LagAt != is.DataAt.Add(time.Duration(is.MaxLagSec)*time.Second) {
			o.violation(keptPromises, "the newest output of %s in %s is from %s and may be %d s old, but its age is checked at %s", is.AssetKey, f.domain, is.DataAt, is.MaxLagSec, is.LagAt)
		}
		if was.LagAt != 0 && is.LagAt == 0 && is.MaxLagSec == was.MaxLagSec && after.FoldTime.Add(skew) < was.LagAt {
			o.violation(keptPromises, "%s of %s is reported as too old at %s, but becomes too old only at %s", is.AssetKey, f.domain, after.FoldTime, was.LagAt)
		}
	}
	for is := range changed(f, after.Partitions) {
		p := after.Promises.Get(is.AssetKey)
		if before.Partitions.Get(is.Key()) != is && p != nil && p.MaxLagSec > 0 && is.MaterializedAt > max(p.DataAt, after.FoldTime) {
			o.violation(keptPromises, "%s of %s has an output from %s, but its age is measured from %s", is.AssetKey, f.domain, is.MaterializedAt, p.DataAt)
		}
	}
	for is := range changed(f, after.Tasks) {
		was := before.Tasks.Get(is.Key())
		if was == is || was == nil || is.SLAMissed == was.SLAMissed {
			continue
		}
		p, run := after.Promises.Get(is.AssetKey), after.Runs.Get(is.RunID)
		ofRun := strings.Contains(is.SLAMissed, "run") && !strings.Contains(was.SLAMissed, "run")
		if p != nil && ofRun && p.RunSec > 0 && after.FoldTime.Add(skew) < run.CreatedAt.Add(time.Duration(p.RunSec)*time.Second) {
			o.violation(keptPromises, "task %s of run %s is reported at %s to have missed its SLA, which ends only %d s after %s", is.TaskKey, is.RunID, after.FoldTime, p.RunSec, run.CreatedAt)
		}
	}
}

// checkMissed checks a missed deadline: it must have been due, and a partition must have been missing or
// stale.
func (o *oracle) checkMissed(f *followed, before, after *state.State, m *state.DeadlineMiss, skew time.Duration) {
	watched := o.w.load.watchedOf(f.domain)
	i := slices.IndexFunc(watched, func(w event.WatchedAsset) bool { return w.Asset == m.AssetKey })
	var missing []string
	switch err := json.Unmarshal([]byte(m.Missing), &missing); {
	case m.Missing == "" && m.MetAt != 0:
		return // the deadline was missed and then met within one revision
	case i < 0 || watched[i].Deadline == nil || m.DueAt.Time().UTC().Format("15:04") != watched[i].Deadline.By:
		o.violation(keptPromises, "%s of %s has missed a deadline at %s, but no release declares this deadline", m.AssetKey, f.domain, m.DueAt)
		return
	case m.MissedAt.Add(skew) < m.DueAt:
		o.violation(keptPromises, "%s of %s is reported at %s to have missed its deadline at %s", m.AssetKey, f.domain, m.MissedAt, m.DueAt)
	case err != nil || len(missing) == 0:
		o.violation(keptPromises, "%s of %s has missed its deadline at %s, but names no partition: %q", m.AssetKey, f.domain, m.DueAt, m.Missing)
		return
	}
	if after.Deployments.Len() != before.Deployments.Len() || after.Marks.Len() > 0 || after.Forgotten.Len() > 0 {
		return // do not compare: a deployment, mark or forgotten asset may have changed which partitions are fresh
	}
	fresh, err := o.freshOf(f, before, m.AssetKey)
	if err != nil {
		o.violation(keptPromises, "%v", err)
		return
	}
	for _, key := range missing {
		at := state.Key2{A: m.AssetKey, B: key}
		if fresh[key] && before.Partitions.Get(at) == after.Partitions.Get(at) {
			o.violation(keptPromises, "%s[%s] of %s was fresh, but has missed its deadline at %s", m.AssetKey, key, f.domain, m.DueAt)
		}
	}
}

// freshOf returns the partitions of an asset that are fresh in a state.
func (o *oracle) freshOf(f *followed, s *state.State, asset string) (map[string]bool, error) {
	var assets []plan.Asset
	for _, p := range o.w.load.projects {
		if p.domain == f.domain {
			assets = append(assets, p.coded(o.w.load.version(f.domain, s.Release()))...)
		}
	}
	e, err := engine.Staleness(context.Background(), &snapshot.Snapshot{State: s}, assets, o.w.now())
	if err != nil {
		return nil, err
	}
	fresh := map[string]bool{}
	for i := range assets {
		if assets[i].Key.String() != asset {
			continue
		}
		partitions, err := e.Partitions(assets[i].Key)
		if err != nil {
			return nil, err
		}
		for _, p := range partitions {
			fresh[p.Key] = p.Status == staleness.Fresh
		}
	}
	return fresh, nil
}

// checkMet checks an asset that has met a deadline: the asset must have an output.
func (o *oracle) checkMet(f *followed, s *state.State, was, is *state.Promise) {
	if was.DueAt == 0 || was.Version != is.Version || is.DueAt == was.DueAt && is.Period == was.Period {
		return
	}
	for m := range s.DeadlineMisses.All {
		if m.AssetKey == is.AssetKey && m.DueAt == was.DueAt {
			return
		}
	}
	found := false
	s.Partitions.Ascend(state.Key2{A: is.AssetKey}, func(p *state.Partition) bool {
		found = found || p.AssetKey == is.AssetKey
		return p.AssetKey == is.AssetKey && !found
	})
	if !found {
		o.violation(keptPromises, "%s of %s has met its deadline at %s, but has no output", is.AssetKey, f.domain, was.DueAt)
	}
}

// checkLatePromises checks the delays of verdicts.
func (o *oracle) checkLatePromises(f *followed, late event.Time) {
	for p := range f.state.Promises.All {
		for what, at := range map[string]event.Time{"its deadline should have been judged": p.NextAt, "its verdict should have arrived": p.WantedAt, "it should have been reported as too old": p.LagAt} {
			if at != 0 && at < late {
				o.violation("lateness", "%s: %s at %s", p.AssetKey, what, at)
				return
			}
		}
	}
	for t := range f.state.Tasks.All {
		p := f.state.Promises.Get(t.AssetKey)
		if p == nil || p.RunSec == 0 || t.Kind != event.KindTask || t.State.Terminal() || strings.Contains(t.SLAMissed, "run") {
			continue
		}
		due := f.state.Runs.Get(t.RunID).CreatedAt.Add(time.Duration(p.RunSec) * time.Second)
		if f.dueAt(t.RunID, due) < late && p.Seq < t.Seq {
			o.violation("lateness", "task %s of run %s should have missed its SLA at %s", t.TaskKey, t.RunID, due)
			return
		}
	}
}
