package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/space"
)

// Large worlds have the same faults and bounds as other worlds, but runs of thousands of tasks. Because of this size,
// plans are read from the store, batches are full, and deltas and history consist of many files. Listings have many
// pages, and backfills have chunks of hundreds of partitions.

// DrawLarge returns the large world of a seed.
func DrawLarge(seed uint64) World {
	c := Draw(seed)
	r := random(seed, "large", 0)
	c.Overtaken, c.Chained, c.Batched, c.Merging, c.Mergers, c.Idle = 0, 0, 0, 0, 0, false
	c.Tasks, c.Requests = 0, 3+r.IntN(6)
	c.Large, c.Slots = 100+r.IntN(500), 16<<r.IntN(4)
	if c.Days = 10 + r.IntN(50); r.IntN(2) == 0 {
		c.Days = 60 + r.IntN(240)
		c.Large = 30 + r.IntN(100)
	}
	c.drawLargeAutomation(r)
	c.MinBase, c.MaxDeltas = int64(20_000)<<r.IntN(6), 4+r.IntN(28)
	if c.MaxSegment > 0 {
		c.MaxSegment = 200 + r.IntN(5000)
	}
	if c.MaxBatch > 0 {
		c.MaxBatch = 50 + r.IntN(1000)
	}
	if c.PageSize < 1000 {
		c.PageSize = 50 + r.IntN(500)
	}
	// A process may die at each write, and large worlds have many writes. So limit this probability.
	const mostKills, mostDamage = 1, 40
	c.Faults.KillBefore, c.Faults.KillAfter = min(c.Faults.KillBefore, mostKills), min(c.Faults.KillAfter, mostKills)
	c.Faults.Damaged = min(c.Faults.Damaged, mostDamage)
	c.drawSlowed()
	return c
}

// drawLargeAutomation gives three quarters of the large worlds schedules that tick often, backfills of thousands of
// partitions, or both.
func (c *World) drawLargeAutomation(r *rand.Rand) {
	c.Schedules, c.Backfills, c.Wide = 0, 0, 0
	kind := r.IntN(8)
	if kind < 4 {
		// Every tick starts a run, so keep the world short.
		c.Schedules, c.Wide = 1+r.IntN(2), 10+r.IntN(60)
		c.Requests, c.Minutes = 2, 5+r.IntN(8)
	}
	if kind >= 2 && kind < 6 {
		c.Backfills = 1 + r.IntN(2)
		c.Days, c.Large = 60+r.IntN(240), 20+r.IntN(60)
		c.Requests = 2
	}
	if c.Schedules == 0 {
		c.Alerts = 0
	}
}

// slowOfLarge is the number by which the share of slow tasks is divided in large worlds.
const slowOfLarge = 20

// manySlots multiplies a number of slots by a factor that suits the size of the world.
func (c World) manySlots(slots int32) int32 {
	const each, eachOfSlowed = 40, 120
	switch {
	case c.Slowed > 0:
		return slots * eachOfSlowed
	case c.Large > 0:
		return slots * each
	}
	return slots
}

// chunk draws the number of partitions in the chunks of a backfill.
func (c World) chunk(r *rand.Rand) int {
	switch {
	case c.Slowed > 0:
		return 200 + r.IntN(800)
	case c.Large > 0:
		return 20 + r.IntN(200)
	}
	return 1 + r.IntN(3)
}

// lastDay is the last day of partitioned assets in large worlds. This day has ended when a world begins.
var lastDay = time.Date(1999, 12, 30, 0, 0, 0, 0, time.UTC)

func dayBack(n int) string { return lastDay.AddDate(0, 0, -n).Format(time.DateOnly) }

// drawLargeProject draws a project with many assets and many partitions.
func (l *workload) drawLargeProject(r *rand.Rand, d ids.Domain, name string) *project {
	p := &project{domain: d, days: [2]string{dayBack(l.w.cfg.Days - 1), dayBack(0)}}
	n := l.w.cfg.Large
	width, most := 1+n/(1+r.IntN(6)), r.IntN(4)
	for i := range n {
		a := l.plainAsset(name, i)
		a.Pool = pools[r.IntN(len(pools))]
		if layer := i / width; layer > 0 {
			for range r.IntN(most + 1) {
				if up := p.assets[(layer-1)*width+r.IntN(width)].Key; !slices.Contains(a.Deps, up) {
					a.Deps = append(a.Deps, up)
				}
			}
		}
		if i == n-1 && r.IntN(2) == 0 { // this asset reads all others
			a.Deps = nil
			for j := range i {
				a.Deps = append(a.Deps, p.assets[j].Key)
			}
		}
		l.drawPolicies(r, &a)
		p.assets = append(p.assets, a)
	}
	l.addPartitioned(r, p, name)
	return p
}

