package arch_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	architectureFile = root + "/docs/architecture.md"
	mapHead          = "| layer | package | purpose |\n| --- | --- | --- |\n"
	noPurpose        = "TODO: say what it is for"
)

// printMap returns the rows of the map in docs/architecture.md. It takes the purposes of the packages from that page.
func printMap(purposes map[string]string) string {
	var b strings.Builder
	for _, l := range layers {
		name := l.name
		for _, p := range l.packages {
			purpose := purposes[p.path]
			if purpose == "" {
				purpose = noPurpose
			}
			mark := ""
			if slices.Contains(stable, p.path) {
				mark = " (stable)"
			}
			fmt.Fprintf(&b, "| %s | `%s`%s | %s |\n", name, p.path, mark, purpose)
			name = ""
		}
	}
	return strings.ReplaceAll(b.String(), "|  |", "| |")
}

// purposesOf returns the purpose of each package in the rows of a map.
func purposesOf(rows string) map[string]string {
	found := map[string]string{}
	for line := range strings.Lines(rows) {
		_, rest, _ := strings.Cut(line, "`")
		name, rest, _ := strings.Cut(rest, "`")
		_, purpose, _ := strings.Cut(rest, "| ")
		found[name] = strings.TrimSuffix(purpose, " |\n")
	}
	return found
}

// The page must show every layer and package of layers_test.go, in the same order. TestLayersOnlyPointUp and
// TestImportsFollowLayers prove that the map has no cycles.
func TestArchitectureShowsMap(t *testing.T) {
	content, err := os.ReadFile(architectureFile)
	require.NoError(t, err)
	before, rest, found := strings.Cut(string(content), mapHead)
	require.True(t, found, "docs/architecture.md has no map")
	rows, after, found := strings.Cut(rest, "\n\n")
	require.True(t, found, "the map is not followed by a paragraph")
	rows += "\n"

	want := printMap(purposesOf(rows))
	if *rewrite {
		page := before + mapHead + want + "\n" + after
		require.NoError(t, os.WriteFile(architectureFile, []byte(page), 0o600))
		rows = want
	}
	if want != rows {
		t.Error("docs/architecture.md shows another map: run make map")
	}
	for line := range strings.Lines(want) {
		if strings.Contains(line, noPurpose) {
			t.Errorf("docs/architecture.md does not say what a package is for: %s", line)
		}
	}
}
