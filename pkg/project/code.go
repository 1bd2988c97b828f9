package project

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/servo-orchestration/servo/pkg/release"
)

// Limits of the files that are part of an asset's code.
const (
	// maxCodeFile is the largest file. A larger one that a query or a command names is data.
	maxCodeFile = 16 << 20
	// maxCodeFiles limits the files that the patterns of an asset match.
	maxCodeFiles = 10_000
	maxPatterns  = 100
)

// globPattern matches patterns of files below the project: parts with * and ?, and ** for any number
// of folders. No part begins with a dot.
const globPattern = `^(\*\*|[^./*?\[\]\\][^/\[\]\\]*|[*?][^/\[\]\\]*)(/(\*\*|[^./\[\]\\][^/\[\]\\]*))*$`

var validPattern = regexp.MustCompile(globPattern)

var (
	codeField = other("code", shape{
		Type: "array", Items: &shape{Type: "string", Pattern: globPattern}, MaxItems: maxPatterns,
		Description: "Further files of the project that decide what the asset contains, as patterns with *, ? and **: " +
			"a change of one makes its partitions stale.",
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
			f.fail(item, "write code: [scripts/**]",
				`invalid pattern %s: expected files of the project, with slashes, without "..", hidden names and [`, quoteShort(pattern))
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
	hashes map[string]string   // "" for a file that is not part of any code
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
	}
	release.SetCodes(l.project.Assets)
}

// collect adds the files of an asset's code: those that the query or the command names, and those
// that match the patterns under code.
func (c *codeReader) collect(a *declared) {
	named := a.files
	for _, word := range a.Work.Command {
		named = append(named, word)
		if _, value, ok := strings.Cut(word, "="); ok {
			named = append(named, value)
		}
	}
	for _, name := range named {
		name = path.Clean(name)
		if !fs.ValidPath(name) || name == "." || strings.ContainsAny(name, "*?[") {
			continue
		}
		if hash, ok := c.hash(name); ok && hash != "" {
			a.addFile(name, hash)
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
		for _, name := range matched {
			hash, ok := c.hash(name)
			if !ok || hash == "" {
				c.report(pattern, "leave it out", "the file %s cannot be part of the code: it cannot be read, or is larger than %d MiB",
					quoteShort(name), maxCodeFile>>20) //nolint:mnd // bytes in a MiB
				continue
			}
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

// hash returns the hash of a file, and whether the file exists. The hash is empty for a file that
// is too large, and for one that is not a regular file.
func (c *codeReader) hash(name string) (hash string, exists bool) {
	if hash, ok := c.hashes[name]; ok {
		return hash, true
	}
	info, err := fs.Stat(c.files, name)
	if err != nil {
		return "", false
	}
	if info.Mode().IsRegular() && info.Size() <= maxCodeFile {
		hash = c.read16(name)
	}
	c.hashes[name] = hash
	return hash, true
}

// read16 returns the first 16 bytes of the SHA-256 of a file, or "" if it cannot be read.
func (c *codeReader) read16(name string) string {
	f, err := c.files.Open(name)
	if err != nil {
		return ""
	}
	sum := sha256.New()
	n, err := io.Copy(sum, io.LimitReader(f, maxCodeFile+1))
	if err = errors.Join(err, f.Close()); err != nil || n > maxCodeFile {
		return ""
	}
	return hex.EncodeToString(sum.Sum(nil)[:16]) //nolint:mnd // see above
}

// match returns the files that match a pattern.
func (c *codeReader) match(pattern place) (matched []string) {
	fixed := pattern.word
	if i := strings.IndexAny(fixed, "*?"); i >= 0 {
		fixed = fixed[:i]
	} else if _, err := fs.Stat(c.files, fixed); err == nil {
		return []string{fixed}
	}
	folder := path.Dir(fixed + "x")
	expression := regexp.MustCompile("^" + strings.NewReplacer(
		`\*\*/`, `(?:[^/]+/)*`, `\*\*`, `.+`, `\*`, `[^/]*`, `\?`, `[^/]`).Replace(regexp.QuoteMeta(pattern.word)) + "$")
	for _, name := range c.below(folder) {
		if expression.MatchString(name) {
			matched = append(matched, name)
		}
	}
	return matched
}

// below returns the files below a folder, without hidden ones.
func (c *codeReader) below(folder string) []string {
	if names, ok := c.folder[folder]; ok {
		return names
	}
	var names []string
	_ = fs.WalkDir(c.files, folder, func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return fs.SkipDir // the pattern then matches fewer files
		case strings.HasPrefix(entry.Name(), ".") && name != ".":
			if entry.IsDir() {
				return fs.SkipDir
			}
		case entry.Type().IsRegular():
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
