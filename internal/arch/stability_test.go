package arch_test

import (
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// These sentences end the first paragraph of a package comment.
const (
	isStable  = "This package is a stable API."
	notStable = "This package is not a stable API."
)

// introduction returns the first paragraph of the comment of a package, in one line.
func introduction(t *testing.T, dir string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, dir, "*.go"))
	require.NoError(t, err)
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.PackageClauseOnly|parser.ParseComments)
		require.NoError(t, err)
		if parsed.Doc != nil && !strings.HasSuffix(file, "_test.go") {
			first, _, _ := strings.Cut(parsed.Doc.Text(), "\n\n")
			return strings.Join(strings.Fields(first), " ")
		}
	}
	return ""
}

func TestPackagesSayWhetherTheyAreStable(t *testing.T) {
	all := sources(t)
	for _, dir := range stable {
		require.Contains(t, all, dir)
		require.FileExists(t, filepath.Join(root, dir, "example_test.go"), "a stable API has runnable examples")
	}
	for dir, src := range all {
		if !src.hasCode || !strings.HasPrefix(dir, "pkg/") {
			continue
		}
		want := notStable
		if slices.Contains(stable, dir) {
			want = isStable
		}
		if !strings.HasSuffix(introduction(t, dir), " "+want) {
			t.Errorf("%s: end the first paragraph of the package comment with %q", dir, want)
		}
	}
}
