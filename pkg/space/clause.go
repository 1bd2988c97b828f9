package space

import (
	"fmt"
	"slices"
	"time"
)

// UndeclaredError means that a clause selects a value that a dimension does not declare.
type UndeclaredError struct {
	Dimension *Dimension
	Value     string
}

// Error implements error.
func (e *UndeclaredError) Error() string {
	return fmt.Sprintf("no partition %s=%s: it has %s", e.Dimension.Name, e.Value, e.Dimension.Range())
}

// CheckClause returns an error if a clause selects values that the dimension can never have. The keys of key sets are
// unknown, so every key is accepted. The error is an [*UndeclaredError] if only the declaration excludes the value.
func (d *Dimension) CheckClause(clause Clause, zone func(name string) (*time.Location, error)) error {
	// Now is so late that the word latest selects a period of every dimension.
	c := Calendar{Now: time.Date(2190, 1, 1, 0, 0, 0, 0, time.UTC), Future: true, Zone: zone}
	for _, item := range clause.Items {
		if err := c.checkItem(d, item); err != nil {
			return err
		}
	}
	return nil
}

func (c Calendar) checkItem(d *Dimension, item Item) error {
	words := isWord(item.First) || isWord(item.Last)
	switch {
	case item.All:
		return nil
	case !d.IsTime():
		if _, err := c.listed(d, &Clause{Items: []Item{item}}); err != nil {
			return err
		}
		if d.Kind == Static && !slices.Contains(d.Values, item.First) {
			return &UndeclaredError{d, item.First}
		}
		return nil
	case !item.isRange():
		return c.checkPeriods(d, item, !words, false)
	case item.First != "" && item.Last != "" && !words:
		return c.checkPeriods(d, item, true, true)
	}
	if item.First != "" {
		if err := c.checkPeriods(d, Item{First: item.First, Last: item.First, ranged: true}, !isWord(item.First), false); err != nil {
			return err
		}
	}
	if item.Last != "" {
		return c.checkPeriods(d, Item{First: item.Last, Last: item.Last, ranged: true}, false, !isWord(item.Last))
	}
	return nil
}

// checkPeriods returns an error if the periods of an item are invalid. If the parameter first is true, the first
// selected period must be declared. If last is true, the last selected period must be declared.
func (c Calendar) checkPeriods(d *Dimension, item Item, first, last bool) error {
	s := New(*d)
	keys, _, err := c.periods(d, &Clause{Items: []Item{item}}, &Chosen{Space: s})
	if err != nil || len(keys) == 0 {
		return err
	}
	members, err := c.Members(s)
	if err != nil {
		return err
	}
	if key := keys[0]; first && !members.HasValue(0, key) {
		return &UndeclaredError{d, key}
	}
	if key := keys[len(keys)-1]; last && !members.HasValue(0, key) {
		return &UndeclaredError{d, key}
	}
	return nil
}
