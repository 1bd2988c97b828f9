// Package quality defines the checks of assets. A check looks at the rows that a task is about to
// publish, or at its inputs. Built-in checks compile to SQL that returns the failing rows. The
// package is pure: callers execute the SQL and pass in the results. This package is not a stable
// API.
package quality

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/servo-orchestration/servo/pkg/ids"
)

// Kinds of checks.
const (
	NotNull        = "not_null"
	Unique         = "unique"
	RowCount       = "row_count"
	AcceptedValues = "accepted_values"
	Relationships  = "relationships"
	Range          = "range"
	Regex          = "regex"
	Freshness      = "freshness"
	Schema         = "schema"
	Anomaly        = "anomaly"
	SchemaDrift    = "schema_drift"
	SQL            = "sql"
	Command        = "command"
)

// Kinds returns the kinds of built-in checks.
func Kinds() []string {
	return []string{NotNull, Unique, RowCount, AcceptedValues, Relationships, Range, Regex, Freshness, Schema, Anomaly}
}

// Phases of a task in which a check runs.
const (
	Pre  = "PRE"  // on the inputs, before the query or the command
	Post = "POST" // on the rows that the task has made, before they are published
)

// Severity determines the effect of a failed check.
type Severity string

// Severities.
const (
	Critical Severity = "CRITICAL" // the task fails, and its output is not published
	Error    Severity = "ERROR"    // the output is published as degraded
	Warning  Severity = "WARNING"  // the failure is recorded and reported
	Info     Severity = "INFO"     // recorded
)

// Limits of the checks of an asset.
const (
	MaxChecks = 200
	// MaxGates is the maximum number of CRITICAL checks of an asset, and also the maximum number of its ERROR checks. It
	// bounds the size of a plan, because every task of a plan names these checks.
	MaxGates   = 64
	MaxName    = 100
	MaxColumns = 2_000
	MaxValues  = 1_000
	MaxText    = 64 << 10 // bytes of a query, a pattern or a value
	MaxSamples = 10_000
	// MaxAge is the greatest age for freshness, in seconds.
	MaxAge = 36_500 * 24 * 3600
	// DefaultSamples is how many failing rows are kept if the asset does not set a number.
	DefaultSamples = 100
)

// Check is one check of an asset.
type Check struct {
	// Name is unique among the checks of the asset.
	Name string `json:"name"`
	Kind string `json:"kind"`
	// Phase is [Pre] or [Post]. "": [Post].
	Phase string `json:"phase,omitempty"`
	// Severity is one of the severities. "": [Critical].
	Severity Severity `json:"severity,omitempty"`
	// Allow says how many failing rows are tolerated.
	Allow Allowance `json:"allow,omitzero"`
	// Columns are the columns that a built-in check looks at.
	Columns []string `json:"columns,omitempty"`
	Params  Params   `json:"params,omitzero"`
	// SQL is a SELECT of failing rows, for checks of the kind [SQL].
	SQL string `json:"sql,omitempty"`
	// Command is a program with its arguments, for checks of the kind [Command].
	Command []string `json:"command,omitempty"`
	// Files are the hashes of the project's files that the command or the query names.
	Files map[string]string `json:"files,omitempty"`
	// TimeoutSec limits the time of the check. 0: only the timeout of the task limits it.
	TimeoutSec int32 `json:"timeout_sec,omitempty"`
}

// Params are the parameters of the built-in kinds.
type Params struct {
	Values  []Literal `json:"values,omitempty"`  // for accepted_values
	Min     *Literal  `json:"min,omitempty"`     // for row_count and range
	Max     *Literal  `json:"max,omitempty"`     // for row_count and range
	To      string    `json:"to,omitempty"`      // for relationships: an asset key
	Field   string    `json:"field,omitempty"`   // for relationships: a column of To
	Pattern string    `json:"pattern,omitempty"` // for regex
	// MaxAgeSec is the greatest age of the newest value, for freshness.
	MaxAgeSec int64 `json:"max_age_sec,omitempty"`
	// Types are the columns that a check of kind schema expects. If ForbidExtra is set, the check fails for any other
	// column.
	Types       []ColumnType `json:"types,omitempty"`
	ForbidExtra bool         `json:"forbid_extra,omitempty"`
	// MinOfPrevious and MaxOfPrevious are bounds of row_count, in millionths of the previous number of rows.
	MinOfPrevious int64 `json:"min_of_previous_ppm,omitempty"`
	MaxOfPrevious int64 `json:"max_of_previous_ppm,omitempty"`
	// Watch are the parameters of an anomaly check.
	Watch *Watch `json:"watch,omitempty"`
}

