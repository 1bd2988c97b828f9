package plan

import (
	"cmp"
	"fmt"
	"time"
)

// Calendar decides which days exist in a time zone and which have begun. In the zero Calendar
// every day exists and has begun.
type Calendar struct {
	// Now is the time of the request.
	Now time.Time
	// Zone returns a time zone by its IANA name.
	Zone func(name string) (*time.Location, error)
}

// zone returns the time zone of p, UTC by default. It returns nil if c has no zones: then every
// day exists.
func (c Calendar) zone(p *Partitions) (*time.Location, error) {
	if c.Zone == nil {
		return nil, nil
	}
	zone, err := c.Zone(cmp.Or(p.Timezone, "UTC"))
	if err != nil {
		return nil, fmt.Errorf("load time zone %s: %w", p.Timezone, err)
	}
	return zone, nil
}

// today returns the current day in a zone.
func (c Calendar) today(zone *time.Location) string { return c.Now.In(zone).Format(dayLayout) }

// LastEnded returns the last day that has ended in the time zone of p, or "" if c has no zones.
func (c Calendar) LastEnded(p *Partitions) string {
	zone, err := c.zone(p)
	if err != nil || zone == nil {
		return ""
	}
	return c.Now.In(zone).AddDate(0, 0, -1).Format(dayLayout)
}

// Days returns the declared days of p that have begun, without days that the time zone skipped.
// It returns none if the first day is in the future.
func (c Calendar) Days(p *Partitions) ([]string, error) {
	zone, err := c.zone(p)
	if err != nil {
		return nil, err
	}
	last := p.End
	if zone != nil {
		if today := c.today(zone); last == "" || today < last {
			last = today
		}
	}
	if last < p.Start {
		return nil, nil
	}
	days, err := Days(p.Start, last)
	if err != nil {
		return nil, err
	}
	return withoutSkipped(days, zone), nil
}

// withoutSkipped removes the days that the zone skipped.
func withoutSkipped(days []string, zone *time.Location) []string {
	kept := days[:0]
	for _, day := range days {
		if !Skipped(day, zone) {
			kept = append(kept, day)
		}
	}
	return kept
}

// Skipped reports whether the zone skipped a day. Pacific/Apia skipped 2011-12-30 when it
// crossed the date line.
func Skipped(day string, zone *time.Location) bool {
	t, err := ParseDay(day)
	if err != nil || zone == nil {
		return false
	}
	const noon = 12 // daylight saving skips an hour at night
	return time.Date(t.Year(), t.Month(), t.Day(), noon, 0, 0, 0, zone).Format(dayLayout) != day
}

// begun returns an error if a day has not begun in the time zone of p.
func (c Calendar) begun(p *Partitions, day string, zone *time.Location) error {
	if zone == nil {
		return nil
	}
	if today := c.today(zone); day > today {
		return fmt.Errorf("%s=%s has not begun: it is %s in the time zone %s", p.Dimension, day, today, zone)
	}
	return nil
}

// begunDays returns the days that exist in the time zone of the asset. It returns an error if a
// day has not begun, or if the request selects a skipped day by itself. A range leaves out
// skipped days, with a warning.
func (b *builder) begunDays(a *Asset, days []string) ([]string, error) {
	p := a.Partitions
	zone, err := b.request.Calendar.zone(p)
	if err != nil || zone == nil || len(days) == 0 {
		return days, err
	}
	if err := b.request.Calendar.begun(p, days[len(days)-1], zone); err != nil {
		return nil, fmt.Errorf("asset %s: %w: select earlier days", a.Key, err)
	}
	for _, s := range b.request.Partitions {
		if s.First == s.Last && p.Contains(s.First) && Skipped(s.First, zone) {
			return nil, fmt.Errorf("asset %s has no partition %s: the time zone %s skipped this day: select another day", a.Key, s, zone)
		}
	}
	kept := make([]string, 0, len(days))
	for _, day := range days {
		if Skipped(day, zone) {
			b.warn("%s has no partition %s=%s: the time zone %s skipped this day", a.Key, p.Dimension, day, zone)
			continue
		}
		kept = append(kept, day)
	}
	return kept, nil
}
