package release

import (
	"maps"
	"slices"
	"strings"

	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
)

// Kinds of changes, by their effect on downstream data.
const (
	Added       = "added"
	Removed     = "removed"
	Breaking    = "breaking"     // the data of the asset may differ
	NonBreaking = "non-breaking" // the query has additional columns; the existing ones are the same
	GateOnly    = "checks"       // only the checks differ, not the code
	PolicyOnly  = "policy"       // only retries, limits, descriptions and the like differ
)

// Change describes how an asset differs between two releases.
type Change struct {
	Asset string `json:"asset"`
	Kind  string `json:"kind"`
	// OldCode and NewCode are the code fingerprints.
	OldCode string `json:"old_code,omitempty"`
	NewCode string `json:"new_code,omitempty"`
	// Columns are the changed columns of the query's result, if only the select list of the query differs.
	Columns []ColumnChange `json:"columns,omitempty"`
	// Reasons name the other differences, for example query, command, file lib/rates.py or variable days.
	Reasons []string `json:"reasons,omitempty"`
}

// ColumnChange describes how one column of a query's result differs. Kind is [Added], [Removed] or "changed".
type ColumnChange struct {
	Name string `json:"name"`
	Kind string `json:"kind"`
}

// Counts are the numbers of changed assets in the summary of a deployment.
type Counts struct {
	Added, Removed, Changed int
}

// Count returns the number of assets that were added, removed and changed.
func Count(changes []Change) Counts {
	var n Counts
	for _, c := range changes {
		switch c.Kind {
		case Added:
			n.Added++
		case Removed:
			n.Removed++
		default:
			n.Changed++
		}
	}
	return n
}

// Diff compares the code objects of two releases, and returns the differences sorted by asset key. The
// trees of both must come from the same version of the parser: see [Code.WithTrees]. A nil code object has no assets.
func Diff(before, after *Code) []Change {
	var old, now []plan.Asset
	if before != nil {
		old = before.Assets
	}
	if after != nil {
		now = after.Assets
	}
	var changes []Change
	for i, j := 0, 0; i < len(old) || j < len(now); {
		var order int
		switch {
		case i == len(old):
			order = 1
		case j == len(now):
			order = -1
		default:
			order = plan.CompareKeys(old[i].Key, now[j].Key)
		}
		switch {
		case order < 0:
			changes = append(changes, Change{Asset: old[i].Key.String(), Kind: Removed, OldCode: old[i].Code})
			i++
		case order > 0:
			changes = append(changes, Change{Asset: now[j].Key.String(), Kind: Added, NewCode: now[j].Code})
			j++
		default:
			if c, differs := compare(&old[i], &now[j], old, now); differs {
				changes = append(changes, c)
			}
			i, j = i+1, j+1
		}
	}
	return changes
}

func compare(old, now *plan.Asset, olds, nows []plan.Asset) (Change, bool) {
	c := Change{Asset: now.Key.String(), OldCode: old.Code, NewCode: now.Code}
	f, g := fingerprintsOf(old), fingerprintsOf(now)
	switch {
	case f.Code != g.Code:
		c.describe(old, now, olds, nows)
	case f.Gate != g.Gate:
		c.Kind = GateOnly
	case f.Policy != g.Policy:
		c.Kind = PolicyOnly
	default:
		return Change{}, false
	}
	return c, true
}

// describe records the differences between two versions of an asset's code.
func (c *Change) describe(old, now *plan.Asset, olds, nows []plan.Asset) {
	c.Kind = Breaking
	in := func(assets []plan.Asset) func(ids.AssetKey) *plan.Asset {
		return func(key ids.AssetKey) *plan.Asset { return find(assets, key) }
	}
	c.surroundings(surroundingsOf(old, in(olds)), surroundingsOf(now, in(nows)))
	was, is := textOf(old), textOf(now)
	if was.Version != is.Version {
		c.because("version")
		return
	}
	if !slices.Equal(was.Command, is.Command) {
		c.because("command")
	}
	for _, name := range changedKeys(was.Files, is.Files) {
		c.because("file " + name)
	}
	if was.Tree == is.Tree {
		return
	}
	from, to := old.Text.Tree, now.Text.Tree
	if from == nil || to == nil || from.Rest == "" || from.Rest != to.Rest {
		c.because("query")
		return
	}
	c.Columns = columnChanges(from.Columns, to.Columns)
	if len(c.Columns) == 0 {
		c.because("columns of the query")
	}
	if len(c.Reasons) == 0 && from.Extensible && to.Extensible && extends(from, to) {
		c.Kind = NonBreaking
	}
}

