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

var rewrite = flag.Bool("rewrite", false, "write docs/invariants.md, and the map in docs/architecture.md")

const (
	invariantsFile = root + "/docs/invariants.md"
	lastTested     = 10 // each of INV-1 to INV-10 has a test named after it, without exceptions
	lastInvariant  = 33
	notYet         = "Tests: no test has this number yet."
	simulated      = "Tests: no test has this number. The simulation checks the invariant: see [reliability](reliability.md#the-oracle)."
)

// reserved are the numbers of invariants for parts of Servo that do not exist yet.
var reserved = []int{22, 24, 25, 28, 29}

// testOf matches tests that are named after an invariant: TestINV1…, TestI12…. It does not match
// TestIncludes or TestINVALID, which lack the digits.
var testOf = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)I(?:NV)?([0-9]+)(?:[^0-9(][^(]*)?)\(`)

// heading is the pattern of the headings of invariants, such as "## INV-1 Order independence".
var heading = regexp.MustCompile(`^## (INV-[0-9]+|I-[0-9]+) \S`)

// label returns the name of invariant n: INV-1 to INV-10, then I-11 and so on.
func label(n int) string {
	if n <= lastTested {
		return fmt.Sprintf("INV-%d", n)
	}
	return fmt.Sprintf("I-%d", n)
}

// namedTests returns, for the number of each invariant, the tests that are named after it, sorted. Each test is written
// as "`TestX` in pkg/y".
func namedTests(t *testing.T) map[int][]string {
	t.Helper()
	found := map[int][]string{}
	err := filepath.WalkDir(root, func(file string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && file != root && (strings.HasPrefix(entry.Name(), ".") || entry.Name() == "node_modules"):
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

// testList returns the lines that name the tests of invariant n.
func testList(n int, tests []string) []string {
	switch {
	case len(tests) == 0 && n <= lastTested:
		return []string{notYet}
	case len(tests) == 0:
		return []string{simulated}
	}
	lines := []string{"Tests:"}
	for _, test := range tests {
		lines = append(lines, "- "+test)
	}
	return lines
}

func TestEveryInvariantListsItsTests(t *testing.T) {
	tests := namedTests(t)
	for n := range tests {
		require.LessOrEqual(t, n, lastInvariant, "%v: unknown invariant", tests[n])
		require.Positive(t, n, "%v: unknown invariant", tests[n])
	}
	content, err := os.ReadFile(invariantsFile)
	require.NoError(t, err)
	old := strings.Split(string(content), "\n")
	var lines []string
	n, lists := 0, 0
	for i := 0; i < len(old); i++ {
		if match := heading.FindStringSubmatch(old[i]); match != nil {
			for n++; slices.Contains(reserved, n); {
				n++
			}
			require.Equal(t, label(n), match[1], "the invariants must be in order and complete")
		}
		if !strings.HasPrefix(old[i], "Tests:") {
			lines = append(lines, old[i])
			continue
		}
		lists++
		first := i
		for i+1 < len(old) && strings.HasPrefix(old[i+1], "- ") {
			i++
		}
		want := testList(n, tests[n])
		if !*rewrite {
			require.Equal(t, want, old[first:i+1], "%s: update the list with `go test ./internal/arch -rewrite`", label(n))
		}
		lines = append(lines, want...)
	}
	require.Equal(t, lastInvariant, n, "an invariant has no heading")
	require.Equal(t, lastInvariant-len(reserved), lists, "an invariant has no list of tests")
	if *rewrite {
		require.NoError(t, os.WriteFile(invariantsFile, []byte(strings.Join(lines, "\n")), 0o644)) //nolint:gosec // a document
	}
}

func TestFirstTenInvariantsHaveNamedTests(t *testing.T) {
	tests := namedTests(t)
	for n := 1; n <= lastTested; n++ {
		if len(tests[n]) == 0 {
			t.Errorf("no test is named TestINV%d…", n)
		}
	}
}

// INV-7: controllers receive a state and cannot read the ledger, because no package that they import, directly or
// indirectly, can access a store. The check is effective: pkg/dispatcher, for example, would fail it.
func TestINV7ControllersCannotReachLedger(t *testing.T) {
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
	require.Subset(t, []string{"pkg/control", "pkg/state", "pkg/table", "pkg/event", "pkg/ids"}, reached)
}
