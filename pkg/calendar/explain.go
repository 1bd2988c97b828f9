package calendar

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// localTime is the layout of local times.
const localTime = "2006-01-02T15:04"

// Kinds of a [Reason].
const (
	Shown   = "shown"   // the clocks show the local time exactly once
	Gap     = "gap"     // the clocks skip it
	Overlap = "overlap" // the clocks show it more than once
	Elapsed = "elapsed" // the schedule has EverySec, so its ticks do not depend on local times
)

// Reason explains how a local time that matches the expression becomes ticks.
type Reason struct {
	Kind string `json:"kind"`
	// At is the first instant at which the clocks show the local time, or the end of the gap.
	At    time.Time `json:"at"`
	Local string    `json:"local"` // 2025-03-30T02:30
	// ClocksFrom and ClocksTo are the local times before and after the clock change that causes a gap or an overlap.
	ClocksFrom string `json:"clocks_from,omitempty"`
	ClocksTo   string `json:"clocks_to,omitempty"`
	// Policy is the rule that was applied: shift, skip, first, last, both, or every hour.
	Policy string `json:"policy,omitempty"`
	// Ticks are the instants of the ticks. Skipped are the instants at which the clocks also show the local
	// time, but which are not ticks.
	Ticks   []time.Time `json:"ticks,omitempty"`
	Skipped []time.Time `json:"skipped,omitempty"`
}

// Explain returns a Reason for each matching local time that the clocks show at an instant, or skip at
// that instant. The instant is a tick if the Ticks of a Reason contain it. The result is empty if no local time of
// the schedule belongs to the instant.
func (s *Schedule) Explain(instant time.Time) []Reason {
	at := instant.Unix()
	if s.cron == nil {
		if next, ok := s.next(at - 1); !ok || next != at {
			return nil
		}
		return []Reason{{Kind: Elapsed, At: instant.UTC(), Local: s.zone.local(at, s.zone.at(at)), Ticks: []time.Time{instant.UTC()}}}
	}
	i := s.zone.at(at)
	var reasons []Reason
	if i > 0 && s.zone.spans[i].start == at {
		from, to := s.zone.skipped(i)
		for wall := s.cron.match(from, to); wall < to; wall = s.cron.match(wall+minute, to) {
			if s.zone.resolve(wall).gap == i {
				reasons = append(reasons, s.reason(wall))
			}
		}
	}
	wall := at + s.zone.spans[i].offset
	if s.cron.match(wall, wall+1) == wall && floorDiv(wall, minute)*minute == wall {
		reasons = append(reasons, s.reason(wall))
	}
	return reasons
}

// Changes returns a Reason of kind [Gap] or [Overlap] for each matching local time that the clocks skip or repeat in
// the interval (after, through]. The parameter limit is the maximum number of reasons.
func (s *Schedule) Changes(after, through time.Time, limit int) []Reason {
	if s.cron == nil {
		return nil
	}
	var reasons []Reason
	z := s.zone
	for i := max(1, z.at(after.Unix()-reach)); i < len(z.spans) && z.spans[i].start <= through.Unix()+reach; i++ {
		from, to := z.skipped(i)
		low, high := min(from, to), max(from, to)
		for wall := s.cron.match(low, high); wall < high && len(reasons) < limit; wall = s.cron.match(wall+minute, high) {
			l := z.resolve(wall)
			if l.n > 1 && from < to || l.n == 0 && l.gap != i || l.n == 1 {
				continue // this local time belongs to another change of the clocks
			}
			at := z.spans[i].start
			if l.n > 0 {
				at = l.instants[0]
			}
			if at > after.Unix() && at <= through.Unix() && at >= s.start && at < s.end {
				reasons = append(reasons, s.reason(wall))
			}
		}
	}
	return reasons
}