func (c *Change) because(reason string) { c.Reasons = append(c.Reasons, reason) }

// surroundings records the differences between two sets of inputs of a code fingerprint.
func (c *Change) surroundings(old, now surroundings) {
	differ := func(reason string, a, b any) {
		if fingerprint(a) != fingerprint(b) {
			c.because(reason)
		}
	}
	differ("kind", old.Kind, now.Kind)
	for _, key := range slices.Sorted(maps.Keys(now.Deps)) {
		if was, ok := old.Deps[key]; !ok {
			c.because("new dependency " + key)
		} else {
			differ("partitions of "+key, was, now.Deps[key])
		}
	}
	for _, key := range slices.Sorted(maps.Keys(old.Deps)) {
		if _, ok := now.Deps[key]; !ok {
			c.because("removed dependency " + key)
		}
	}
	differ("partitions", []any{old.Space, old.Dimensions}, []any{now.Space, now.Dimensions})
	differ("input_format", old.InputFormat, now.InputFormat)
	differ("output", []any{old.Output, old.Text, old.Types}, []any{now.Output, now.Text, now.Types})
	for _, name := range changedKeys(old.Env, now.Env) {
		c.because("env " + name)
	}
	if !slices.Equal(old.Secrets, now.Secrets) {
		c.because("secrets")
	}
	if !slices.Equal(old.Uses, now.Uses) {
		c.because("uses")
	}
	for _, name := range changedKeys(old.Vars, now.Vars) {
		c.because("variable " + name)
	}
}

// changedKeys returns the keys whose values differ.
func changedKeys[V comparable](old, now map[string]V) []string {
	names := map[string]bool{}
	for name, value := range old {
		if other, ok := now[name]; !ok || other != value {
			names[name] = true
		}
	}
	for name := range now {
		if _, ok := old[name]; !ok {
			names[name] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// extends compares the columns of an old query (the parameter "from") with those of a new query (the parameter "to").
// It reports whether the new query has all columns of the old query, in the same order.
func extends(from, to *plan.Tree) bool {
	at := 0
	for _, column := range to.Columns {
		if at < len(from.Columns) && column == from.Columns[at] {
			at++
		} else if at < len(from.Columns) && (from.Positional || to.Positional) {
			return false
		}
	}
	return at == len(from.Columns) && named(from.Columns)
}

// named reports whether all columns have explicit names. Otherwise, the name of a column may depend on its
// expression.
func named(columns []plan.TreeColumn) bool {
	return !slices.ContainsFunc(columns, func(c plan.TreeColumn) bool { return c.Name == "" })
}

// columnChanges returns the columns that differ, by name in lower case. It returns nil if the columns cannot be matched
// by name.
func columnChanges(from, to []plan.TreeColumn) (changes []ColumnChange) {
	old, ok := byName(from)
	now, fine := byName(to)
	if !ok || !fine {
		return nil
	}
	for _, c := range to {
		was, known := old[strings.ToLower(c.Name)]
		switch {
		case !known:
			changes = append(changes, ColumnChange{c.Name, Added})
		case was != c.Hash:
			changes = append(changes, ColumnChange{c.Name, "changed"})
		}
	}
	for _, c := range from {
		if _, kept := now[strings.ToLower(c.Name)]; !kept {
			changes = append(changes, ColumnChange{c.Name, Removed})
		}
	}
	return changes
}

func byName(columns []plan.TreeColumn) (map[string]string, bool) {
	names := make(map[string]string, len(columns))
	for _, c := range columns {
		names[strings.ToLower(c.Name)] = c.Hash
	}
	return names, len(names) == len(columns) && named(columns)
}
