package quality

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/servo-orchestration/servo/pkg/event"
)

// Measured is the result of executing a check.
type Measured struct {
	// Failing is the number of failing rows, and Rows the number of all rows of the output.
	Failing, Rows int64
	// Value is the measured value as text, if the check measures one.
	Value string
}

// result returns a result with the fields that do not depend on the outcome of the check.
func (c *Check) result() event.CheckResult {
	return event.CheckResult{Name: c.Name, Phase: c.PhaseOf(), Severity: string(c.SeverityOf())}
}

// Judge returns the result of a check that was executed.
func (c *Check) Judge(compiled Compiled, m Measured) event.CheckResult {
	r := c.result()
	r.Failing, r.Actual, r.Expected = m.Failing, Short(m.Value), Short(compiled.Expected)
	r.Passed = c.Allow.covers(m.Failing, m.Rows)
	switch {
	case r.Passed && m.Failing > 0:
		r.Message = fmt.Sprintf("%s, which `allow` tolerates", c.failures(m))
	case r.Passed:
	case c.measures():
		r.Message = fmt.Sprintf("%s is %s; expected %s", c.subject(), orNone(r.Actual), r.Expected)
	default:
		r.Message = c.failures(m)
	}
	return r
}

// JudgeAnomaly returns the result of an anomaly check. The parameter "past" contains the values of earlier outputs, the
// newest last.
func (c *Check) JudgeAnomaly(value int64, past []int64) event.CheckResult {
	r := c.result()
	r.Actual, r.Passed, r.Measured, r.Metric = strconv.FormatInt(value, 10), true, &value, c.MetricName()
	band, known := c.Params.Watch.Band(past)
	if !known {
		r.Message = fmt.Sprintf("learning: %d of %d values", len(past), LeastHistory)
		return r
	}
	r.Expected = band.String()
	if r.Passed = band.Contains(value); !r.Passed {
		r.Failing = 1
		r.Message = fmt.Sprintf("%s is %d; expected %s, computed from %d earlier values", c.subject(), value, band, min(len(past), c.Params.Watch.Window))
	}
	return r
}

// Broken returns the result of a check that could not be executed. Such a check is treated as failed.
func (c *Check) Broken(message string) event.CheckResult {
	r := c.result()
	r.Broken, r.Message = true, Short(message)
	return r
}

// measures reports whether the check compares one measured value instead of rows.
func (c *Check) measures() bool { return c.Kind == RowCount || c.Kind == Freshness }

// MetricName returns the name of the value that a check of the kind anomaly measures. It is "" for the number of rows.
func (c *Check) MetricName() string {
	if len(c.Columns) == 0 {
		return ""
	}
	return Short(c.subject())
}

// subject returns the name of the value that the check measures.
func (c *Check) subject() string {
	switch {
	case c.Kind == Freshness:
		return "the newest " + c.Columns[0]
	case c.Kind == Anomaly && len(c.Columns) > 0:
		return c.Params.Watch.Metric + " of " + c.Columns[0]
	}
	return "row_count"
}

// failures describes the number of failing rows.
func (c *Check) failures(m Measured) string {
	switch c.Kind {
	case Schema:
		return count(m.Failing, "column differs", "columns differ")
	case Unique:
		repeated := " failed: " + list(c.Columns) + " is repeated"
		if len(c.Columns) > 1 {
			repeated = " failed: " + list(c.Columns) + " are repeated"
		}
		return fmt.Sprintf("%d of %s%s", m.Failing, count(m.Rows, "row", "rows"), repeated)
	case SQL, Command:
		return count(m.Failing, "failing row", "failing rows")
	}
	return fmt.Sprintf("%d of %s failed", m.Failing, count(m.Rows, "row", "rows"))
}

// maxMessage is the greatest length of a text in a result, in bytes.
const maxMessage = 1_000

// Short returns the beginning of a text, up to maxMessage bytes, as valid UTF-8.
func Short(text string) string {
	text = strings.ToValidUTF8(text, "?")
	if len(text) <= maxMessage {
		return text
	}
	end := maxMessage
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + "…"
}

func count(n int64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.FormatInt(n, 10) + " " + many
}

func orNone(value string) string {
	if value == "" {
		return "missing"
	}
	return value
}

// Blocks reports whether a result fails its task.
func Blocks(r *event.CheckResult) bool { return !r.Passed && r.Severity == string(Critical) }

// Degrades reports whether a result marks the output as degraded.
func Degrades(r *event.CheckResult) bool { return !r.Passed && r.Severity == string(Error) }

// Missing returns the names of the checks without a result.
func Missing(checks []Check, results []event.CheckResult) []string {
	known := make(map[string]bool, len(results))
	for i := range results {
		known[results[i].Name] = true
	}
	var missing []string
	for i := range checks {
		if !known[checks[i].Name] {
			missing = append(missing, checks[i].Name)
		}
	}
	return missing
}
