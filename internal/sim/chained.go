package sim

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/space"
	"github.com/servo-orchestration/servo/pkg/state"
)

// drawChains adds an asset to each project of some worlds. The asset reads its own earlier days, so its tasks in a run
// form a chain. Worlds whose tasks take an hour have no such asset, because a chain would take a day.
func (c *World) drawChains() {
	if r := random(c.Seed, "chains", 0); r.IntN(4) == 0 && c.Overtaken == 0 {
		c.Chained = 2 + r.IntN(5)
		if r := random(c.Seed, "batches", 0); r.IntN(2) == 0 {
			c.Batched = 2 + r.IntN(3)
		}
	}
}

// drawProjects draws the special parts of a world's projects: schedules and chains.
func (c *World) drawProjects() {
	c.drawSchedules()
	c.drawChains()
}

// chainFrom is the first day of a chain. All days have ended when a world begins.
const chainFrom = 1

func chainDay(n int) string { return fmt.Sprintf("1999-12-%02d", chainFrom+n) }

// addChain adds an asset to a project. The asset reads its own earlier days, and may also read another asset.
func (l *workload) addChain(p *project, name string) {
	if l.w.cfg.Chained == 0 {
		return
	}
	if l.w.cfg.Batched > 0 {
		l.addBatched(p, name)
		return
	}
	r := random(l.w.cfg.Seed, "chain "+name, 0)
	key := ids.AssetKey{Namespace: name, Name: fmt.Sprintf("t%03d", len(p.assets))}
	to := -1 - r.Int64N(2)
	a := plan.Asset{
		Key: key, Work: plan.Work{Command: []string{"work"}}, WorkerQueue: "default", Deps: []ids.AssetKey{key},
		Partitions: space.Days(chainDay(0), chainDay(l.w.cfg.Chained-1)), HeartbeatTimeoutSec: 60,
		Retries: plan.Retries{MaxAttempts: int32(1 + r.IntN(3)), InitialDelayMS: 1_000, MaxDelayMS: 10_000, MultiplierPermille: 2000}, //nolint:gosec // small
		Reads: []plan.Dep{{Asset: key, Map: space.Map{Dimensions: []space.DimensionMap{
			{Dimension: "date", Op: space.Window, From: to - r.Int64N(3), To: to},
		}}}},
	}
	if r.IntN(2) == 0 {
		a.Reads[0].Requires = plan.RequiresAvailable
	}
	if r.IntN(2) == 0 {
		a.Deps = append(a.Deps, p.assets[r.IntN(len(p.assets))].Key)
		slices.SortFunc(a.Deps, plan.CompareKeys)
	}
	if r.IntN(6) == 0 {
		a.TriggerRule = "none_failed"
	}
	p.assets = append(p.assets, a)
}

// selection returns the partitions of a request for an asset of a project. If the asset is -1, the request is for all
// assets.
func (p *project) selection(only, draw int) []plan.Selection {
	if p.days[0] != "" {
		return p.largeSelection(only, draw)
	}
	last := len(p.assets) - 1
	if p.assets[last].Partitions == nil || only >= 0 && only != last {
		return nil
	}
	if draw%3 > 0 {
		return []plan.Selection{{Everything: true}}
	}
	days := p.assets[last].Partitions.Time()
	s, err := plan.ParseSelection("date=" + chainDay(draw/3%5) + ".." + days.End)
	if err != nil || chainDay(draw/3%5) > days.End {
		return []plan.Selection{{Everything: true}}
	}
	return []plan.Selection{s}
}

// isChain reports whether an asset is the chain of a project or, in a large world, any partitioned asset.
func (l *workload) isChain(asset string) bool {
	for _, p := range l.projects {
		if last := &p.assets[len(p.assets)-1]; last.Partitions != nil && last.Key.String() == asset {
			return true
		}
	}
	return l.partitioned[asset]
}

// checkChainedRun reads the plan of a new run of a world with chains, and checks it.
func (o *oracle) checkChainedRun(f *followed, run *state.Run) {
	if o.w.cfg.Chained == 0 || o.w.cfg.Batched > 0 || run.PlanRef == "" {
		return
	}
	data, _, err := o.w.blobs.Get(context.Background(), run.PlanRef)
	if err != nil {
		return // other checks report the missing plan
	}
	if built, err := plan.Decode(data); err == nil {
		o.checkChain(f, run, built)
	}
}

// checkChain checks a new run. A task of a chain must read only days in its window. It must wait for exactly those days
// in the window that the run also materializes, and must read them.
func (o *oracle) checkChain(f *followed, run *state.Run, built *plan.Plan) {
	days := map[string]string{} // tasks of chains, by asset and day
	for i := range built.Tasks {
		if t := &built.Tasks[i]; o.w.load.isChain(t.AssetKey) && t.PartitionKey != "" {
			days[t.AssetKey+dayIn(t.PartitionKey)] = t.TaskKey
		}
	}
	for i := range built.Tasks {
		t := &built.Tasks[i]
		a := o.w.load.assetOf(t.AssetKey)
		if a == nil || days[t.AssetKey+dayIn(t.PartitionKey)] != t.TaskKey {
			continue
		}
		o.w.counts["tasks of chains"]++
		window := a.Reads[0].Map.Dimensions[0]
		for n := range o.w.cfg.Chained {
			if chainDay(n) != dayIn(t.PartitionKey) {
				continue
			}
			for m := range o.w.cfg.Chained {
				inside := int64(m-n) >= window.From && int64(m-n) <= window.To
				up := days[t.AssetKey+chainDay(m)]
				reads := slices.ContainsFunc(t.Inputs[t.AssetKey].Items, func(in plan.Input) bool { return dayIn(in.PartitionKey) == chainDay(m) })
				waits := up != "" && slices.Contains(t.DependsOn, up)
				if reads && !inside || waits != (inside && up != "") || waits && !reads {
					o.violation("INV-6 dependency order", "task %s of run %s in %s: it reads day %s: %t; it waits for the task %q of this day: %t", t.TaskKey, run.RunID, f.domain, chainDay(m), reads, up, waits)
				}
			}
		}
	}
}

// dayIn returns the day in the key of a partition.
func dayIn(partition string) string {
	parsed, err := ids.ParsePartition(partition)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(parsed["date"])
}

// assetOf returns an asset of the projects, or nil.
func (l *workload) assetOf(key string) *plan.Asset {
	for _, p := range l.projects {
		for i := range p.assets {
			if p.assets[i].Key.String() == key {
				return &p.assets[i]
			}
		}
	}
	return nil
}
