package project

import (
	"errors"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"

	"gopkg.in/yaml.v3"
)

// text reads a string.
func (f yamlFile) text(n *yaml.Node, what string) (string, bool) {
	if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!str" {
		suggestion := ""
		if n.Kind == yaml.ScalarNode {
			suggestion = "put it in quotes"
		}
		f.fail(n, suggestion, "%s must be a string, got %s", what, kindOf(n))
		return "", false
	}
	return n.Value, true
}

// texts reads a list of strings.
func (f yamlFile) texts(n *yaml.Node, what string) []string {
	var all []string
	f.each(n, what, func(item *yaml.Node) {
		if s, ok := f.text(item, "an item of "+what); ok {
			all = append(all, s)
		}
	})
	return all
}

// label reads a name that consists of a-z, 0-9, _ and -.
func (f yamlFile) label(n *yaml.Node, what string) (string, bool) {
	s, ok := f.text(n, what)
	if ok && !namePattern.MatchString(s) {
		f.fail(n, "", "%s is %s; use 1 to 63 of a-z, 0-9, _ and -", what, quoteShort(s))
		return "", false
	}
	return s, ok
}

var namePattern = regexp.MustCompile(`^[a-z0-9_-]{1,63}$`)

var leadingZero = regexp.MustCompile(`^[-+]?0[0-9_]`)

// noLeadingZero reports a number such as 010. YAML 1.1 reads it as 8, and YAML 1.2 as 10.
func (f yamlFile) noLeadingZero(n *yaml.Node, what string) bool {
	tag := n.ShortTag()
	if n.Kind != yaml.ScalarNode || n.Style != 0 || tag != "!!int" && tag != "!!float" || !leadingZero.MatchString(n.Value) {
		return true
	}
	f.fail(n, "write the number without the zeros, or a text in quotes", "%s is %s, a number with leading zeros", what, quoteShort(n.Value))
	return false
}

// integer reads a whole number.
func (f yamlFile) integer(n *yaml.Node, what string, least, most int64) (int64, bool) {
	if !f.noLeadingZero(n, what) {
		return 0, false
	}
	var i int64
	if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!int" || n.Decode(&i) != nil {
		f.fail(n, "", "%s must be a whole number, got %s", what, kindOf(n))
		return 0, false
	}
	if i < least || i > most {
		f.fail(n, "", "%s is %d; must be between %d and %d", what, i, least, most)
		return 0, false
	}
	return i, true
}

// int32 reads a whole number between least and most, and stores it in *to.
func (f yamlFile) int32(n *yaml.Node, what string, least, most int32, to *int32) {
	if i, ok := f.integer(n, what, int64(least), int64(most)); ok {
		*to = int32(i)
	}
}

// permille reads a decimal number as thousandths.
func (f yamlFile) permille(n *yaml.Node, what string, least, most float64, to *int32) {
	var x float64
	tag := n.ShortTag()
	if n.Kind != yaml.ScalarNode || (tag != "!!int" && tag != "!!float") || n.Decode(&x) != nil {
		f.fail(n, "", "%s must be a number, got %s", what, kindOf(n))
		return
	}
	const thousand, exact = 1000, 1e-6
	switch thousandths := math.Round(x * thousand); {
	case !(x >= least && x <= most): // also catches NaN
		f.fail(n, "", "%s is %s; must be between %v and %v", what, n.Value, least, most)
	case math.Abs(thousandths-x*thousand) > exact:
		f.fail(n, "", "%s is %s; must have at most three decimals", what, n.Value)
	default:
		*to = int32(thousandths)
	}
}

// duration reads a duration: "10s", "1m30s", "2h".
func (f yamlFile) duration(n *yaml.Node, what string, unit, least, most time.Duration) (time.Duration, bool) {
	if n.Kind != yaml.ScalarNode {
		f.fail(n, "write, for example, 30s or 1h30m", "%s must be a duration, got %s", what, kindOf(n))
		return 0, false
	}
	d, err := time.ParseDuration(n.Value)
	if err != nil || d >= 0 && strings.ContainsAny(n.Value, "+-") {
		suggestion := "write, for example, 30s or 1h30m"
		if _, err := strconv.ParseUint(n.Value, 10, 32); err == nil {
			suggestion = "write " + n.Value + "s for seconds"
		}
		f.fail(n, suggestion, "%s is %s, which is not a duration", what, quoteShort(n.Value))
		return 0, false
	}
	if d < least || d > most {
		f.fail(n, "", "%s is %s; must be between %s and %s", what, n.Value, least, most)
		return 0, false
	}
	if d%unit != 0 {
		f.fail(n, "", "%s is %s; must be a multiple of %s", what, n.Value, unit)
		return 0, false
	}
	return d, true
}

// days reads a duration in hours or days, such as "12h" or "30d", and stores it in *to.
func (f yamlFile) days(n *yaml.Node, what string, to *time.Duration) {
	const day, most = 24 * time.Hour, 36_500
	if days, ok := strings.CutSuffix(n.Value, "d"); ok && n.Kind == yaml.ScalarNode {
		count, err := strconv.ParseUint(days, 10, 32)
		if err != nil || count < 1 || count > most {
			f.fail(n, "write, for example, 30d", "%s is %s; must be between 1h and %dd", what, quoteShort(n.Value), most)
			return
		}
		*to = time.Duration(count) * day
		return
	}
	if d, ok := f.duration(n, what, time.Second, time.Hour, most*day); ok {
		*to = d
	}
}

// seconds reads a timeout and stores it, in seconds, in *to.
func (f yamlFile) seconds(n *yaml.Node, what string, to *int32) {
	const week = 7 * 24 * time.Hour // the URLs of callbacks are valid for a week
	if d, ok := f.duration(n, what, time.Second, time.Second, week); ok {
		*to = int32(d / time.Second)
	}
}

// millis reads a delay and stores it, in milliseconds, in *to.
func (f yamlFile) millis(n *yaml.Node, what string, least time.Duration, to *int64) {
	const day = 24 * time.Hour
	if d, ok := f.duration(n, what, time.Millisecond, least, day); ok {
		*to = d.Milliseconds()
	}
}

var (
	sizePattern = regexp.MustCompile(`^([0-9]{1,9}) ?([KMGT]i?)?B$`)
	sizeUnits   = map[string]int64{
		"": 1, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40,
	}
)

// ParseMemory parses a number of bytes such as "1GB" or "512MiB".
func ParseMemory(text string) (int64, error) {
	m := sizePattern.FindStringSubmatch(text)
	if m == nil {
		return 0, errors.New("not a size: write, for example, 512MB or 2GB")
	}
	count, _ := strconv.ParseInt(m[1], 10, 64) // at most nine digits
	unit := sizeUnits[m[2]]
	if count > maxMemory/unit || count*unit < minMemory {
		return 0, errMemory
	}
	return count * unit, nil
}

var errMemory = errors.New("must be between 16MB and 1PB")

// memory reads an amount of memory.
func (f yamlFile) memory(n *yaml.Node, name string, to *int64) {
	bytes, err := ParseMemory(n.Value)
	switch {
	case errors.Is(err, errMemory) && n.Kind == yaml.ScalarNode:
		f.fail(n, "", "%s is %s; %s", name, n.Value, err.Error())
	case n.Kind != yaml.ScalarNode || err != nil:
		f.fail(n, "write, for example, 512MB or 2GB", "%s must be a size, got %s", name, kindOf(n))
	default:
		*to = bytes
	}
}
