package sim

import (
	"math/rand/v2"
	"time"

	"github.com/servo-orchestration/servo/pkg/event"
)

// A revision takes about 10 ms of CPU time, even if few tasks end in it. So a world of thousands of tasks should need
// few revisions. In most large worlds, the writes of compactors to the store therefore take much longer than the writes
// of other processes, and workers execute many tasks at once. While a compactor waits for the store, more tasks end,
// and the next revision contains all of them.

// drawSlowed gives most large worlds slow compactors, and more tasks.
func (c *World) drawSlowed() {
	r := random(c.Seed, "slowed", 0)
	if r.IntN(8) == 0 {
		return
	}
	c.Slowed, c.Slots = 20+r.IntN(60), 256<<r.IntN(3)
	c.MinBase, c.MaxDeltas = int64(200_000)<<r.IntN(5), 6+r.IntN(26)
	if c.MaxSegment > 0 {
		c.MaxSegment = 1000 + r.IntN(10_000)
	}
	if c.MaxBatch > 0 {
		c.MaxBatch = 200 + r.IntN(2000)
	}
	switch {
	case c.isAutomated():
		c.drawLargeSchedules(r)
		c.drawLargeBackfills(r)
		c.drawClocks()
	case r.IntN(2) == 0:
		c.Days, c.Large = 300+r.IntN(900), 30+r.IntN(100)
	default:
		c.Days, c.Large = 10+r.IntN(50), 800+r.IntN(2500)
	}
	if c.PageSize < 1000 {
		c.PageSize = 300 + r.IntN(700)
	}
	if !c.isAutomated() {
		c.Minutes = min(c.Minutes, 20+r.IntN(40))
	}
	c.Faults.NetRefused, c.Faults.NetLost = min(c.Faults.NetRefused, 100), min(c.Faults.NetLost, 40)
	if r.IntN(4) > 0 { // in most worlds, no process dies at a write: each death of a worker loses hundreds of attempts
		c.Faults.KillBefore, c.Faults.KillAfter = 0, 0
	}
}

// isAutomated reports whether the world has schedules or backfills.
func (c World) isAutomated() bool { return c.Schedules+c.Backfills > 0 }

// drawLargeSchedules makes a large world with schedules last longer, and lets each schedule run hundreds of assets.
func (c *World) drawLargeSchedules(r *rand.Rand) {
	if c.Schedules == 0 {
		return
	}
	c.Schedules, c.Minutes = 2+r.IntN(2), 12+r.IntN(20)
	c.Days, c.Large = 20+r.IntN(100), 300+r.IntN(900)
	c.Wide = 50 + r.IntN(event.MaxSelections-50)
}

// drawLargeBackfills increases the number of backfills, and gives them thousands of partitions.
func (c *World) drawLargeBackfills(r *rand.Rand) {
	if c.Backfills == 0 {
		return
	}
	c.Backfills, c.Minutes = 2+r.IntN(3), max(c.Minutes, 20+r.IntN(20))
	c.Days = 150 + r.IntN(500)
	c.Large = min(c.Large, 200)
}

// drawClocks makes changes of clocks more likely in a world with schedules or backfills. The world gets two
// automators. In two of three cases, it begins a few minutes before clocks change. If it has faults, it may have an
// outage of days.
func (c *World) drawClocks() {
	r := random(c.Seed, "clocks of slowed", 0)
	c.Dispatchers = 2
	if r.IntN(3) > 0 {
		c.Begin = int(changesOfClocks[r.IntN(len(changesOfClocks))].Sub(epoch).Minutes()) - r.IntN(5)
	}
	if c.Faults != (Faults{}) && r.IntN(2) == 0 {
		c.Faults.Absence = 24*60 + r.IntN(2*24*60)
	}
}

// slowed returns the factor by which an operation of a process on the store takes longer than usual. Only the creates
// of compactors are slowed. Slow listings would stop all timers: faults would interrupt nearly all of these listings,
// and timers fire only after a complete listing.
func (w *world) slowed(p *process, verb string) int {
	if w.cfg.Slowed > 0 && p.machine.kind == "compactor" && verb == "create" {
		return w.cfg.Slowed
	}
	return 1
}

// heartbeatEvery returns the time between two heartbeats of a task.
func (c World) heartbeatEvery() time.Duration {
	if c.Slowed > 0 {
		return 30 * time.Second
	}
	return 5 * time.Second
}

// beatTimeout returns the heartbeat timeout of an asset, given a drawn number of seconds. Within the timeout, a
// worker sends at least three heartbeats.
func (c World) beatTimeout(drawn int32) int32 {
	if c.Slowed > 0 {
		return 3 * drawn
	}
	return drawn
}

// oneLingers returns a number n: in worlds with collectors of outputs, the tasks of one in n assets run for minutes.
func (c World) oneLingers() int {
	if c.Slowed > 0 {
		return 100
	}
	return 5
}

// moreChunks returns the factor by which the drawn number of concurrent chunks of a backfill is multiplied.
func (c World) moreChunks() int32 {
	if c.Slowed > 0 {
		return 3
	}
	return 1
}

// Features returns the names of the features that a world has, such as faults or schedules. A summary of many worlds
// counts worlds by feature.
func (c World) Features() (names []string) {
	const day = 24 * 60
	f := c.Faults
	for _, x := range []struct {
		has  bool
		name string
	}{
		{f != Faults{}, "faults"},
		{f.Leap > 0 || c.Ahead > 0, "clocks far ahead"},
		{f.Unreadable > 0, "unreadable objects"},
		{f.Damaged > 0, "damaged outputs"},
		{f.Wipe > 0 || c.Online > 0, "rebuilds"},
		{c.Collectors > 0, "collectors of outputs"},
		{c.Merging > 0, "merged files"},
		{c.Checked > 0, "checks"},
		{c.Schedules > 0, "schedules"},
		{c.Backfills > 0, "backfills"},
		{c.Schedules > 0 && c.Begin > 0, "schedules and changing clocks"},
		{c.isAutomated() && c.Dispatchers > 1, "automation and two automators"},
		{c.isAutomated() && f.Absence >= day, "automation and an outage of days"},
		{c.Slowed > 0, "slow compactors"},
	} {
		if x.has {
			names = append(names, x.name)
		}
	}
	return names
}
