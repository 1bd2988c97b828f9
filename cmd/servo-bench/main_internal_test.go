package main

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

// In the test scripts, the command servo-bench runs this test binary.
func TestMain(m *testing.M) { testscript.Main(m, map[string]func(){"servo-bench": main}) }

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{Dir: "testdata", RequireExplicitExec: true, RequireUniqueNames: true})
}

// TestPageListsFlags compares the flags in docs/performance.md with those of the program.
func TestPageListsFlags(t *testing.T) {
	page, err := os.ReadFile("../../docs/performance.md")
	require.NoError(t, err)
	_, section, found := strings.Cut(string(page), "\n### Flags\n")
	require.True(t, found)
	section, _, _ = strings.Cut(section, "\n##")
	named := map[string]bool{}
	for _, m := range regexp.MustCompile(`--([a-z][a-z-]+)`).FindAllStringSubmatch(section, -1) {
		named[m[1]] = true
	}
	flags := map[string]bool{}
	newCommand().Flags().VisitAll(func(f *pflag.Flag) { flags[f.Name] = true })
	newCommand().PersistentFlags().VisitAll(func(f *pflag.Flag) { flags[f.Name] = true })
	require.Equal(t, flags, named)
}
