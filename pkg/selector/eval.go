package selector

import (
	"fmt"
	"maps"
	"math/bits"
	"slices"
	"strings"

	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
)

// evaluation evaluates the selections of one query.
type evaluation struct {
	catalog *Catalog
	// flat makes the evaluation report no errors, and ignore the plus signs, which add upstream and downstream assets.
	flat bool
	errs []error
}

// eval returns the assets that x matches. It records the operands that match no asset.
func (e *evaluation) eval(x *expr) set {
	switch x.op {
	case opOr, opAnd:
		result := e.eval(x.args[0])
		for _, arg := range x.args[1:] {
			if x.op == opOr {
				result = result.or(e.eval(arg))
			} else {
				result = result.and(e.eval(arg))
			}
		}
		return result
	case opNot:
		return e.eval(x.args[0]).complement(len(e.catalog.keys))
	case opNear:
		inner := e.eval(x.args[0])
		if e.flat {
			return inner
		}
		return near(e.catalog.upstream, inner, x.up).or(near(e.catalog.downstream, inner, x.down))
	case opName:
		return e.name(x)
	case opPattern:
		return e.matching(x, e.pattern(x.text))
	case opTag:
		return e.labelled(x, e.catalog.tags)
	case opOwner:
		return e.labelled(x, e.catalog.owners)
	}
	panic("selector: unknown operation")
}

// grow returns the assets in s and, if the flags are set, all of their upstream or downstream assets.
func (e *evaluation) grow(s set, upstream, downstream bool) set {
	grown := s
	if upstream {
		grown = grown.or(near(e.catalog.upstream, s, allLevels))
	}
	if downstream {
		grown = grown.or(near(e.catalog.downstream, s, allLevels))
	}
	return grown
}

// named adds the assets that x names to the set found. If negated is true, x is inside an odd number of "not"
// operators. The names in x then exclude their assets, so named omits these assets.
func (e *evaluation) named(x *expr, found set, negated bool) {
	if x.op == opName && !negated {
		if at, ok := e.catalog.find(x.text); ok {
			found.add(at)
		}
	}
	for _, arg := range x.args {
		e.named(arg, found, negated != (x.op == opNot))
	}
}

func (e *evaluation) fail(format string, args ...any) {
	if !e.flat {
		e.errs = append(e.errs, errorf(format, args...))
	}
}

// find returns the asset with a key or a name, if exactly one asset has it.
func (c *Catalog) find(text string) (int32, bool) {
	namespace, name, full := strings.Cut(text, "/")
	if full {
		at, ok := c.index[ids.AssetKey{Namespace: namespace, Name: name}]
		return at, ok
	}
	if found := c.names[text]; len(found) == 1 {
		return found[0], true
	}
	return 0, false
}

// name returns the asset that x names.
func (e *evaluation) name(x *expr) set {
	s := e.catalog.none()
	at, ok := e.catalog.find(x.text)
	switch several := e.catalog.names[x.text]; {
	case ok:
		s.add(at)
	case len(several) > 0:
		var keys []string
		for _, at := range several {
			keys = append(keys, e.catalog.keys[at].String())
		}
		e.fail("ambiguous name %q: %s: write the namespace", x.text, some(keys))
	default:
		e.fail("unknown asset %q: %s", x.text, e.didYouMean(e.nearName(x.text)))
	}
	return s
}

// nearName returns the key or the name that is most similar to an unknown one.
func (e *evaluation) nearName(text string) string {
	if e.flat || len(e.errs) > 0 {
		return "" // search for the first error only, because each search visits every asset
	}
	if !strings.Contains(text, "/") {
		return plan.Suggest(text, slices.Sorted(maps.Keys(e.catalog.names)))
	}
	keys := make([]string, len(e.catalog.keys))
	for i, key := range e.catalog.keys {
		keys[i] = key.String()
	}
	return plan.Suggest(text, keys)
}

func (e *evaluation) didYouMean(word string) string {
	if word == "" {
		return "list the assets with `servo assets`"
	}
	return "did you mean " + word + "?"
}

// pattern returns the assets that match a pattern.
func (e *evaluation) pattern(text string) set {
	s := e.catalog.none()
	namespace, name, _ := strings.Cut(text, "/")
	last, inside := "", false // the keys are sorted, so assets of a namespace are adjacent
	for i, key := range e.catalog.keys {
		if key.Namespace != last {
			last, inside = key.Namespace, match(namespace, key.Namespace)
		}
		if text == "*" || inside && match(name, key.Name) {
			s.add(int32(i)) //nolint:gosec // a project has at most 20,000 assets
		}
	}
	return s
}

// matching returns s, the assets that x matches. If s is empty, it records an error for x.
func (e *evaluation) matching(x *expr, s set) set {
	if s.empty() {
		e.fail("selection %q matches no asset: list the assets with `servo assets`", x.operand())
	}
	return s
}

// labelled returns the assets with a tag or an owner.
func (e *evaluation) labelled(x *expr, labels map[string][]int32) set {
	s := e.catalog.none()
	for _, at := range labels[x.text] {
		s.add(at)
	}
	if s.empty() && !e.flat {
		word := ""
		if similar := plan.Suggest(x.text, slices.Sorted(maps.Keys(labels))); similar != "" {
			word = (&expr{op: x.op, text: similar}).operand()
		}
		e.fail("selection %q matches no asset: %s", x.operand(), e.didYouMean(word))
	}
	return s
}

// some joins the first five texts and counts the others.
func some(texts []string) string {
	const most = 5
	if len(texts) <= most {
		return strings.Join(texts, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(texts[:most], ", "), len(texts)-most)
}

// near returns the assets in s, and the assets that are at most the given number of levels upstream or downstream of
// an asset in s.
func near(next [][]int32, s set, levels int) set {
	seen := s.clone()
	var front []int32
	s.each(func(i int32) { front = append(front, i) })
	for ; levels != 0 && len(front) > 0; levels-- {
		var far []int32
		for _, i := range front {
			for _, j := range next[i] {
				if !seen.has(j) {
					seen.add(j)
					far = append(far, j)
				}
			}
		}
		front = far
	}
	return seen
}

// set is a set of assets, one bit for each.
type set []uint64

const wordBits = 64

func newSet(n int) set { return make(set, (n+wordBits-1)/wordBits) }

func (s set) add(i int32)      { s[i/wordBits] |= 1 << (i % wordBits) }
func (s set) has(i int32) bool { return s[i/wordBits]&(1<<(i%wordBits)) != 0 }
func (s set) clone() set       { return slices.Clone(s) }

func (s set) empty() bool {
	return !slices.ContainsFunc(s, func(word uint64) bool { return word != 0 })
}

func (s set) or(t set) set {
	s = s.clone()
	for i := range s {
		s[i] |= t[i]
	}
	return s
}

func (s set) and(t set) set {
	s = s.clone()
	for i := range s {
		s[i] &= t[i]
	}
	return s
}

// complement returns those of the n assets that are not in s.
func (s set) complement(n int) set {
	s = s.clone()
	for i := range s {
		s[i] = ^s[i]
	}
	if rest := n % wordBits; rest > 0 {
		s[len(s)-1] &= 1<<rest - 1
	}
	return s
}

func (s set) each(f func(i int32)) {
	for n, word := range s {
		for ; word != 0; word &= word - 1 {
			f(int32(n*wordBits + bits.TrailingZeros64(word))) //nolint:gosec // a project has at most 20,000 assets
		}
	}
}
