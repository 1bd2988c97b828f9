package plan

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/servo-orchestration/servo/pkg/ids"
)

// MaxDays is the maximum number of days in one selection: about 270 years.
const MaxDays = 100_000

// dayLayout formats a calendar day. Days sort as text.
const dayLayout = time.DateOnly

// ParseDay parses a calendar day of the form "2025-01-15". A day has no time zone of its own;
// the zone of the partitions determines which instants belong to it.
func ParseDay(s string) (time.Time, error) {
	day, err := time.Parse(dayLayout, s)
	if err != nil {
		return time.Time{}, fmt.Errorf("%q is not a day: write year-month-day, for example 2025-01-15", s)
	}
	return day, nil
}

// Days returns the days from first to last, inclusive.
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
	n := int((to.Unix()-from.Unix())/secondsADay) + 1 // a Duration overflows after 292 years
	if n > MaxDays {
		return nil, fmt.Errorf("%s to %s is %d days; at most %d can be selected at once", first, last, n, MaxDays)
	}
	days := make([]string, n)
	for i := range days {
		days[i] = from.AddDate(0, 0, i).Format(dayLayout)
	}
	return days, nil
}

// Selection selects the days from First to Last, inclusive, of a dimension.
type Selection struct {
	Dimension string
	First     string
	Last      string
}

// String formats the selection as [ParseSelection] reads it.
func (s Selection) String() string {
	if s.First == s.Last {
		return s.Dimension + "=" + s.First
	}
	return s.Dimension + "=" + s.First + ".." + s.Last
}

// ParseSelection parses "date=2025-01-15" or "date=2025-01-01..2025-01-31".
func ParseSelection(s string) (Selection, error) {
	dimension, value, ok := strings.Cut(s, "=")
	if !ok || dimension == "" || value == "" {
		return Selection{}, fmt.Errorf("invalid partition selection %q: write date=2025-01-15 or date=2025-01-01..2025-01-31", s)
	}
	first, last, ranged := strings.Cut(value, "..")
	if !ranged {
		last = first
	}
	if _, err := Days(first, last); err != nil {
		return Selection{}, fmt.Errorf("invalid partition selection %q: %w", s, err)
	}
	return Selection{Dimension: dimension, First: first, Last: last}, nil
}

// Validate checks everything except that the time zone exists, which depends on the machine.
func (p *Partitions) Validate() error {
	if p.Dimension != "date" {
		return fmt.Errorf("unsupported dimension %q: write date", p.Dimension)
	}
	if _, err := ParseDay(p.Start); err != nil {
		return fmt.Errorf("invalid start: %w", err)
	}
	if p.End == "" {
		return nil
	}
	if _, err := ParseDay(p.End); err != nil {
		return fmt.Errorf("invalid end: %w", err)
	}
	if p.End < p.Start {
		return fmt.Errorf("the end %s is before the start %s", p.End, p.Start)
	}
	return nil
}

// Contains reports whether p declares a day.
func (p *Partitions) Contains(day string) bool {
	return day >= p.Start && (p.End == "" || day <= p.End)
}

// String formats the range for people: "2012-01-01 to 2015-12-31".
func (p *Partitions) String() string {
	if p.End == "" {
		return "from " + p.Start + " on"
	}
	return p.Start + " to " + p.End
}

// Key returns the partition key of a day.
func (p *Partitions) Key(day string) string { return ids.Partition{p.Dimension: day}.Key() }

// selectedDays returns the union of the selected days, sorted.
func selectedDays(selections []Selection) ([]string, error) {
	var all []string
	for _, s := range selections {
		days, err := Days(s.First, s.Last)
		if err != nil {
			return nil, fmt.Errorf("invalid partition selection %s: %w", s, err)
		}
		if all = append(all, days...); len(all) > MaxDays {
			return nil, fmt.Errorf("more than %d days are selected: select fewer", MaxDays)
		}
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

// dayOf returns the day of a partition key, or the key itself if it has none.
func (p *Partitions) dayOf(key string) string {
	partition, err := ids.ParsePartition(key)
	if err != nil || len(partition) != 1 || partition[p.Dimension] == "" {
		return key
	}
	return partition[p.Dimension]
}

// Declares reports whether the asset declares a partition key. An unpartitioned asset declares
// only the empty key.
func (a *Asset) Declares(partitionKey string) bool {
	if a.Partitions == nil {
		return partitionKey == ""
	}
	return a.Partitions.has(partitionKey)
}

// has reports whether p declares a partition key.
func (p *Partitions) has(key string) bool {
	day := p.dayOf(key)
	return day != key && p.Contains(day)
}
