package calendar

import (
	"crypto/sha256"
	"encoding/binary"
	"sort"
	"strconv"
	"time"
)

// Next returns the first tick after an instant, without its jitter. It returns false if there is
// none.
func (s *Schedule) Next(after time.Time) (time.Time, bool) {
	at, ok := s.next(after.Unix())
	return time.Unix(at, 0).UTC(), ok
}

// next works like Next, but takes and returns Unix seconds.
func (s *Schedule) next(after int64) (int64, bool) {
	from := max(after+1, s.start)
	if s.cron == nil {
		return s.nextEvery(from)
	}
	for i := s.zone.at(from); i < len(s.zone.spans); i++ {
		if at, ok := s.nextIn(i, from); ok {
			return at, at < s.end
		}
		if s.zone.until(i) >= s.end {
			break
		}
	}
	return 0, false
}

func (s *Schedule) nextEvery(from int64) (int64, bool) {
	at := s.start - floorDiv(s.start-from, s.every)*s.every
	return at, at < s.end
}

// nextIn returns the first tick of a span that is not earlier than the parameter "from".
func (s *Schedule) nextIn(i int, from int64) (int64, bool) {
	here := s.zone.spans[i]
	until := min(s.zone.until(i), s.end)
	if from <= here.start && s.shiftedTo(i) {
		return here.start, true
	}
	limit := until + here.offset
	for wall := s.cron.match(max(from, here.start)+here.offset, limit); wall < limit; wall = s.cron.match(wall+minute, limit) {
		if at := wall - here.offset; s.takes(at, wall) {
			return at, true
		}
	}
	return 0, false
}

// shiftedTo reports whether the gap before a span shifts a tick to the beginning of the span.
func (s *Schedule) shiftedTo(i int) bool {
	if i == 0 || s.cron.everyHour || s.gap != GapShift {
		return false
	}
	from, to := s.zone.skipped(i)
	for wall := s.cron.match(from, to); wall < to; wall = s.cron.match(wall+minute, to) {
		if s.zone.resolve(wall).gap == i {
			return true
		}
	}
	return false
}

// skipped returns the local times [from, to) that the clocks skip at the beginning of a span. If the clocks are set
// back at that time, no local times are skipped, and the first result is greater than the second one.
func (z *zone) skipped(i int) (from, to int64) {
	return z.spans[i].start + z.spans[i-1].offset, z.spans[i].start + z.spans[i].offset
}

// takes reports whether an instant is a tick under the overlap policy. The parameter wall is the local time that the
// clocks show at this instant, and must match the cron expression.
func (s *Schedule) takes(at, wall int64) bool {
	if s.cron.everyHour || s.overlap == OverlapBoth {
		return true
	}
	l := s.zone.resolve(wall)
	if s.overlap == OverlapLast {
		return at == l.instants[l.n-1]
	}
	return at == l.instants[0]
}

// Between returns the ticks in the interval (after, through], in ascending order. If there are more than limit, it
// returns the newest ones, and the number of earlier ticks that it omitted.
func (s *Schedule) Between(after, through time.Time, limit int) (ticks []time.Time, dropped int64) {
	return s.between(after.Unix(), through.Unix(), limit)
}

func (s *Schedule) between(after, through int64, limit int) (ticks []time.Time, dropped int64) {
	limit = max(limit, 0)
	if total := s.count(after, through); total > int64(limit) {
		dropped = total - int64(limit)
		// Find the instant after which the number of remaining ticks is the limit. It exists, because ticks have
		// distinct instants.
		skip := sort.Search(int(through-max(after, firstInstant)), func(n int) bool {
			return s.count(max(after, firstInstant)+int64(n), through) <= int64(limit)
		})
		after = max(after, firstInstant) + int64(skip)
	}
	for {
		at, ok := s.next(after)
		if !ok || at > through {
			return ticks, dropped
		}
		ticks = append(ticks, time.Unix(at, 0).UTC())
		after = at
	}
}

// count returns the number of ticks in the interval (after, through]. Near changes of the offset it counts single
// ticks; elsewhere it counts whole days at once.
func (s *Schedule) count(after, through int64) int64 {
	from, to := max(after+1, s.start), min(through+1, s.end)
	if from >= to {
		return 0
	}
	if s.cron == nil {
		first, _ := s.nextEvery(from)
		return max(0, floorDiv(to-1-first, s.every)+1)
	}
	total := int64(0)
	for i := s.zone.at(from); i < len(s.zone.spans) && s.zone.spans[i].start < to; i++ {
		start, end := max(from, s.zone.spans[i].start), min(to, s.zone.until(i))
		// A local time can occur more than once only near the ends of a span: count the ticks there one by one.
		low := min(end, max(start, s.zone.spans[i].start+2*reach))
		high := max(low, min(end, s.zone.until(i)-2*reach))
		offset := s.zone.spans[i].offset
		total += s.step(i, start, low) + s.cron.count(low+offset, high+offset) + s.step(i, high, end)
	}
	return total
}

// step counts the ticks of a span in [from, to), one by one.
func (s *Schedule) step(i int, from, to int64) int64 {
	total := int64(0)
	for from < to {
		at, ok := s.nextIn(i, from)
		if !ok || at >= to {
			break
		}
		total++
		from = at + 1
	}
	return total
}

// Jitter returns the delay of a tick: the hash of the schedule's id and of the tick, in seconds,
// modulo the smaller of the declared jitter and the time to the next tick. So the delay is the same on every machine,
// and a delayed tick is due before the instant of the next tick.
func (s *Schedule) Jitter(id string, tick time.Time) time.Duration {
	most := s.spec.JitterSec
	if most == 0 {
		return 0
	}
	if next, ok := s.next(tick.Unix()); ok {
		most = min(most, next-tick.Unix())
	}
	sum := sha256.Sum256([]byte(id + "|" + strconv.FormatInt(tick.Unix(), 10)))
	return time.Duration(binary.BigEndian.Uint64(sum[:8])%uint64(most)) * time.Second //nolint:gosec // positive, and below a day
}

// Due returns the time at which a tick is due: the tick plus its jitter.
func (s *Schedule) Due(id string, tick time.Time) time.Time {
	return tick.Add(s.Jitter(id, tick))
}

// Missed is like [Schedule.Between], but its upper bound, the parameter "by", applies to the times at which ticks are
// due. These times include the jitter.
func (s *Schedule) Missed(id string, after, by time.Time, limit int) (ticks []time.Time, dropped int64) {
	through := by.Unix()
	// Each tick is due before the instant of the next tick. So only the last tick whose instant is not after the upper
	// bound can be due after the bound.
	if last, _ := s.between(after.Unix(), through, 1); len(last) > 0 && s.Due(id, last[0]).After(by) {
		through = last[0].Unix() - 1
	}
	return s.between(after.Unix(), through, limit)
}
