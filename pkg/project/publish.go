package project

import (
	"errors"
	"path"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/release"
	"github.com/servo-orchestration/servo/pkg/selector"
)

// A published folder shows the files of outputs in one of these ways: as links or as copies.
const (
	modeLink = "link"
	modeCopy = "copy"
)

// maxPlace is the maximum length of the path of a published place, in bytes.
const maxPlace = 1_024

// places holds the fields of `publish` in servo.yaml while that file is read.
type places struct {
	folder, duckdb, mode string
	selection            string
	at, selectAt, modeAt place
	folderAt, duckdbAt   place
}

// publish holds the fields of an asset's `publish` while its file is read.
type publish struct {
	off    bool
	name   string
	mode   string
	at     place
	nameAt place
}

var publishPlacesField = other("publish", placesFields.shape(shape{
	Description: "Where the outputs of assets are published for other tools, and kept up to date. Paths are relative to the project.",
	Examples:    []any{map[string]any{"folder": "./published", "duckdb": "./shop.duckdb", "select": "*"}},
}), func(f yamlFile, n *yaml.Node, p *Project) {
	to := &places{mode: modeLink, at: f.place(n)}
	before := len(f.problems)
	f.mapping(n, "publish", placesFields.fields(f, to))
	f.places, f.published = to, true
	if to.folder == "" && to.duckdb == "" && len(f.problems) == before {
		f.fail(n, "add folder: ./published, or duckdb: ./outputs.duckdb", "publish names no place")
	}
	if overlap(to.folder, to.duckdb) {
		f.report(to.duckdbAt, "choose two paths of which neither contains the other, for example ./published and ./outputs.duckdb",
			"duckdb and folder of publish overlap: Servo stores the links of the DuckDB file in %s.links", to.duckdb)
	}
	if to.folder == "" && to.modeAt != (place{}) {
		f.report(to.modeAt, "remove it, or add folder", "mode describes files in a folder, but publish has no folder")
	}
	p.Publish = &release.Places{Folder: to.folder, DuckDB: to.duckdb}
})

var placesFields = table[places]{
	other("folder", shape{
		Type: "string", MinLength: 1, Examples: []any{"./published"},
		Description: "A folder that gets a folder for each asset and partition, as Hive names them: clean/daily/date=2025-01-01/data.parquet.",
	}, func(f yamlFile, n *yaml.Node, p *places) {
		p.folderAt = f.place(n)
		f.publishPlace(n, "folder", &p.folder)
	}),
	other("mode", shape{
		Enum:        []string{modeLink, modeCopy},
		Description: "link: the folder of a partition is a symbolic link, which is replaced in one step. copy: the folder has copies of the files, which are replaced one by one. Default: link.",
	}, func(f yamlFile, n *yaml.Node, p *places) {
		p.modeAt = f.place(n)
		f.oneOf(n, "mode", []string{modeLink, modeCopy}, &p.mode)
	}),
	other("duckdb", shape{
		Type: "string", MinLength: 1, Examples: []any{"./shop.duckdb"},
		Description: "A DuckDB database that gets a view for each asset: namespace.name.",
	}, func(f yamlFile, n *yaml.Node, p *places) {
		p.duckdbAt = f.place(n)
		f.publishPlace(n, "duckdb", &p.duckdb)
	}),
	other("select", shape{
		Type: "string", MinLength: 1, Examples: []any{"*"},
		Description: "The assets to publish, in addition to assets with publish: true. Assets with publish: false are not published.",
	}, func(f yamlFile, n *yaml.Node, p *places) {
		p.selectAt = f.place(n)
		p.selection, _ = f.text(n, "select")
	}),
}

var publishField = other("publish", shape{
	AnyOf: []*shape{
		{Type: "boolean"},
		new(publishFields.shape(shape{Description: "Publish the asset under another name, or in another mode."})),
	},
	Description: "true: the outputs are published at the places of " + ConfigFile + ". false: the outputs are not published, even if publish.select selects the asset.",
	Examples:    []any{true, map[string]any{"name": "sales/daily", "mode": "copy"}},
}, func(f yamlFile, n *yaml.Node, a *declared) {
	p := &publish{at: f.place(n)}
	a.publish = p
	if n.Kind == yaml.ScalarNode {
		var on bool
		f.boolean(n, "publish", &on)
		p.off = !on
		return
	}
	f.mapping(n, "publish", publishFields.fields(f, p))
})

var publishFields = table[publish]{
	other("name", typed("key", shape{Description: "The name at the published places: namespace/name.", Examples: []any{"sales/daily"}}),
		func(f yamlFile, n *yaml.Node, p *publish) {
			p.nameAt = f.place(n)
			s, ok := f.text(n, "name")
			key, err := ids.ParseAssetKey(s)
			switch {
			case !ok:
			case err != nil || len(key.Namespace) > maxKeyPart || len(key.Name) > maxKeyPart:
				f.fail(n, keySuggestion(s), "invalid name %s: expected namespace/name using a-z, 0-9 and _", quoteShort(s))
			case slices.Contains(reserved, key.Namespace):
				f.fail(n, "use another namespace", "the namespace %s belongs to DuckDB", key.Namespace)
			default:
				p.name = key.String()
			}
		}),
	choice("mode", shape{Description: "How the folder shows the files. Default: `publish.mode` in " + ConfigFile + "."},
		[]string{modeLink, modeCopy}, func(p *publish) *string { return &p.mode }),
}

