package release

import (
	"fmt"
	"slices"

	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
)

// Input is a loaded project.
type Input struct {
	Settings
	// Assets are sorted by key and have their code fingerprints. Assets whose files are broken may be
	// among them.
	Assets []plan.Asset
	// Parser is the version of the parser that computed the syntax trees of the assets' queries.
	Parser string
	// Source is the hash of the source archive. It is empty if the release has none.
	Source string
	// Problems contains the paths of the files with problems.
	Problems map[string]bool
}

// Compile returns the release of a project. The parameter "previous" is the deployed release, or nil. An asset whose
// text, dependencies and settings are unchanged keeps its deployed fingerprint, even if another version of the parser
// computed it. An asset whose file is broken keeps its deployed definition, and so does an asset that a file with
// problems no longer declares. Assets in files with problems keep their deployed deadlines, freshness and SLAs. If any
// file has problems, alert rules also keep their deployed assets. The parameter "trees" contains the syntax trees of
// the assets' deployed queries, parsed with in.Parser: see [Reparse].
func Compile(in Input, previous *Compiled, trees map[ids.AssetKey]*plan.Tree) (*Compiled, error) {
	m := newMerge(&in, previous)
	m.define(trees)
	m.isolate()
	c := &Code{SchemaVersion: SchemaVersion, Parser: in.Parser, Assets: m.assets}
	in.Watched, in.Alerts = m.watched(), m.alerts()
	r := &Release{SchemaVersion: SchemaVersion, Settings: in.Settings, Source: in.Source, Assets: make([]Asset, len(c.Assets))}
	for i := range c.Assets {
		a := &c.Assets[i]
		r.Assets[i] = Asset{Key: a.Key.String(), Kind: Kind(a), Fingerprints: fingerprintsOf(a)}
		for _, dep := range a.Deps {
			r.Assets[i].Deps = append(r.Assets[i].Deps, dep.String())
		}
	}
	compiled := &Compiled{Release: r, Code: c}
	var err error
	if compiled.Encoded, err = canonical(c); err != nil {
		return nil, fmt.Errorf("encode the code of a release: %w", err)
	}
	r.Code = Hash(compiled.Encoded)
	if compiled.Data, err = canonical(r); err != nil {
		return nil, fmt.Errorf("encode release: %w", err)
	}
	if len(compiled.Data) > MaxBytes || len(compiled.Encoded) > MaxCodeBytes {
		return nil, fmt.Errorf("compile release: it has %d bytes and %d bytes of code; at most %d and %d are allowed: split the project",
			len(compiled.Data), len(compiled.Encoded), MaxBytes, MaxCodeBytes)
	}
	compiled.SHA = Hash(compiled.Data)
	return compiled, nil
}

// unchanged reports whether an asset has the same code as its deployed version, "before". The parameter "tree" is the
// syntax tree of the deployed query, if the query was parsed again.
func unchanged(a, before *plan.Asset, assets, earlier []plan.Asset, tree *plan.Tree) bool {
	if a.Code == before.Code {
		return true
	}
	in := func(assets []plan.Asset) func(ids.AssetKey) *plan.Asset {
		return func(key ids.AssetKey) *plan.Asset { return find(assets, key) }
	}
	now, was := textOf(a), textOf(before)
	switch {
	case a.Text.Version == "" && before.Text.Version == "" && a.Work.SQL == before.Work.SQL:
		was.Tree = now.Tree // the same text
	case tree != nil && before.Text.Version == "":
		was.Tree = tree.Hash
	}
	return fingerprint([]any{surroundingsOf(a, in(assets)), now}) == fingerprint([]any{surroundingsOf(before, in(earlier)), was})
}

// Reparse returns the assets of an earlier release whose queries must be parsed again before [Compile] and [Diff],
// because their syntax trees come from another version of the parser.
func Reparse(previous *Code, parser string) (keys []ids.AssetKey, queries []string) {
	if previous == nil || previous.Parser == parser {
		return nil, nil
	}
	for i := range previous.Assets {
		if a := &previous.Assets[i]; a.Work.SQL != "" {
			keys, queries = append(keys, a.Key), append(queries, a.Work.SQL)
		}
	}
	return keys, queries
}

// WithTrees returns a copy of the code object with other syntax trees, which the given version of the parser has
// computed. The fingerprints stay the same.
func (c *Code) WithTrees(parser string, trees map[ids.AssetKey]*plan.Tree) *Code {
	if len(trees) == 0 {
		return c
	}
	with := *c
	with.Parser, with.Assets = parser, slices.Clone(c.Assets)
	for i := range with.Assets {
		if tree := trees[with.Assets[i].Key]; tree != nil {
			with.Assets[i].Text.Tree = tree
		}
	}
	return &with
}
