package space

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Selection selects partitions: one clause for each dimension that it restricts.
type Selection struct {
	// Clauses are sorted by dimension and name each dimension once.
	Clauses []Clause
	// Everything selects every expected partition, regardless of the dimensions. If it is set, Clauses is empty.
	Everything bool
	// Status restricts the selection to partitions with one status: [Missing], [Stale] or [Failed]. "": any status.
	Status string
}

// Values of [Selection.Status].
const (
	Missing = "missing"
	Stale   = "stale"
	Failed  = "failed"
)

// Clause selects values of one dimension: the union of its items.
type Clause struct {
	// Dimension is the name of the dimension. "" means the asset's time dimension.
	Dimension string
	Items     []Item
}

// Item selects one value, a range of values, or every expected value.
type Item struct {
	// First and Last are the bounds of a range, inclusive. "" means that this end is open. For a single value, First and
	// Last are equal.
	First, Last string
	// All selects every expected value.
	All bool
	// ranged means that the item was written as a range.
	ranged bool
}

// Words that can be written instead of periods.
const (
	// latest is the newest expected period. "latest-6" is six periods earlier.
	latest = "latest"
	// today and yesterday are the days that the calendar shows in the zone of the dimension.
	today, yesterday = "today", "yesterday"
	// everything selects every expected partition, if the selection consists only of this word.
	everything = "all"
)

// ParseSelection parses clauses that are joined by ";". A clause is a dimension, "=", and a list of items:
// "date=2025-01-01..2025-01-31;region=eu,us". An item is a value, a part of a date such as 2025-03 (which selects its
// declared periods), a range that may be open at one end, today, yesterday, latest, latest-N, or "*". The name of the
// time dimension may be omitted: "2025-01-15". The text "all" selects every expected partition. One of the words
// missing, stale and failed, as a clause or alone, selects the partitions with this status: "2025-03;missing".
func ParseSelection(text string) (Selection, error) {
	var s Selection
	if strings.TrimSpace(text) == everything {
		return Selection{Everything: true}, nil
	}
	for part := range strings.SplitSeq(text, ";") {
		if word := strings.TrimSpace(part); word == Missing || word == Stale || word == Failed {
			if s.Status != "" {
				return Selection{}, fmt.Errorf("invalid partition selection %q: it names two statuses: write a selection for each", text)
			}
			s.Status = word
			continue
		}
		c, err := parseClause(part)
		if err != nil {
			return Selection{}, fmt.Errorf("invalid partition selection %q: %w", text, err)
		}
		if slices.ContainsFunc(s.Clauses, func(o Clause) bool { return o.Dimension == c.Dimension }) {
			return Selection{}, fmt.Errorf("invalid partition selection %q: it selects %s twice: list the values, as in date=2025-01-01,2025-01-03",
				text, cmp.Or(c.Dimension, "the time"))
		}
		s.Clauses = append(s.Clauses, c)
	}
	slices.SortFunc(s.Clauses, func(a, b Clause) int { return strings.Compare(a.Dimension, b.Dimension) })
	s.Everything = len(s.Clauses) == 0
	return s, nil
}

// dateLike matches a text that has the form of a date, even if there is no such date.
var dateLike = regexp.MustCompile(`^[0-9]{4}-[0-9]{2}-[0-9]{2}$`)

const selectionHelp = "write date=2025-01-15, date=2025-01-01..2025-01-31 or region=eu,us"

func parseClause(text string) (Clause, error) {
	dimension, list, named := strings.Cut(text, "=")
	if !named {
		dimension, list = "", text
	}
	dimension = strings.TrimSpace(dimension)
	if named && !ValidName(dimension) {
		return Clause{}, fmt.Errorf("%q is not the name of a dimension: %s", dimension, selectionHelp)
	}
	c := Clause{Dimension: dimension}
	for word := range strings.SplitSeq(list, ",") {
		word = strings.TrimSpace(word)
		if word == "" {
			return Clause{}, fmt.Errorf("a value is missing: %s", selectionHelp)
		}
		if word == "*" {
			c.Items = append(c.Items, Item{All: true})
			continue
		}
		first, last, ranged := strings.Cut(word, "..")
		if !ranged {
			last = first
		}
		if !named && !strings.ContainsAny(word[:1], ".0123456789") && !isWord(first) {
			return Clause{}, errors.New(selectionHelp)
		}
		if strings.ContainsAny(word, "*=") || strings.Contains(last, "..") || ranged && first == "" && last == "" {
			return Clause{}, fmt.Errorf("invalid value %q: %s", word, selectionHelp)
		}
		for _, value := range []string{first, last} {
			if _, err := time.Parse(layoutDay, value); err != nil && dateLike.MatchString(value) {
				return Clause{}, fmt.Errorf("%q is not a day: write year-month-day, for example 2025-01-15", value)
			}
		}
		c.Items = append(c.Items, Item{First: first, Last: last, ranged: ranged})
	}
	return c, nil
}

