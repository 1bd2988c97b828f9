package project

import (
	"regexp"
	"strconv"
	"strings"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/quality"
)

func (f yamlFile) wholeBound(n *yaml.Node, what string) *quality.Literal {
	const most = 1 << 53
	i, ok := f.integer(n, what, 0, most)
	if !ok {
		return nil
	}
	l, _ := quality.Num(strconv.FormatInt(i, 10))
	return &l
}

// literal reads a number, a text, a date or a boolean.
func (f yamlFile) literal(n *yaml.Node, what string) *quality.Literal {
	if n.Kind != yaml.ScalarNode || isNull(n) {
		f.fail(n, "", "%s must be a number or a string, got %s", what, kindOf(n))
		return nil
	}
	if len(n.Value) > quality.MaxText {
		f.fail(n, "", "%s has %d bytes; at most %d are allowed", what, len(n.Value), quality.MaxText)
		return nil
	}
	switch n.ShortTag() {
	case "!!int", "!!float":
		if !f.noLeadingZero(n, what) {
			return nil
		}
		l, ok := quality.Num(n.Value)
		if !ok {
			f.fail(n, "write it with digits", "%s is %s, which is not a decimal number", what, quoteShort(n.Value))
			return nil
		}
		return &l
	case "!!bool":
		l := quality.Text(strings.ToLower(n.Value))
		return &l
	}
	l := quality.Text(n.Value)
	return &l
}

func (f yamlFile) values(n *yaml.Node, c *check) {
	f.each(n, "values", func(item *yaml.Node) {
		if l := f.literal(item, "an item of values"); l != nil {
			c.Params.Values = append(c.Params.Values, *l)
		}
	})
	switch {
	case n.Kind == yaml.SequenceNode && len(n.Content) == 0:
		f.fail(n, "", "values is empty")
	case len(c.Params.Values) > quality.MaxValues:
		f.fail(n, "use a check of kind relationships, and an asset that contains the values", "values may have at most %d items", quality.MaxValues)
	}
}

func (f yamlFile) relation(n *yaml.Node, c *check) {
	s, ok := f.text(n, "to")
	if !ok {
		return
	}
	key, err := ids.ParseAssetKey(s)
	if err != nil {
		f.fail(n, keySuggestion(s), "invalid asset key %s: expected namespace/name", quoteShort(s))
		return
	}
	c.Params.To, c.reads = s, &dep{key: key, at: f.place(n), check: true}
}

func (f yamlFile) pattern(n *yaml.Node, c *check) {
	c.Params.Pattern = f.nonEmpty(n, "pattern")
	if _, err := regexp.Compile(c.Params.Pattern); err != nil {
		f.fail(n, "", "pattern is not a regular expression: %s", strings.TrimPrefix(err.Error(), "error parsing regexp: "))
	}
}

func (f yamlFile) maxAge(n *yaml.Node, c *check) {
	var age time.Duration
	f.age(n, "max_age", &age)
	c.Params.MaxAgeSec = int64(age / time.Second)
}

// age reads a duration from 1s to 36500d.
func (f yamlFile) age(n *yaml.Node, what string, to *time.Duration) {
	if n.Kind == yaml.ScalarNode && strings.HasSuffix(n.Value, "d") {
		f.days(n, what, to)
	} else if d, ok := f.duration(n, what, time.Second, time.Second, 36_500*24*time.Hour); ok {
		*to = d
	}
}

// percent reads a percentage as millionths.
func (f yamlFile) percent(n *yaml.Node, what string) (int64, bool) {
	if n.Kind != yaml.ScalarNode || !percent.MatchString(n.Value) {
		f.fail(n, "write, for example, 50%", "%s must be a percentage, got %s", what, kindOf(n))
		return 0, false
	}
	const decimals = 4
	whole, fraction, _ := strings.Cut(strings.TrimSuffix(n.Value, "%"), ".")
	millionths, _ := strconv.ParseInt(whole+fraction+strings.Repeat("0", decimals-len(fraction)), 10, 64) // nine digits
	if millionths == 0 {
		f.fail(n, "", "%s is %s; must be above 0%%", what, n.Value)
		return 0, false
	}
	return millionths, true
}

var percent = regexp.MustCompile(percentPattern)

// allow reads the number or the percentage of failing rows that are allowed.
func (f yamlFile) allow(n *yaml.Node, c *check) {
	c.allowed++
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!int" {
		const most = 1 << 53
		c.Allow.Rows, _ = f.integer(n, "allow", 0, most)
		return
	}
	if n.Kind != yaml.ScalarNode || !percent.MatchString(n.Value) {
		f.fail(n, "write, for example, 5 or 0.1%", "allow must be a number of rows or a percentage, got %s", kindOf(n))
		return
	}
	if ppm, ok := f.percent(n, "allow"); ok && ppm > quality.Millionths {
		f.fail(n, "", "allow is %s; must be at most 100%%", n.Value)
	} else if ok {
		c.Allow.PPM = ppm
	}
}
