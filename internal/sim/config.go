package sim

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"time"
)

// World is the input of a simulation. These numbers determine everything that happens in the simulated world.
type World struct {
	Seed uint64
	// Numbers of machines by kind.
	Compactors, Dispatchers, Workers, Clients, Readers int
	Domains                                            int
	// Requests is the number of requests of all clients together. Tasks is the maximum number of
	// assets in a project.
	Requests, Tasks int
	// Minutes is the time after which faults stop.
	Minutes int
	// Spread: requests are spread over the whole time until faults stop, and not only over its first half.
	Spread bool
	// PageSize is the number of objects in a page of a listing.
	PageSize int
	// MaxDeltas, MaxInline and MinBase control merges of state files: see [tiers.Options].
	MaxDeltas          int
	MaxInline, MinBase int64
	// MaxSegment is the maximum number of rows of a table in a segment of history. 0: unlimited.
	MaxSegment int
	// MaxBatch is the maximum number of ledger entries that are folded and published together. 0: 2,000.
	MaxBatch int
	// KeepEntries is how many minutes the live state keeps ledger entries. KeepLedger is how many
	// minutes the ledger keeps them. 0: KeepEntries.
	KeepEntries, KeepLedger int
	// KeepRuns is how many minutes ended runs are kept. 0: forever.
	KeepRuns int
	// ArchiveSpan is how many seconds of the ledger form an archive file. 0: a day, which is longer
	// than any world.
	ArchiveSpan int
	// Keep is how many seconds every revision is kept.
	Keep int
	// Sweepers is the number of sweepers, at least 1. FullEvery is the number of minutes between sweeps of all domains.
	// 0: there is no full sweep until the world has come to rest.
	Sweepers, FullEvery int
	// Ahead is the number of entries that are appended by a writer that ignores the store's clock. Their names, ids or
	// timestamps are hours to years ahead.
	Ahead int
	// Collectors is the number of collectors. They delete two kinds of unreferenced outputs. A superseded version is
	// deleted if it is not among the newest KeepVersions of its partition, or was superseded at least KeepOutputs
	// minutes ago. An output that never became visible is deleted after KeepUnseen minutes.
	Collectors, KeepVersions, KeepOutputs, KeepUnseen int
	// KeepEach: some assets have rules that keep more outputs than the settings above.
	KeepEach bool
	// Alone is how many of a thousand runs select one asset without its upstreams.
	Alone int
	// Overtaken is how many of a thousand tasks run so long that later runs overtake them. While these tasks run, rows
	// of partitions leave the live state.
	Overtaken int
	// Bare is how many of a thousand assets have no output.
	Bare int
	// Checked is how many of a thousand assets have checks.
	Checked int
	// Schedules is the number of schedules of each domain. Wide is the maximum number of assets that a
	// schedule selects. 0: one.
	Schedules, Wide int
	// Idle: each domain has a schedule whose next tick is months away. At the end of worlds without faults, the oracle
	// counts the calls that services make for these idle domains.
	Idle bool
	// Backfills is the number of backfills that clients create.
	Backfills int
	// If Alerts is not 0, the releases of domains have alert rules and deadlines. With a probability of Alerts/10, a
	// channel refuses the first try to send a message. The same holds for the second try.
	Alerts int
	// If Chained is not 0, each project has an asset that reads its own earlier days, and Chained is the number of days
	// of this asset.
	Chained int
	// If Batched is not 0, the assets that read their own earlier days are replaced with assets whose tasks materialize
	// up to this many days.
	Batched int
	// If Large is not 0, the world is large: Large is the number of unpartitioned assets of each project, and Days is
	// the number of days of its partitioned assets. See large.go.
	Large, Days int
	// If Slowed is not 0, a compactor's writes to the store take Slowed times as long as usual, so that many tasks end
	// in each revision. Only large worlds are slowed: see slowed.go.
	Slowed int
	// Slots is how many tasks a worker executes at once. 0: 8.
	Slots int
	// Begin is the time at which the world begins, in minutes since the beginning of the year 2000.
	Begin int
	// Online is the number of rebuilds that run while everything else continues.
	Online int
	// If Merging is not 0, sequences of at least this many neighbouring small outputs are merged. Mergers is the number
	// of machines that merge them, in addition to the workers: see merging.go.
	Merging, Mergers int
	// Parquet: state files are encoded as Parquet. Otherwise the rows stay in memory, and the state files only refer to
	// them.
	Parquet bool
	// KillAt is the number of a call, counted over all processes. The process that makes this call dies. 0: no process
	// dies.
	KillAt int
	Faults Faults
}

