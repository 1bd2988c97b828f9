// Package space describes the partitions of an asset: the dimensions of its partition keys, the
// periods and keys of each dimension, selections of partitions, and the mappings that determine which partitions of
// an upstream asset a partition reads. The package is pure: callers pass the time, zone data and key sets as a
// [Calendar]. This package is not a stable API.
package space

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/servo-orchestration/servo/pkg/ids"
)

// Kind is the kind of a dimension.
type Kind string

// The kinds. The first six are kinds of time: the values of such a dimension are periods.
const (
	Every   Kind = "every"
	Hourly  Kind = "hourly"
	Daily   Kind = "daily"
	Weekly  Kind = "weekly"
	Monthly Kind = "monthly"
	Yearly  Kind = "yearly"
	Static  Kind = "static"
	Dynamic Kind = "dynamic"
)

// Kinds returns all kinds: first the kinds of time, from short to long periods, and then the others.
func Kinds() []Kind {
	return []Kind{Every, Hourly, Daily, Weekly, Monthly, Yearly, Static, Dynamic}
}

// DefaultName returns the name that a dimension has if the partitions are declared in the short form `partitions:
// {daily: …}`. It returns "" for a kind without a short form.
func (k Kind) DefaultName() string {
	return map[Kind]string{
		Every: "time", Hourly: "hour", Daily: "date", Weekly: "week", Monthly: "month", Yearly: "year",
	}[k]
}

// Plural returns the noun for the periods of a kind of time, such as days. For other kinds, it returns "".
func (k Kind) Plural() string {
	return map[Kind]string{
		Every: "periods", Hourly: "hours", Daily: "days", Weekly: "weeks", Monthly: "months", Yearly: "years",
	}[k]
}

// Limits of a dimension.
const (
	MaxDimensions = 4
	MaxName       = ids.MaxName
	MaxValue      = ids.MaxValue // maximum length of a value of a static or dynamic dimension, in bytes
	MaxValues     = 1_000        // maximum number of values of a static dimension
)

// Dimension is one dimension of a space. Its keys are texts: see [Dimension.Check].
type Dimension struct {
	Name string `json:"name"`
	Kind Kind   `json:"kind"`
	// Start and End are the first and the last period of a time dimension, inclusive. Each is the key of a period or,
	// for hours and shorter periods, a day or a local time. If End is "", the periods have no end.
	Start string `json:"start,omitempty"`
	End   string `json:"end,omitempty"`
	// Timezone is the IANA name of the time zone of a time dimension. "" means UTC.
	Timezone string `json:"timezone,omitempty"`
	// ReadyAfterSec is how many seconds after its end a period is expected.
	ReadyAfterSec int64 `json:"ready_after_sec,omitempty"`
	// Minutes is the length of the periods of [Every]: a divisor of 60.
	Minutes int `json:"minutes,omitempty"`
	// Starts is the first day of the weeks of [Weekly]. "" means monday.
	Starts string `json:"starts,omitempty"`
	// Values are the keys of a [Static] dimension.
	Values []string `json:"values,omitempty"`
	// Set names the key set of a [Dynamic] dimension.
	Set string `json:"set,omitempty"`
}

// Weekdays are the days on which a week may start.
var Weekdays = []string{"monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"}

// IsTime reports whether d is a time dimension, whose values are periods.
func (d *Dimension) IsTime() bool { return d.Kind != Static && d.Kind != Dynamic }

// clocked reports whether the periods of d are hours or shorter. The keys of such periods contain a UTC offset.
func (d *Dimension) clocked() bool { return d.Kind == Every || d.Kind == Hourly }

// PeriodsExceedDay reports whether the periods of d are longer than a day.
func (d *Dimension) PeriodsExceedDay() bool {
	return d.Kind == Weekly || d.Kind == Monthly || d.Kind == Yearly
}

// period returns the length of the periods of a clocked dimension in seconds.
func (d *Dimension) period() int64 {
	const minute, hour = 60, 3600
	if d.Kind == Every {
		return int64(max(d.Minutes, 1)) * minute
	}
	return hour
}

// Zone returns the name of the time zone, UTC by default.
func (d *Dimension) Zone() string { return cmp.Or(d.Timezone, "UTC") }

// weekStart returns the first day of the weeks: 0 for Monday.
func (d *Dimension) weekStart() int64 {
	return int64(max(slices.Index(Weekdays, cmp.Or(d.Starts, Weekdays[0])), 0))
}

// SQLType returns the type of the dimension's variable and column in SQL.
func (d *Dimension) SQLType() string {
	switch {
	case !d.IsTime():
		return "VARCHAR"
	case d.clocked():
		return "TIMESTAMPTZ"
	default:
		return "DATE"
	}
}