// reason explains a matching local time.
func (s *Schedule) reason(wall int64) Reason {
	l := s.zone.resolve(wall)
	r := Reason{Kind: Shown, Local: time.Unix(wall, 0).UTC().Format(localTime)}
	instants := l.instants[:l.n]
	if l.n > 0 {
		r.At = time.Unix(instants[0], 0).UTC()
	}
	switch {
	case l.n == 0:
		r.Kind, r.Policy = Gap, s.gap
		r.At = time.Unix(s.zone.spans[l.gap].start, 0).UTC()
		r.ClocksFrom, r.ClocksTo = s.zone.change(l.gap)
		if s.cron.everyHour {
			r.Policy = EveryHour
		} else if s.gap == GapShift {
			instants = []int64{s.zone.spans[l.gap].start}
		}
	case l.n > 1:
		r.Kind, r.Policy = Overlap, s.overlap
		r.ClocksFrom, r.ClocksTo = s.zone.change(s.zone.at(l.instants[1]))
		if s.cron.everyHour {
			r.Policy = EveryHour
		}
	}
	for _, at := range instants {
		tick := time.Unix(at, 0).UTC()
		if next, ok := s.next(at - 1); ok && next == at && (l.n == 0 || s.takes(at, wall)) {
			r.Ticks = append(r.Ticks, tick)
		} else {
			r.Skipped = append(r.Skipped, tick)
		}
	}
	return r
}

// EveryHour is the policy of an expression whose hour field is *.
const EveryHour = "every hour"

// change returns the local times that the clocks show before and after the clock change at the beginning of a span.
func (z *zone) change(i int) (from, to string) {
	at := z.spans[i].start
	return z.local(at, i-1), z.local(at, i)
}

// local returns the local time that clocks with the offset of a span show at an instant.
func (z *zone) local(at int64, i int) string {
	wall := time.Unix(at+z.spans[i].offset, 0).UTC()
	if wall.Second() != 0 {
		return wall.Format("2006-01-02T15:04:05")
	}
	return wall.Format(localTime)
}

// Text describes a reason for people. The id of the schedule determines the jitter of its ticks.
func (s *Schedule) Text(r *Reason, id string) string {
	var out strings.Builder
	fmt.Fprintf(&out, "%s %s", r.Local, s.zone.name)
	switch r.Kind {
	case Gap:
		fmt.Fprintf(&out, " does not exist (clocks go from %s): gap: %s", between(r), r.Policy)
	case Overlap:
		fmt.Fprintf(&out, " occurs %d times (clocks go from %s): overlap: %s", len(r.Ticks)+len(r.Skipped), between(r), r.Policy)
	}
	if len(r.Ticks) == 0 {
		out.WriteString("\n  → no tick")
	}
	for _, tick := range r.Ticks {
		out.WriteString("\n  → " + s.tickText(r, id, tick))
	}
	return out.String()
}

// between returns the local times before and after a clock change, as text. It omits the dates if both are the date of
// r.Local.
func between(r *Reason) string {
	date := r.Local[:len(time.DateOnly)]
	if strings.HasPrefix(r.ClocksFrom, date) && strings.HasPrefix(r.ClocksTo, date) {
		return r.ClocksFrom[len(date)+1:] + " to " + r.ClocksTo[len(date)+1:]
	}
	return r.ClocksFrom + " to " + r.ClocksTo
}

func (s *Schedule) tickText(r *Reason, id string, tick time.Time) string {
	local, layout := tick.In(s.zone.location), "15:04"
	if local.Second() != 0 {
		layout = time.TimeOnly
	}
	if !strings.HasPrefix(r.Local, local.Format(time.DateOnly)) {
		layout = time.DateOnly + "T" + layout
	}
	utc := "15:04"
	if tick.Second() != 0 {
		utc = time.TimeOnly
	}
	if local.Format(time.DateOnly) != tick.Format(time.DateOnly) {
		utc = time.DateOnly + "T" + utc
	}
	text := local.Format(layout+"-07:00") + ", " + tick.Format(utc) + "Z"
	if local.Format("-07:00") == "+00:00" {
		text = tick.Format(layout) + "Z"
	}
	if s.spec.JitterSec == 0 {
		return text
	}
	jitter := s.Jitter(id, tick)
	return text + ", jitter " + strings.TrimSuffix(jitter.String(), "m0s") + unit(jitter) + " → " + tick.Add(jitter).Format(time.TimeOnly) + "Z"
}

func unit(d time.Duration) string {
	if d >= time.Minute && strings.HasSuffix(d.String(), "m0s") {
		return "m"
	}
	return ""
}

// IsTick reports whether an instant is a tick according to its reasons.
func IsTick(reasons []Reason, instant time.Time) bool {
	return slices.ContainsFunc(reasons, func(r Reason) bool {
		return slices.ContainsFunc(r.Ticks, instant.Equal)
	})
}
