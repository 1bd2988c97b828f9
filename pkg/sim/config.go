package sim

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"time"
)

// World is what is simulated: all of it follows from these figures.
type World struct {
	Seed uint64
	// Machines of each kind.
	Compactors, Dispatchers, Workers, Clients, Readers int
	Domains                                            int
	// Requests is how much all clients ask for together; Tasks, how many assets a
	// project has at most.
	Requests, Tasks int
	// Minutes is after how much time faults stop.
	Minutes int
	// Spread: requests come all along, not in the first half of the time.
	Spread bool
	// PageSize is how many objects one page of a listing has.
	PageSize int
	// MaxDeltas, MaxInline and MinBase say when state files are merged: see
	// [compactor.Options].
	MaxDeltas          int
	MaxInline, MinBase int64
	// MaxSegment is how many rows of a table become a segment of history at once; 0: all.
	MaxSegment int
	// MaxBatch is how many entries of the ledger are folded at once, and published; 0: 2,000.
	MaxBatch int
	// KeepEntries is for how many minutes the live state keeps entries of the ledger, and
	// KeepLedger, or if that is 0 KeepEntries, for how many the ledger itself does.
	KeepEntries, KeepLedger int
	// KeepRuns is for how many minutes runs are kept that have ended; 0: for ever.
	KeepRuns int
	// ArchiveSpan is how many seconds of the ledger are archived together; 0: a day, which
	// no world lasts.
	ArchiveSpan int
	// Keep is for how many seconds every revision is kept.
	Keep int
	// Sweepers are one at least. FullEvery is after how many minutes they sweep all
	// domains, not only those that are due; 0: never, before the world has come to rest.
	Sweepers, FullEvery int
	// Ahead is how many entries a writer that minds no clock stores, whose names, ids or
	// timestamps are hours to years ahead.
	Ahead int
	// Collectors delete outputs that nothing names: superseded versions that are not among the newest KeepVersions of their
	// partition or were superseded KeepOutputs minutes ago, and after KeepUnseen minutes what never became visible.
	Collectors, KeepVersions, KeepOutputs, KeepUnseen int
	// KeepEach: some assets have rules of their own, which keep more.
	KeepEach bool
	// Alone is how many of a thousand runs are of one asset without what it depends on.
	Alone int
	// Bare is how many of a thousand assets leave no files.
	Bare int
	// Online is how many rebuilds run while everything else goes on.
	Online int
	// Parquet: projections are real Parquet files. Else rows stay in memory, and the
	// files name them.
	Parquet bool
	Faults  Faults
}

func (c World) horizon() time.Duration { return time.Duration(c.Minutes) * time.Minute }

func (c World) sweepers() int { return max(c.Sweepers, 1) }

func (c World) keepLedger() time.Duration {
	return time.Duration(cmp.Or(c.KeepLedger, c.KeepEntries)) * time.Minute
}

func (c World) keep() time.Duration { return time.Duration(max(c.Keep, 1)) * time.Second }

// Draw is the world of a seed.
func Draw(seed uint64) World {
	r := random(seed, "world", 0)
	c := World{
		Seed: seed, Compactors: 1 + r.IntN(3), Dispatchers: 1 + r.IntN(2), Workers: 1 + r.IntN(3),
		Clients: 1 + r.IntN(3), Readers: r.IntN(2), Domains: 1, Requests: 2 + r.IntN(6), Tasks: 2 + r.IntN(24),
		Minutes: 5 + r.IntN(20), PageSize: 1000,
		MaxDeltas: 2 + r.IntN(14), Keep: 20 + r.IntN(600),
	}
	tiers := random(seed, "tiers", 0)
	c.MaxInline = []int64{-1, 1000, 4000, 30_000}[tiers.IntN(4)]
	c.MinBase = 200 + tiers.Int64N(10_000)
	history := random(seed, "history", 0)
	// No write takes as long as entries are in the ledger: whoever writes may stand still
	// for four minutes, and so may the write.
	if c.KeepLedger = 12 + history.IntN(30); history.IntN(3) == 0 { // so long that runs are closed in it
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
	if stall := random(seed, "stall", 0); c.Faults != (Faults{}) && stall.IntN(6) == 0 {
		c.Faults.Stall = 1 + stall.IntN(100)
	}
	if drop := random(seed, "drop", 0); c.Faults != (Faults{}) && drop.IntN(3) == 0 {
		c.Faults.Dropped = 1 + drop.IntN(300)
	}
	// In some worlds hardly anybody hears of what is appended, by clocks that are far
	// apart: only listings find it, in many requests.
	if deaf := random(seed, "deaf", 0); c.Faults != (Faults{}) && deaf.IntN(6) == 0 {
		c.Faults.NoticeLost, c.Faults.NetRefused = 900+deaf.IntN(100), 200+deaf.IntN(300)
		c.Faults.MaxSkew, c.PageSize = 100+deaf.IntN(200), 2+deaf.IntN(3)
	}
	if sealed := random(seed, "unreadable", 0); c.Faults != (Faults{}) && sealed.IntN(4) == 0 {
		c.Faults.Unreadable = 1 + sealed.IntN(40)
	}
	archive := random(seed, "archive", 0)
	c.ArchiveSpan = 1 + archive.IntN(600)
	if archive.IntN(4) == 0 {
		c.ArchiveSpan = 1 + archive.IntN(10)
	}
	if c.Spread && archive.IntN(2) == 0 { // a long world, of which much leaves the ledger
		c.KeepLedger, c.Keep = 12+archive.IntN(6), 20+archive.IntN(100)
	}
	// As long as lunch, a night, a holiday: most of them longer than entries are kept.
	if absence := random(seed, "absence", 0); c.Faults != (Faults{}) && absence.IntN(6) == 0 {
		c.Faults.Absence = 1 + absence.IntN([]int{60, 24 * 60, 10 * 24 * 60}[absence.IntN(3)])
	}
	c.KeepEntries = 1 + random(seed, "entries", 0).IntN(c.KeepLedger)
	c.Sweepers = 1
	if due := random(seed, "due", 0); due.IntN(4) == 0 {
		c.FullEvery = 5 + due.IntN(60)
	} else if due.IntN(3) == 0 {
		c.Sweepers = 2
	}
	if ahead := random(seed, "ahead", 0); ahead.IntN(3) == 0 {
		c.Ahead = 1 + ahead.IntN(4)
	}
	if leap := random(seed, "leap", 0); c.Faults != (Faults{}) && leap.IntN(4) == 0 {
		c.Faults.Leap = 1 + leap.IntN(300)
	}
	if online := random(seed, "online", 0); online.IntN(4) == 0 {
		c.Online = 1 + online.IntN(3)
	}
	c.drawLimits()
	if bare := random(seed, "bare", 0); bare.IntN(2) == 0 {
		c.Bare = 1 + bare.IntN(1000)
	}
	c.drawCollectors()
	c.drawDamage()
	return c
}

// drawLimits draws small segments of history, and small batches.
func (c *World) drawLimits() {
	if segments := random(c.Seed, "segments", 0); segments.IntN(2) == 0 {
		c.MaxSegment = 1 + segments.IntN(40)
	}
	if batches := random(c.Seed, "batches", 0); batches.IntN(2) == 0 {
		c.MaxBatch = 1 + batches.IntN(40)
	}
}

// drawFaults: a quarter of all worlds is calm, and of the others each kind of
// fault happens in half, rarely or often.
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

// Text is the world as it can be given back to Parse.
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