func (c World) horizon() time.Duration { return time.Duration(c.Minutes) * time.Minute }

func (c World) sweepers() int { return max(c.Sweepers, 1) }

func (c World) keepLedger() time.Duration {
	return time.Duration(cmp.Or(c.KeepLedger, c.KeepEntries)) * time.Minute
}

func (c World) keep() time.Duration { return time.Duration(max(c.Keep, 1)) * time.Second }

// Draw returns the world of a seed. Each part of a world has its own source of randomness, so adding a part changes no
// other part. A part may depend on the values that earlier parts drew.
func Draw(seed uint64) World {
	r := random(seed, "world", 0)
	c := World{
		Seed: seed, Compactors: 1 + r.IntN(3), Dispatchers: 1 + r.IntN(2), Workers: 1 + r.IntN(3),
		Clients: 1 + r.IntN(3), Readers: r.IntN(2), Domains: 1, Requests: 2 + r.IntN(6), Tasks: 2 + r.IntN(24),
		Minutes: 5 + r.IntN(20), PageSize: 1000,
		MaxDeltas: 2 + r.IntN(14), Keep: 20 + r.IntN(600),
	}
	c.drawHistory()
	if r.IntN(4) == 0 {
		c.Domains = 2
	}
	if r.IntN(4) == 0 && c.Minutes <= 25 {
		c.Tasks, c.Requests = 40+r.IntN(160), 5+r.IntN(20)
	}
	if r.IntN(3) == 0 {
		c.PageSize = 2 + r.IntN(30)
	}
	c.Faults = drawFaults(r)
	if c.Faults != (Faults{}) {
		c.drawMoreFaults()
	}
	c.drawArchive()
	c.drawOutage()
	c.KeepEntries = 1 + random(seed, "entries", 0).IntN(c.KeepLedger)
	c.drawSweeps()
	c.drawLimits()
	if bare := random(seed, "bare", 0); bare.IntN(2) == 0 {
		c.Bare = 1 + bare.IntN(1000)
	}
	c.drawOvertaken()
	c.drawChecks()
	c.drawCollectors()
	c.drawDamage()
	c.drawProjects()
	c.drawMerging()
	return c
}

// drawHistory draws when rows are merged, and when they leave the live state. A third of the worlds are long enough
// for runs to be closed.
func (c *World) drawHistory() {
	tiers := random(c.Seed, "tiers", 0)
	c.MaxInline = []int64{-1, 1000, 4000, 30_000}[tiers.IntN(4)]
	c.MinBase = 200 + tiers.Int64N(10_000)
	history := random(c.Seed, "history", 0)
	// Entries must stay in the ledger for longer than any write takes: the writer may be frozen for four minutes, and
	// the write itself may take four more.
	if c.KeepLedger = 12 + history.IntN(30); history.IntN(3) > 0 {
		return
	}
	c.Minutes += 20 + history.IntN(40)
	c.Requests += 8 + history.IntN(16)
	c.Tasks = min(c.Tasks, 3+history.IntN(8))
	c.MinBase = 100 + history.Int64N(900)
	c.MaxDeltas = 2 + history.IntN(4)
	c.Spread = true
	if history.IntN(2) == 0 {
		c.KeepRuns = 20 + history.IntN(20)
	}
}

// drawMoreFaults adds kinds of faults to a world that already has faults.
func (c *World) drawMoreFaults() {
	if stall := random(c.Seed, "stall", 0); stall.IntN(6) == 0 {
		c.Faults.Stall = 1 + stall.IntN(100)
	}
	if drop := random(c.Seed, "drop", 0); drop.IntN(3) == 0 {
		c.Faults.Dropped = 1 + drop.IntN(300)
	}
	// In some worlds, almost all announcements are lost, clocks are far apart, and pages are small. In such a world,
	// compactors find most entries only by listings, and each listing needs many requests.
	if deaf := random(c.Seed, "deaf", 0); deaf.IntN(6) == 0 {
		c.Faults.NoticeLost, c.Faults.NetRefused = 900+deaf.IntN(100), 200+deaf.IntN(300)
		c.Faults.MaxSkew, c.PageSize = 100+deaf.IntN(200), 2+deaf.IntN(3)
	}
	if sealed := random(c.Seed, "unreadable", 0); sealed.IntN(4) == 0 {
		c.Faults.Unreadable = 1 + sealed.IntN(40)
	}
}