// drawLargeRuns inserts requests that run whole projects of a large world.
func (l *workload) drawLargeRuns() {
	if l.w.cfg.Large == 0 {
		return
	}
	r := random(l.w.cfg.Seed, "large runs", 0)
	runs := 1 + r.IntN(3)
	switch {
	case l.w.cfg.Slowed == 0:
	case l.w.cfg.isAutomated():
		runs = r.IntN(2) // schedules and backfills create enough tasks
	default:
		runs *= 3 // more runs increase the work of a world, but not the idle time at its end
	}
	for range runs {
		client := fmt.Sprintf("client%d", r.IntN(l.w.cfg.Clients))
		a := ask{
			after: time.Duration(r.Int64N(int64(l.w.cfg.horizon()/8) + 1)), verb: askRun, project: l.projects[r.IntN(len(l.projects))], only: -1,
		}
		l.scripts[client] = slices.Insert(l.scripts[client], r.IntN(len(l.scripts[client])+1), a)
	}
}

func (l *workload) plainAsset(name string, i int) plan.Asset {
	return plan.Asset{
		Key: ids.AssetKey{Namespace: name, Name: fmt.Sprintf("t%05d", i)}, Work: plan.Work{Command: []string{"work"}}, WorkerQueue: "default",
	}
}

// addPartitioned adds assets with many partitions. Two assets have a partition for each day: a source, and a reader of
// the same day. Another asset, without partitions, reads all days of this reader. At random, addPartitioned adds an
// asset that reads a window of days, one with a partition for each day and region, and one whose tasks materialize
// batches of days.
func (l *workload) addPartitioned(r *rand.Rand, p *project, name string) {
	add := func(a *plan.Asset) ids.AssetKey {
		l.partitioned[a.Key.String()] = a.Partitions != nil
		l.drawPolicies(r, a)
		p.assets = append(p.assets, *a)
		return a.Key
	}
	next := func() plan.Asset {
		a := l.plainAsset(name, len(p.assets))
		a.Requires = plan.RequiresAvailable
		return a
	}
	days := space.Days(p.days[0], p.days[1])
	source := next()
	source.Partitions = days
	from := add(&source)
	same := next()
	same.Partitions, same.Deps = days, []ids.AssetKey{from}
	reader := add(&same)
	if r.IntN(2) == 0 {
		window := next()
		window.Partitions, window.Deps = days, []ids.AssetKey{from}
		window.Reads = []plan.Dep{{Asset: from, Map: space.Map{Dimensions: []space.DimensionMap{{Dimension: "date", Op: space.Window, From: -r.Int64N(7), To: 0}}}}}
		add(&window)
	}
	if r.IntN(2) == 0 {
		regions := next()
		values := make([]string, 2+r.IntN(4))
		for i := range values {
			values[i] = fmt.Sprintf("region%d", i)
		}
		regions.Partitions = space.New(days.Dimensions[0], space.Dimension{Name: "region", Kind: space.Static, Values: values})
		regions.Deps = []ids.AssetKey{from}
		add(&regions)
	}
	if r.IntN(2) == 0 {
		batch := next()
		batch.Work.Batch, batch.Batch, batch.Partitions = true, 2+r.IntN(40), days
		if r.IntN(2) == 0 {
			batch.Deps = []ids.AssetKey{from}
		}
		add(&batch)
	}
	total := next()
	total.Deps = []ids.AssetKey{reader}
	add(&total)
}

// behaveTask returns how a task behaves. In a large world, tasks of the same partitioned asset behave differently from
// each other. They hang only if their asset has a timeout that ends the attempt.
func (l *workload) behaveTask(taskKey string) behaviour {
	asset := assetOf(taskKey)
	b := l.behave(asset)
	if l.partitioned[asset] {
		hangs := b.hangs
		b = l.behave(taskKey)
		b.hangs = b.hangs && hangs
	}
	return b
}

// largeSelection returns the partitions of a request for an asset of a large project. If the asset is -1, the request
// is for all assets.
func (p *project) largeSelection(only, draw int) []plan.Selection {
	if only >= 0 && p.assets[only].Partitions == nil {
		return nil
	}
	if draw%3 > 0 {
		return []plan.Selection{{Everything: true}}
	}
	s, err := plan.ParseSelection("date=" + dayBack(1+draw/3%100) + ".." + p.days[1])
	if err != nil || dayBack(1+draw/3%100) < p.days[0] {
		return []plan.Selection{{Everything: true}}
	}
	return []plan.Selection{s}
}

// scheduledPartitions returns the selection of partitions for a schedule that runs a partitioned asset.
func (l *workload) scheduledPartitions(r *rand.Rand, asset string) []string {
	most := 30
	if l.w.cfg.Slowed > 0 {
		most = 300
	}
	if !l.partitioned[asset] || r.IntN(8) == 0 {
		return []string{"all"}
	}
	return []string{"date=" + dayBack(r.IntN(min(l.w.cfg.Days, most))) + ".." + dayBack(0)}
}
