package space

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/servo-orchestration/servo/pkg/ids"
)

// Space is the space of an asset's partitions: one to [MaxDimensions] dimensions, sorted by name. At most one is a
// time dimension. An asset without a space has one partition, with the empty key.
type Space struct {
	Dimensions []Dimension `json:"dimensions"`
}

// New returns a space and sorts its dimensions.
func New(dimensions ...Dimension) *Space {
	slices.SortFunc(dimensions, func(a, b Dimension) int { return strings.Compare(a.Name, b.Name) })
	return &Space{Dimensions: dimensions}
}

// Days returns a space with the dimension date: the days from start to end in UTC. If end is "", there is no end.
func Days(start, end string) *Space {
	return New(Dimension{Name: Daily.DefaultName(), Kind: Daily, Start: start, End: end})
}

// Validate checks the space. [Calendar.CheckZone] checks the rules that depend on zone data.
func (s *Space) Validate() error {
	if len(s.Dimensions) == 0 || len(s.Dimensions) > MaxDimensions {
		return fmt.Errorf("the partitions have %d dimensions: write 1 to %d", len(s.Dimensions), MaxDimensions)
	}
	var time string
	for i := range s.Dimensions {
		d := &s.Dimensions[i]
		if err := d.Validate(); err != nil {
			return err
		}
		if i > 0 && s.Dimensions[i-1].Name >= d.Name {
			return fmt.Errorf("the dimensions are not sorted, or %s occurs twice", d.Name)
		}
		if d.IsTime() {
			if time != "" {
				return fmt.Errorf("%s and %s are both dimensions of time: an asset has at most one: remove one", time, d.Name)
			}
			time = d.Name
		}
	}
	return nil
}

// Dimension returns the dimension with the given name, or nil if the space has no such dimension.
func (s *Space) Dimension(name string) *Dimension {
	if s == nil {
		return nil
	}
	for i := range s.Dimensions {
		if s.Dimensions[i].Name == name {
			return &s.Dimensions[i]
		}
	}
	return nil
}

// Has reports whether the space has the dimension that a clause of a selection restricts.
func (s *Space) Has(c Clause) bool {
	if c.Dimension == "" {
		return s.Time() != nil
	}
	return s.Dimension(c.Dimension) != nil
}

// Time returns the time dimension, or nil if the space has none.
func (s *Space) Time() *Dimension {
	if s == nil {
		return nil
	}
	for i := range s.Dimensions {
		if s.Dimensions[i].IsTime() {
			return &s.Dimensions[i]
		}
	}
	return nil
}

// Types returns the SQL type of each dimension.
func (s *Space) Types() map[string]string {
	if s == nil {
		return nil
	}
	types := make(map[string]string, len(s.Dimensions))
	for i := range s.Dimensions {
		types[s.Dimensions[i].Name] = s.Dimensions[i].SQLType()
	}
	return types
}

// Column is a column that readers of a partitioned asset get from the partition's key.
type Column struct {
	Name string `json:"name"`
	Type string `json:"type"` // in SQL
}

// Columns returns a column for each dimension, in the order of the dimensions.
func (s *Space) Columns() []Column {
	if s == nil {
		return nil
	}
	columns := make([]Column, len(s.Dimensions))
	for i := range s.Dimensions {
		columns[i] = Column{s.Dimensions[i].Name, s.Dimensions[i].SQLType()}
	}
	return columns
}

// String formats the space for people: "date (daily), region (static: eu, us)".
func (s *Space) String() string {
	if s == nil {
		return "no partitions"
	}
	texts := make([]string, len(s.Dimensions))
	for i := range s.Dimensions {
		texts[i] = s.Dimensions[i].String()
	}
	return strings.Join(texts, ", ")
}

// Range formats the declared partitions for people: "date 2025-01-01 to 2025-01-31".
func (s *Space) Range() string {
	texts := make([]string, len(s.Dimensions))
	for i := range s.Dimensions {
		texts[i] = s.Dimensions[i].Name + " " + s.Dimensions[i].Range()
	}
	return strings.Join(texts, "; ")
}

