package plan

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/space"
)

// chooser decides which partitions of each asset the run materializes.
type chooser struct {
	*builder
	asked map[ids.AssetKey]bool // the assets that the request names
	// deferred are the assets whose periods the selections do not restrict. Their periods follow from the partitions of
	// their readers in the run. If no asset of the run reads a deferred asset, its periods follow from the partitions of
	// its upstream assets.
	deferred []*node
	// unselected are the partitioned assets of a request without a selection of partitions.
	unselected []*Asset
	// applied says, for each selection, whether the selection restricts an asset of the run.
	applied []bool
	// values are the selected values. used reports, for each of them, whether at least one asset declares it.
	values []string
	used   map[string]bool
	// advised maps a value to the advice for an asset that lacks it.
	advised map[string]string
	total   int
}

// selectAssets decides which partitions of which assets the run materializes.
func (b *builder) selectAssets() error {
	named, err := b.named()
	if err != nil {
		return err
	}
	chosen := slices.Concat(b.closure(named), b.request.Matched)
	b.chosen, b.involved = setOf(chosen), b.graph.upstreamOrder(chosen)
	c := chooser{builder: b, asked: setOf(named), applied: make([]bool, len(b.request.Partitions)), used: map[string]bool{}, advised: map[string]string{}}
	partitioned := false
	for _, key := range b.involved {
		if !b.chosen[key] {
			continue
		}
		asset, _ := b.graph.Asset(key)
		if asset.Broken != "" {
			if c.asked[key] {
				b.errs = append(b.errs, fmt.Errorf("asset %s cannot be materialized: %s: run `servo validate`", key, asset.Broken))
			}
			b.plan.LeftOut = append(b.plan.LeftOut, key.String())
			b.omitted[key] = nil
			continue
		}
		partitioned = partitioned || asset.Partitions != nil
		if err := c.choose(asset); errors.As(err, new(*tooManyError)) {
			return err
		} else if err != nil {
			b.errs = append(b.errs, err)
		}
	}
	if b.request.ChecksOnly {
		c.dropDeferred()
	}
	c.resolveDeferred()
	if err := c.withoutSelection(); err != nil {
		b.errs = append(b.errs, err)
	}
	if len(b.errs) > 0 {
		return joinSome(b.errs)
	}
	if c.total > b.most {
		return b.tooMany()
	}
	for _, key := range b.involved {
		if n := b.nodes[key]; n != nil {
			b.order = append(b.order, n)
		}
	}
	if len(b.request.Partitions) > 0 && !partitioned {
		return fmt.Errorf("no selected asset is partitioned, but partitions are selected (%s): remove %s, or select a partitioned asset",
			someOf(selectionTexts(b.request.Partitions)), b.request.Form.Name(OptionPartitions))
	}
	return c.checkUsed()
}

func selectionTexts(selections []Selection) []string {
	texts := make([]string, len(selections))
	for i, s := range selections {
		texts[i] = s.String()
	}
	return texts
}

// choose adds the node of an asset. The node contains those selected partitions that the asset declares.
func (c *chooser) choose(a *Asset) error {
	if c.request.ChecksOnly {
		return c.chooseChecked(a)
	}
	return c.chooseAny(a)
}

// chooseAny is [chooser.choose] for a run that materializes, not only checks.
func (c *chooser) chooseAny(a *Asset) error {
	if c.request.Only != nil {
		return c.add(&node{asset: a}, c.request.Only[a.Key])
	}
	if a.Partitions == nil {
		return c.add(&node{asset: a}, []string{""})
	}
	if set := c.request.Calendar.EmptySet(a.Partitions); set != "" {
		if c.asked[a.Key] {
			return fmt.Errorf("asset %s %s", a.Key, withoutKeys(set))
		}
		c.warn("%s %s", a.Key, withoutKeys(set))
		return nil
	}
	keys := map[string]bool{}
	open, matched := false, false
	var mismatch error
	for i, s := range c.request.Partitions {
		known, err := c.fitting(a, s)
		if err != nil {
			mismatch = err
			continue
		}
		if len(known.Clauses) == 0 && !known.Everything {
			continue
		}
		c.applied[i], matched = true, true
		chosen, err := c.request.Calendar.Resolve(a.Partitions, known)
		if err != nil {
			return fmt.Errorf("asset %s: %w", a.Key, err)
		}
		c.noteSelection(s, chosen)
		if at := timeOf(a.Partitions); at >= 0 && !chosen.Restricted[at] {
			open = true
			continue
		}
		if err := c.collect(a, chosen, keys); err != nil {
			return err
		}
	}
	switch {
	case len(c.request.Partitions) == 0:
		c.unselected = append(c.unselected, a)
		return nil
	case mismatch != nil && !matched:
		return mismatch
	case c.asked[a.Key] && open:
		return fmt.Errorf("asset %s is partitioned by %s (%s): select its %s too, for example %s",
			a.Key, dimensionNames(a.Partitions), rangeOf(a.Partitions), a.Partitions.Time().Name, c.request.example(a.Partitions))
	case !matched || open && len(keys) == 0:
		c.deferred = append(c.deferred, &node{asset: a})
		return nil
	}
	return c.add(&node{asset: a}, slices.Sorted(maps.Keys(keys)))
}

