package release

import (
	"fmt"
	"slices"
	"strings"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
)

// merge combines a project, in which some files may have problems, with the deployed release.
type merge struct {
	in       *Input
	previous *Compiled
	// assets are the assets of the new release, sorted by key.
	assets []plan.Asset
	// kept contains the assets that keep their deployed definitions. unread contains the assets whose files have
	// problems.
	kept, unread map[ids.AssetKey]bool
}

func newMerge(in *Input, previous *Compiled) *merge {
	if previous == nil {
		previous = &Compiled{Release: &Release{}, Code: &Code{}}
	}
	return &merge{in: in, previous: previous, assets: []plan.Asset{}, kept: map[ids.AssetKey]bool{}, unread: map[ids.AssetKey]bool{}}
}

// define chooses the definition of each asset.
func (m *merge) define(trees map[ids.AssetKey]*plan.Tree) {
	for i := range m.in.Assets {
		a := m.in.Assets[i]
		before := find(m.previous.Code.Assets, a.Key)
		m.unread[a.Key] = m.in.Problems[a.File]
		switch {
		case a.Broken == "" && before != nil && unchanged(&a, before, m.in.Assets, m.previous.Code.Assets, trees[a.Key]):
			a.Code = before.Code
		case a.Broken != "" && before != nil:
			a = *before
			m.kept[a.Key] = true
		case a.Broken != "":
			continue
		}
		m.assets = append(m.assets, a)
	}
	for i := range m.previous.Code.Assets { // a broken YAML file declares none of its assets
		if a := m.previous.Code.Assets[i]; m.in.Problems[a.File] && find(m.in.Assets, a.Key) == nil {
			m.kept[a.Key], m.unread[a.Key] = true, true
			m.assets = append(m.assets, a)
		}
	}
	slices.SortFunc(m.assets, func(a, b plan.Asset) int { return plan.CompareKeys(a.Key, b.Key) })
}

// isolate marks two kinds of assets as broken, and removes their dependencies: assets with a dependency that the
// release does not contain, and assets that keep their deployed definition and are on a cycle. With such
// dependencies, no run of the release could be planned. Code fingerprints do not change, so outputs remain fresh.
func (m *merge) isolate() {
	for i := range m.assets {
		a := &m.assets[i]
		if at := slices.IndexFunc(a.Deps, func(key ids.AssetKey) bool { return find(m.assets, key) == nil }); at >= 0 {
			withoutDeps(a, fmt.Sprintf("it reads %s, which the release does not contain", a.Deps[at]))
		}
	}
	for changed := len(m.kept) > 0; changed; {
		changed = m.breakCycles()
	}
}

// breakCycles marks kept assets on cycles as broken. It returns false if no cycle contains such an asset.
func (m *merge) breakCycles() (changed bool) {
	g, err := plan.NewGraph(m.assets)
	if err != nil {
		return false // the project declares an asset twice
	}
	for _, cycle := range g.Cycles() {
		for _, key := range cycle {
			if a := find(m.assets, key); m.kept[key] && len(a.Deps) > 0 {
				withoutDeps(a, "its file has problems")
				changed = true
			}
		}
	}
	return changed
}

func withoutDeps(a *plan.Asset, why string) {
	a.Broken, a.Deps, a.CheckDeps, a.Reads = why, nil, nil, nil
}

// watched returns the deadlines, freshness and SLAs of the release's assets. Assets in files with problems keep the
// deployed ones.
func (m *merge) watched() []event.WatchedAsset {
	if len(m.in.Problems) == 0 {
		return m.in.Watched
	}
	var all []event.WatchedAsset
	add := func(from []event.WatchedAsset, unread bool) {
		for _, w := range from {
			key, err := ids.ParseAssetKey(w.Asset)
			if err == nil && m.unread[key] == unread && find(m.assets, key) != nil {
				all = append(all, w)
			}
		}
	}
	add(m.in.Watched, false)
	add(m.previous.Watched, true)
	slices.SortFunc(all, func(a, b event.WatchedAsset) int { return strings.Compare(a.Asset, b.Asset) })
	return all
}

// alerts returns the alert rules of the project. If a file has problems, the tags and dependencies in it are unknown,
// and a rule might select too few assets. So a rule also keeps its deployed assets. If a rule with the field "select"
// still has no assets, alerts omits the rule.
func (m *merge) alerts() []event.AlertRule {
	if len(m.in.Problems) == 0 {
		return m.in.Alerts
	}
	var rules []event.AlertRule
	for _, r := range m.in.Alerts {
		if r.Select != "" {
			r.Assets = m.selected(&r)
		}
		if r.Select == "" || len(r.Assets) > 0 {
			rules = append(rules, r)
		}
	}
	return rules
}

// selected returns the assets that a rule selects in the project, and those that it selects in the deployed release.
func (m *merge) selected(r *event.AlertRule) []string {
	names := slices.Clone(r.Assets)
	for _, old := range m.previous.Alerts {
		if old.Name != r.Name || old.Select != r.Select {
			continue
		}
		for _, name := range old.Assets {
			if key, err := ids.ParseAssetKey(name); err == nil && find(m.assets, key) != nil {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
