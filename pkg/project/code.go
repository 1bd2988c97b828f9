package project

import (
	"io/fs"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/servo-orchestration/servo/pkg/quality"
	"github.com/servo-orchestration/servo/pkg/release"
	"github.com/servo-orchestration/servo/pkg/source"
)

// Limits of the files that are part of an asset's code.
const (
	// maxMatched is the maximum total size, in bytes, of the files that match a pattern of a query. If the files are
	// larger, the code covers only their sizes, not their content.
	maxMatched = 64 << 20
	// maxCodeFiles is the maximum number of files that the patterns of an asset match.
	maxCodeFiles = 10_000
	maxPatterns  = 100
)

// globPattern matches patterns of files below the project. The parts of such a pattern may contain * and ?. A part **
// matches any number of folders. No part begins with a dot.
const globPattern = `^(\*\*|[^./*?\[\]\\][^/\[\]\\]*|[*?][^/\[\]\\]*)(/(\*\*|[^./\[\]\\][^/\[\]\\]*))*$`

var validPattern = regexp.MustCompile(globPattern)

var (
	codeField = other("code", shape{
		Type: "array", Items: &shape{Type: "string", Pattern: globPattern}, MaxItems: maxPatterns,
		Description: "Further files of the project that decide what the asset contains, as patterns with *, ? and **: " +
			"a change of such a file makes the partitions stale.",
		Examples: []any{[]any{"scripts/**"}},
	}, func(f yamlFile, n *yaml.Node, a *declared) { f.codeFiles(n, a) })
	versionField = other("version", shape{
		AnyOf: []*shape{
			{Type: "string", Pattern: namePattern.String()},
			{Type: "integer", Minimum: new(int64), Maximum: new(int64(maxVersion))},
		},
		Description: "The version of the code. With it, a change of the query, of the command or of its files makes nothing stale " +
			"until the version changes.",
		Examples: []any{2},
	}, func(f yamlFile, n *yaml.Node, a *declared) { f.version(n, &a.Text.Version) })
)

const maxVersion = 1_000_000_000

func (f yamlFile) version(n *yaml.Node, to *string) {
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!int" {
		if _, ok := f.integer(n, "version", 0, maxVersion); ok {
			*to = n.Value
		}
		return
	}
	f.setName(n, "version", to)
}

// codeFiles reads the patterns of the files that are part of an asset's code.
func (f yamlFile) codeFiles(n *yaml.Node, a *declared) {
	f.each(n, "code", func(item *yaml.Node) {
		pattern, ok := f.text(item, "an item of code")
		switch {
		case !ok:
		case !validPattern.MatchString(pattern):
			f.fail(item, "write a path in the project, for example scripts/**; separate folders by slashes, and use no .., no [ and no names that begin with a dot",
				"invalid pattern %s", quoteShort(pattern))
		default:
			a.code = append(a.code, f.place(item))
		}
	})
	if len(a.code) > maxPatterns {
		f.fail(n, "", "an asset may have at most %d patterns under code", maxPatterns)
		a.code = nil
	}
}

// codeReader finds and hashes files of the project. Each file is read once.
type codeReader struct {
	*loader
	hashes map[string]string   // "": the file cannot be part of any code
	folder map[string][]string // the files below a folder, by folder
}

// fingerprint fills in the files and the code fingerprints of the assets.
func (l *loader) fingerprint() {
	c := codeReader{loader: l, hashes: map[string]string{}, folder: map[string][]string{}}
	for i := range l.assets {
		if a := &l.assets[i]; !l.unreadable[a.File] {
			c.collect(a)
		}
	}
	for i := range l.project.Assets {
		l.project.Assets[i].Text = l.assets[i].Text
		if !l.unreadable[l.assets[i].File] {
			c.collectChecks(l.project.Assets[i].Work.Checks)
		}
	}
	release.SetCodes(l.project.Assets)
}

// collect adds to an asset's code the files that its query or command names, and those that match the patterns of its
// setting `code`.
func (c *codeReader) collect(a *declared) {
	named := a.files
	for _, word := range a.Work.Command {
		named = append(named, word)
		if _, value, ok := strings.Cut(word, "="); ok {
			named = append(named, value)
		}
	}
	for _, name := range named {
		name = c.relative(name)
		switch {
		case !fs.ValidPath(name) || name == ".":
		case strings.ContainsAny(name, "*?["):
			c.collectMatches(a, name)
		default:
			if hash, ok := c.hash(name); ok && hash != "" {
				a.addFile(name, hash)
			}
		}
	}
	for _, pattern := range a.code {
		matched := c.match(pattern)
		switch {
		case len(matched) == 0:
			c.report(pattern, "", "the pattern %s matches no file of the project", quoteShort(pattern.word))
		case len(matched) > maxCodeFiles:
			c.report(pattern, "name fewer", "the pattern %s matches more than %d files", quoteShort(pattern.word), maxCodeFiles)
			matched = nil
		}
		c.linkedFolders(pattern)
		for _, name := range matched {
			if info, err := fs.Stat(c.files, name); err == nil && info.IsDir() && strings.Contains(pattern.word, "**") {
				continue // linkedFolders has reported this link
			}
			hash, ok := c.hash(name)
			if !ok || hash == "" {
				c.report(pattern, "leave it out", "the file %s cannot be part of the code: it cannot be read", quoteShort(name))
				continue
			}
			a.addFile(name, hash)
		}
	}
}