// errNotOfSpace means that a partition key has other dimensions than the space.
var errNotOfSpace = errors.New("it has other dimensions")

// Parse returns the values of a partition key, in the order of the dimensions. It returns an error if the key is not
// canonical or belongs to another space.
func (s *Space) Parse(key string) ([]string, error) {
	values, ok := s.split(key)
	if !ok {
		var err error
		if values, err = s.parse(key); err != nil {
			return nil, err
		}
	}
	for i, value := range values {
		if err := s.Dimensions[i].Check(value); err != nil {
			return nil, fmt.Errorf("partition key %s: %w", key, err)
		}
	}
	return values, nil
}

// parse parses a key as JSON and returns its values, in the order of the dimensions.
func (s *Space) parse(key string) ([]string, error) {
	p, err := ids.ParsePartition(key)
	if err != nil {
		return nil, err
	}
	if s == nil && len(p) == 0 {
		return nil, nil
	}
	if s == nil || len(p) != len(s.Dimensions) {
		return nil, fmt.Errorf("partition key %s: %w than %s", key, errNotOfSpace, s)
	}
	values := make([]string, len(s.Dimensions))
	for i := range s.Dimensions {
		var ok bool
		if values[i], ok = p[s.Dimensions[i].Name]; !ok {
			return nil, fmt.Errorf("partition key %s: %w than %s", key, errNotOfSpace, s)
		}
	}
	return values, nil
}

// split returns the values of a key in canonical form without escapes, in the order of the dimensions. For every
// other key, ok is false. It exists because it is much faster than a JSON parser, and tables may have millions of
// keys.
func (s *Space) split(key string) (values []string, ok bool) {
	if s == nil || key == "" {
		return nil, false
	}
	values = make([]string, len(s.Dimensions))
	rest, last, opening := key, "", "{"
	for range s.Dimensions {
		i, least := -1, "" // the dimension whose name is next in the key
		for j := range s.Dimensions {
			if name := s.Dimensions[j].Name; name > last && (i < 0 || name < least) {
				i, least = j, name
			}
		}
		if i < 0 {
			return nil, false
		}
		if values[i], rest, ok = member(rest, opening, least); !ok {
			return nil, false
		}
		last, opening = least, ","
	}
	return values, rest == "}"
}

// member parses the next member of a JSON object in canonical form. The parameter text is the rest of the object, which
// begins with `{"name":"value"` or `,"name":"value"`.
func member(text, opening, name string) (value, rest string, ok bool) {
	text, a := strings.CutPrefix(text, opening+`"`)
	text, b := strings.CutPrefix(text, name)
	text, c := strings.CutPrefix(text, `":"`)
	value, rest, d := strings.Cut(text, `"`)
	for _, char := range []byte(value) {
		if char < ' ' || char >= 0x7f || char == '\\' {
			return "", "", false
		}
	}
	return value, rest, a && b && c && d
}

// Partition returns the partition with the given values: one for each dimension, in the order of the dimensions.
func (s *Space) Partition(values []string) ids.Partition {
	p := make(ids.Partition, len(values))
	for i, v := range values {
		p[s.Dimensions[i].Name] = v
	}
	return p
}

// Key returns the partition key with the given values: one for each dimension, in the order of the dimensions.
func (s *Space) Key(values ...string) string {
	if s == nil {
		return ""
	}
	size := len("{}")
	for i, v := range values {
		if strings.ContainsFunc(v, needsEscape) {
			return s.Partition(values).Key()
		}
		size += len(s.Dimensions[i].Name) + len(v) + len(`"":"",`)
	}
	key := make([]byte, 0, size)
	key = append(key, '{')
	for i, v := range values {
		if i > 0 {
			key = append(key, ',')
		}
		key = append(append(append(append(append(key, '"'), s.Dimensions[i].Name...), `":"`...), v...), '"')
	}
	return string(append(key, '}'))
}

// needsEscape reports whether a character may need an escape in JSON.
func needsEscape(r rune) bool { return r < 0x20 || r > 0x7e || r == '"' || r == '\\' }

