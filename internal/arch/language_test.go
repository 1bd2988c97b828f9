package arch_test

import (
	"bufio"
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// forbidden is a pattern of words that readers of technical English do not understand at once.
var forbidden = regexp.MustCompile(`(?i)\b(anew|whoever|thereby|at hand|in vain|of before|of today|mend(s|ed|ing)?|` +
	`carr(y|ies|ied) on|is no more|what there is|(be|is|are|was|were|been) told of|tells? of|time-outs?)\b`)

// unrevised contains the directories whose language nobody has revised yet. Delete a line when its directory follows
// the rules.
var unrevised = []string{}

const (
	maxColumns  = 120 // maximum length of a line in a document, in characters
	maxTestName = 60
	maxSubject  = 72
	// Commits after this one follow the rule for subjects.
	subjectsSince = "b7b86d2"
)

// texts are the extensions of the files whose language is checked. In Go files, only comments and strings are
// checked; in all other files, every line.
var texts = []string{".md", ".go", ".tf", ".yaml", ".sh", ".txtar", ".sql", ".py"}

// checker is this file. It may contain the forbidden words, but only in the variable forbidden.
const checker = "internal/arch/language_test.go"

var forbiddenList = regexp.MustCompile("(?s)\nvar forbidden = .*?`\\)\n")

// withoutForbiddenList replaces the list of forbidden words in this file by empty lines, so that the rest of the file
// can be checked and keeps its line numbers.
func withoutForbiddenList(t *testing.T, text string) string {
	t.Helper()
	found := forbiddenList.FindAllString(text, -1)
	require.Len(t, found, 1, "%s declares its list in another form", checker)
	return strings.Replace(text, found[0], strings.Repeat("\n", strings.Count(found[0], "\n")), 1)
}

func TestLanguageForbiddenWords(t *testing.T) {
	eachText(t, func(path, text string) {
		if path == checker {
			text = withoutForbiddenList(t, text)
		}
		for n, line := range lines(path, text) {
			if word := forbidden.FindString(line); word != "" {
				t.Errorf("%s:%d: the word %q: say it in plain technical English (CONTRIBUTING.md)", path, n, word)
			}
		}
	})
}

// This test skips tables, code blocks and lines that consist of one long link, because they cannot be wrapped.
func TestLanguageDocumentsWrap(t *testing.T) {
	eachText(t, func(path, text string) {
		if !strings.HasSuffix(path, ".md") {
			return
		}
		code := false
		for n, line := range strings.Split(text, "\n") {
			if strings.HasPrefix(strings.TrimSpace(line), "```") {
				code = !code
			}
			if !code && !strings.HasPrefix(line, "|") && strings.Contains(line, " ") && utf8.RuneCountInString(line) > maxColumns {
				t.Errorf("%s:%d: the line has %d columns; wrap it at %d", path, n+1, utf8.RuneCountInString(line), maxColumns)
			}
		}
	})
}

var testFunction = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)\w+)\(`)

func TestLanguageTestNames(t *testing.T) {
	eachText(t, func(path, text string) {
		for _, match := range testFunction.FindAllStringSubmatch(text, -1) {
			if strings.HasSuffix(path, "_test.go") && len(match[1]) > maxTestName {
				t.Errorf("%s: %s has %d characters, at most %d: name the unit and the behaviour", path, match[1], len(match[1]), maxTestName)
			}
		}
	})
}

var subject = regexp.MustCompile(`^[A-Za-z0-9_./*{}, -]+: [a-z].*[^.]$`)

func TestLanguageCommitSubjects(t *testing.T) {
	log := exec.Command("git", "log", "--no-merges", "--format=%h %s", subjectsSince+"..HEAD")
	log.Dir = root
	out, err := log.Output()
	if err != nil {
		t.Skip("no history to read: not a checkout, or a shallow one")
	}
	for line := range strings.Lines(string(out)) {
		id, text, _ := strings.Cut(strings.TrimSpace(line), " ")
		if !subject.MatchString(text) || utf8.RuneCountInString(text) > maxSubject || forbidden.MatchString(text) {
			t.Errorf("commit %s: %q: write `pkg/x: verb object`, in at most %d characters", id, text, maxSubject)
		}
	}
}

func TestLanguageUnrevisedPlacesExist(t *testing.T) {
	for _, place := range unrevised {
		_, err := os.Stat(filepath.Join(root, place))
		require.NoError(t, err, "delete the line of %s from unrevised", place)
	}
}

// eachText calls the function check for every text file outside the directories in unrevised.
func eachText(t *testing.T, check func(path, text string)) {
	err := filepath.WalkDir(root, func(file string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		path, err := filepath.Rel(root, file)
		switch {
		case err != nil:
			return err
		case slices.Contains(unrevised, path), entry.IsDir() && path != "." && strings.HasPrefix(entry.Name(), "."),
			entry.IsDir() && (entry.Name() == "bin" || entry.Name() == "node_modules" || entry.Name() == "testdata"):
			if entry.IsDir() {
				return fs.SkipDir
			}
			return nil
		case entry.IsDir() || !slices.Contains(texts, filepath.Ext(path)) && entry.Name() != "Makefile":
			return nil
		}
		content, err := os.ReadFile(file) //nolint:gosec // the repository's own files
		if err == nil {
			check(path, string(content))
		}
		return err
	})
	require.NoError(t, err)
}

// lines yields the lines that people read, with their numbers: all lines of a document, or the comments and strings of
// a Go file.
func lines(path, text string) func(yield func(int, string) bool) {
	return func(yield func(int, string) bool) {
		if filepath.Ext(path) == ".go" {
			goLines(text, yield)
			return
		}
		s := bufio.NewScanner(strings.NewReader(text))
		for n := 1; s.Scan(); n++ {
			if !yield(n, s.Text()) {
				return
			}
		}
	}
}

func goLines(text string, yield func(int, string) bool) {
	var s scanner.Scanner
	fset := token.NewFileSet()
	file := fset.AddFile("", -1, len(text))
	s.Init(file, []byte(text), nil, scanner.ScanComments)
	for {
		pos, kind, literal := s.Scan()
		if kind == token.EOF {
			return
		}
		if kind != token.COMMENT && kind != token.STRING {
			continue
		}
		for i, line := range strings.Split(literal, "\n") {
			if !yield(file.Line(pos)+i, line) {
				return
			}
		}
	}
}