// ColumnType is a column and its type in SQL.
type ColumnType struct {
	Name string `json:"name"`
	Type string `json:"type"`
}

// Allowance says how many failing rows are tolerated: a count, and a share of all rows, in millionths. A check passes
// if the number of failing rows is within at least one of the two limits.
type Allowance struct {
	Rows int64 `json:"rows,omitempty"`
	PPM  int64 `json:"ppm,omitempty"`
}

// Millionths is the denominator of shares in millionths.
const Millionths = 1_000_000

// covers reports whether the given number of failing rows, out of all rows, is tolerated.
func (a Allowance) covers(failing, all int64) bool {
	return failing <= a.Rows || a.PPM > 0 && product(failing, Millionths).Cmp(product(all, a.PPM)) <= 0
}

// Literal is a value in a check: a number, or a text.
type Literal struct {
	Text   string `json:"text"`
	Number bool   `json:"number,omitempty"`
}

// numberPattern matches the numbers that SQL accepts without quotes. Leading zeros are not allowed.
var numberPattern = regexp.MustCompile(`^-?(?:0|[1-9][0-9]{0,37})(\.[0-9]{1,38})?([eE][+-]?[0-9]{1,3})?$`)

// Num returns a literal number. It reports false if the text is not a number in SQL.
func Num(text string) (Literal, bool) {
	return Literal{Text: text, Number: true}, numberPattern.MatchString(text)
}

// Text returns a literal text.
func Text(text string) Literal { return Literal{Text: text} }

// NamePattern is the form of a check's name. The name is also used as the name of a file.
const NamePattern = `^[a-z0-9_]{1,100}$`

var namePattern = regexp.MustCompile(NamePattern)

// ValidName reports whether a check may have this name.
func ValidName(name string) bool { return namePattern.MatchString(name) }

// PhaseOf returns the phase of a check.
func (c *Check) PhaseOf() string {
	if c.Phase == "" {
		return Post
	}
	return c.Phase
}

// SeverityOf returns the severity of a check.
func (c *Check) SeverityOf() Severity {
	if c.Severity == "" {
		return Critical
	}
	return c.Severity
}

// Timeout returns the time limit of a check, or 0.
func (c *Check) Timeout() time.Duration { return time.Duration(c.TimeoutSec) * time.Second }

// In returns the checks that run in a phase.
func In(checks []Check, phase string) []*Check {
	var found []*Check
	for i := range checks {
		if checks[i].PhaseOf() == phase {
			found = append(found, &checks[i])
		}
	}
	return found
}

// Named returns the names of the checks with a severity, sorted.
func Named(checks []Check, s Severity) []string {
	var names []string
	for i := range checks {
		if checks[i].SeverityOf() == s {
			names = append(names, checks[i].Name)
		}
	}
	slices.Sort(names)
	return names
}

// Names of the checks that result from the contract of an asset, which is its field `columns`. The field `checks` cannot
// define checks with these names.
const (
	ContractCheck        = "columns"
	ContractNotNullCheck = "columns_not_null"
)

// integerTypes are the types of at most 64 bits that a contract may declare for a 128-bit integer, which is then stored
// in that type.
var integerTypes = []string{
	"BIGINT", "INT8", "LONG", "INTEGER", "INT4", "INT", "SIGNED", "UBIGINT", "UINTEGER", "SMALLINT", "INT2", "SHORT", "USMALLINT", "TINYINT", "INT1", "UTINYINT",
}

// DeclaredIntegers returns the types of the columns that the contract of an asset declares with an integer type of at
// most 64 bits, by column in lower case. If such a column contains integers of 128 bits, they are stored in the
// declared type.
func DeclaredIntegers(checks []Check) map[string]string {
	var found map[string]string
	for i := range checks {
		if checks[i].Name != ContractCheck || checks[i].Kind != Schema {
			continue
		}
		for _, t := range checks[i].Params.Types {
			if kind := strings.ToUpper(strings.TrimSpace(t.Type)); slices.Contains(integerTypes, kind) {
				if found == nil {
					found = map[string]string{}
				}
				found[strings.ToLower(t.Name)] = kind
			}
		}
	}
	return found
}

// DeclaredColumns returns the columns that the contract of an asset declares.
func DeclaredColumns(checks []Check) []ColumnType {
	for i := range checks {
		if checks[i].Name == ContractCheck && checks[i].Kind == Schema {
			return checks[i].Params.Types
		}
	}
	return nil
}

