package sim

import (
	"math/rand/v2"
	"time"
)

// Faults are the frequencies of faults, in thousandths unless stated otherwise.
type Faults struct {
	// Faults of requests to the store and the queue. Refused: the request is rejected and has no effect. Late: it is
	// rejected, but takes effect some time later. Lost: it takes effect, but the answer is lost. Slow: it is delayed,
	// sometimes by minutes.
	Refused, Late, Lost, Slow int
	// KillBefore: the process dies just before a write takes effect. KillAfter: it dies just after.
	KillBefore, KillAfter int
	// Faults of requests between processes. NetRefused: the request never arrives. NetLost: its answer is lost.
	// NetSlow: it is slow.
	NetRefused, NetLost, NetSlow int
	// Faults of queue tasks. TaskLost: the task is lost. TaskAgain: it is delivered once more, up to ten minutes later.
	// TaskLate: it is delivered late.
	TaskLost, TaskAgain, TaskLate int
	// NoticeLost, NoticeAgain and NoticeLate are the same faults of notifications about objects.
	NoticeLost, NoticeAgain, NoticeLate int
	// Kill, Freeze and Jump are drawn for each machine once a minute: its process is killed, its process is frozen, or
	// its clock jumps.
	Kill, Freeze, Jump int
	// Leap is drawn for each client once a minute: the client's clock is hours to years ahead for some minutes.
	Leap int
	// MaxSkew is the maximum difference between the clocks of machines, in seconds.
	MaxSkew int
	// Full is drawn once a minute: the store is full for a while.
	Full int
	// Stall is drawn once a minute: the queue delivers nothing for a while.
	Stall int
	// Dropped is drawn for each failed delivery: the queue drops the task.
	Dropped int
	// Older is the maximum number of minutes for which compactors run a build that does not know all event types. Each
	// compactor is upgraded at its own time.
	Older int
	// Unreadable is drawn for each new ledger entry and plan: it cannot be read for a while. Some entries stay
	// unreadable, and an operator skips them.
	Unreadable int
	// Damaged is drawn for each committed output: a bit of one of its files is flipped, or the file is truncated,
	// replaced or deleted.
	Damaged int
	// Wipe is how many times projections are damaged or deleted. An operator then rebuilds them.
	Wipe int
	// Absence is the length of an outage, in minutes. No process runs during the outage. It begins before faults stop,
	// and postpones the end of faults by its length.
	Absence int
}

// calm reports whether no faults are enabled except damaged outputs.
func (f Faults) calm() bool {
	f.Damaged = 0
	return f == Faults{}
}

func (f Faults) outage() time.Duration { return time.Duration(f.Absence) * time.Minute }

// dice draws faults. Only the driver's goroutine uses it.
type dice struct {
	Faults
	w            *world
	rng          *rand.Rand
	fullUntil    time.Time
	stalledUntil time.Time
}

// over reports whether faults have stopped.
func (d *dice) over() bool { return d.w.elapsed() >= d.w.horizon() }

// chance draws a fault with probability n/1000, and counts it.
func (d *dice) chance(n int, name string) bool {
	if n == 0 || d.over() || d.rng.IntN(1000) >= n {
		return false
	}
	d.w.fault(name)
	return true
}

// between draws a duration from a range.
func (d *dice) between(from, to time.Duration) time.Duration {
	return from + time.Duration(d.rng.Int64N(int64(to-from)+1))
}

// latency draws the duration of half a round trip. Latencies are random, so that two events rarely happen at the same
// time.
func (d *dice) latency() time.Duration { return d.between(time.Millisecond, 30*time.Millisecond) }

type storageFault struct {
	before, after         bool
	later                 time.Duration // not 0: the request fails, but takes effect after this time
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

// full reports whether the store rejects writes for lack of space.
func (d *dice) full() bool { return d.w.now().Before(d.fullUntil) && !d.over() }

// stalled returns how much longer the queue will deliver nothing.
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
		if f.again%2 == 0 { // half of the second deliveries come within 2 s: two workers execute the task at once
			f.again %= 2 * time.Second
		}
	}
	return f
}

// longWorld is the number of minutes after which ledger entries may be in history.
const longWorld = 25

func (d *dice) notice() deliveryFault {
	f := deliveryFault{delay: d.latency()}
	f.lost = d.chance(d.NoticeLost, "notification lost")
	if d.chance(d.NoticeLate, "notification late") {
		f.delay = d.between(time.Second, 5*time.Minute)
	}
	if d.chance(d.NoticeAgain, "notification delivered twice") {
		f.again = d.between(time.Millisecond, 10*time.Minute)
		if d.w.cfg.Minutes > longWorld && d.rng.IntN(4) == 0 { // so late that the announced entry may be in history
			f.again = d.between(10*time.Minute, time.Hour)
		}
	}
	return f
}

// minute draws the faults that happen in a minute.
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

// leap moves a machine's clock far ahead for some minutes.
func (d *dice) leap(m *machine) {
	if m.leap != 0 || !d.chance(d.Leap, "clock far ahead") {
		return
	}
	m.leap = farAhead(d.rng)
	d.w.note("clock of %s is %s ahead", m.name, m.leap)
	d.w.callAfter(d.between(time.Second, 8*time.Minute), nil, func() {
		m.leap = 0
		d.w.note("clock of %s is corrected", m.name)
	})
}

// farAhead draws a duration of hours to years. The system rejects events that are so far ahead.
func farAhead(r *rand.Rand) time.Duration {
	const hour, year = time.Hour, 365 * 24 * time.Hour
	most := []time.Duration{hour, 24 * hour, 2 * year, 250 * year}[r.IntN(4)]
	return 2*hour + time.Duration(r.Int64N(int64(most)))
}

func (d *dice) skew() time.Duration {
	most := time.Duration(d.MaxSkew) * time.Second
	return d.between(-most, most)
}