// Expected returns the keys of all declared partitions that should be materialized by now. It returns an error if
// there are more keys than limit.
func (c Calendar) Expected(s *Space, limit int) ([]string, error) {
	return c.product(s, limit, c.expectedValues)
}

// ExpectedAfter returns a page of the keys that [Calendar.Expected] returns, in ascending order: at most limit keys,
// all of them greater than the key in the parameter "after". It does not list all expected keys, because there may be
// millions.
func (c Calendar) ExpectedAfter(s *Space, after string, limit int) ([]string, error) {
	if s == nil {
		return slices.DeleteFunc([]string{""}, func(key string) bool { return key <= after }), nil
	}
	outer := 0 // the index of the dimension that comes first in a key
	lists := make([][]string, len(s.Dimensions))
	for i := range s.Dimensions {
		var err error
		if lists[i], err = c.expectedValues(&s.Dimensions[i]); err != nil {
			return nil, err
		}
		if s.Dimensions[i].Name < s.Dimensions[outer].Name {
			outer = i
		}
	}
	if slices.ContainsFunc(lists, func(list []string) bool { return len(list) == 0 }) {
		return nil, nil
	}
	var found []string
	type keyed struct{ value, prefix string }
	inOrder := make([]keyed, len(lists[outer]))
	for i, v := range lists[outer] {
		inOrder[i] = keyed{v, s.prefixOf(outer, v)}
	}
	slices.SortFunc(inOrder, func(a, b keyed) int { return strings.Compare(a.prefix, b.prefix) })
	for _, v := range inOrder {
		if len(found) >= limit {
			break
		}
		lists[outer] = []string{v.value}
		if v.prefix < after && !strings.HasPrefix(after, v.prefix) {
			continue // no key with this value is greater than the key in the parameter after
		}
		keys, err := s.Product(lists, MaxListed)
		if err != nil {
			return nil, err
		}
		slices.Sort(keys)
		first, exact := slices.BinarySearch(keys, after)
		if exact {
			first++
		}
		found = append(found, keys[first:]...)
	}
	return found[:min(len(found), limit)], nil
}

// prefixOf returns the common prefix of all keys whose first dimension has a given value.
func (s *Space) prefixOf(first int, value string) string {
	return "{" + jsonOf(s.Dimensions[first].Name) + ":" + jsonOf(value)
}

// jsonOf returns text as canonical JSON.
func jsonOf(text string) string {
	if !strings.ContainsFunc(text, needsEscape) {
		return `"` + text + `"`
	}
	key := ids.Partition{"": text}.Key() // {"":"text"}
	return key[len(`{"":`) : len(key)-len("}")]
}

// Declared returns the keys of all declared partitions whose periods have begun. It returns an error if there are
// more keys than limit.
func (c Calendar) Declared(s *Space, limit int) ([]string, error) {
	return c.product(s, limit, c.declaredValues)
}

func (c Calendar) product(s *Space, limit int, values func(*Dimension) ([]string, error)) ([]string, error) {
	if s == nil {
		return []string{""}, nil
	}
	lists := make([][]string, len(s.Dimensions))
	for i := range s.Dimensions {
		var err error
		if lists[i], err = values(&s.Dimensions[i]); err != nil {
			return nil, err
		}
	}
	return s.Product(lists, limit)
}

// Count returns the number of expected partitions.
func (c Calendar) Count(s *Space) (int, error) {
	count := 1
	if s == nil {
		return count, nil
	}
	for i := range s.Dimensions {
		n, err := c.count(&s.Dimensions[i])
		if err != nil {
			return 0, err
		}
		count *= n
	}
	return count, nil
}

// count returns the number of expected values of a dimension. It lists up to [MaxListed] values and counts them. If
// there are more, it computes the number from the first and the last period. This number includes periods that the zone
// skipped.
func (c Calendar) count(d *Dimension) (int, error) {
	if d.IsTime() {
		a, err := c.axis(d)
		if err != nil {
			return 0, err
		}
		if last := c.expected(&a); last-a.first >= MaxListed {
			return int(last - a.first + 1), nil
		}
	}
	values, err := c.expectedValues(d)
	return len(values), err
}