// drawArchive draws the sizes of archive files. In half of the long worlds, many entries leave the ledger.
func (c *World) drawArchive() {
	archive := random(c.Seed, "archive", 0)
	c.ArchiveSpan = 1 + archive.IntN(600)
	if archive.IntN(4) == 0 {
		c.ArchiveSpan = 1 + archive.IntN(10)
	}
	if c.Spread && archive.IntN(2) == 0 {
		c.KeepLedger, c.Keep = 12+archive.IntN(6), 20+archive.IntN(100)
	}
}

// drawOutage draws an outage of up to an hour, a day or ten days. Most outages are longer than the time for which
// entries are kept.
func (c *World) drawOutage() {
	if outage := random(c.Seed, "absence", 0); c.Faults != (Faults{}) && outage.IntN(6) == 0 {
		c.Faults.Absence = 1 + outage.IntN([]int{60, 24 * 60, 10 * 24 * 60}[outage.IntN(3)])
	}
}

// drawSweeps draws sweeps, online rebuilds, and writers and clocks that are far ahead of the true time.
func (c *World) drawSweeps() {
	c.Sweepers = 1
	if due := random(c.Seed, "due", 0); due.IntN(4) == 0 {
		c.FullEvery = 5 + due.IntN(60)
	} else if due.IntN(3) == 0 {
		c.Sweepers = 2
	}
	if ahead := random(c.Seed, "ahead", 0); ahead.IntN(3) == 0 {
		c.Ahead = 1 + ahead.IntN(4)
	}
	if leap := random(c.Seed, "leap", 0); c.Faults != (Faults{}) && leap.IntN(4) == 0 {
		c.Faults.Leap = 1 + leap.IntN(300)
	}
	if online := random(c.Seed, "online", 0); online.IntN(4) == 0 {
		c.Online = 1 + online.IntN(3)
	}
}

// drawOvertaken makes every twelfth world so long that rows of partitions leave the live state.
func (c *World) drawOvertaken() {
	r := random(c.Seed, "overtaken", 0)
	if r.IntN(12) > 0 {
		return
	}
	c.Overtaken = 20 + r.IntN(200)
	c.Minutes, c.Spread = 100+r.IntN(80), true
	c.Requests, c.Tasks = 10+r.IntN(15), 1+r.IntN(4)
	c.MinBase, c.MaxDeltas = 100+r.Int64N(400), 2+r.IntN(4)
	c.KeepEntries = min(c.KeepLedger, 1+r.IntN(6))
}

// drawLimits limits the sizes of history segments and of batches in some worlds.
func (c *World) drawLimits() {
	if segments := random(c.Seed, "segments", 0); segments.IntN(2) == 0 {
		c.MaxSegment = 1 + segments.IntN(40)
	}
	if batches := random(c.Seed, "batches", 0); batches.IntN(2) == 0 {
		c.MaxBatch = 1 + batches.IntN(40)
	}
}

// drawFaults draws the faults of a world. A quarter of all worlds has no faults. In the other worlds, most kinds of
// faults are enabled with probability 1/2, and an enabled kind is rare or frequent.
func drawFaults(r *rand.Rand) Faults {
	var f Faults
	if r.IntN(4) == 0 {
		return f
	}
	for _, n := range []struct {
		to   *int
		most int
	}{
		{&f.Refused, 100},
		{&f.Late, 30},
		{&f.Lost, 60},
		{&f.Slow, 10},
		{&f.KillBefore, 5},
		{&f.KillAfter, 5},
		{&f.NetRefused, 100},
		{&f.NetLost, 80},
		{&f.NetSlow, 20},
		{&f.TaskLost, 60},
		{&f.TaskAgain, 250},
		{&f.TaskLate, 150},
		{&f.NoticeLost, 900},
		{&f.NoticeAgain, 200},
		{&f.NoticeLate, 300},
		{&f.Kill, 150},
		{&f.Freeze, 120},
		{&f.Jump, 60},
		{&f.MaxSkew, 300},
		{&f.Full, 60},
	} {
		if r.IntN(2) == 0 {
			*n.to = 1 + r.IntN(n.most>>r.IntN(4)+1)
		}
	}
	if r.IntN(8) == 0 {
		f.Wipe = 1
	}
	if r.IntN(4) == 0 {
		f.Older = 1 + r.IntN(15)
	}
	return f
}

// Text returns the world as text that Parse reads.
func (c World) Text() string {
	data, err := json.Marshal(c)
	if err != nil {
		panic(fmt.Sprintf("sim: encode world: %v", err))
	}
	return string(data)
}

// Parse reads a world from its text.
func Parse(text string) (World, error) {
	var c World
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return c, fmt.Errorf("read world: %w", err)
	}
	return c, nil
}