// collectChecks adds files to each check that is a command: the files that the command names.
func (c *codeReader) collectChecks(checks []quality.Check) {
	for i := range checks {
		for _, name := range checks[i].Command {
			if name = c.relative(name); !fs.ValidPath(name) || name == "." {
				continue
			}
			hash, _ := c.hash(name)
			if hash == "" {
				continue
			}
			if checks[i].Files == nil {
				checks[i].Files = map[string]string{}
			}
			checks[i].Files[name] = hash
		}
	}
}

// linkedFolders reports symbolic links to folders that a pattern with ** would have to follow. The files in these
// folders would not be part of the code.
func (c *codeReader) linkedFolders(pattern place) {
	fixed, _, deep := strings.Cut(pattern.word, "**")
	if !deep {
		return
	}
	if i := strings.IndexAny(fixed, "*?"); i >= 0 {
		fixed = fixed[:i]
	}
	for _, name := range c.filesBelow(path.Dir(fixed + "x")) {
		if info, err := fs.Stat(c.files, name); err == nil && info.IsDir() {
			c.report(pattern, "name the folder itself, or replace the link", "%s is a symbolic link to a folder, whose files are not part of the code", quoteShort(name))
		}
	}
}

// relative returns the name of a file relative to the project, if it is in the project.
func (c *codeReader) relative(name string) string {
	name = strings.TrimPrefix(name, "file://")
	if path.IsAbs(name) {
		if below, err := filepath.Rel(c.project.Root, filepath.FromSlash(name)); err == nil {
			name = filepath.ToSlash(below)
		}
	}
	return path.Clean(name)
}

// collectMatches adds to the code of an asset the files that its query reads through a pattern. It ignores
// partitioned assets: their partitions usually read different files, so a new file would wrongly make all partitions
// stale.
func (c *codeReader) collectMatches(a *declared, pattern string) {
	if a.Work.SQL == "" || a.Partitions != nil {
		return
	}
	matched := c.match(place{word: pattern})
	if len(matched) > maxCodeFiles {
		matched = nil // there are too many files: see docs/reference/assets.md#staleness
	}
	total, sizes := int64(0), map[string]string{}
	for _, name := range matched {
		if info, err := fs.Stat(c.files, name); err == nil {
			total += info.Size()
			sizes[name] = source.SizeText(info)
		}
	}
	for _, name := range matched {
		if total > maxMatched {
			a.addFile(name, sizes[name])
		} else if hash, _ := c.hash(name); hash != "" {
			a.addFile(name, hash)
		}
	}
}

func (a *declared) addFile(name, hash string) {
	if a.Text.Files == nil {
		a.Text.Files = map[string]string{}
	}
	a.Text.Files[name] = hash
}

// hash returns the text that stands for a file in fingerprints (see [source.FileText]), and whether the file exists.
func (c *codeReader) hash(name string) (hash string, exists bool) {
	if hash, ok := c.hashes[name]; ok {
		return hash, true
	}
	if _, err := fs.Stat(c.files, name); err != nil {
		return "", false
	}
	c.hashes[name] = source.FileText(c.files, name)
	return c.hashes[name], true
}

// match returns the files that match a pattern.
func (c *codeReader) match(pattern place) (matched []string) {
	fixed := pattern.word
	if i := strings.IndexAny(fixed, "*?["); i >= 0 {
		fixed = fixed[:i]
	} else if _, err := fs.Stat(c.files, fixed); err == nil {
		return []string{fixed}
	}
	folder := path.Dir(fixed + "x")
	expression, err := regexp.Compile("^" + strings.NewReplacer(`\*\*/`, `(?:[^/]+/)*`, `\*\*`, `.+`, `\*`, `[^/]*`, `\?`, `[^/]`,
		`\[!`, `[^`, `\[`, `[`, `\]`, `]`).Replace(regexp.QuoteMeta(pattern.word)) + "$")
	if err != nil {
		return nil // only the patterns of queries have brackets, and DuckDB reports invalid patterns
	}
	for _, name := range c.filesBelow(folder) {
		if expression.MatchString(name) {
			matched = append(matched, name)
		}
	}
	return matched
}

// filesBelow returns the files and the symbolic links below a folder, except hidden ones.
func (c *codeReader) filesBelow(folder string) []string {
	if names, ok := c.folder[folder]; ok {
		return names
	}
	var names []string
	_ = fs.WalkDir(c.files, folder, func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return fs.SkipDir // in an unreadable folder, the pattern matches nothing
		case strings.HasPrefix(entry.Name(), ".") && name != ".":
			if entry.IsDir() {
				return fs.SkipDir
			}
		case entry.Type().IsRegular(), entry.Type()&fs.ModeSymlink != 0: // a link represents the file that it names
			if names = append(names, name); len(names) > MaxFiles {
				return errEnough
			}
		}
		return nil
	})
	slices.Sort(names)
	c.folder[folder] = names
	return names
}

// namesOfFiles returns the files that a query names: as arguments of functions, and as tables.
func namesOfFiles(p Parsed) []string {
	names := slices.Clone(p.Files)
	for _, ref := range p.Refs {
		if _, what := ref.classify(); what == refElse && ref.Schema == "" && ref.Catalog == "" {
			names = append(names, ref.Table)
		}
	}
	return names
}