// Describe formats partition keys as a text with ranges of periods: "2025-01-01..2025-01-05", or with several
// dimensions "date=2025-01-01..2025-01-05;region=eu". Neighbours in keys become a range if they are also neighbours in
// allKeys. Both lists must be in the order of time.
func (s *Space) Describe(allKeys, keys []string) string {
	if s == nil {
		return joinSome(keys)
	}
	time := slices.IndexFunc(s.Dimensions, func(d Dimension) bool { return d.IsTime() })
	group := func(keys []string) (names []string, values map[string][]string) {
		values = map[string][]string{}
		for _, key := range keys {
			parsed, err := s.Parse(key)
			if err != nil {
				parsed = []string{key}
			}
			name, value := "", parsed[max(time, 0)]
			for i, v := range parsed {
				if i != time && len(parsed) > 1 {
					name += ";" + s.Dimensions[i].Name + "=" + v
				}
			}
			if time < 0 && len(parsed) > 1 {
				value = ""
			}
			if values[name] == nil {
				names = append(names, name)
			}
			values[name] = append(values[name], value)
		}
		return names, values
	}
	_, between := group(allKeys)
	names, groups := group(keys)
	if len(s.Dimensions) == 1 && time < 0 {
		return joinSome(groups[""])
	}
	texts := make([]string, len(names))
	for i, name := range names {
		switch {
		case name == "":
			texts[i] = Ranges(between[name], groups[name])
		case time < 0:
			texts[i] = name[1:]
		default:
			texts[i] = s.Dimensions[time].Name + "=" + Ranges(between[name], groups[name]) + name
		}
	}
	return joinSome(texts)
}

// Selections formats partition keys as selections that [ParseSelection] accepts. Consecutive periods become a range:
// "date=2025-01-01..2025-01-05;region=eu". Selections ignores keys of other spaces.
func (s *Space) Selections(keys []string) []string {
	if s == nil {
		return nil
	}
	type member struct {
		others string // the values of the other dimensions
		n      int64  // the number of the period; 0 if the space has no time dimension
		values []string
	}
	time := slices.IndexFunc(s.Dimensions, func(d Dimension) bool { return d.IsTime() })
	members := make([]member, 0, len(keys))
	for _, key := range keys {
		values, err := s.Parse(key)
		if err != nil {
			continue
		}
		m := member{values: values, others: strings.Join(values, ";")}
		if time >= 0 {
			m.n, _ = s.Dimensions[time].index(values[time]) // cannot fail: Parse has checked the value
			m.others = strings.Join(slices.Delete(slices.Clone(values), time, time+1), ";")
		}
		members = append(members, m)
	}
	slices.SortFunc(members, func(a, b member) int { return cmp.Or(strings.Compare(a.others, b.others), cmp.Compare(a.n, b.n)) })
	var texts []string
	for i := 0; i < len(members); {
		first := members[i]
		last := first
		for i++; time >= 0 && i < len(members) && members[i].others == first.others && members[i].n == last.n+1; i++ {
			last = members[i]
		}
		p := s.Partition(slices.Clone(first.values))
		if last.n != first.n {
			p[s.Dimensions[time].Name] += ".." + last.values[time]
		}
		texts = append(texts, p.Text())
	}
	return texts
}

// Product returns the partition keys of all combinations of values, in the order of the values. The parameter lists
// contains a list of values for each dimension. Product returns an error if there are more than limit combinations.
func (s *Space) Product(lists [][]string, limit int) ([]string, error) {
	total := 1
	for _, list := range lists {
		if total *= len(list); total > limit {
			return nil, &TooManyError{fmt.Sprintf("more than %d partitions: select fewer", limit)}
		}
	}
	keys := make([]string, 0, total)
	values := make([]string, len(lists))
	var add func(i int)
	add = func(i int) {
		if i == len(lists) {
			keys = append(keys, s.Key(values...))
			return
		}
		for _, v := range lists[i] {
			values[i] = v
			add(i + 1)
		}
	}
	add(0)
	return keys, nil
}
