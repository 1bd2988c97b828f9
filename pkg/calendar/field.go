package calendar

import (
	"fmt"
	"strconv"
	"strings"
)

// kind describes a field.
type kind struct {
	name        string
	least, most int
	names       []string // names[i] is the name of the value least+i
}

var kinds = [5]kind{
	{name: "minute", most: 59},
	{name: "hour", most: 23},
	{name: "day of month", least: 1, most: 31},
	{name: "month", least: 1, most: 12, names: strings.Fields("JAN FEB MAR APR MAY JUN JUL AUG SEP OCT NOV DEC")},
	{name: "day of week", most: 7, names: strings.Fields("SUN MON TUE WED THU FRI SAT")},
}

const (
	minuteField = iota
	hourField
	dayField
	monthField
	weekdayField
)

// fallback returns the text that replaces an unreadable part in a suggestion.
func (k *kind) fallback() string {
	if k.name == kinds[minuteField].name || k.name == kinds[hourField].name {
		return "0"
	}
	return "*"
}

func (p *parser) fields(fields []part) *cron {
	c := &cron{}
	sets := [5]*uint64{&c.minutes, &c.hours, &c.days, &c.months, &c.weekdays}
	stars := [5]bool{}
	for i, field := range fields {
		items := field.split(',')
		for _, item := range items {
			if stars[i] = star(item.text); stars[i] && len(items) > 1 {
				p.fail(kinds[i].name, field, "*", "%s in a list makes the rest of the list useless", item.text)
			}
			if !p.special(c, i, item) {
				*sets[i] |= p.item(&kinds[i], item)
			}
		}
	}
	c.everyHour, c.anyDay, c.anyWeekday = stars[hourField], stars[dayField], stars[weekdayField]
	if c.weekdays&(1<<7) != 0 {
		c.weekdays = c.weekdays&^(1<<7) | 1
	}
	return c
}

func star(text string) bool { return text == "*" || text == "*/1" }

// item reads *, a value, a range, or one of them with a step.
func (p *parser) item(k *kind, item part) uint64 {
	halves := item.split('/')
	from, to := k.least, k.most
	if k.name == kinds[weekdayField].name {
		to-- // 0 and 7 both mean Sunday
	}
	if base := halves[0]; base.text != "*" {
		var ok bool
		if from, to, ok = p.span(k, item, base); !ok {
			return 0
		}
	}
	step := 1
	if len(halves) > 1 {
		var ok bool
		if step, ok = p.step(k, item, halves, from, to); !ok {
			return 0
		}
	}
	set := uint64(0)
	for v := from; v <= to; v += step {
		set |= 1 << v
	}
	return set
}

// span reads a value or a range.
func (p *parser) span(k *kind, item, base part) (from, to int, ok bool) {
	ends := base.split('-')
	if len(ends) > 2 {
		rest := part{base.text[ends[2].at-1-base.at:], ends[2].at - 1}
		p.failIn(k.name, ends[2], rest, "", "a range has two ends")
		return 0, 0, false
	}
	if from, ok = p.value(k, item, ends[0]); !ok || len(ends) == 1 {
		return from, from, ok
	}
	if to, ok = p.value(k, item, ends[1]); !ok {
		return 0, 0, false
	}
	if k.name == kinds[weekdayField].name && to == 0 && from > 0 && upper(ends[1].text) == "SUN" {
		to = 7
	}
	if from > to {
		p.fail(k.name, base, k.reversed(ends), "the range %s is reversed", base.text)
		return 0, 0, false
	}
	return from, to, true
}

// reversed returns a list that is valid and has the values of a reversed range: 22-2 becomes 22-23,0-2.
func (k *kind) reversed(ends []part) string {
	if k.name == kinds[weekdayField].name && ends[1].text == "0" {
		return ends[0].text + "-7"
	}
	least, most := strconv.Itoa(k.least), strconv.Itoa(k.most)
	if k.name == kinds[weekdayField].name {
		most = "6"
	}
	edge := func(a, b string) string {
		if a == b {
			return a
		}
		return a + "-" + b
	}
	return edge(ends[0].text, most) + "," + edge(least, ends[1].text)
}

// step reads the step of an item.
func (p *parser) step(k *kind, item part, halves []part, from, to int) (int, bool) {
	base, text := halves[0], halves[1]
	n, err := strconv.Atoi(text.text)
	switch {
	case len(halves) > 2:
		p.fail(k.name, item, base.text+"/"+text.text, "%s has two steps", item.text)
	case err != nil || n < 1 || strings.HasPrefix(text.text, "+"):
		p.failIn(k.name, text, item, base.text, "the step %q is not a positive number", text.text)
	case base.text != "*" && !strings.Contains(base.text, "-"):
		p.fail(k.name, item, fmt.Sprintf("%s-%d/%d", base.text, max(k.most, from), n), "a step needs a range or *")
	case n > to-from:
		p.fail(k.name, item, strconv.Itoa(from), "the step %d is longer than the range, so only %d matches", n, from)
	default:
		return n, true
	}
	return 0, false
}