// ValidName reports whether s can name a dimension or a key set: a-z, 0-9 and _, beginning with a
// letter.
func ValidName(s string) bool { return ids.ValidName(s) }

// CheckValue returns an error if s cannot be a key of a static or dynamic dimension.
func CheckValue(s string) error { return ids.CheckValue(s) }

// Validate checks the dimension. [Calendar.CheckZone] checks the rules that depend on zone data.
func (d *Dimension) Validate() error {
	if !ValidName(d.Name) {
		return fmt.Errorf("invalid dimension name %q: use a-z, 0-9 and _, beginning with a letter", d.Name)
	}
	switch d.Kind {
	case Static:
		return d.validateValues()
	case Dynamic:
		if !ValidName(d.Set) {
			return fmt.Errorf("invalid key set %q of dimension %s: use a-z, 0-9 and _, beginning with a letter", d.Set, d.Name)
		}
		return nil
	case Every:
		if d.Minutes < 1 || 60%d.Minutes != 0 {
			return fmt.Errorf("invalid period of dimension %s: period must be a divisor of one hour, for example 15m", d.Name)
		}
	case Weekly:
		if d.Starts != "" && !slices.Contains(Weekdays, d.Starts) {
			return fmt.Errorf("invalid first day of a week %q: write one of %s", d.Starts, strings.Join(Weekdays, ", "))
		}
	case Hourly, Daily, Monthly, Yearly:
	default:
		return fmt.Errorf("unknown kind %q of dimension %s", d.Kind, d.Name)
	}
	start, err := d.bound(d.Start)
	if err != nil {
		return fmt.Errorf("invalid start: %w", err)
	}
	if d.End == "" {
		return nil
	}
	end, err := d.bound(d.End)
	switch {
	case err != nil:
		return fmt.Errorf("invalid end: %w", err)
	case !end.to.After(start.from):
		return fmt.Errorf("the end %s is before the start %s: swap them, or remove end", d.End, d.Start)
	}
	return nil
}

func (d *Dimension) validateValues() error {
	if len(d.Values) == 0 || len(d.Values) > MaxValues {
		return fmt.Errorf("dimension %s has %d values: write 1 to %d", d.Name, len(d.Values), MaxValues)
	}
	seen := map[string]bool{}
	for _, v := range d.Values {
		if err := CheckValue(v); err != nil {
			return err
		}
		if seen[v] {
			return fmt.Errorf("dimension %s has the value %s twice: remove one", d.Name, v)
		}
		seen[v] = true
	}
	return nil
}

// Check returns an error unless value is a key of the dimension's kind, in canonical form. It does not check whether
// the period is declared, or whether it exists in the zone.
func (d *Dimension) Check(value string) error {
	if !d.IsTime() {
		return CheckValue(value)
	}
	_, err := d.index(value)
	return err
}

// String formats the dimension for people: "date (daily)".
func (d *Dimension) String() string {
	var b strings.Builder
	b.WriteString(d.Name + " (")
	switch d.Kind {
	case Static:
		return d.Name + " (static: " + joinSome(d.Values) + ")"
	case Dynamic:
		return d.Name + " (dynamic: " + d.Set + ")"
	case Every:
		fmt.Fprintf(&b, "every %d minutes", d.Minutes)
	case Weekly:
		b.WriteString("weekly from " + cmp.Or(d.Starts, Weekdays[0]))
	case Hourly, Daily, Monthly, Yearly:
		b.WriteString(string(d.Kind))
	}
	if d.Timezone != "" {
		b.WriteString(", " + d.Timezone)
	}
	b.WriteString(")")
	return b.String()
}

// Range formats the declared values for people: "2012-01-01 to 2015-12-31".
func (d *Dimension) Range() string {
	switch {
	case d.Kind == Static:
		return joinSome(d.Values)
	case d.Kind == Dynamic:
		return "the keys of " + d.Set
	case d.End == "":
		return "from " + d.Start + " on"
	default:
		return d.Start + " to " + d.End
	}
}

// joinSome joins the first five texts and counts the others.
func joinSome(texts []string) string {
	const most = 5
	if len(texts) <= most {
		return strings.Join(texts, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(texts[:most], ", "), len(texts)-most)
}

// Layouts of keys, and of the texts in selections and bounds.
const (
	layoutYear  = "2006"
	layoutMonth = "2006-01"
	layoutDay   = time.DateOnly
	layoutLocal = "2006-01-02T15:04"
	layoutHour  = "2006-01-02T15:04Z07:00"
)