// DeclaredTypes returns the types of the columns that the contract of an asset declares, by column in
// lower case. It is nil if the asset has no contract.
func DeclaredTypes(checks []Check) map[string]string {
	columns := DeclaredColumns(checks)
	if columns == nil {
		return nil
	}
	found := make(map[string]string, len(columns))
	for _, t := range columns {
		found[strings.ToLower(t.Name)] = t.Type
	}
	return found
}

// Validate returns the first error in the checks of an asset. It accepts everything that the loader of
// project files produces, and rejects checks that would not compile.
func Validate(checks []Check) error {
	if len(checks) > MaxChecks {
		return fmt.Errorf("an asset has %d checks: at most %d are allowed", len(checks), MaxChecks)
	}
	names := make(map[string]bool, len(checks))
	for i := range checks {
		c := &checks[i]
		if names[c.Name] {
			return fmt.Errorf("two checks are called %s: rename one", c.Name)
		}
		names[c.Name] = true
		if err := c.validate(); err != nil {
			return fmt.Errorf("check %.100q: %w", c.Name, err)
		}
	}
	for _, s := range []Severity{Critical, Error} {
		if n := len(Named(checks, s)); n > MaxGates {
			return fmt.Errorf("an asset has %d checks of severity %s: at most %d are allowed", n, s, MaxGates)
		}
	}
	return nil
}

func (c *Check) validate() error {
	switch {
	case !ValidName(c.Name):
		return fmt.Errorf("the name must have 1 to %d characters of a-z, 0-9 and _", MaxName)
	case !slices.Contains([]string{Pre, Post}, c.PhaseOf()):
		return fmt.Errorf("unknown phase %.20q", c.Phase)
	case !slices.Contains([]Severity{Critical, Error, Warning, Info}, c.SeverityOf()):
		return fmt.Errorf("unknown severity %.20q", string(c.Severity))
	case c.PhaseOf() == Pre && c.Kind != SQL && c.Kind != Command:
		return fmt.Errorf("a check of kind %s looks at the rows of the output, so it cannot run before the work: remove phase", c.Kind)
	case c.Allow.Rows < 0:
		return fmt.Errorf("allow is %d rows: write 0 or more", c.Allow.Rows)
	case c.Allow.PPM < 0 || c.Allow.PPM > Millionths:
		return fmt.Errorf("allow is %d millionths: write 0 to %d", c.Allow.PPM, Millionths)
	case c.TimeoutSec < 0:
		return fmt.Errorf("timeout is %d seconds: write 0 or more", c.TimeoutSec)
	}
	return c.validateKind()
}

func (c *Check) validateKind() error {
	p := &c.Params
	want := func(ok bool, what string) error {
		if !ok {
			return fmt.Errorf("a check of kind %s needs %s", c.Kind, what)
		}
		return nil
	}
	one := len(c.Columns) == 1
	switch c.Kind {
	case NotNull, Unique:
		return want(len(c.Columns) > 0, "columns")
	case RowCount:
		return want(p.bounded() || p.MinOfPrevious > 0 || p.MaxOfPrevious > 0, "a bound")
	case AcceptedValues:
		return want(one && len(p.Values) > 0 && !slices.ContainsFunc(p.Values, Literal.bad), "a column and values")
	case Relationships:
		_, err := ids.ParseAssetKey(p.To)
		return want(one && err == nil && p.Field != "", "a column, an asset and a field")
	case Range:
		return want(one && p.bounded(), "a column and a bound")
	case Regex:
		return want(one, "a column and a pattern")
	case Freshness:
		return want(one && p.MaxAgeSec > 0 && p.MaxAgeSec <= MaxAge, "a column and a maximum age")
	case Schema:
		return p.validTypes()
	case SchemaDrift:
		return nil
	case Anomaly:
		return want(p.Watch != nil && p.Watch.valid(len(c.Columns)), "a metric, a window and a threshold")
	case SQL:
		return want(c.SQL != "", "a query")
	case Command:
		return want(len(c.Command) > 0 && c.Command[0] != "", "a command")
	}
	return fmt.Errorf("unknown kind %.40q", c.Kind)
}

// bounded reports whether at least one bound is set, and every bound that is set is valid.
func (p *Params) bounded() bool {
	return (p.Min != nil || p.Max != nil) && (p.Min == nil || !p.Min.bad()) && (p.Max == nil || !p.Max.bad())
}

func (l Literal) bad() bool { return l.Number && !numberPattern.MatchString(l.Text) }

func (p *Params) validTypes() error {
	for _, t := range p.Types {
		if err := CheckType(t.Type); err != nil {
			return fmt.Errorf("column %.100q: %w", t.Name, err)
		}
	}
	return nil
}
