package arch_test

import (
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var rewrite = flag.Bool("rewrite", false, "write the lists of tests into docs/invariants.md")

const (
	invariantsFile = root + "/docs/invariants.md"
	lastTested     = 10 // INV-1 to INV-10 have a test of their own; no exceptions
	lastInvariant  = 18
	notYet         = "Tests: none of that name yet."
	simulated      = "Tests: none of that name; the simulation checks it, see [reliability](reliability.md)."
)

// testOf is a test that is named after an invariant: TestINV1…, TestI12…. The
// capital letters keep TestIncludes out, and the digits, TestINVALID.
var testOf = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)I(?:NV)?([0-9]+)(?:[^0-9(][^(]*)?)\(`)

// heading is "## INV-1 Order independence".
var heading = regexp.MustCompile(`^## (INV-[0-9]+|I-[0-9]+) \S`)

// label is how an invariant is called: the first ten are the engine's own, the
// others of the architecture.
func label(n int) string {
	if n <= lastTested {
		return fmt.Sprintf("INV-%d", n)
	}
	return fmt.Sprintf("I-%d", n)
}

// namedTests finds the tests of the repository that are named after an
// invariant: by its number, "TestX in pkg/y", sorted.
func namedTests(t *testing.T) map[int][]string {
	t.Helper()
	found := map[int][]string{}
	err := filepath.WalkDir(root, func(file string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && file != root && strings.HasPrefix(entry.Name(), "."):
			return fs.SkipDir
		case !strings.HasSuffix(file, "_test.go"):
			return nil
		}
		content, err := os.ReadFile(file) //nolint:gosec // the repository's own files
		if err != nil {
			return err
		}
		dir, err := filepath.Rel(root, filepath.Dir(file))
		if err != nil {
			return err
		}
		for _, match := range testOf.FindAllStringSubmatch(string(content), -1) {
			n, err := strconv.Atoi(match[2])
			if err != nil {
				return err
			}
			found[n] = append(found[n], fmt.Sprintf("`%s` in %s", match[1], filepath.ToSlash(dir)))
		}
		return nil
	})
	require.NoError(t, err)
	for _, tests := range found {
		slices.Sort(tests)
	}
	return found
}

// held is the line that says which tests hold an invariant.
func held(n int, tests []string) string {
	switch {
	case len(tests) == 0 && n <= lastTested:
		return notYet
	case len(tests) == 0:
		return simulated
	}
	return "Tests: " + strings.Join(tests, ", ") + "."
}

func TestEveryInvariantIsDocumentedWithTheTestsThatHoldIt(t *testing.T) {
	tests := namedTests(t)
	for n := range tests {
		require.LessOrEqual(t, n, lastInvariant, "%v: there is no such invariant", tests[n])
		require.Positive(t, n, "%v: there is no such invariant", tests[n])
	}
	content, err := os.ReadFile(invariantsFile)
	require.NoError(t, err)
	lines := strings.Split(string(content), "\n")
	n := 0
	for i, line := range lines {
		if match := heading.FindStringSubmatch(line); match != nil {
			n++
			require.Equal(t, label(n), match[1], "the invariants are in order, and none is missing")
			continue
		}
		if !strings.HasPrefix(line, "Tests: ") {
			continue
		}
		if *rewrite {
			lines[i] = held(n, tests[n])
			continue
		}
		require.Equal(t, held(n, tests[n]), line,
			"%s: `go test ./internal/arch -rewrite` writes what is there", label(n))
	}
	require.Equal(t, lastInvariant, n, "an invariant has no heading")
	require.Equal(t, lastInvariant, strings.Count(string(content), "\nTests: "), "an invariant has no line of tests")
	if *rewrite {
		require.NoError(t, os.WriteFile(invariantsFile, []byte(strings.Join(lines, "\n")), 0o644)) //nolint:gosec // a document
	}
}

func TestEachOfTheTenInvariantsHasATestOfItsName(t *testing.T) {
	tests := namedTests(t)
	for n := 1; n <= lastTested; n++ {
		if len(tests[n]) == 0 {
			t.Errorf("no test is named TestINV%d…", n)
		}
	}
}

// INV-7: controllers are handed state. What they import, they and what they
// import in turn, has no way to a store, and so none to the ledger. Seen to fail
// with pkg/dispatcher in the place of pkg/control.
func TestINV7ControllersHaveNoWayToTheLedger(t *testing.T) {
	all := sources(t)
	seen := map[string]bool{}
	queue := []string{"pkg/control"}
	for len(queue) > 0 {
		dir := queue[0]
		queue = queue[1:]
		if seen[dir] {
			continue
		}
		seen[dir] = true
		require.Contains(t, all, dir)
		for _, name := range all[dir].imports {
			require.NotContains(t, banned, name, "%s imports %s", dir, name)
			if ours(name) {
				queue = append(queue, name)
			}
		}
	}
	reached := []string{}
	for dir := range seen {
		reached = append(reached, dir)
	}
	require.Subset(t, []string{"pkg/control", "pkg/state", "pkg/event", "pkg/ids"}, reached)
}