// value reads a number or a name.
func (p *parser) value(k *kind, item, at part) (int, bool) {
	for i, name := range k.names {
		if upper(at.text) == name {
			return k.least + i, true
		}
	}
	n, err := strconv.Atoi(at.text)
	if err != nil || strings.Trim(at.text, "0123456789") != "" {
		p.unknown(k, item, at)
		return 0, false
	}
	if n < k.least || n > k.most {
		other := min(max(n, k.least), k.most)
		if n == k.most+1 && len(k.names) == 0 && k.least == 0 {
			other = 0 // hour 24 means midnight, and minute 60 the full hour
		}
		p.fail(k.name, at, strconv.Itoa(other), "%s is not between %d and %d", at.text, k.least, k.most)
		return 0, false
	}
	return n, true
}

// unknown reports a part that is neither a number nor a name.
func (p *parser) unknown(k *kind, item, at part) {
	switch at.text {
	case "?":
		p.fail(k.name, at, "*", "? is not supported")
	case "*":
		p.fail(k.name, item, "*", "* is not part of a range")
	case "":
		p.fail(k.name, item, k.fallback(), "a value is missing")
	default:
		for _, name := range k.names {
			if len(at.text) > len(name) && upper(at.text[:len(name)]) == name {
				p.fail(k.name, at, name, "unknown value %q", at.text)
				return
			}
		}
		if name := nearest(upper(at.text), k.names); name != "" && distance(upper(at.text), name) == 1 {
			p.fail(k.name, at, name, "unknown value %q", at.text)
			return
		}
		p.fail(k.name, item, k.fallback(), "unknown value %q", at.text)
	}
}

// special reads the forms of days that are not numbers: L, L-3, LW, 15W, FRIL, MON#2. It returns false for all other
// items.
func (p *parser) special(c *cron, field int, item part) bool {
	text := upper(item.text)
	switch field {
	case dayField:
		return p.specialDay(c, item, text)
	case weekdayField:
		return p.specialWeekday(c, item, text)
	}
	return false
}

func (p *parser) specialDay(c *cron, item part, text string) bool {
	k := &kinds[dayField]
	switch {
	case text == "L":
		c.beforeLast |= 1
	case text == "LW" || text == "WL":
		if text == "WL" {
			p.fail(k.name, item, "LW", "unknown value %q", item.text)
		}
		c.lastWorkday = true
	case strings.HasPrefix(text, "L-"):
		n, err := strconv.Atoi(text[2:])
		if err != nil || n < 1 || n > 30 || strings.Trim(text[2:], "0123456789") != "" {
			p.fail(k.name, item, "L", "%q is not a number of days between 1 and 30", item.text[2:])
			break
		}
		c.beforeLast |= 1 << n
	case len(text) > 1 && strings.HasSuffix(text, "W"):
		n, err := strconv.Atoi(text[:len(text)-1])
		if err != nil || n < 1 || n > 31 || strings.Trim(text[:len(text)-1], "0123456789") != "" {
			p.fail(k.name, item, "LW", "%q is not a day between 1 and 31", item.text[:len(text)-1])
			break
		}
		c.nearest |= 1 << n
	default:
		return false
	}
	return true
}

func (p *parser) specialWeekday(c *cron, item part, text string) bool {
	k := &kinds[weekdayField]
	name, week, numbered := strings.Cut(text, "#")
	if !numbered {
		if !strings.HasSuffix(text, "L") {
			return false
		}
		name = text[:len(text)-1]
	}
	weekday := part{item.text[:len(name)], item.at}
	if name == "" {
		p.fail(k.name, item, "SAT"+item.text, "%s needs a day of the week before it", item.text)
		return true
	}
	n, ok := p.value(k, item, weekday)
	if !ok {
		return true
	}
	if !numbered {
		c.lastWeekdays |= 1 << (n % 7)
		return true
	}
	nth, err := strconv.Atoi(week)
	if err != nil || nth < 1 || nth > 5 || len(week) != 1 {
		p.fail(k.name, item, weekday.text+"L", "a month has the weeks 1 to 5, not %q", week)
		return true
	}
	c.nth[n%7] |= 1 << nth
	return true
}

// upper returns a text with the letters a to z in upper case. Unlike [strings.ToUpper], it never
// changes the number of bytes.
func upper(text string) string {
	out := []byte(text)
	for i, b := range out {
		if b >= 'a' && b <= 'z' {
			out[i] = b - 'a' + 'A'
		}
	}
	return string(out)
}

// nearest returns the candidate with the smallest edit distance.
func nearest(text string, candidates []string) string {
	best := ""
	for _, candidate := range candidates {
		if d := distance(text, candidate); best == "" || d < distance(text, best) || d == distance(text, best) && candidate < best {
			best = candidate
		}
	}
	return best
}

// distance is the Levenshtein distance.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
