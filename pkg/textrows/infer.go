package textrows

import (
	"math/big"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Type infers the type of a column from all values of the column. The zero value of Type is ready for use.
type Type struct {
	seen   bool
	failed [candidates]bool
}

// The candidate types, from the most specific to the most general. A column that fits none of them is VARCHAR.
const (
	boolean = iota
	bigint
	decimal
	double
	date
	timestamp
	timestamptz
	candidates
)

var typeNames = [candidates]string{"BOOLEAN", "BIGINT", "DECIMAL(38,0)", "DOUBLE", "DATE", "TIMESTAMP", "TIMESTAMPTZ"}

// Name returns the name of the type in SQL.
func (t *Type) Name() string {
	for i, failed := range t.failed {
		if t.seen && !failed {
			return typeNames[i]
		}
	}
	return "VARCHAR"
}

// Add adds a value of the column.
func (t *Type) Add(v Value) {
	if v.Kind == Null {
		return
	}
	t.seen = true
	if t.failed == [candidates]bool{true, true, true, true, true, true, true} {
		return
	}
	fits := v.fits(&t.failed)
	for i := range t.failed {
		t.failed[i] = t.failed[i] || !fits[i]
	}
}

// fits reports, for each candidate type, whether it can represent a value exactly. It need not test candidates that
// have already failed.
func (v Value) fits(failed *[candidates]bool) (fits [candidates]bool) {
	switch v.Kind {
	case Bool:
		fits[boolean] = true
	case Number:
		v.number(&fits)
	case String:
		v.time(&fits)
	case Text:
		lower := strings.ToLower(v.Text)
		fits[boolean] = lower == "true" || lower == "false"
		if !failed[double] || !failed[decimal] {
			v.number(&fits)
		}
		if !failed[date] || !failed[timestamp] || !failed[timestamptz] {
			v.time(&fits)
		}
	case Null, Nested: // Add skips Null; no candidate fits Nested
	}
	return fits
}

var (
	integerPattern = regexp.MustCompile(`^-?(0|[1-9][0-9]*)$`)
	numberPattern  = regexp.MustCompile(`^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]{1,3})?$`)
	maxDecimal     = new(big.Int).Exp(big.NewInt(10), big.NewInt(38), nil)
)

func (v Value) number(fits *[candidates]bool) {
	if !numberPattern.MatchString(v.Text) {
		return
	}
	if integerPattern.MatchString(v.Text) {
		_, err := strconv.ParseInt(v.Text, 10, 64)
		fits[bigint], fits[decimal] = err == nil, err == nil
		if n, ok := new(big.Int).SetString(v.Text, 10); err != nil && ok && n.CmpAbs(maxDecimal) < 0 {
			fits[decimal] = true
		}
	}
	const exact = 15 // a DOUBLE represents every decimal number with this many digits
	fits[double] = len(v.Text) <= exact && !strings.ContainsAny(v.Text, "eE") || isDouble(v.Text)
}

// isDouble reports whether a DOUBLE keeps all digits of a number.
func isDouble(text string) bool {
	f, err := strconv.ParseFloat(text, 64)
	return err == nil && digits(strconv.FormatFloat(f, 'e', -1, 64)) == digits(text)
}

// digits returns the significant digits of a number.
func digits(text string) string {
	text, _, _ = strings.Cut(strings.ToLower(text), "e")
	return strings.Trim(strings.ReplaceAll(strings.TrimPrefix(text, "-"), ".", ""), "0")
}

var fraction = regexp.MustCompile(`\.[0-9]{7,}`)

func (v Value) time(fits *[candidates]bool) {
	const least = len("2006-01-02")
	if len(v.Text) < least || v.Text[4] != '-' || fraction.MatchString(v.Text) || strings.Contains(v.Text, ",") { // time.Parse accepts a comma before the fraction, and DuckDB does not
		return
	}
	parses := func(layouts ...string) bool {
		for _, layout := range layouts {
			if _, err := time.Parse(layout, v.Text); err == nil {
				return true
			}
		}
		return false
	}
	fits[date] = parses(time.DateOnly)
	fits[timestamp] = parses("2006-01-02 15:04:05", "2006-01-02T15:04:05")
	fits[timestamptz] = parses("2006-01-02 15:04:05Z07:00", "2006-01-02T15:04:05Z07:00")
}
