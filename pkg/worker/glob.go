package worker

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// fixedFolder splits a path before its first part with a wildcard. Without wildcards, pattern is empty.
func fixedFolder(path string) (folder, pattern string) {
	i := strings.IndexAny(path, "*?[")
	if i < 0 {
		return path, ""
	}
	i = strings.LastIndexByte(path[:i], '/')
	return path[:i], path[i+1:]
}

// globber finds out whether the patterns of queries match hidden files.
type globber struct {
	*lister
	left int // number of entries that may still be listed
}

// matchesHidden reports whether a pattern below a folder matches a file or a folder that queries cannot read. Queries
// cannot read hidden files, the state folder or files behind a symbolic link to a folder. If there are too many files
// to check, matchesHidden also reports true.
func (g *globber) matchesHidden(dir string, pattern []string, inHidden bool) bool {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return false // DuckDB cannot read the folder either
	}
	if g.left -= len(entries); g.left < 0 {
		return true
	}
	if pattern[0] == "**" {
		return g.recursively(dir, entries, pattern, inHidden)
	}
	matches := matcher(pattern[0])
	for _, entry := range entries {
		if !matches(entry.Name()) {
			continue
		}
		hidden := inHidden || g.isHidden(dir, entry)
		link := entry.Type()&fs.ModeSymlink != 0
		switch {
		case len(pattern) == 1:
			if hidden {
				return true
			}
		case entry.IsDir() || link:
			if g.matchesHidden(filepath.Join(dir, entry.Name()), pattern[1:], hidden || link) {
				return true
			}
		}
	}
	return false
}

// recursively is the part of matchesHidden for patterns that begin with **, which matches any number of folders.
func (g *globber) recursively(dir string, entries []fs.DirEntry, pattern []string, inHidden bool) bool {
	rest := pattern[1:]
	if len(rest) == 0 {
		rest = []string{"*"}
	}
	if g.matchesHidden(dir, rest, inHidden) {
		return true
	}
	for _, entry := range entries {
		hidden := inHidden || g.isHidden(dir, entry)
		if entry.IsDir() && g.matchesHidden(filepath.Join(dir, entry.Name()), pattern, hidden) {
			return true
		}
	}
	return false
}

// isHidden reports whether an entry of a folder is hidden from queries: its name begins with a dot,
// or it is the state folder.
func (l *lister) isHidden(dir string, entry fs.DirEntry) bool {
	return strings.HasPrefix(entry.Name(), ".") || entry.IsDir() && l.isState(filepath.Join(dir, entry.Name()))
}

var bracket = regexp.MustCompile(`\[(!?)([^\[\]\\^]+)\]`)

// matcher returns a function that reports whether a name matches one part of a pattern. If it is uncertain how DuckDB
// interprets the part, the function accepts all names.
func matcher(part string) func(name string) bool {
	all := func(string) bool { return true }
	if strings.ContainsAny(bracket.ReplaceAllString(part, ""), `[]\`) {
		return all
	}
	var expression strings.Builder
	literal := func(text string) {
		text = strings.ReplaceAll(regexp.QuoteMeta(text), `\*`, ".*")
		expression.WriteString(strings.ReplaceAll(text, `\?`, "."))
	}
	at := 0
	for _, m := range bracket.FindAllStringSubmatchIndex(part, -1) {
		literal(part[at:m[0]])
		expression.WriteString("[" + strings.Replace(part[m[2]:m[3]], "!", "^", 1) + part[m[4]:m[5]] + "]")
		at = m[1]
	}
	literal(part[at:])
	compiled, err := regexp.Compile("(?s)^" + expression.String() + "$")
	if err != nil {
		return all // the pattern has an empty range, such as [z-a]
	}
	return compiled.MatchString
}
