// Package calendar computes the instants at which schedules tick. It has its own time zone data, so
// every machine computes the same instants. The package is pure. This package is not a stable API.
//
// An instant identifies a tick. If several matching local times lead to one instant, they are one tick. A
// local time that occurs twice can be two ticks. The policy [DST] applies to local times that clocks skip
// or repeat. Instants lie in the years 1970 to 2199.
package calendar

import (
	"cmp"
	"fmt"
	"time"
)

// Values of [DST]. The zero value of a field means its default.
const (
	GapShift     = "shift" // default: a tick at the first instant after the gap
	GapSkip      = "skip"  // no tick
	OverlapFirst = "first" // default
	OverlapLast  = "last"
	OverlapBoth  = "both"
)

// DST is the policy for local times that a zone skips (a gap) or has twice (an overlap). It has no effect
// if the hour field is *: such a schedule ticks in every hour that elapses.
type DST struct {
	Gap     string
	Overlap string
}

// Spec says when a schedule ticks. [Spec.Compile] checks it.
type Spec struct {
	// Cron is a cron expression of five fields. Either Cron or EverySec is set.
	Cron string
	// EverySec is the elapsed time between two ticks, in seconds. It must be a whole number of minutes. The first tick
	// is at Start, which is 1970-01-01T00:00Z by default.
	EverySec int64
	// Timezone is an IANA name, UTC by default.
	Timezone string
	DST      DST
	// Start and End limit the instants of ticks: Start is the first possible instant, and End is exclusive. A zero time
	// means that there is no bound.
	Start, End time.Time
	// JitterSec is the maximum delay of a tick: see [Schedule.Jitter].
	JitterSec int64
}

// Limits of a Spec.
const (
	MinEverySec  = minute
	MaxEverySec  = 366 * day
	MaxJitterSec = day
)

// Schedule is a compiled [Spec]. It is immutable.
type Schedule struct {
	spec       Spec
	cron       *cron // nil if the schedule has EverySec
	every      int64 // seconds
	zone       *zone
	gap        string
	overlap    string
	start, end int64 // Unix seconds; end is exclusive
}

// All instants are in [firstInstant, lastInstant).
var (
	firstInstant = time.Date(1970, 1, 1, 0, 0, 0, 0, time.UTC).Unix()
	lastInstant  = time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC).Unix()
)

// FieldError is an error in a field of a [Spec]. Field is the field's name in project files: cron, every, timezone,
// dst.gap, dst.overlap, start, end or jitter. Err is a [*CronError] if the cron expression is invalid.
type FieldError struct {
	Field string
	Err   error
}

// Error implements error.
func (e *FieldError) Error() string { return e.Field + ": " + e.Err.Error() }

// Unwrap returns the cause.
func (e *FieldError) Unwrap() error { return e.Err }

func invalid(field, format string, args ...any) error {
	return &FieldError{Field: field, Err: fmt.Errorf(format, args...)}
}