// overlap reports whether the published folder and the published DuckDB file overlap: the folder contains the file, or
// lies at or below the path of the file or of its folder of links.
func overlap(folder, file string) bool {
	if folder == "" || file == "" {
		return false
	}
	inside := func(name, dir string) bool { return name == dir || strings.HasPrefix(name, dir+"/") }
	folder, file = path.Clean(folder), path.Clean(file)
	return inside(file, folder) || inside(folder, file) || inside(folder, file+".links")
}

// publishPlace reads the path of a place.
func (f yamlFile) publishPlace(n *yaml.Node, what string, to *string) {
	s, ok := f.text(n, what)
	if !ok {
		return
	}
	clean := path.Clean(s)
	first, _, _ := strings.Cut(clean, "/")
	switch {
	case strings.ContainsRune(s, 0) || len(s) > maxPlace || s == "":
		f.fail(n, "", "invalid path %s", quoteShort(s))
	case clean == "." || clean == "/" || clean == "..":
		f.fail(n, "write a path of its own, for example ./published", "%s cannot be %s: this folder has other files", what, quoteShort(s))
	case first == AssetsDir || first == "tests" || first == SchedulesDir || first == ".servo":
		f.fail(n, "choose another path, for example ./published", "%s is in %s, which is read by Servo", quoteShort(s), first)
	default:
		*to = s
	}
}

// checkPlaces reports places in data folders. Queries may read the files of data folders. So a query could read
// published outputs of other assets without a dependency on these assets.
func (l *loader) checkPlaces() {
	if l.places == nil {
		return
	}
	for _, to := range []struct {
		name, path string
		at         place
	}{{"folder", l.places.folder, l.places.folderAt}, {"duckdb", l.places.duckdb, l.places.duckdbAt}} {
		clean := path.Clean(to.path)
		for _, dir := range (&plan.Plan{Data: l.project.Data}).DataFolders() {
			if to.path != "" && dir != "." && (clean == dir || strings.HasPrefix(clean, dir+"/")) {
				l.report(to.at, "choose another path, for example ./published", "%s %s is in the data folder %s, and queries read the files of this folder",
					to.name, quoteShort(to.path), dir)
			}
		}
	}
}

// linkPublish sets how each published asset is published.
func (l *loader) linkPublish() {
	l.checkPlaces()
	chosen := l.selected()
	names := map[string]*declared{}
	for i := range l.assets {
		a := &l.assets[i]
		p := a.publish
		switch {
		case p != nil && !l.published && l.unreadable[ConfigFile]:
			continue // the field publish in servo.yaml may have a problem
		case p != nil && !l.published:
			l.report(p.at, "add publish: {folder: ./published} to "+ConfigFile+", or remove it", "%s names no place where outputs are published", ConfigFile)
			continue
		case l.places == nil || p != nil && p.off || p == nil && !chosen[a.Key.String()]:
			continue
		case !a.Work.HasFiles():
			if p != nil {
				l.report(p.at, "remove publish, or output: none", "the asset has no output that could be published")
			}
			continue
		}
		if p != nil && p.mode != "" && l.places.folder == "" {
			l.report(p.at, "remove mode, or add folder to publish in "+ConfigFile, "mode describes files in a folder, but publish in %s has no folder", ConfigFile)
		}
		published := &plan.Publish{Name: a.Key.String(), Copy: l.places.mode == modeCopy}
		at := a.at
		if p != nil && p.name != "" {
			published.Name, at = p.name, p.nameAt
		}
		if p != nil && p.mode != "" {
			published.Copy = p.mode == modeCopy
		}
		if other := names[published.Name]; other != nil {
			l.report(at, "choose another name", "assets %s and %s are published as %s", other.Key, a.Key, published.Name)
			continue
		}
		names[published.Name] = a
		a.Publish, l.project.Assets[i].Publish = published, published
	}
	if l.places != nil && len(names) == 0 && l.assetsKnown() && !l.problems.files()[ConfigFile] {
		l.report(l.places.at, "add select, or publish: true to an asset", "publish chooses no asset")
	}
}

// selected returns the assets that the selection in servo.yaml chooses.
func (l *loader) selected() map[string]bool {
	if l.places == nil || l.places.selection == "" {
		return nil
	}
	s, err := selector.Parse(l.places.selection)
	if err != nil {
		l.report(l.places.selectAt, "", "select: %v", err)
		return nil
	}
	result, err := selector.NewCatalog(l.project.Assets).Select(selector.Query{Include: s})
	if mistake := (*selector.Error)(nil); errors.As(err, &mistake) && l.certain(l.places.selection) {
		l.report(l.places.selectAt, "", "select: %v", err)
	}
	chosen := map[string]bool{}
	for _, key := range result.Keys {
		chosen[key.String()] = true
	}
	return chosen
}
