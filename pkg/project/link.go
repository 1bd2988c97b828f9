package project

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/quality"
)

// maxSuggestions is the maximum number of unknown names for which a similar name is suggested. The number is limited
// because each search visits every asset.
const maxSuggestions = 200

// link resolves dependencies and reports conflicts between the declarations.
func (l *loader) link() {
	l.checkPools()
	l.dropNameless()
	slices.SortStableFunc(l.assets, func(a, b declared) int { return plan.CompareKeys(a.Key, b.Key) })
	l.dropDuplicates()
	known := make(map[ids.AssetKey]*declared, len(l.assets))
	names := knownNames{}
	for i := range l.assets {
		key := l.assets[i].Key
		known[key] = &l.assets[i]
		names.keys = append(names.keys, key.String())
		names.tables = append(names.tables, key.SQL())
	}
	columns := columnSets{known: known, sets: map[ids.AssetKey]map[string]bool{}}
	lookbacks := lookbackCheck{loader: l, known: known, origins: map[assetColumn]origin{}}
	for i := range l.assets {
		a := &l.assets[i]
		a.Deps, a.CheckDeps, a.Reads = nil, nil, nil
		if a.Requires == plan.RequiresComplete {
			a.Requires = "" // "" means complete, which is the default
		}
		work := map[ids.AssetKey]bool{} // the dependencies of the query or the command itself
		for _, d := range a.deps {
			upstream := known[d.key]
			if upstream == nil {
				l.unbound[a.File] = true
				l.unknownDep(d, &names)
				continue
			}
			switch {
			case upstream.Work.HasFiles():
			case d.check:
				l.report(d.at, "name an asset with rows", "a check reads %s, which has no rows (output: none)", d.key)
			case d.query:
				l.report(d.at, "list it under deps instead", "the query reads %s, but the asset %s has no files (output: none)",
					d.at.word, d.key)
			}
			if l.unreadable[upstream.File] {
				a.Broken = fmt.Sprintf("it reads %s, but %s has problems", d.key, upstream.File)
			}
			a.Deps = append(a.Deps, d.key)
			l.addRead(a, d)
			if !d.check {
				work[d.key] = true
			}
		}
		l.checkInputVariables(a, known)
		slices.SortFunc(a.Deps, plan.CompareKeys)
		a.Deps = slices.Compact(a.Deps)
		for _, key := range a.Deps {
			if !work[key] {
				a.CheckDeps = append(a.CheckDeps, key)
			}
		}
		l.checkMappings(a, known)
		lookbacks.check(a)
		l.linkChecks(a, &columns)
		l.checkItself(a)
		l.checkBatch(a)
		l.linkQuarantine(a)
		l.project.Assets = append(l.project.Assets, a.Asset)
	}
	l.checkQuality(known)
	l.checkAttached()
	l.checkCycles()
	l.linkPublish()
}

// checkInputVariables reports two inputs of a command whose folders would be in the same environment variable.
func (l *loader) checkInputVariables(a *declared, known map[ids.AssetKey]*declared) {
	if len(a.Work.Command) == 0 {
		return
	}
	inputs := map[string]ids.AssetKey{}
	for _, d := range a.deps {
		upstream := known[d.key]
		if d.check || upstream == nil || !upstream.Work.HasFiles() {
			continue
		}
		name := plan.InputVariable(d.key)
		if other, ok := inputs[name]; ok && other != d.key {
			l.report(d.at, "rename one of the assets", "the folders of %s and %s would both be in %s", other, d.key, name)
		}
		inputs[name] = d.key
	}
}

// dropNameless drops the assets without a key. The missing keys have already been reported.
func (l *loader) dropNameless() {
	declares := map[string]bool{}
	for i := range l.assets {
		declares[l.assets[i].File] = true
	}
	for file := range l.unreadable {
		l.nameless = l.nameless || inAssets(file) && !declares[file]
	}
	count := len(l.assets)
	l.assets = slices.DeleteFunc(l.assets, func(a declared) bool { return a.Key == ids.AssetKey{} })
	l.nameless = l.nameless || len(l.assets) < count
}

// checkQuality reports dependencies on which require_quality has no effect, or another effect than the author
// expects.
func (l *loader) checkQuality(known map[ids.AssetKey]*declared) {
	for i := range l.assets {
		a := &l.assets[i]
		for _, d := range a.deps {
			upstream := known[d.key]
			switch {
			case !d.requireQuality || upstream == nil:
			case a.TriggerRule != "" && a.TriggerRule != event.RuleAllSuccess:
				l.report(d.at, "remove one of them", "%s requires the quality of %s, but its trigger_rule is %s, which lets tasks run although their upstreams have not succeeded",
					a.Key, d.key, a.TriggerRule)
			case len(quality.Named(upstream.Work.Checks, quality.Error)) == 0:
				l.report(d.at, "add a check of severity error to "+d.key.String()+", or remove require_quality",
					"%s requires the quality of %s, which has no check of severity error, so its output is never degraded", a.Key, d.key)
			}
		}
	}
}

// addRead records the settings of a dependency.
func (l *loader) addRead(a *declared, d dep) {
	if d.mapping == nil && d.requires == "" && !d.requireQuality {
		return
	}
	if slices.ContainsFunc(a.Reads, func(r plan.Dep) bool { return r.Asset == d.key }) {
		l.report(d.at, "remove one", "deps lists %s twice, each time with settings such as map", d.key)
		return
	}
	read := plan.Dep{Asset: d.key, Requires: d.requires, RequireQuality: d.requireQuality}
	if d.mapping != nil {
		read.Map = *d.mapping
	}
	a.Reads = append(a.Reads, read)
	slices.SortFunc(a.Reads, func(a, b plan.Dep) int { return plan.CompareKeys(a.Asset, b.Asset) })
}