// Compile checks a Spec. Its errors are of type [*FieldError].
func (s Spec) Compile() (*Schedule, error) {
	c := &Schedule{
		spec: s, gap: cmp.Or(s.DST.Gap, GapShift), overlap: cmp.Or(s.DST.Overlap, OverlapFirst),
		start: firstInstant, end: lastInstant,
	}
	zone, err := loadZone(cmp.Or(s.Timezone, "UTC"))
	if err != nil {
		return nil, &FieldError{Field: "timezone", Err: err}
	}
	c.zone = zone
	for _, read := range []func() error{c.readPolicy, c.readExpression, c.readBounds, c.ticks} {
		if err := read(); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// Spec returns the [Spec] from which the schedule was compiled.
func (s *Schedule) Spec() Spec { return s.spec }

// DST returns the policy, with defaults for empty fields. For a schedule with EverySec, it returns an empty policy.
func (s *Schedule) DST() DST {
	if s.cron == nil {
		return DST{}
	}
	return DST{Gap: s.gap, Overlap: s.overlap}
}

// EveryHour reports whether the hour field is *. If so, the schedule ticks in every hour, and its [DST] has no effect.
func (s *Schedule) EveryHour() bool { return s.cron != nil && s.cron.everyHour }

// Notes returns remarks about parts of the schedule that may surprise its author.
func (s *Schedule) Notes() []string {
	var notes []string
	if s.cron != nil && !s.cron.anyDay && !s.cron.anyWeekday {
		notes = append(notes, "the expression restricts the days of the month and the days of the week: it ticks on days that match either")
	}
	if s.cron != nil && s.cron.everyHour && s.spec.DST != (DST{}) {
		notes = append(notes, "dst has no effect: a schedule whose hour field is * ticks in every hour that elapses")
	}
	return notes
}

// Location returns the time zone of the schedule.
func (s *Schedule) Location() *time.Location { return s.zone.location }

func (s *Schedule) readPolicy() error {
	if s.gap != GapShift && s.gap != GapSkip {
		return invalid("dst.gap", "unknown policy %q: write shift or skip", s.gap)
	}
	if s.overlap != OverlapFirst && s.overlap != OverlapLast && s.overlap != OverlapBoth {
		return invalid("dst.overlap", "unknown policy %q: write first, last or both", s.overlap)
	}
	if s.spec.JitterSec < 0 || s.spec.JitterSec > MaxJitterSec {
		return invalid("jitter", "must be between 0s and 24h")
	}
	return nil
}

func (s *Schedule) readExpression() error {
	every := s.spec.EverySec
	switch {
	case s.spec.Cron != "" && every != 0:
		return invalid("every", "has no effect beside cron: remove one of them")
	case s.spec.Cron != "":
		parsed, err := parseCron(s.spec.Cron)
		if err != nil {
			return &FieldError{Field: "cron", Err: err}
		}
		s.cron = parsed
		return nil
	case every == 0:
		return invalid("cron", "is missing: write cron or every")
	case every < MinEverySec || every > MaxEverySec || every%minute != 0:
		return invalid("every", "must be 1m to %dh, in whole minutes", MaxEverySec/hour)
	case s.spec.DST != DST{}:
		return invalid("dst", "has no effect beside every, which counts elapsed time: remove dst, or replace every by cron")
	}
	s.every = every
	return nil
}

func (s *Schedule) readBounds() error {
	for _, bound := range []struct {
		name string
		at   time.Time
		to   *int64
	}{{"start", s.spec.Start, &s.start}, {"end", s.spec.End, &s.end}} {
		if bound.at.IsZero() {
			continue
		}
		if *bound.to = bound.at.Unix(); *bound.to < firstInstant || *bound.to > lastInstant {
			return &FieldError{Field: bound.name, Err: outside(bound.at.UTC().Format(time.RFC3339))}
		}
	}
	if s.end <= s.start {
		return invalid("end", "%s is not after the start: swap them, or remove end", s.spec.End.UTC().Format(time.RFC3339))
	}
	return nil
}

// ticks returns an error if the schedule never ticks. The only possible reasons are the policy and the bounds, because
// [parseCron] rejects expressions that match no date. The search covers 28 years, after which dates fall on the same
// weekdays again. The search begins in the year of the zone data, or at the start of the schedule if the start is
// later. So the result does not depend on the clock.
func (s *Schedule) ticks() error {
	const years = 28
	if _, ok := s.next(s.start - 1); !ok {
		return invalid("end", "the schedule never ticks between its start and its end")
	}
	year := int(ZoneVersion[0]-'0')*1000 + int(ZoneVersion[1]-'0')*100 + int(ZoneVersion[2]-'0')*10 + int(ZoneVersion[3]-'0')
	from := max(s.start, time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC).Unix())
	to := time.Unix(from, 0).UTC().AddDate(years, 0, 0).Unix()
	if s.end <= to {
		return nil // the schedule has a tick, and ends within the period of the search
	}
	if next, ok := s.next(from - 1); !ok || next >= to {
		return invalid("dst.gap", "the schedule never ticks, because clocks in %s always skip its local time: write `gap: shift`", s.zone.name)
	}
	return nil
}