// withoutSelection returns an error if the request selects partitioned assets but none of their partitions.
func (c *chooser) withoutSelection() error {
	switch len(c.unselected) {
	case 0:
		return nil
	case 1:
		a := c.unselected[0]
		return fmt.Errorf("asset %s is partitioned by %s (%s): select partitions, for example %s",
			a.Key, dimensionNames(a.Partitions), rangeOf(a.Partitions), c.request.example(a.Partitions))
	}
	names := make([]string, len(c.unselected))
	for i, a := range c.unselected {
		names[i] = a.Key.String()
	}
	form := c.request.Form
	return fmt.Errorf("%d selected assets are partitioned (%s): select partitions with %s, for example %s, or run what is stale or missing with %s",
		len(names), someOf(names), form.Name(OptionPartitions), form.Select("all"), form.Name(OptionStale))
}

// fitting returns a selection with only those clauses that restrict dimensions of an asset. If the request names the
// asset, the asset must have every dimension that the selection restricts.
func (c *chooser) fitting(a *Asset, s Selection) (Selection, error) {
	known := Selection{Everything: s.Everything}
	for _, clause := range s.Clauses {
		if clause.Dimension == "" && a.Partitions.Time() != nil || a.Partitions.Dimension(clause.Dimension) != nil {
			known.Clauses = append(known.Clauses, clause)
		} else if c.asked[a.Key] {
			return Selection{}, fmt.Errorf("asset %s is partitioned by %s, not by %s: select %s",
				a.Key, dimensionNames(a.Partitions), clause.Dimension, c.request.example(a.Partitions))
		}
	}
	return known, nil
}

// noteSelection records a selection in the plan. For a relative selection, such as latest, it records the dates that
// the selection means.
func (c *chooser) noteSelection(s Selection, chosen *space.Chosen) {
	text := s.String()
	if s.Relative() {
		text = chosen.Text
	}
	if !slices.Contains(c.plan.Selected, text) {
		c.plan.Selected = append(c.plan.Selected, text)
	}
}

// collect adds the selected keys that an asset declares.
func (c *chooser) collect(a *Asset, chosen *space.Chosen, keys map[string]bool) error {
	members, err := c.request.Calendar.Members(a.Partitions)
	if err != nil {
		return err
	}
	for _, skipped := range chosen.Skipped {
		c.warn("%s has no partition %s=%s: the time zone %s skipped it", a.Key, a.Partitions.Time().Name, skipped, a.Partitions.Time().Zone())
	}
	for i, values := range chosen.Values {
		name := a.Partitions.Dimensions[i].Name
		declared := make([]string, 0, len(values))
		for _, v := range values {
			has := members.HasValue(i, v)
			if chosen.Restricted[i] {
				c.note(name+"="+v, has)
			}
			if has {
				declared = append(declared, v)
				continue
			}
			advice := c.advice(&a.Partitions.Dimensions[i], v)
			if c.asked[a.Key] {
				return fmt.Errorf("asset %s has no partition %s=%s: %s", a.Key, name, v, advice)
			}
			c.advised[name+"="+v] = advice
		}
		chosen.Values[i] = declared
	}
	product, err := a.Partitions.Product(chosen.Values, c.most)
	if err != nil {
		return c.tooMany()
	}
	for _, key := range product {
		keys[key] = true
	}
	return nil
}

// advice returns advice about a selected value that a dimension does not have, for an error message.
func (c *chooser) advice(d *space.Dimension, value string) string {
	if d.Kind != space.Dynamic {
		return "it has " + d.Range()
	}
	text := fmt.Sprintf("add it with `servo partitions add %s %s`", d.Set, quoted(value))
	if near := Suggest(value, c.request.Calendar.Keys(d.Set)); near != "" {
		return "did you mean " + near + "? Or " + text
	}
	return text
}

