package sim

import (
	"strings"
	"time"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/state"
)

// idleIsFree is the name of the invariant about idle domains.
const idleIsFree = "I-32 idle is free"

// idleFor is the time during which calls are counted while all domains are idle.
const idleFor = 20 * time.Minute

// idle counts the calls of services while nothing is due in any domain. Services must make no calls in this time,
// except listings of wakeups, which are not counted.
type idle struct {
	begun  time.Time // when the other processes were stopped; zero: not yet
	from   time.Time // when counting began; zero: not yet
	last   time.Time // when a service last made a call
	calls  int
	sample string
}

// mustStayDown reports whether a machine must stay down while calls are counted, because it makes calls
// even if nothing is due.
func (i *idle) mustStayDown(m *machine) bool {
	return !i.begun.IsZero() && (m.kind == "reader" || m.kind == "gc" || m.kind == "client")
}

// ended reports whether the counting of calls is over. Its first call stops the processes that are not services. A
// later call begins the counting, as soon as the services are quiet and nothing is due soon. In worlds with faults or
// full sweeps, calls are not counted, and ended always returns true: faults cause deliveries that arrive late, and full
// sweeps visit every domain.
func (i *idle) ended(w *world) bool {
	if !w.cfg.Idle || w.cfg.Faults != (Faults{}) || w.cfg.FullEvery > 0 || w.cfg.Ahead > 0 {
		return true
	}
	now := w.now()
	switch {
	case i.begun.IsZero():
		i.begun = now
		for _, m := range w.machines {
			if m.alive != nil && i.mustStayDown(m) {
				m.alive.kill("only the services stay")
			}
		}
	case i.from.IsZero() && now.Sub(i.last) >= restFor && !w.oracle.dueBefore(event.At(now.Add(idleFor+time.Minute))):
		i.from = now
	case i.from.IsZero():
		return now.Sub(i.begun) > restTimeout/2 // give up, but only after the rows of ended requests had time to be deleted, which takes an hour
	case now.Sub(i.from) >= idleFor:
		w.fault("idle world")
		if i.calls > 0 {
			w.oracle.violation(idleIsFree, "nothing was due for %s, but the services made %d calls, such as %s", idleFor, i.calls, i.sample)
		}
		return true
	}
	return false
}

// count counts a call of a service.
func (i *idle) count(w *world, c *call) {
	if strings.HasPrefix(c.label, "sleep ") || i.mustStayDown(c.proc.machine) ||
		c.proc.machine.kind == "sweeper" && strings.HasPrefix(c.label, "list wakeups/") {
		return
	}
	if i.last = w.now(); i.from.IsZero() || w.now().Sub(i.from) >= idleFor {
		return
	}
	i.calls++
	i.sample = c.proc.id + " " + c.label
}

// dueBefore reports whether a domain has a timer or a wakeup before a time.
func (o *oracle) dueBefore(limit event.Time) bool {
	for _, f := range o.domains {
		if f.manifest == nil {
			continue
		}
		if at := f.manifest.Wakeup.At; at != 0 && at < limit {
			return true
		}
		for t := range f.state.Timers.All {
			if t.FireAt < limit && t.State == state.TimerScheduled {
				return true
			}
		}
	}
	return false
}
