package selector

import (
	"errors"
	"slices"
	"strings"

	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
)

// Catalog holds the assets that selections choose from.
type Catalog struct {
	keys       []ids.AssetKey // sorted
	index      map[ids.AssetKey]int32
	names      map[string][]int32
	tags       map[string][]int32
	owners     map[string][]int32
	upstream   [][]int32
	downstream [][]int32
}

// NewCatalog returns the catalog of a project's assets, which may be in any order. It ignores
// dependencies on assets that the project does not declare.
func NewCatalog(assets []plan.Asset) *Catalog {
	order := make([]int, len(assets))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return plan.CompareKeys(assets[a].Key, assets[b].Key) })
	c := &Catalog{
		keys: make([]ids.AssetKey, len(assets)), index: make(map[ids.AssetKey]int32, len(assets)),
		names: make(map[string][]int32, len(assets)), tags: map[string][]int32{}, owners: map[string][]int32{},
		upstream: make([][]int32, len(assets)), downstream: make([][]int32, len(assets)),
	}
	for n, i := range order {
		at := int32(n) //nolint:gosec // a project has at most 20,000 assets
		a := &assets[i]
		c.keys[n], c.index[a.Key] = a.Key, at
		c.names[a.Key.Name] = append(c.names[a.Key.Name], at)
		for _, tag := range a.Tags {
			c.tags[tag] = append(c.tags[tag], at)
		}
		for _, owner := range a.Owners {
			c.owners[owner] = append(c.owners[owner], at)
		}
	}
	for n, i := range order {
		for _, dep := range assets[i].Deps {
			if up, ok := c.index[dep]; ok && up != int32(n) { //nolint:gosec // as above
				c.upstream[n] = append(c.upstream[n], up)
				c.downstream[up] = append(c.downstream[up], int32(n)) //nolint:gosec // as above
			}
		}
	}
	return c
}

// Query describes which assets to select.
type Query struct {
	Include *Selection
	// Exclude selects assets that are removed from the result. If it is nil, no assets are removed.
	Exclude *Selection
	// Upstream adds every asset on which the included assets depend. Downstream adds every asset that depends on them.
	Upstream, Downstream bool
}

// Result contains the assets that a query selects. All lists are sorted.
type Result struct {
	// Keys are the selected assets.
	Keys []ids.AssetKey
	// Named are the selected assets that the selection names explicitly. Matched are all other selected assets, which
	// were found through a pattern, a tag, an owner or another asset.
	Named, Matched []ids.AssetKey
	// Roots are the selected assets, except those that were added as upstream or downstream assets. If only added
	// assets are left, Roots contains all of them.
	Roots []ids.AssetKey
}

// Select returns the assets that a query selects. Its error is an [*Error] if a name is unknown or
// ambiguous, if a pattern, a tag or an owner matches no asset, or if nothing is selected.
func (c *Catalog) Select(q Query) (Result, error) {
	e := evaluation{catalog: c}
	selected := e.grow(e.eval(q.Include.root), q.Upstream, q.Downstream)
	named := c.none()
	e.named(q.Include.root, named, false)
	e.flat = true
	roots := e.eval(q.Include.root)
	e.flat = false
	text := q.Include.String()
	if q.Exclude != nil {
		text += " without " + q.Exclude.String()
		selected = selected.and(e.eval(q.Exclude.root).complement(len(c.keys)))
	}
	switch {
	case len(e.errs) > 0:
		return Result{}, errors.Join(e.errs...)
	case selected.empty():
		return Result{}, errorf("selection %q matches no asset: list the assets with `servo assets`", text)
	}
	r := Result{
		Keys: c.keysIn(selected), Named: c.keysIn(named.and(selected)), Matched: c.keysIn(selected.and(named.complement(len(c.keys)))),
		Roots: c.keysIn(roots.and(selected)),
	}
	if len(r.Roots) == 0 {
		r.Roots = r.Keys
	}
	return r, nil
}

func (c *Catalog) none() set { return newSet(len(c.keys)) }

// keysIn returns the keys in a set.
func (c *Catalog) keysIn(s set) []ids.AssetKey {
	var keys []ids.AssetKey
	s.each(func(i int32) { keys = append(keys, c.keys[i]) })
	return keys
}

// match reports whether a text matches a pattern. * matches any characters.
func match(pattern, text string) bool {
	first, rest, star := strings.Cut(pattern, "*")
	if !star {
		return pattern == text
	}
	if !strings.HasPrefix(text, first) {
		return false
	}
	text = text[len(first):]
	for {
		part, after, more := strings.Cut(rest, "*")
		if !more {
			return strings.HasSuffix(text, part)
		}
		at := strings.Index(text, part)
		if at < 0 {
			return false
		}
		text, rest = text[at+len(part):], after
	}
}