// quoted quotes a text so that a shell reads it as one word.
func quoted(word string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("_-.:/@", r)
	}
	if word != "" && word[0] != '-' && strings.IndexFunc(word, func(r rune) bool { return !plain(r) }) < 0 {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// withoutKeys returns the last part of an error message about an asset whose key set is empty.
func withoutKeys(set string) string {
	return fmt.Sprintf("has no partitions, because the key set %s has no keys: add them with `servo partitions add %s KEY…`", set, set)
}

// note records that a value is selected, and whether the current asset declares it.
func (c *chooser) note(value string, declared bool) {
	before, known := c.used[value]
	if !known {
		c.values = append(c.values, value)
	}
	c.used[value] = before || declared
}

// add adds a node with its partitions.
func (c *chooser) add(n *node, keys []string) error {
	if c.request.ChecksOnly {
		var err error
		if n, keys, err = c.withOutput(n, keys); err != nil {
			return err
		}
	}
	if len(keys) == 0 {
		return nil
	}
	if c.total += len(keys); c.total > c.most {
		return c.tooMany()
	}
	keys = inOrder(n.asset, keys)
	n.keys, n.at = keys, make(map[string]int, len(keys))
	n.tasks = make([]string, len(keys))
	for i, key := range keys {
		partition, err := ids.ParsePartition(key)
		if err != nil {
			return err
		}
		n.at[key] = i
		n.tasks[i] = ids.TaskKey(n.asset.Key, partition)
	}
	c.nodes[n.asset.Key] = n
	return nil
}

// resolveDeferred chooses the partitions of each deferred asset: the partitions that are read by the chosen partitions
// of other assets. If there are none, it chooses the partitions that read the chosen partitions of other assets.
func (c *chooser) resolveDeferred() {
	slices.Reverse(c.deferred) // readers first
	left := c.deferred[:0]
	for _, n := range c.deferred {
		if !c.fill(n, c.readBy(n)) {
			left = append(left, n)
		}
	}
	slices.Reverse(left)
	for _, n := range left {
		if !c.fill(n, c.readersIn(n)) {
			c.errs = append(c.errs, fmt.Errorf("asset %s is partitioned by %s (%s), and the selected partitions do not determine which of its partitions are needed: add %s",
				n.asset.Key, dimensionNames(n.asset.Partitions), rangeOf(n.asset.Partitions), c.request.example(n.asset.Partitions)))
		}
	}
}

// fill adds a node with the given partitions, and reports whether there are any.
func (c *chooser) fill(n *node, keys map[string]bool) bool {
	if len(keys) == 0 {
		return false
	}
	if err := c.add(n, slices.Sorted(maps.Keys(keys))); err != nil {
		c.errs = append(c.errs, err)
	}
	return true
}

// readBy returns the partitions of a deferred asset that have begun and that the chosen partitions read.
func (c *chooser) readBy(n *node) map[string]bool {
	keys := map[string]bool{}
	for _, down := range c.nodes {
		if !slices.Contains(down.asset.Deps, n.asset.Key) {
			continue
		}
		edge, err := c.readers.Of(down.asset.Key, n.asset.Key)
		if err != nil || edge.ReadsAll() || edge.ReadsLatest() {
			continue // addTasks reports the error
		}
		for _, key := range down.keys {
			image, err := edge.Image(key)
			if err != nil {
				continue
			}
			for _, k := range image.Keys {
				if !keys[k] && edge.Begun(k) {
					keys[k] = true
				}
			}
		}
	}
	return keys
}

// readersIn returns the partitions of a deferred asset that have begun and that read chosen partitions.
func (c *chooser) readersIn(n *node) map[string]bool {
	keys := map[string]bool{}
	for _, dep := range n.asset.Deps {
		up := c.nodes[dep]
		if up == nil {
			continue
		}
		edge, err := c.readers.Of(n.asset.Key, dep)
		if err != nil || edge.ReadsAll() || edge.ReadsLatest() {
			continue
		}
		for _, key := range up.keys {
			if back, all, err := edge.Preimage(key); err == nil && !all {
				for _, k := range back {
					if !keys[k] && edge.ReaderBegun(k) {
						keys[k] = true
					}
				}
			}
		}
	}
	return keys
}

// checkUsed returns an error if a selection applies to no asset of the run, or if no asset of the run declares a
// selected value.
func (c *chooser) checkUsed() error {
	for i, applied := range c.applied {
		if !applied {
			return fmt.Errorf("no selected asset has the dimensions of %s: select other partitions", c.request.Form.Select(c.request.Partitions[i].String()))
		}
	}
	var unused []string
	for _, v := range c.values {
		if !c.used[v] {
			unused = append(unused, v)
		}
	}
	if len(unused) == 1 && strings.Contains(c.advised[unused[0]], "servo partitions add") {
		return fmt.Errorf("no selected asset has partition %s: %s", unused[0], c.advised[unused[0]])
	}
	if len(unused) > 0 {
		return fmt.Errorf("no selected asset has partition %s: select other partitions", someOf(unused))
	}
	return nil
}

// timeOf returns the position of the dimension of time, or -1.
func timeOf(s *space.Space) int {
	return slices.IndexFunc(s.Dimensions, func(d space.Dimension) bool { return d.IsTime() })
}

func dimensionNames(s *space.Space) string {
	names := make([]string, len(s.Dimensions))
	for i := range s.Dimensions {
		names[i] = s.Dimensions[i].Name
	}
	return strings.Join(names, " and ")
}

// rangeOf formats the declared partitions: "2012-01-01 to 2015-12-31".
func rangeOf(s *space.Space) string {
	if len(s.Dimensions) == 1 {
		return s.Dimensions[0].Range()
	}
	return s.Range()
}

// example returns a selection of declared partitions. It selects the whole range of time, or the first period if the
// range has no end, and all values of the other dimensions.
func (r *Request) example(s *space.Space) string {
	clauses := make([]string, len(s.Dimensions))
	for i := range s.Dimensions {
		d := &s.Dimensions[i]
		clauses[i] = d.Name + "=*"
		if d.IsTime() {
			clauses[i] = d.Name + "=" + space.Item{First: d.Start, Last: cmp.Or(d.End, d.Start)}.String()
		}
	}
	return r.Form.Select(strings.Join(clauses, ";"))
}
