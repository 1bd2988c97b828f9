package sim

import (
	"math/rand/v2"
	"time"
)

// Faults are how often things go wrong, each out of a thousand where nothing
// else is said.
type Faults struct {
	// Requests to the store and the queue: refused without effect; refused, and in
	// effect a while later; in effect, and the answer lost; slow, by up to minutes.
	Refused, Late, Lost, Slow int
	// The process dies just before a write takes effect, or just after.
	KillBefore, KillAfter int
	// Requests between processes: never arrive; are answered to nobody; are slow.
	NetRefused, NetLost, NetSlow int
	// Queue tasks: dropped; delivered once more, up to ten minutes later; late.
	TaskLost, TaskAgain, TaskLate int
	// Notifications of objects.
	NoticeLost, NoticeAgain, NoticeLate int
	// Each minute, of each machine: its process is killed; is frozen; its clock jumps.
	Kill, Freeze, Jump int
	// Leap: each minute, of each client: its clock is hours to years ahead, and is set right
	// after some minutes.
	Leap int
	// MaxSkew is how far the clocks of machines differ, in seconds.
	MaxSkew int
	// Full: each minute, the store begins to be full for a while.
	Full int
	// Stall: each minute, the queue begins to keep all that it has for a while.
	Stall int
	// Dropped: each time that a delivery fails, the queue drops its task.
	Dropped int
	// Older is for how many minutes, at most, compactors run a build that does not
	// know all event types. Each is upgraded at its own time.
	Older int
	// Unreadable: an entry of the ledger, or a plan, cannot be read for a while after it was
	// created, or for ever: an operator skips such an entry.
	Unreadable int
	// Damaged: an output has a file damaged after it was committed: a bit is flipped, or the file
	// is truncated, replaced or deleted.
	Damaged int
	// Wipe: the projections are damaged, or deleted, this many times; somebody
	// notices and has them rebuilt.
	Wipe int
	// Absence is for how many minutes, once, nothing runs at all; it begins before faults
	// stop, which then do so later by as much.
	Absence int
}

// spares reports whether nothing goes wrong but that outputs are damaged.
func (f Faults) spares() bool {
	f.Damaged = 0
	return f == Faults{}
}

func (f Faults) absence() time.Duration { return time.Duration(f.Absence) * time.Minute }

// dice draws what goes wrong. It belongs to the driver.
type dice struct {
	Faults
	w            *world
	rng          *rand.Rand
	fullUntil    time.Time
	stalledUntil time.Time
}

// over reports whether faults have stopped.
func (d *dice) over() bool { return d.w.elapsed() >= d.w.horizon() }

// chance draws an event of n in a thousand, and counts it.
func (d *dice) chance(n int, name string) bool {
	if n == 0 || d.over() || d.rng.IntN(1000) >= n {
		return false
	}
	d.w.fault(name)
	return true
}

// between draws a duration.
func (d *dice) between(from, to time.Duration) time.Duration {
	return from + time.Duration(d.rng.Int64N(int64(to-from)+1))
}

// latency is half of a round trip. That no two are the same keeps things in order.
func (d *dice) latency() time.Duration { return d.between(time.Millisecond, 30*time.Millisecond) }

type storageFault struct {
	before, after         bool
	later                 time.Duration // before: it takes effect then, all the same
	killBefore, killAfter bool
	delay                 time.Duration
}

func (d *dice) storage(p *process, writes bool) storageFault {
	var f storageFault
	if d.chance(d.Slow, "slow request") {
		f.delay = d.between(time.Second, 4*time.Minute)
	}
	switch {
	case !writes:
		f.before = d.chance(d.Refused, "refused")
	case d.chance(d.KillBefore, "killed before a write"):
		f.killBefore = p != nil
	case d.chance(d.KillAfter, "killed after a write"):
		f.killAfter = p != nil
	case d.chance(d.Refused, "refused"):
		f.before = true
	case d.chance(d.Late, "refused and late"):
		f.before, f.later = true, d.between(10*time.Millisecond, 2*time.Minute)
	case d.chance(d.Lost, "answer lost"):
		f.after = true
	}
	return f
}