// checkMappings reports dependencies whose partitions cannot be mapped to the partitions of the asset that reads
// them.
func (l *loader) checkMappings(a *declared, known map[ids.AssetKey]*declared) {
	seen := map[ids.AssetKey]bool{}
	for _, declared := range []bool{true, false} { // dependencies with a declared map come first, so that errors contain the position of the map
		for _, d := range a.deps {
			upstream := known[d.key]
			if upstream == nil || seen[d.key] || declared && d.mapping == nil || d.key == a.Key {
				continue
			}
			seen[d.key] = true
			l.checkMapping(a, upstream, d)
		}
	}
}

// dropDuplicates keeps the first asset with each key, in the order of files.
func (l *loader) dropDuplicates() {
	kept := l.assets[:0]
	for _, a := range l.assets {
		if len(kept) > 0 && kept[len(kept)-1].Key == a.Key {
			first := kept[len(kept)-1].at
			l.report(a.at, "", "asset %s is declared twice: first at %s:%d:%d", a.Key, first.file, first.line, first.column)
			l.twice = append(l.twice, first.file)
			continue
		}
		kept = append(kept, a)
	}
	l.assets = kept
}

// checkPools reports pools that servo.yaml does not declare.
func (l *loader) checkPools() {
	for _, p := range l.pools {
		if _, ok := l.project.Pools[p.word]; ok {
			continue
		}
		suggestion := didYouMean(plan.Suggest(p.word, slices.Sorted(maps.Keys(l.project.Pools))))
		if suggestion == "" {
			suggestion = "add it to pools in " + ConfigFile
		}
		l.report(p, suggestion, "unknown pool %s", quoteShort(p.word))
	}
}

// knownNames contains the names of all assets, as keys and as tables. asked is how many unknown names have been
// compared with them.
type knownNames struct {
	keys, tables []string
	asked        int
}

func (l *loader) unknownDep(d dep, names *knownNames) {
	names.asked++
	suggest := func(word string, known []string) string {
		if names.asked > maxSuggestions {
			return ""
		}
		return didYouMean(plan.Suggest(word, known))
	}
	switch {
	case !d.query:
		l.report(d.at, suggest(d.key.String(), names.keys), "unknown asset %s", d.key)
	case d.key == ids.AssetKey{} && !strings.Contains(d.at.word, "."):
		suggestion := suggestTable(d.at.word, names)
		if suggestion == "" {
			suggestion = "write namespace.name"
		}
		l.report(d.at, suggestion, "the table %s has no namespace", quoteShort(d.at.word))
	case d.key == ids.AssetKey{}:
		l.report(d.at, "write namespace.name", "the table %s cannot be an asset", quoteShort(d.at.word))
	default:
		l.report(d.at, suggest(strings.ToLower(d.at.word), names.tables), "no asset for table %s", d.at.word)
	}
}

// suggestTable suggests the table with the given name if exactly one namespace has it.
func suggestTable(word string, names *knownNames) string {
	if names.asked > maxSuggestions {
		return ""
	}
	found := ""
	for _, table := range names.tables {
		if _, name, _ := strings.Cut(table, "."); name == strings.ToLower(word) {
			if found != "" {
				return ""
			}
			found = table
		}
	}
	return didYouMean(found)
}

// checkItself reports an asset that reads itself in another way than [plan.Asset.CheckItself] allows.
func (l *loader) checkItself(a *declared) {
	if !a.ReadsItself() || a.Broken != "" {
		return
	}
	if err := a.CheckItself(); err != nil {
		at := slices.IndexFunc(a.deps, func(d dep) bool { return d.key == a.Key })
		l.report(a.deps[at].at, "", "asset %s reads itself: %s", a.Key, err)
	}
}

// checkBatch reports an asset that cannot have a batch.
func (l *loader) checkBatch(a *declared) {
	if a.Broken != "" || a.partitioned && a.Partitions == nil { // a problem with the partitions was already reported
		return
	}
	if err := a.CheckBatch(); err != nil {
		l.report(a.batchAt, "remove batch", "asset %s cannot have a batch: %s", a.Key, err)
	}
}

// checkCycles reports each cycle at the position where the first asset of the cycle names the next one.
func (l *loader) checkCycles() {
	g, err := plan.NewGraph(l.project.Assets)
	if err != nil {
		panic("project: the graph of checked assets: " + err.Error())
	}
	for _, cycle := range g.Cycles() {
		at, _ := slices.BinarySearchFunc(l.assets, cycle[0], func(a declared, key ids.AssetKey) int { return plan.CompareKeys(a.Key, key) })
		first := &l.assets[at]
		next := cycle[1%len(cycle)]
		where := first.at
		for _, d := range first.deps {
			if d.key == next {
				where = d.at
				break
			}
		}
		for _, key := range cycle {
			a, _ := g.Asset(key)
			l.cyclic = append(l.cyclic, a.File)
		}
		if len(cycle) == 1 {
			continue // [loader.checkItself] reports an asset that reads itself
		}
		var path strings.Builder
		for _, key := range cycle {
			a, _ := g.Asset(key)
			path.WriteString(key.String() + " (" + a.File + ") → ")
		}
		l.report(where, "", "dependency cycle: %s%s", path.String(), cycle[0])
	}
}