// isWord reports whether a bound is a word, such as "today", instead of a period.
func isWord(text string) bool {
	return strings.HasPrefix(text, latest) || text == today || text == yesterday
}

// String formats the selection as [ParseSelection] reads it.
func (s Selection) String() string {
	switch {
	case s.Everything && s.Status != "":
		return s.Status
	case s.Everything:
		return everything
	}
	clauses := make([]string, len(s.Clauses), len(s.Clauses)+1)
	for i, c := range s.Clauses {
		items := make([]string, len(c.Items))
		for j, item := range c.Items {
			items[j] = item.String()
		}
		clauses[i] = strings.Join(items, ",")
		if c.Dimension != "" {
			clauses[i] = c.Dimension + "=" + clauses[i]
		}
	}
	if s.Status != "" {
		clauses = append(clauses, s.Status)
	}
	return strings.Join(clauses, ";")
}

func (i Item) isRange() bool { return i.ranged || i.First != i.Last }

// String formats the item as [ParseSelection] reads it.
func (i Item) String() string {
	switch {
	case i.All:
		return "*"
	case i.First == i.Last:
		return i.First
	default:
		return i.First + ".." + i.Last
	}
}

// Relative reports whether the partitions that s selects depend on the time, on key sets, on the declaration of the
// asset, or on the statuses of partitions.
func (s Selection) Relative() bool {
	for _, c := range s.Clauses {
		for _, i := range c.Items {
			if i.All || i.First == "" || i.Last == "" || isWord(i.First) || isWord(i.Last) {
				return true
			}
		}
	}
	return s.Everything || s.Status != ""
}

// Filter returns a function that reports whether a selection selects the partition with the given key. The function
// ignores the status of the partition.
func (c Calendar) Filter(s *Space, sel Selection) (func(key string) bool, error) {
	sel.Status = ""
	if sel.Everything {
		return func(string) bool { return true }, nil
	}
	chosen, err := c.Resolve(s, sel)
	if err != nil {
		return nil, err
	}
	selected := make([]map[string]bool, len(chosen.Values))
	for i, values := range chosen.Values {
		selected[i] = make(map[string]bool, len(values))
		for _, v := range values {
			selected[i][v] = true
		}
	}
	return func(key string) bool {
		values, err := s.Parse(key)
		if err != nil {
			return false
		}
		for i, v := range values {
			if chosen.Restricted[i] && !selected[i][v] {
				return false
			}
		}
		return true
	}, nil
}

// Chosen contains the partitions of a space that a selection selects.
type Chosen struct {
	Space *Space
	// Values are the selected values of each dimension, in the order of the dimensions. The values may be undeclared. If
	// the selection does not restrict a dimension, all values of a static or dynamic dimension are selected, and the
	// list of a time dimension is nil.
	Values [][]string
	// Restricted reports, for each dimension, whether the selection restricts it.
	Restricted []bool
	// Skipped are selected periods that do not exist, because the clocks of the zone skipped them.
	Skipped []string
	// Text is the canonical text of the selection, with resolved values: without words such as today.
	Text string
}

// Resolve returns the partitions of a space that a selection selects at the time of a calendar. It returns an error if
// a selected period has not begun, or if the selection restricts a dimension that the space lacks.
func (c Calendar) Resolve(s *Space, sel Selection) (*Chosen, error) {
	if sel.Status != "" {
		return nil, fmt.Errorf("the selection %s depends on the status of partitions, which is not known here: select partitions by their values", sel)
	}
	chosen := &Chosen{Space: s, Values: make([][]string, len(s.Dimensions)), Restricted: make([]bool, len(s.Dimensions))}
	for _, clause := range sel.Clauses {
		if clause.Dimension == "" {
			d := s.Time()
			if d == nil {
				return nil, fmt.Errorf("selection %s names no dimension, and the asset is not partitioned by time: write %s=%s",
					sel, s.Dimensions[0].Name, sel)
			}
			if slices.ContainsFunc(sel.Clauses, func(o Clause) bool { return o.Dimension == d.Name }) {
				return nil, fmt.Errorf("selection %s selects %s twice, with its name and without: list the values, as in %s=VALUE,VALUE", sel, d.Name, d.Name)
			}
		} else if s.Dimension(clause.Dimension) == nil {
			return nil, &UnknownDimensionError{clause.Dimension, s}
		}
	}
	var texts []string
	for i := range s.Dimensions {
		d := &s.Dimensions[i]
		clause := sel.clause(d)
		var err error
		switch {
		case clause == nil && d.IsTime():
			continue
		case clause == nil:
			chosen.Values[i] = c.keysOf(d)
			continue
		case d.IsTime():
			var text string
			chosen.Values[i], text, err = c.periods(d, clause, chosen)
			texts = append(texts, d.Name+"="+text)
		default:
			chosen.Values[i], err = c.listed(d, clause)
			texts = append(texts, d.Name+"="+strings.Join(chosen.Values[i], ","))
		}
		if err != nil {
			return nil, err
		}
		chosen.Restricted[i] = true
	}
	chosen.Text = strings.Join(texts, ";")
	return chosen, nil
}