// full reports whether the store has no room.
func (d *dice) full() bool { return d.w.now().Before(d.fullUntil) && !d.over() }

// stalled is for how long the queue delivers nothing.
func (d *dice) stalled() time.Duration {
	if d.over() {
		return 0
	}
	return d.stalledUntil.Sub(d.w.now())
}

type networkFault struct {
	before, after bool
	delay         time.Duration
}

func (d *dice) network() networkFault {
	var f networkFault
	if d.chance(d.NetSlow, "slow network") {
		f.delay = d.between(time.Second, 90*time.Second)
	}
	f.before = d.chance(d.NetRefused, "connection refused")
	f.after = !f.before && d.chance(d.NetLost, "response lost")
	return f
}

type deliveryFault struct {
	lost  bool
	delay time.Duration
	again time.Duration
}

func (d *dice) delivery() deliveryFault {
	f := deliveryFault{delay: d.latency()}
	f.lost = d.chance(d.TaskLost, "queue task lost")
	if d.chance(d.TaskLate, "queue task late") {
		f.delay = d.between(time.Second, 5*time.Minute)
	}
	if d.chance(d.TaskAgain, "queue task delivered twice") {
		f.again = d.between(time.Millisecond, 10*time.Minute)
		if f.again%2 == 0 { // every second one at once, so that two workers execute beside each other
			f.again %= 2 * time.Second
		}
	}
	return f
}

// longWorld is after how many minutes entries of the ledger may have gone into
// history.
const longWorld = 25

func (d *dice) notice() deliveryFault {
	f := deliveryFault{delay: d.latency()}
	f.lost = d.chance(d.NoticeLost, "notification lost")
	if d.chance(d.NoticeLate, "notification late") {
		f.delay = d.between(time.Second, 5*time.Minute)
	}
	if d.chance(d.NoticeAgain, "notification delivered twice") {
		f.again = d.between(time.Millisecond, 10*time.Minute)
		if d.w.cfg.Minutes > longWorld && d.rng.IntN(4) == 0 { // when its entry may be in history
			f.again = d.between(10*time.Minute, time.Hour)
		}
	}
	return f
}

// minute lets happen what happens to machines.
func (d *dice) minute() {
	if d.over() {
		return
	}
	for _, m := range d.w.machines {
		if m.alive != nil && d.chance(d.Kill, "killed") {
			m.alive.kill("fate")
		}
		if m.alive != nil && d.chance(d.Freeze, "frozen") {
			d.w.freeze(m, d.between(time.Second, 4*time.Minute))
		}
		if d.chance(d.Jump, "clock jumped") && d.MaxSkew > 0 {
			m.skew = d.skew()
			d.w.note("clock of %s is off by %s", m.name, m.skew)
		}
		if m.kind == "client" && d.Leap > 0 {
			d.leap(m)
		}
	}
	if d.chance(d.Full, "store full for a while") {
		d.fullUntil = d.w.now().Add(d.between(time.Second, time.Minute))
	}
	if d.chance(d.Stall, "queue stalled for a while") {
		d.stalledUntil = d.w.now().Add(d.between(time.Minute, 25*time.Minute))
	}
}

// leap puts a machine's clock far ahead for some minutes, and then back.
func (d *dice) leap(m *machine) {
	if m.leap != 0 || !d.chance(d.Leap, "clock far ahead") {
		return
	}
	m.leap = farAhead(d.rng)
	d.w.note("clock of %s is %s ahead", m.name, m.leap)
	d.w.after(d.between(time.Second, 8*time.Minute), nil, func() {
		m.leap = 0
		d.w.note("clock of %s is set right", m.name)
	})
}

// farAhead draws how far something is ahead that is refused: hours to years.
func farAhead(r *rand.Rand) time.Duration {
	const hour, year = time.Hour, 365 * 24 * time.Hour
	most := []time.Duration{hour, 24 * hour, 2 * year, 250 * year}[r.IntN(4)]
	return 2*hour + time.Duration(r.Int64N(int64(most)))
}

func (d *dice) skew() time.Duration {
	most := time.Duration(d.MaxSkew) * time.Second
	return d.between(-most, most)
}
