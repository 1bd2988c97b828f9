package calendar

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// MaxCron is the maximum length of a cron expression in bytes.
const MaxCron = 256

// cron is a parsed cron expression. Bit n of a set is 1 if the field matches the value n.
type cron struct {
	minutes, hours, days, months, weekdays uint64
	// everyHour, anyDay and anyWeekday are true if the field is * or */1.
	everyHour, anyDay, anyWeekday bool

	beforeLast   uint64    // L-n: bit n; L: bit 0
	nearest      uint64    // nW: bit n
	lastWorkday  bool      // LW
	lastWeekdays uint64    // nL: bit n
	nth          [7]uint64 // n#k: bit k of nth[n]
}

// CronError says what is wrong with a cron expression, and where.
type CronError struct {
	Expression string
	Field      string // minute, hour, day of month, month, day of week; empty: the whole expression
	Column     int    // the column of the error, from 1
	Problem    string
	// Suggestion is the nearest valid expression.
	Suggestion string
}

// Error implements error.
func (e *CronError) Error() string {
	where := fmt.Sprintf("column %d", e.Column)
	if e.Field != "" {
		where = e.Field + ", " + where
	}
	return fmt.Sprintf("%s: %s: write %q", where, e.Problem, e.Suggestion)
}

// macros maps the names of common expressions to the expressions.
var macros = map[string]string{
	"@hourly": "0 * * * *", "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@weekly": "0 0 * * 0",
	"@monthly": "0 0 1 * *", "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *",
}

// part is a piece of an expression, with its position in the expression.
type part struct {
	text string
	at   int // offset in the expression
}

// split cuts a part at a separator.
func (p part) split(separator byte) []part {
	var parts []part
	for {
		i := strings.IndexByte(p.text, separator)
		if i < 0 {
			return append(parts, p)
		}
		parts = append(parts, part{p.text[:i], p.at})
		p = part{p.text[i+1:], p.at + i + 1}
	}
}

// words returns the fields of an expression, which spaces and tabs separate.
func words(expression string) []part {
	var found []part
	for i := 0; i < len(expression); {
		if expression[i] == ' ' || expression[i] == '\t' {
			i++
			continue
		}
		end := i
		for end < len(expression) && expression[end] != ' ' && expression[end] != '\t' {
			end++
		}
		found = append(found, part{expression[i:end], i})
		i = end
	}
	return found
}

// parser reads an expression. The first error stops it.
type parser struct {
	text string
	err  *CronError
}

// fail records an error at a part. The suggestion is the expression in which the parameter "other" replaces this part.
func (p *parser) fail(field string, at part, other, format string, args ...any) {
	p.failIn(field, at, at, other, format, args...)
}

// failIn records an error. The parameter "at" is the part with the error, and whole is a larger part that contains it.
// In the suggestion, the parameter "other" replaces the larger part.
func (p *parser) failIn(field string, at, whole part, other, format string, args ...any) {
	if p.err != nil {
		return
	}
	p.err = &CronError{
		Expression: p.text, Field: field, Column: utf8.RuneCountInString(p.text[:at.at]) + 1, Problem: fmt.Sprintf(format, args...),
		Suggestion: strings.Join(strings.Fields(p.text[:whole.at]+other+p.text[whole.at+len(whole.text):]), " "),
	}
}

// parseCron reads an expression. Its error suggests a valid expression: parseCron parses each suggestion and, if that
// fails, takes the suggestion of the new error instead.
func parseCron(text string) (*cron, error) {
	c, err := parseOnce(text)
	if err == nil {
		return c, nil
	}
	const steps = 50
	for range steps {
		_, next := parseOnce(err.Suggestion)
		if next == nil {
			return nil, err
		}
		err.Suggestion = next.Suggestion
	}
	err.Suggestion = macros["@daily"]
	return nil, err
}

func parseOnce(text string) (*cron, *CronError) {
	p := &parser{text: text}
	whole := part{text, 0}
	switch fields := words(text); {
	case len(text) > MaxCron:
		p.fail("", part{text[MaxCron:], MaxCron}, "", "the expression has more than %d bytes", MaxCron)
	case len(fields) == 0:
		p.fail("", whole, macros["@daily"], "the expression is empty")
	case strings.HasPrefix(fields[0].text, "@"):
		return p.macro(fields)
	case p.countFields(fields):
		c := p.fields(fields)
		if p.err == nil {
			p.checkDates(c, fields)
		}
		if p.err == nil {
			return c, nil
		}
	}
	return nil, p.err
}

func (p *parser) macro(fields []part) (*cron, *CronError) {
	name := fields[0]
	expanded, ok := macros[strings.ToLower(name.text)]
	switch {
	case strings.EqualFold(name.text, "@every"):
		p.fail("", part{p.text, 0}, macros["@hourly"], "@every is not a cron expression: use the setting every instead of cron")
	case strings.EqualFold(name.text, "@reboot"):
		p.fail("", name, "@daily", "@reboot is not supported: a schedule does not belong to a machine that boots")
	case !ok:
		known := make([]string, 0, len(macros))
		for macro := range macros {
			known = append(known, macro)
		}
		p.fail("", name, nearest(strings.ToLower(name.text), known), "unknown name %s", name.text)
	case len(fields) > 1:
		rest := part{p.text[fields[1].at:], fields[1].at}
		p.fail("", rest, "", "nothing can follow %s", name.text)
	default:
		return parseOnce(expanded)
	}
	return nil, p.err
}

// countFields reports whether there are five fields.
func (p *parser) countFields(fields []part) bool {
	last := fields[len(fields)-1]
	isYear := len(last.text) >= 4 && strings.Trim(last.text, "0123456789-,/") == "" || last.text == "*" && len(fields) == 7
	switch {
	case len(fields) == 5:
		return true
	case len(fields) < 5:
		end := part{"", len(p.text)}
		missing := 5 - len(fields)
		p.fail(kinds[len(fields)].name, end, strings.Repeat(" *", missing), "the expression has %d of 5 fields: minute, hour, day of month, month, day of week", len(fields))
	case len(fields) == 6 && isYear || len(fields) == 7:
		p.fail("", last, "", "years are not supported: use start and end")
	case len(fields) == 6:
		p.fail("", fields[0], "", "seconds are not supported")
	default:
		p.fail("", part{p.text[fields[5].at:], fields[5].at}, "", "the expression has %d fields instead of 5", len(fields))
	}
	return false
}

// checkDates rejects expressions that match no date in 28 years. After 28 years, dates fall on the same weekdays
// again, so a longer search would find nothing.
func (p *parser) checkDates(c *cron, fields []part) {
	const first, days = 10957, 28*365 + 7 // 2000-01-01
	for n := int64(first); n < first+days; n++ {
		if c.matches(dateOf(n)) {
			return
		}
	}
	p.fail(kinds[2].name, fields[2], "L", "no month of the expression has such a day")
}