// UnknownDimensionError means that a selection restricts a dimension that a space lacks.
type UnknownDimensionError struct {
	Dimension string
	Space     *Space
}

func (e *UnknownDimensionError) Error() string {
	names := make([]string, len(e.Space.Dimensions))
	for i := range names {
		names[i] = e.Space.Dimensions[i].Name
	}
	return fmt.Sprintf("the asset is partitioned by %s, not by %s", strings.Join(names, " and "), e.Dimension)
}

// clause returns the clause for a dimension. It returns nil if the selection does not restrict the dimension.
func (s Selection) clause(d *Dimension) *Clause {
	if s.Everything {
		return &Clause{Dimension: d.Name, Items: []Item{{All: true}}}
	}
	for i := range s.Clauses {
		if s.Clauses[i].Dimension == d.Name || s.Clauses[i].Dimension == "" && d.IsTime() {
			return &s.Clauses[i]
		}
	}
	return nil
}

// listed returns the selected values of a static or dynamic dimension.
func (c Calendar) listed(d *Dimension, clause *Clause) ([]string, error) {
	var values []string
	for _, item := range clause.Items {
		switch {
		case item.All:
			values = append(values, c.keysOf(d)...)
		case item.isRange():
			return nil, fmt.Errorf("%s=%s is a range, but %s has no order: list the values", d.Name, item, d.Name)
		default:
			if err := CheckValue(item.First); err != nil {
				return nil, err
			}
			values = append(values, item.First)
		}
	}
	slices.Sort(values)
	return slices.Compact(values), nil
}

// span is a range of periods.
type span struct{ first, last int64 }

// periods returns the selected keys of a time dimension in order, and their canonical text.
func (c Calendar) periods(d *Dimension, clause *Clause, chosen *Chosen) ([]string, string, error) {
	a, err := c.axis(d)
	if err != nil {
		return nil, "", err
	}
	spans := make([]span, 0, len(clause.Items))
	total := int64(0)
	for _, item := range clause.Items {
		s, err := c.span(&a, item)
		if err != nil {
			return nil, "", err
		}
		if s.first == s.last && !item.isRange() && !a.exists(s.first) {
			return nil, "", fmt.Errorf("no partition %s=%s: the time zone %s skipped this %s: select another", d.Name, item, a.zone, d.singular())
		}
		if s.last < s.first {
			continue
		}
		if total += s.last - s.first + 1; total > MaxPeriods {
			return nil, "", fmt.Errorf("%s=%s is %d %s; at most %d can be selected at once", d.Name, item, total, d.Kind.Plural(), MaxPeriods)
		}
		spans = append(spans, s)
	}
	slices.SortFunc(spans, func(x, y span) int { return int(x.first - y.first) })
	var keys, texts []string
	for i := 0; i < len(spans); {
		s := spans[i]
		for i++; i < len(spans) && spans[i].first <= s.last+1; i++ {
			s.last = max(s.last, spans[i].last)
		}
		if c.Zone != nil && !c.Future && s.last > a.current(c.Now) {
			return nil, "", &NotBegunError{fmt.Sprintf("%s=%s has not begun: it is %s in the time zone %s: select earlier %s",
				d.Name, a.key(s.last), a.key(a.current(c.Now)), a.zone, d.Kind.Plural())}
		}
		text := a.key(s.first)
		if s.first != s.last {
			text += ".." + a.key(s.last)
		}
		texts = append(texts, text)
		for n := s.first; n <= s.last; n++ {
			if key := a.key(n); a.exists(n) {
				keys = append(keys, key)
			} else {
				chosen.Skipped = append(chosen.Skipped, key)
			}
		}
	}
	return keys, strings.Join(texts, ","), nil
}

