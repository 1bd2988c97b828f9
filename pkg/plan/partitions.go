package plan

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/servo-orchestration/servo/pkg/ids"
)

// MaxDays is the most days that one selection may name: about 270 years.
const MaxDays = 100_000

// dayLayout is a calendar day. Text order is the order of days.
const dayLayout = time.DateOnly

// ParseDay reads a calendar day, "2025-01-15", and no other form. Days have no
// time zone: the zone of a partition says which instants a day has, never which
// days there are.
func ParseDay(s string) (time.Time, error) {
	day, err := time.Parse(dayLayout, s)
	if err != nil {
		return time.Time{}, fmt.Errorf("%q is not a day: write year-month-day, for example 2025-01-15", s)
	}
	return day, nil
}

// Days are the days from first to last, both included.
func Days(first, last string) ([]string, error) {
	from, err := ParseDay(first)
	if err != nil {
		return nil, err
	}
	to, err := ParseDay(last)
	if err != nil {
		return nil, err
	}
	if to.Before(from) {
		return nil, fmt.Errorf("the last day %s is before the first day %s", last, first)
	}
	const secondsADay = 24 * 60 * 60
	n := int((to.Unix()-from.Unix())/secondsADay) + 1 // a Duration holds no more than 292 years
	if n > MaxDays {
		return nil, fmt.Errorf("%s to %s is %d days; at most %d can be named at once", first, last, n, MaxDays)
	}
	days := make([]string, n)
	for i := range days {
		days[i] = from.AddDate(0, 0, i).Format(dayLayout)
	}
	return days, nil
}

// Selection is which partitions a run is to make: the days from First to Last of
// a dimension, both included.
type Selection struct {
	Dimension string
	First     string
	Last      string
}

// String is the selection as [ParseSelection] reads it.
func (s Selection) String() string {
	if s.First == s.Last {
		return s.Dimension + "=" + s.First
	}
	return s.Dimension + "=" + s.First + ".." + s.Last
}

// ParseSelection reads "date=2025-01-15" or "date=2025-01-01..2025-01-31".
func ParseSelection(s string) (Selection, error) {
	dimension, value, ok := strings.Cut(s, "=")
	if !ok || dimension == "" || value == "" {
		return Selection{}, fmt.Errorf("partition selection %q is not DIMENSION=VALUE: write date=2025-01-15 or date=2025-01-01..2025-01-31", s)
	}
	first, last, ranged := strings.Cut(value, "..")
	if !ranged {
		last = first
	}
	if _, err := Days(first, last); err != nil {
		return Selection{}, fmt.Errorf("read partition selection %q: %w", s, err)
	}
	return Selection{Dimension: dimension, First: first, Last: last}, nil
}

// Validate reports what is wrong with the partitions, as far as a pure function
// can tell: whether the time zone exists depends on the machine.
func (p *Partitions) Validate() error {
	if p.Dimension != "date" {
		return fmt.Errorf("dimension %q is not supported: only date is", p.Dimension)
	}
	if _, err := ParseDay(p.Start); err != nil {
		return fmt.Errorf("read the start: %w", err)
	}
	if p.End == "" {
		return nil
	}
	if _, err := ParseDay(p.End); err != nil {
		return fmt.Errorf("read the end: %w", err)
	}
	if p.End < p.Start {
		return fmt.Errorf("the end %s is before the start %s", p.End, p.Start)
	}
	return nil
}

// Contains reports whether a day is one of the partitions.
func (p *Partitions) Contains(day string) bool {
	return day >= p.Start && (p.End == "" || day <= p.End)
}

// String is the range as people read it: "2012-01-01 to 2015-12-31".
func (p *Partitions) String() string {
	if p.End == "" {
		return "from " + p.Start + " on"
	}
	return p.Start + " to " + p.End
}

// Key is the partition key of a day.
func (p *Partitions) Key(day string) string { return ids.Partition{p.Dimension: day}.Key() }

// selectedDays is the union of the selections' days, sorted.
func selectedDays(selections []Selection) ([]string, error) {
	var all []string
	for _, s := range selections {
		days, err := Days(s.First, s.Last)
		if err != nil {
			return nil, fmt.Errorf("read partition selection %s: %w", s, err)
		}
		if all = append(all, days...); len(all) > MaxDays {
			return nil, fmt.Errorf("the selections name more than %d days: select fewer", MaxDays)
		}
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

// dayOf is the day of a partition key, or the key itself where it has none.
func (p *Partitions) dayOf(key string) string {
	partition, err := ids.ParsePartition(key)
	if err != nil || len(partition) != 1 || partition[p.Dimension] == "" {
		return key
	}
	return partition[p.Dimension]
}

// Declares reports whether a partition key is that of one of the asset's partitions: the empty key,
// if the asset is unpartitioned.
func (a *Asset) Declares(partitionKey string) bool {
	if a.Partitions == nil {
		return partitionKey == ""
	}
	return a.Partitions.has(partitionKey)
}

// has reports whether a partition key is that of one of the partitions.
func (p *Partitions) has(key string) bool {
	day := p.dayOf(key)
	return day != key && p.Contains(day)
}
