package view

import (
	"slices"
	"strings"
)

// GraphAsset is an asset in the input of [GraphOf].
type GraphAsset struct {
	Key  string   // "namespace/name"
	Deps []string // the keys of the assets that the asset reads
}

// graphGroup is a group of assets, or one asset.
type graphGroup struct {
	id, label string
	parent    *graphGroup
	children  []*graphGroup // empty if the node is an asset
	assets    []string      // sorted
}

// groupAssets returns the tree of groups. The top groups are namespaces. A group with more than
// maxMembers members is split. The keys must be sorted.
func groupAssets(keys []string, maxMembers int) *graphGroup {
	root := &graphGroup{assets: keys}
	byNamespace := runsOf(keys, func(key string) string {
		namespace, _, _ := strings.Cut(key, "/")
		return namespace
	})
	for _, n := range byNamespace {
		g := &graphGroup{id: n.name + "/*", label: n.name, parent: root, assets: n.keys}
		g.split(len(n.name)+1, maxMembers)
		root.children = append(root.children, g)
	}
	root.bound(maxMembers)
	return root
}

// split divides a group into children. The keys in the group have a common prefix of prefixLen bytes.
func (g *graphGroup) split(prefixLen, maxMembers int) {
	if len(g.assets) <= maxMembers {
		for _, key := range g.assets {
			_, name, _ := strings.Cut(key, "/")
			g.children = append(g.children, &graphGroup{id: key, label: name, parent: g, assets: []string{key}})
		}
		return
	}
	parts := runsOf(g.assets, func(key string) string {
		if at := strings.IndexByte(key[prefixLen:], '_'); at >= 0 {
			return key[:prefixLen+at+1]
		}
		return key
	})
	if len(parts) > maxMembers || len(parts) == 1 {
		g.splitByRange(maxMembers)
		return
	}
	for _, p := range parts {
		_, name, _ := strings.Cut(p.name, "/")
		child := &graphGroup{id: p.name, label: name, parent: g, assets: p.keys}
		if len(p.keys) > 1 || p.keys[0] != p.name {
			child.id, child.label = p.name+"*", name+"*"
			child.split(len(p.name), maxMembers)
		}
		g.children = append(g.children, child)
	}
}

// splitByRange splits a group into alphabetical ranges of equal size.
func (g *graphGroup) splitByRange(maxMembers int) {
	size := maxMembers
	for (len(g.assets)+size-1)/size > maxMembers {
		size *= maxMembers
	}
	for part := range slices.Chunk(g.assets, size) {
		_, first, _ := strings.Cut(part[0], "/")
		_, last, _ := strings.Cut(part[len(part)-1], "/")
		child := &graphGroup{id: part[0] + ".." + last, label: first + " … " + last, parent: g, assets: part}
		if len(part) > maxMembers {
			child.splitByRange(maxMembers)
		} else {
			child.split(0, maxMembers)
		}
		g.children = append(g.children, child)
	}
}

// bound groups the children of the root by alphabetical ranges, until there are at most maxMembers groups.
func (g *graphGroup) bound(maxMembers int) {
	for len(g.children) > maxMembers {
		var grouped []*graphGroup
		for part := range slices.Chunk(g.children, maxMembers) {
			first, last := part[0], part[len(part)-1]
			span := &graphGroup{id: first.id + ".." + last.id, label: first.label + " … " + last.label, parent: g, children: slices.Clone(part)}
			for _, child := range part {
				child.parent = span
				span.assets = append(span.assets, child.assets...)
			}
			grouped = append(grouped, span)
		}
		g.children = grouped
	}
}

// namedKeys are keys with a common name.
type namedKeys struct {
	name string
	keys []string
}

// runsOf groups adjacent keys with the same name. The keys are sorted, so keys with the same name are adjacent.
func runsOf(keys []string, name func(string) string) []namedKeys {
	var all []namedKeys
	for _, key := range keys {
		if n := name(key); len(all) == 0 || all[len(all)-1].name != n {
			all = append(all, namedKeys{name: n})
		}
		last := &all[len(all)-1]
		last.keys = append(last.keys, key)
	}
	return all
}