// span returns the periods of one item.
func (c Calendar) span(a *axis, item Item) (span, error) {
	newest := c.expected(a)
	if item.All {
		return span{a.first, newest}, nil
	}
	s := span{a.first, newest}
	if item.First != "" {
		from, err := c.bounds(a, item.First, newest)
		if err != nil {
			return s, err
		}
		s.first = from.first
		if !item.isRange() {
			return a.declared(from), nil
		}
	}
	if item.Last != "" {
		to, err := c.bounds(a, item.Last, newest)
		if err != nil {
			return s, err
		}
		s.last = to.last
		if item.First != "" && s.last < s.first {
			return s, fmt.Errorf("the last %s %s is before the first %s %s: swap them", a.singular(), item.Last, a.singular(), item.First)
		}
	}
	return s, nil
}

// declared returns the declared periods in a span, for example the declared days of a month. If none is declared, or
// if s is a single period, declared returns s itself, so that the caller can report the undeclared periods.
func (a *axis) declared(s span) span {
	first, last := max(s.first, a.first), min(s.last, a.last)
	if s.first == s.last || last < first {
		return s
	}
	return span{first, last}
}

// bounds returns the periods that the text of a bound names: one period, or all periods of a year, a month or a day.
// The parameter newest is the number of the newest expected period, for the word latest.
func (c Calendar) bounds(a *axis, text string, newest int64) (span, error) {
	if back, ok := strings.CutPrefix(text, latest); ok {
		n := 0
		if back != "" {
			var err error
			if n, err = strconv.Atoi(strings.TrimPrefix(back, "-")); err != nil || n < 0 || back[0] != '-' {
				return span{}, fmt.Errorf("%q is not a period: write latest, or latest-6 for six periods earlier", text)
			}
		}
		if newest < a.first {
			return span{}, fmt.Errorf("dimension %s has no latest %s, because none has ended yet: select %s that has begun", a.Name, a.singular(), a.withArticle())
		}
		return span{newest - int64(n), newest - int64(n)}, nil
	}
	if text == today || text == yesterday {
		return c.dayOf(a, text)
	}
	if a.clocked() {
		if n, err := a.index(text); err == nil {
			if a.key(n) != text {
				return span{}, fmt.Errorf("the time zone %s has no %s %s: write %s", a.zone, a.singular(), text, a.key(n))
			}
			return span{n, n}, nil
		}
	}
	part, ok := parseCivil(text, a.period())
	if !ok || !a.clocked() && a.Kind != Weekly && len(part.layout) > len(a.layoutOf()) || part.layout == layoutLocal && !a.clocked() {
		return span{}, a.notAPeriod(text)
	}
	if a.Kind == Weekly && part.layout == layoutDay && !a.startOf(a.ordinal(part.from)).Equal(part.from) {
		return span{}, a.notAPeriod(text)
	}
	if part.layout == layoutLocal && int64(part.from.Minute()*60)%a.period() != 0 {
		return span{}, a.notAPeriod(text)
	}
	first, last := a.within(part)
	if last < first && a.clocked() {
		return span{}, fmt.Errorf("the time zone %s has no %s %s: its clocks skipped it: select another", a.zone, a.singular(), text)
	}
	if a.Kind == Weekly && part.layout == layoutDay {
		last = first
	}
	return span{first, last}, nil
}

// dayOf returns the periods that the word today or yesterday selects in the zone of a dimension. It returns
// only periods that have begun.
func (c Calendar) dayOf(a *axis, word string) (span, error) {
	if !a.clocked() && a.Kind != Daily {
		return span{}, fmt.Errorf("%s needs a dimension of days or shorter periods, but %s has %s: write latest", word, a.Name, a.Kind.Plural())
	}
	day := c.Now.In(a.zone)
	if word == yesterday {
		day = day.AddDate(0, 0, -1)
	}
	part, _ := parseCivil(day.Format(layoutDay), a.period())
	first, last := a.within(part)
	return span{first, min(last, a.current(c.Now))}, nil
}

// Ranges formats keys of a dimension as a text with ranges: "2025-01-01..2025-01-05, 2025-01-09". Neighbours in keys
// become a range if they are also neighbours in allKeys. Both lists must be sorted in ascending order.
func Ranges(allKeys, keys []string) string {
	var texts []string
	at := 0
	for i := 0; i < len(keys); {
		for at < len(allKeys) && allKeys[at] != keys[i] {
			at++
		}
		first := keys[i]
		last := first
		for i, at = i+1, at+1; i < len(keys) && at < len(allKeys) && allKeys[at] == keys[i]; i, at = i+1, at+1 {
			last = keys[i]
		}
		if last != first {
			first += ".." + last
		}
		texts = append(texts, first)
	}
	return joinSome(texts)
}
